"""What the benchmark shares of torch: its types, its errors, and its libraries, which choose their kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gemm_model.bench.provider import Config, KernelError, OutOfMemoryError, UnsupportedError
from gemm_model.core.dtypes import names_in
from gemm_model.core.problem import GemmProblem

TORCH_DTYPES = {
    name: getattr(torch, theirs) for theirs, name in names_in("torch").items() if "int" not in name
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of an element type's name; UnsupportedError where torch has none."""
    found = TORCH_DTYPES.get(name)
    if found is None:
        raise UnsupportedError(f"torch has no type for {name}")
    return found


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, of at most 200 characters."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


@contextmanager
def as_kernel_errors(*kinds: type[BaseException], wanted: type[KernelError] = KernelError) -> Iterator[None]:
    """Raise OutOfMemoryError where the card is full, and `wanted` for errors of these kinds."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemoryError(first_line(error)) from error
    except kinds as error:
        raise wanted(first_line(error)) from error


class TorchLibrary:
    """One row a problem, with the kernel that the library picks; it is compiled before."""

    name: str

    def __init__(self) -> None:
        self._tried: GemmProblem | None = None

    def configs(self, *_: object) -> Sequence[Config]:
        return (None,)

    def kernel_key(self, *_: object) -> Hashable:
        return self.name

    def compile(self, *_: object) -> None:
        """Nothing to do: the library is compiled."""

    def _try(self, problem: GemmProblem, call: Callable[[], Any]) -> None:
        """Call once for each problem: what the library refuses is said before anything is timed.

        Raises KernelError.
        """
        if self._tried == problem:
            return
        with as_kernel_errors(RuntimeError):
            call()
        self._tried = problem
