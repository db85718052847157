"""Where rows of a matrix start: lines, sectors, and the pieces that a misaligned row falls into."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Flags,
    Values,
    floor,
    is_multiple,
    is_number,
    maximum,
    minimum,
    negated,
    power_of_two_divisor,
    where,
)
from gemm_model.core.further_work import CONV, FurtherWork, bits_of
from gemm_model.kernel_model.numbers import kernel_model_numbers

LINE_BYTES = 128.0
"""A line of L2 [B]; all NVIDIA GPUs; CUDA C++ Programming Guide."""
TMA_ALIGNMENT_BYTES = 16.0
"""Least alignment of a row [B]; TMA loads and stores; CUDA driver API, tensor maps."""
SCALE_ROW_BYTES = 16.0
"""A row of scale factors [B]; block-scaled operands; PTX ISA, layout of scale factors."""


def row_alignment(pitch_bytes: Values) -> Values:
    """What divides where rows start, in bytes: a power of two from 16 (TMA's least) to 128 (a line)."""
    if is_number(pitch_bytes) and pitch_bytes >= LINE_BYTES and is_multiple(pitch_bytes, LINE_BYTES):
        return LINE_BYTES
    pitch = maximum(floor(pitch_bytes), 1.0)
    return maximum(minimum(power_of_two_divisor(pitch), LINE_BYTES), TMA_ALIGNMENT_BYTES)


def channels_unaligned(batch: GemmBatch, further: FurtherWork) -> Flags:
    """Which convolutions in one group have channels or filters that fill no row of TMA_ALIGNMENT_BYTES.

    Kernels take such matrices padded. Extents of strided data gradients are means, rounded.
    """
    deep, wide = floor(batch.k / further.k_runs + 0.5), floor(batch.n / further.n_runs + 0.5)
    unaligned: Flags = False
    for extent, bits in (
        (where(batch.a_k_major, deep, batch.m), batch.a_bits),
        (where(batch.b_k_major, deep, wide), batch.b_bits),
        (wide, batch.out_bits),
    ):
        unaligned = unaligned | negated(is_multiple(extent * bits / 8.0, TMA_ALIGNMENT_BYTES))
    is_conv = (further.asked & bits_of((CONV,))) != 0
    padded: Flags = is_conv & (batch.batch <= further.places) & unaligned
    return padded


def further_pieces(pitch_bytes: Values) -> Values:
    """Pieces of 64 bytes or less beyond the first that a row falls into, by where its pitch lets rows start.

    None where rows start at multiples of 64 bytes, one at 32, three at 16.
    """
    piece_bytes = kernel_model_numbers().l2_piece_bytes
    return piece_bytes / minimum(row_alignment(pitch_bytes), piece_bytes) - 1.0
