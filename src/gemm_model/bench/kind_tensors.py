"""Device tensors beside A, B and D: operands of epilogues, groups and scales; references for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional

from gemm_model.bench import problem_kinds as kinds
from gemm_model.bench.block_scaled import dequantized
from gemm_model.bench.provider import Launch, Operands
from gemm_model.core import epilogue
from gemm_model.core.block_scaling import BLOCK_K
from gemm_model.core.conv import DGRAD, FPROP, WGRAD, ConvProblem
from gemm_model.core.problem import GemmProblem

SCALE_SEED = 11
LARGEST_E4M3 = 448.0
"""Largest finite value [1]; e4m3; OCP 8-bit floating point specification."""

RESULT = "result"
"""Key in `Operands.extras` of an output tensor that the library allocated itself."""

ACTIVATION_FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def around_product(
    problem: GemmProblem, out: torch.Tensor, source: Callable[[], torch.Tensor]
) -> dict[str, Any]:
    """Tensors beside A, B and the output; `source` gives m x n random values."""
    words, device = kinds.epilogue_words(problem), out.device
    generator = torch.Generator(device=device).manual_seed(SCALE_SEED)
    found: dict[str, Any] = {}
    for word in epilogue.SOURCES:
        if word in words:
            found[word] = source()
    for word, size in (("bias_n", problem.n), ("bias_m", problem.m)):
        if word in words:
            # As large as the sums, so that the check notices a missing bias.
            bias = torch.randn(size, generator=generator, device=device) * problem.k**0.5
            found[word] = bias.to(torch.bfloat16)
    for word, size in (("row_sum", problem.m), ("col_sum", kinds.output_columns(problem))):
        if word in words:
            found[word] = torch.zeros(size, dtype=torch.float32, device=device)
    if epilogue.QUANTIZED in words:
        found[epilogue.QUANTIZED] = torch.empty(
            out.shape[0], out.shape[1] // epilogue.QUANTIZED_COLUMNS, device=device
        )
    if problem.groups:
        starts, ends = zip(*kinds.group_spans(problem), strict=True)
        found["starts"] = torch.tensor(starts, dtype=torch.int32, device=device)
        found["ends"] = torch.tensor(ends, dtype=torch.int32, device=device)
        if not kinds.masked(problem):
            found["bounds"] = torch.tensor((*starts, ends[-1]), dtype=torch.int32, device=device)
    scaling = problem.block_scaling
    if scaling is not None:
        sides = (("a_scale", problem.m, scaling.a_rows), ("b_scale", problem.n, scaling.b_rows))
        for name, rows, shared in sides:
            shape = (-(-rows // shared), problem.k // BLOCK_K)
            found[name] = torch.rand(shape, generator=generator, device=device) + 0.5
    return found


@dataclass(frozen=True, slots=True)
class View:
    """How a tensor lies in flat memory [elements]."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def dense(cls, *shape: int) -> View:
        return cls(shape, tuple(prod(shape[place + 1 :]) for place in range(len(shape))))

    @classmethod
    def channels_last(cls, *shape: int) -> View:
        """Images whose last axis in memory, the channels, is the second one of the tensor."""
        order = (0, len(shape) - 1, *range(1, len(shape) - 1))
        dense = cls.dense(*shape)
        return cls(tuple(shape[axis] for axis in order), tuple(dense.strides[axis] for axis in order))

    @property
    def elements(self) -> int:
        """From the first to behind the last."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(self.shape, self.strides, flat.storage_offset())


def views_of(problem: GemmProblem) -> tuple[View, View, View]:
    """A, B and the output: rows x k, n x k and rows x columns, with groups, a batch or images around."""
    if problem.conv is not None:
        a, b, out = (View.channels_last(*shape) for shape in _convolution_shapes(problem.conv))
        return a, b, out
    if problem.batch > 1:
        a, b, out = (
            View((problem.batch, each.rows, each.columns), (each.stride, each.pitch, 1))
            for each in problem.layouts
        )
        return a, b, out
    rows, groups = kinds.rows_in_memory(problem), kinds.group_rows(problem)
    b_shape = (len(groups), problem.n, problem.k) if groups else (problem.n, problem.k)
    return (
        View.dense(rows, problem.k),
        View.dense(*b_shape),
        View.dense(rows, kinds.output_columns(problem)),
    )


def _convolution_shapes(conv: ConvProblem) -> tuple[tuple[int, ...], ...]:
    """Shapes of A, B and the output, channels last: a gradient of the output is an operand."""
    image = (conv.images, *conv.size, conv.channels)
    filters = (conv.filters, *conv.filter_size, conv.channels // conv.groups)
    pixels = (conv.images, *conv.output_size, conv.filters)
    return {
        FPROP: (image, filters, pixels),
        DGRAD: (pixels, filters, image),
        WGRAD: (pixels, image, filters),
    }[conv.kind]


def convolution_call(conv: ConvProblem, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The convolution or its gradient as a call, on channels-last tensors."""
    if conv.kind == FPROP:
        convolve = functional.conv2d if len(conv.size) == 2 else functional.conv3d
        window = {"stride": conv.stride, "padding": conv.pad, "dilation": conv.dilation}
        return partial(convolve, a, b, groups=conv.groups, **window)
    # The requested output has no values yet; its tensor gives sizes and layout.
    pixels = View.channels_last(*_convolution_shapes(conv)[2])
    unread = torch.empty_strided(pixels.shape, pixels.strides, dtype=a.dtype, device=a.device)
    image, filters = (unread, b) if conv.kind == DGRAD else (b, unread)
    steps = list(conv.stride), list(conv.pad), list(conv.dilation)
    shift = [0] * len(conv.size)
    wanted = [conv.kind == DGRAD, conv.kind == WGRAD, False]

    def gradient() -> torch.Tensor:
        found = torch.ops.aten.convolution_backward(
            a, image, filters, None, *steps, False, shift, conv.groups, wanted
        )
        chosen: torch.Tensor = found[wanted.index(True)]
        return chosen

    return gradient


def reference_results(
    problem: GemmProblem, operands: Operands, product: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The expected `results`: the product in high precision with its epilogue."""
    value, found = product, []
    for word in kinds.epilogue_words(problem):
        if word in epilogue.GATED_ACTIVATIONS:
            activation = ACTIVATION_FUNCTIONS[word.removeprefix("gated_")]
            value = activation(value[:, ::2]) * value[:, 1::2]
        elif word in epilogue.ACTIVATIONS:
            value = ACTIVATION_FUNCTIONS[word](value)
        elif word in epilogue.REDUCTIONS:
            found.append(value.sum(dim=1 if word == "row_sum" else 0))
        elif word != epilogue.QUANTIZED:
            value = _linear_step(word, value, operands.extras.get(word))
    return (value, *found)


def _linear_step(word: str, value: torch.Tensor, operand: torch.Tensor | None) -> torch.Tensor:
    if word == "alpha":
        return value * kinds.ALPHA
    if word == "output_scale":
        return value * kinds.OUTPUT_SCALE
    assert operand is not None
    wide = operand.to(value.dtype)
    if word == "bias_m":
        wide = wide[:, None]
    return value + (kinds.BETA * wide if word == "beta" else wide)


def results(problem: GemmProblem, operands: Operands) -> tuple[torch.Tensor, ...]:
    """What the kernel wrote, or the library returned: the output, its scales applied, and its sums, in the
    epilogue's order.
    """
    out = operands.extras.get(RESULT, operands.out)
    if kinds.masked(problem):
        out = torch.cat([out[start:end] for start, end in kinds.group_spans(problem)])
    if epilogue.QUANTIZED in operands.extras:
        scales = operands.extras[epilogue.QUANTIZED]
        out = out.float() * scales.repeat_interleave(epilogue.QUANTIZED_COLUMNS, dim=1)
    sums = [operands.extras[word] for word in kinds.epilogue_words(problem) if word in epilogue.REDUCTIONS]
    return (out, *sums)


def grouped_product(problem: GemmProblem, operands: Operands) -> torch.Tensor:
    """Rows of each group times the group's own B, in fp32."""
    a, b = operands.a.float(), operands.b
    spans = enumerate(kinds.group_spans(problem))
    return torch.cat([a[start:end] @ b[group].float().mT for group, (start, end) in spans])


def descaled(matrix: torch.Tensor, scales: torch.Tensor, rows: int) -> torch.Tensor:
    """The matrix in fp32 with its block scales applied; `rows` of it share a scale."""
    wide = scales.repeat_interleave(rows, dim=0)[: matrix.shape[0]]
    return matrix.float() * wide.repeat_interleave(BLOCK_K, dim=1)


def product_of(problem: GemmProblem, operands: Operands) -> torch.Tensor:
    """The product before its epilogue, in fp64 for fp32 operands, else in fp32 without TF32."""
    conv, scaling, a, b = problem.conv, problem.block_scaling, operands.a, operands.b
    if conv is not None:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return convolution_call(conv, a.float(), b.float())()
    if problem.groups is not None:
        return grouped_product(problem, operands)
    if scaling is not None:
        a = descaled(a, operands.extras["a_scale"], scaling.a_rows)
        b = descaled(b, operands.extras["b_scale"], scaling.b_rows)
    elif operands.a_scale is not None:
        a = dequantized(a, operands.a_scale, problem)
        b = dequantized(b, operands.b_scale, problem)
    wide = torch.float64 if problem.a_dtype.bits == 32 else torch.float32
    return a.to(wide) @ b.to(wide).mT


def keeping_result(operands: Operands, call: Callable[[], torch.Tensor]) -> Launch:
    """A launch of a library call that makes its own output: `results` finds it."""

    def launch() -> None:
        operands.extras[RESULT] = call()

    return launch
