"""cuDNN's convolutions through torch, channels last: the kernel is the library's heuristic choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemm_model.bench.cudnn_names import conv_cells
from gemm_model.bench.kind_tensors import convolution_call, keeping_result
from gemm_model.bench.launched_kernels import named_kernels
from gemm_model.bench.problem_kinds import beyond
from gemm_model.bench.provider import Config, Launch, Operands, UnsupportedError
from gemm_model.bench.torch_library import TorchLibrary
from gemm_model.core.problem import GemmProblem

TYPES = ("bf16", "fp16")


class CudnnProvider(TorchLibrary):
    """Forward convolutions, data gradients and weight gradients of 16-bit types."""

    name = "cudnn"

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        if problem.conv is None:
            return "cuDNN is benchmarked on convolutions alone"
        if problem.a_dtype.name not in TYPES or problem.out_dtype != problem.a_dtype:
            return f"the cudnn provider convolves {' and '.join(TYPES)} into the same type"
        return beyond(problem, "conv")

    def prepare(self, problem: GemmProblem, _: Config, operands: Operands) -> Launch:
        call = _call(problem, operands)
        self._try(problem, call)
        return keeping_result(operands, call)

    def describe(self, problem: GemmProblem, _: Config, operands: Operands) -> Mapping[str, Any]:
        named = named_kernels(_call(problem, operands))
        names, grid, block = (str(named.get(name, "")) for name in ("kernel_name", "grid", "block"))
        return named | (conv_cells(problem.conv, names, grid, block) if names and problem.conv else {})


def _call(problem: GemmProblem, operands: Operands) -> Callable[[], torch.Tensor]:
    if problem.conv is None:
        raise UnsupportedError("cuDNN is benchmarked on convolutions alone")
    return convolution_call(problem.conv, operands.a, operands.b)
