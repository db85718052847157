"""Which convolutions are alike to a library that picks its kernels by itself, and what it copies for them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from gemm_model.choice.numbers import choice_numbers
from gemm_model.core.conv import WGRAD, ConvProblem
from gemm_model.core.prediction import Copies

ALIGNED_CHANNELS = 8
"""Channels of 16 bits that a row of 16 bytes holds [1]; TMA; PTX ISA."""
ELEMENT_BYTES = 2.0
"""An element [B]; convolutions of 16-bit types; bf16 and fp16, the only types that are measured."""
NOTHING: Mapping[str, Copies] = MappingProxyType({})


def sort_of(conv: ConvProblem) -> str:
    """What a convolution is to cuDNN: its own picks are told apart by it (`own_picks.yaml`).

    Of groups its calls copy a slice each, or transpose the image, where a tile holds neither several of them
    nor a whole one, of as many channels as filters. Channels that fill no row of 16 bytes they pad. For wide
    taps they take kernels of an earlier architecture, for weight gradients whose channels fill no tile seldom
    the best one.
    """
    found = choice_numbers()
    channels, filters = conv.channels // conv.groups, conv.filters // conv.groups
    if conv.groups > 1:
        filled = (found.cudnn_whole_channels // 2, found.cudnn_whole_channels)
        whole = channels == filters and channels in filled
        return "packed" if conv.packed > 1 else "whole" if whole else "grouped"
    if channels % ALIGNED_CHANNELS or filters % ALIGNED_CHANNELS:
        return "padded"
    if max(conv.dilation) > found.cudnn_dilation:
        return "dilated"
    return "narrow_wgrad" if conv.kind == WGRAD and channels % found.cudnn_columns else ""


def ways_of(conv: ConvProblem) -> Mapping[str, Copies]:
    """By way in which cuDNN brings a convolution to a kernel that cannot take it as it is: what it copies.

    Images of larger groups are sliced, a kernel for each slice in and out of each group, or transposed as a
    whole; those whose channels fill no row of 16 bytes are padded. Source: names of its kernels.
    """
    sort = sort_of(conv)
    if sort == "grouped":
        return {"sliced": _slices(conv), "transposed": _transposes(conv)}
    return {"padded": _padding(conv)} if sort == "padded" else NOTHING


def _slices(conv: ConvProblem) -> Copies:
    """Of each group its part of both images; weights of a group lie together already.

    A weight gradient of a group adds up its parts of K with a kernel more, the others are one kernel.
    """
    image, _, output = _elements(conv)
    kernels = 4 if conv.kind == WGRAD else 3
    return Copies(kernels=kernels * conv.groups - 1, moved_bytes=2.0 * ELEMENT_BYTES * (image + output))


def _transposes(conv: ConvProblem) -> Copies:
    """Both operands before, the output behind."""
    return Copies(kernels=3, moved_bytes=2.0 * ELEMENT_BYTES * sum(_elements(conv)))


def _padding(conv: ConvProblem) -> Copies:
    """Every matrix that has such channels, read as it is and written in whole rows, or the reverse."""
    channels, filters = _aligned(conv.channels), _aligned(conv.filters)
    whole = (
        channels / conv.channels,
        channels * filters / (conv.channels * conv.filters),
        filters / conv.filters,
    )
    moved = [
        elements * (1.0 + larger)
        for elements, larger in zip(_elements(conv), whole, strict=True)
        if larger > 1.0
    ]
    return Copies(kernels=len(moved), moved_bytes=ELEMENT_BYTES * sum(moved))


def _aligned(channels: int) -> int:
    return -(-channels // ALIGNED_CHANNELS) * ALIGNED_CHANNELS


def _elements(conv: ConvProblem) -> tuple[float, float, float]:
    """Of the image, the weights and the output."""
    return (
        float(conv.images * prod(conv.size) * conv.channels),
        float(conv.taps * conv.filters * conv.channels // conv.groups),
        float(conv.images * prod(conv.output_size) * conv.filters),
    )
