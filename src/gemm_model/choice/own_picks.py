"""Which convolutions are alike to a library that picks its kernels by itself."""

from __future__ import annotations

from gemm_model.choice.numbers import choice_numbers
from gemm_model.core.conv import WGRAD, ConvProblem

ALIGNED_CHANNELS = 8
"""Channels of 16 bits that a row of 16 bytes holds [1]; TMA; PTX ISA."""


def sort_of(conv: ConvProblem) -> str:
    """What a convolution is to cuDNN: its own picks are told apart by it (`own_picks.yaml`).

    Of groups its calls copy a slice each, or transpose the image, where a tile does not hold several.
    Channels that fill no row of 16 bytes they pad. For wide taps they take kernels of an earlier
    architecture, for weight gradients whose channels fill no tile seldom the best one.
    """
    found = choice_numbers()
    channels, filters = conv.channels // conv.groups, conv.filters // conv.groups
    if conv.groups > 1:
        return "packed" if conv.packed > 1 else "grouped"
    if channels % ALIGNED_CHANNELS or filters % ALIGNED_CHANNELS:
        return "padded"
    if max(conv.dilation) > found.cudnn_dilation:
        return "dilated"
    return "narrow_wgrad" if conv.kind == WGRAD and channels % found.cudnn_columns else ""
