"""Device tensors beyond A, B and D: what epilogues read and write, groups, scales; references for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.nn import functional

from gemm_model.bench.extended import (
    ACTIVATIONS,
    ALPHA,
    BETA,
    GATED,
    OUTPUT_SCALE,
    QUANTIZED_COLUMNS,
    Convolution,
    convolution,
    epilogue_words,
    group_bounds,
    group_rows,
    output_columns,
    scale_blocks,
)
from gemm_model.bench.provider import Launch, Operands
from gemm_model.core.problem import GemmProblem

SCALE_SEED = 11
BLOCK = 128
"""Elements of k, and of n in B, that share one scale [elements]; block scales applied in software."""

LARGEST_E4M3 = 448.0
"""Largest finite value of e4m3 [1]; OCP 8-bit floating point specification."""

RESULT = "result"
"""Key in `Operands.extras` of the tensor that a library made for its output, where it takes none."""

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
    words, device = epilogue_words(problem), out.device
    generator = torch.Generator(device=device).manual_seed(SCALE_SEED)
    found: dict[str, Any] = {}
    for word in ("beta", "residual"):
        if word in words:
            found[word] = source()
    for word, size in (("bias_n", problem.n), ("bias_m", problem.m)):
        if word in words:
            # As large as the sums, so that a bias left out shows in the check.
            bias = torch.randn(size, generator=generator, device=device) * problem.k**0.5
            found[word] = bias.to(torch.bfloat16)
    for word, size in (("row_sum", problem.m), ("col_sum", output_columns(problem))):
        if word in words:
            found[word] = torch.zeros(size, dtype=torch.float32, device=device)
    if "quantize_1x128" in words:
        found["quantize_1x128"] = torch.empty(out.shape[0], out.shape[1] // QUANTIZED_COLUMNS, device=device)
    if group_rows(problem):
        found["bounds"] = torch.tensor(group_bounds(problem), dtype=torch.int32, device=device)
    blocks = scale_blocks(problem)
    if blocks is not None:
        for name, rows, block in (("a_scale", problem.m, blocks[0]), ("b_scale", problem.n, blocks[1])):
            shape = (-(-rows // scale_rows(block)), problem.k // BLOCK)
            found[name] = torch.rand(shape, generator=generator, device=device) + 0.5
    return found


def scale_rows(block: str) -> int:
    """Rows of a scale block such as 1x128."""
    return int(block.partition("x")[0])


def convolution_operands(conv: Convolution, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Operands:
    """Input, filters and output, or their gradients, as channels-last views of flat memory."""
    image, filters = (conv.n, conv.h, conv.w, conv.c), (conv.k, conv.r, conv.s, conv.c // conv.groups)
    pixels = (conv.n, conv.p, conv.q, conv.k)
    shapes = {
        "fprop": (image, filters, pixels),
        "dgrad": (pixels, filters, image),
        "wgrad": (pixels, image, filters),
    }
    views = [
        flat[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape).permute(0, 3, 1, 2)
        for flat, shape in zip((a, b, out), shapes[conv.kind], strict=True)
    ]
    return Operands(a=views[0], b=views[1], out=views[2])


def convolution_sizes(conv: Convolution) -> tuple[int, int, int]:
    """Elements of A, B and the output as they lie in memory."""
    a, b, out = _convolution_shapes(conv)
    return prod(a), prod(b), prod(out)


def _convolution_shapes(conv: Convolution) -> tuple[tuple[int, ...], ...]:
    """Shapes of A, B and the output: a gradient of the output counts as an operand."""
    image, filters = (conv.n, conv.h, conv.w, conv.c), (conv.k, conv.r, conv.s, conv.c // conv.groups)
    pixels = (conv.n, conv.p, conv.q, conv.k)
    if conv.kind == "fprop":
        return image, filters, pixels
    return (pixels, filters, image) if conv.kind == "dgrad" else (pixels, image, filters)


def convolution_call(conv: Convolution, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The convolution or its gradient as a call, on tensors as `convolution_operands` makes them."""
    if conv.kind == "fprop":
        steps = {"stride": conv.stride, "padding": conv.pad, "dilation": conv.dilation, "groups": conv.groups}
        return partial(functional.conv2d, a, b, **steps)
    # What is asked for has no values yet; its tensor tells the sizes and the layout.
    asked = (
        (conv.n, conv.c, conv.h, conv.w)
        if conv.kind == "dgrad"
        else (conv.k, conv.c // conv.groups, conv.r, conv.s)
    )
    unread = torch.empty(asked, dtype=a.dtype, device=a.device, memory_format=torch.channels_last)
    image, filters = (unread, b) if conv.kind == "dgrad" else (b, unread)
    window = [conv.stride] * 2, [conv.pad] * 2, [conv.dilation] * 2
    wanted = [conv.kind == "dgrad", conv.kind == "wgrad", False]

    def gradient() -> torch.Tensor:
        found = torch.ops.aten.convolution_backward(
            a, image, filters, None, *window, False, [0, 0], conv.groups, wanted
        )
        chosen: torch.Tensor = found[wanted.index(True)]
        return chosen

    return gradient


def reference_results(
    problem: GemmProblem, operands: Operands, product: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """What `results` must give: the product, in high precision, with its epilogue."""
    value, found = product, []
    for word in epilogue_words(problem):
        if word in GATED:
            activation = ACTIVATION_FUNCTIONS[word.removeprefix("gated_")]
            value = activation(value[:, ::2]) * value[:, 1::2]
        elif word in ACTIVATIONS:
            value = ACTIVATION_FUNCTIONS[word](value)
        elif word in ("row_sum", "col_sum"):
            found.append(value.sum(dim=1 if word == "row_sum" else 0))
        elif word != "quantize_1x128":
            value = _linear_step(word, value, operands.extras.get(word))
    return (value, *found)


def _linear_step(word: str, value: torch.Tensor, operand: torch.Tensor | None) -> torch.Tensor:
    if word == "alpha":
        return value * ALPHA
    if word == "output_scale":
        return value * OUTPUT_SCALE
    assert operand is not None
    wide = operand.to(value.dtype)
    if word == "bias_m":
        wide = wide[:, None]
    return value + (BETA * wide if word == "beta" else wide)


def results(problem: GemmProblem, operands: Operands) -> tuple[torch.Tensor, ...]:
    """What the kernel wrote, or the library returned: the output, its scales applied, and its sums, in the
    epilogue's order.
    """
    out = operands.extras.get(RESULT, operands.out)
    if "quantize_1x128" in operands.extras:
        scales = operands.extras["quantize_1x128"]
        out = out.float() * scales.repeat_interleave(QUANTIZED_COLUMNS, dim=1)
    sums = [operands.extras[word] for word in epilogue_words(problem) if word in ("row_sum", "col_sum")]
    return (out, *sums)


def grouped_product(problem: GemmProblem, operands: Operands) -> torch.Tensor:
    """Rows of each group times the group's own B, in fp32."""
    bounds = group_bounds(problem)
    a, b = operands.a.float(), operands.b
    parts = [a[start:stop] @ b[group].float().mT for group, (start, stop) in enumerate(pairwise(bounds))]
    return torch.cat(parts)


def descaled(matrix: torch.Tensor, scales: torch.Tensor, block: str) -> torch.Tensor:
    """The matrix in fp32 with its block scales applied."""
    wide = scales.repeat_interleave(scale_rows(block), dim=0)[: matrix.shape[0]]
    return matrix.float() * wide.repeat_interleave(BLOCK, dim=1)


def product_of(problem: GemmProblem, operands: Operands) -> torch.Tensor | None:
    """The product of an extended problem before its epilogue; None where it is the plain one."""
    conv, blocks = convolution(problem), scale_blocks(problem)
    if conv is not None:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return convolution_call(conv, operands.a.float(), operands.b.float())()
    if group_rows(problem):
        return grouped_product(problem, operands)
    if blocks is not None:
        a = descaled(operands.a, operands.extras["a_scale"], blocks[0])
        return a @ descaled(operands.b, operands.extras["b_scale"], blocks[1]).mT
    return None


def keeping_result(operands: Operands, call: Callable[[], torch.Tensor]) -> Launch:
    """A launch of a library call that makes its own output: `results` finds it."""

    def launch() -> None:
        operands.extras[RESULT] = call()

    return launch
