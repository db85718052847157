"""Alignment of a matrix's rows: lines, sectors, and the pieces of a misaligned row."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
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
from gemm_model.core.kind_columns import CONV, KindColumns, bits_of

LINE_BYTES = 128.0
"""Size of an L2 line [B]; all NVIDIA GPUs; CUDA C++ Programming Guide."""
TMA_ALIGNMENT_BYTES = 16.0
"""Least alignment of a row [B]; TMA loads and stores; CUDA driver API, tensor maps."""
SCALE_ROW_BYTES = 16.0
"""Size of a row of scale factors [B]; block-scaled operands; PTX ISA, layout of scale factors."""


def row_alignment(pitch_bytes: Values) -> Values:
    """Alignment of row starts [bytes]: a power of two from 16 (TMA's minimum) to 128 (a line)."""
    if is_number(pitch_bytes) and pitch_bytes >= LINE_BYTES and is_multiple(pitch_bytes, LINE_BYTES):
        return LINE_BYTES
    pitch = maximum(floor(pitch_bytes), 1.0)
    return maximum(minimum(power_of_two_divisor(pitch), LINE_BYTES), TMA_ALIGNMENT_BYTES)


def channels_unaligned(batch: GemmBatch, kinds: KindColumns) -> Flags:
    """Mask of one-group convolutions whose channels or filters are no multiple of TMA_ALIGNMENT_BYTES.

    Kernels take such matrices padded. Extents of strided data gradients are rounded means.
    """
    deep, wide = floor(batch.k / kinds.k_runs + 0.5), floor(batch.n / kinds.n_runs + 0.5)
    unaligned: Flags = False
    for extent, bits in (
        (where(batch.a_k_major, deep, batch.m), batch.a_bits),
        (where(batch.b_k_major, deep, wide), batch.b_bits),
        (wide, batch.out_bits),
    ):
        unaligned = unaligned | negated(is_multiple(extent * bits / 8.0, TMA_ALIGNMENT_BYTES))
    is_conv = (kinds.asked & bits_of((CONV,))) != 0
    padded: Flags = is_conv & (batch.batch <= kinds.places) & unaligned
    return padded


def further_pieces(pitch_bytes: Values) -> Values:
    """Additional pieces of 64 bytes or less that a row is split into because of its pitch.

    0 if rows start at multiples of 64 bytes, 1 at 32, 3 at 16.
    """
    piece_bytes = room_numbers("kernel_model").l2_piece_bytes
    return piece_bytes / minimum(row_alignment(pitch_bytes), piece_bytes) - 1.0
