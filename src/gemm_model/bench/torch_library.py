"""What providers of torch's own libraries share: these choose their kernels themselves, compiled before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gemm_model.bench.provider import Config
from gemm_model.bench.torch_errors import as_kernel_errors
from gemm_model.core.problem import GemmProblem


class TorchLibrary:
    """One row a problem, with the kernel that the library picks."""

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
