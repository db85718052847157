"""The interface behind which kernel libraries are benchmarked.

A provider turns (problem, config) into something that can be launched; timing, checking, order, resume and
tables are common code. A module under `bench/` registers its provider's loader in `PROVIDERS`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, Protocol, runtime_checkable

from gemm_model.config import CONFIG_DIR, read_toml, read_yaml_mapping
from gemm_model.config.numbers import room_numbers
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, importing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Copies of weights (B), activations (A) and outputs; launch i takes copy i modulo their number."""

    weights: int
    activations: int
    outputs: int

    def footprint_bytes(self, problem: GemmProblem) -> float:
        """Distinct bytes that one turn touches."""
        operands = self.activations * problem.a_bytes + self.weights * problem.b_bytes
        return operands + self.outputs * problem.output_bytes


def rotation_of(problem: GemmProblem, l2_bytes: float, asked: int = 0) -> Rotation:
    """The rotation with cold operands, or with `asked` copies of the weights unless that is 0."""
    chosen = room_numbers("bench")

    def cold_copies(size_bytes: float) -> int:
        return max(2, -int(-chosen.cold_l2_multiple * l2_bytes // size_bytes))

    weights = asked or min(int(chosen.most_copies), cold_copies(problem.b_bytes))
    return Rotation(
        weights=weights,
        activations=min(weights, cold_copies(problem.a_bytes)),
        outputs=min(weights, cold_copies(problem.output_bytes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryChoice:
    """A kernel that the library itself proposes for the problem."""

    rank: int
    """Place among the library's proposals, its favourite first, counted from 0."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise InputError(f"heuristic_rank is {self.rank}; expected a whole number from 0")


Config = KernelConfig | LibraryChoice | None
"""A kernel's configuration; None for a library that always chooses its kernel itself."""


@cache
def swept() -> Mapping[str, Any]:
    """Parts of the configurations of sweeps by name, as `configs_of` takes them; read when first asked."""
    return read_yaml_mapping(CONFIG_DIR / "sweeps.yaml", "configurations")


def configs_of(space: Mapping[str, Sequence[Any]], **fixed: Any) -> list[KernelConfig]:
    """Configurations with every combination of the values of their parts; a part may be several fields at once:
    {"cta_m cta_n": [[128, 256], [256, 128]], "swizzle": [1, 8]}.
    """
    parts = [
        [dict(zip(names.split(), each if " " in names else [each], strict=True)) for each in values]
        for names, values in space.items()
    ]
    return [KernelConfig(**fixed, **ChainMap(*each)) for each in product(*parts)]


Launch = Callable[[], object]
"""Enqueues the kernel once on the current stream and returns without waiting for it."""


class KernelError(Exception):
    """One kernel could not be built, launched or trusted; the run goes on with the next row."""

    disposition = "launch_failed"


class CompileError(KernelError):
    """The kernel's compiler refused it."""

    disposition = "compile_failed"


class UnsupportedError(KernelError):
    """The library has no kernel for this."""

    disposition = "unsupported"


class IncorrectResultError(KernelError):
    """The kernel ran and its numbers are wrong."""

    disposition = "incorrect"


class OutOfMemoryError(KernelError):
    """The GPU has no room for the operands."""

    disposition = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Device tensors of one problem: out[m, n] = a[m, k] x b[n, k]^T, each with its last axis contiguous.

    Block-scaled problems also carry `a_scale` and `b_scale`, in the layout that the hardware reads. B of a
    grouped problem is [groups, n, k]. `extras` are the tensors of an epilogue by its words, the `bounds` of
    groups, and block scales that software applies. `scratch` is memory for a kernel's own use, such as
    partial sums; without it, the kernel allocates at each launch.
    """

    a: Any
    b: Any
    out: Any
    a_scale: Any = None
    b_scale: Any = None
    scratch: Any = None
    extras: dict[str, Any] = field(default_factory=dict)


class Provider(Protocol):
    """One library of GEMM kernels."""

    name: str
    """Value of the `kernel` column."""

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        """Why the types of `problem` cannot run on such a GPU; empty if they can."""

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        """The configurations worth timing, in a fixed order; (None,) if the library chooses."""

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        """A key that rows with the same compiled kernel share, so that it is compiled once. Raises
        KernelError.
        """

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        """Put the kernel into the cache on disk; needs no GPU. Raises CompileError."""

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        """A callable that launches the kernel on `operands`. Raises KernelError."""


@runtime_checkable
class DescribingProvider(Provider, Protocol):
    """A provider whose kernels are known only once they are built: its library chooses or completes them."""

    def describe(self, problem: GemmProblem, config: Config, operands: Operands) -> Mapping[str, Any]:
        """Table cells of the kernel that runs: tile, cluster, stages, name. Raises KernelError."""


PROVIDERS: dict[str, str] = read_toml("providers")
"""Provider name -> 'module:class'; the module is imported only when the provider is asked for."""


def load_provider(name: str) -> Provider:
    """The provider called `name`, or found at 'module:class'.

    Raises InputError for an unknown name, MissingExtraError where its library is not installed.
    """
    target = PROVIDERS.get(name, name)
    module_name, separator, class_name = target.partition(":")
    if not separator:
        raise InputError(f"unknown kernel provider {name!r}; expected one of {', '.join(PROVIDERS)}")
    needs = f"kernel provider {name!r} needs the package {{name}}: pip install 'gemm-model[bench,libraries]'"
    with importing(needs):
        provider: Provider = getattr(import_module(module_name), class_name)()
    return provider
