"""cuBLAS through torch, the time that users compare with. Kernel names identify its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gemm_model.bench.cublas_names import cells_of_names
from gemm_model.bench.launched_kernels import named_kernels
from gemm_model.bench.problem_kinds import BATCH_COLUMNS, beyond, epilogue_words
from gemm_model.bench.provider import Config, Launch, Operands
from gemm_model.bench.torch_library import TorchLibrary
from gemm_model.core.problem import GemmProblem

DENSE_TYPES = ("fp32", "bf16", "fp16")
FP8_TYPES = ("e4m3", "e5m2")
FP8_MULTIPLE = 16
"""Multiple of n and k [elements]; fp8 operands of cuBLAS; `torch._scaled_mm`."""
FIRST_FP8_CAPABILITY = (8, 9)
FUSED = ((), ("bias_n",), ("bias_n", "relu"), ("bias_n", "gelu"))
"""Epilogues that torch hands to cuBLASLt."""

SCALED_ROWS = ((1, 128), (1, 1))
"""Rows of scale blocks of A and of B [1]; cuBLASLt on Hopper; the combinations with kernels."""


class CublasProvider(TorchLibrary):
    """torch.mm and torch.bmm for 16- and 32-bit types, torch._scaled_mm with unit scales for fp8."""

    name = "cublas"

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        if problem.batch > 1 and problem.a_dtype.name in FP8_TYPES:
            return "torch multiplies no batches of fp8 matrices"
        return self.unknown_to_cublas(problem, compute_capability)

    def unknown_to_cublas(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        """Why the library itself cannot run such a problem, through any interface; empty if it can."""
        a, b = problem.a_dtype.name, problem.b_dtype.name
        if problem.a_scale is not None or problem.b_scale is not None:
            return "block-scaled types are not run through cuBLAS here"
        if not problem.plain and (refused := self._refused(problem)):
            return refused
        if a in FP8_TYPES and b in FP8_TYPES:
            if compute_capability < FIRST_FP8_CAPABILITY:
                return "this GPU has no fp8 tensor cores"
            if problem.n % FP8_MULTIPLE or problem.k % FP8_MULTIPLE:
                return f"cuBLAS takes fp8 sizes n and k in multiples of {FP8_MULTIPLE}"
            return "cuBLAS multiplies no e5m2 by e5m2" if a == b == "e5m2" else ""
        if a != b or a not in DENSE_TYPES:
            return f"cuBLAS multiplies no {a} x {b} here"
        return (
            ""
            if problem.out_dtype == problem.a_dtype
            else f"torch.mm writes {a}, not {problem.out_dtype.name}"
        )

    def _refused(self, problem: GemmProblem) -> str:
        words, scaling = epilogue_words(problem), problem.block_scaling
        if words and (words not in FUSED or problem.a_dtype.name in FP8_TYPES):
            return "cuBLAS fuses bias_n, and relu or gelu behind it, in 16-bit types"
        if scaling is not None and (scaling.a_rows, scaling.b_rows) not in SCALED_ROWS:
            return "cuBLAS takes block scales 1x128,128x128 and 1x128,1x128 of fp8"
        if problem.batch > 1 and (words or scaling):
            return "batches are run without epilogues and block scales here"
        return beyond(problem, "epilogue", "block_scaling", *BATCH_COLUMNS)

    def prepare(self, problem: GemmProblem, _: Config, operands: Operands) -> Launch:
        launch = _launch(problem, operands)
        self._try(problem, launch)
        return launch

    def describe(self, problem: GemmProblem, _: Config, operands: Operands) -> Mapping[str, Any]:
        return chosen_kernel(_launch(problem, operands))


def chosen_kernel(launch: Launch) -> dict[str, Any]:
    """Table cells of the kernels that a cuBLAS call launches; `detail` reports unknown names."""
    return named_kernels(
        launch, lambda found: {**found[0].cells(), **cells_of_names([kernel.name for kernel in found])}
    )


def _launch(problem: GemmProblem, operands: Operands) -> Launch:
    b = operands.b.mT
    words, scaling = epilogue_words(problem), problem.block_scaling
    if words:
        bias = operands.extras["bias_n"].to(operands.out.dtype)
        if words == ("bias_n",):
            return partial(torch.addmm, bias, operands.a, b, out=operands.out)
        gelu = words[1] == "gelu"
        return partial(torch._addmm_activation, bias, operands.a, b, use_gelu=gelu, out=operands.out)
    if problem.a_dtype.name not in FP8_TYPES:
        multiply = torch.mm if problem.batch == 1 else torch.bmm
        return partial(multiply, operands.a, b, out=operands.out)
    a_scale = b_scale = torch.ones((), dtype=torch.float32, device=operands.a.device)
    if scaling is not None:
        # Scales of single rows are contiguous along the rows, scales of blocks along k.
        a_scale, b_scale = operands.extras["a_scale"].t().contiguous().t(), operands.extras["b_scale"].t()
        b_scale = b_scale.contiguous() if scaling.b_rows == 1 else b_scale
    types = {"out_dtype": operands.out.dtype, "out": operands.out}
    return partial(torch._scaled_mm, operands.a, b, a_scale, b_scale, **types)
