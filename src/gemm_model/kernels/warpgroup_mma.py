"""Rules of kernels whose warpgroups issue MMAs (wgmma, sm90) or drain tensor memory (tcgen05, sm100)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Flags,
    Values,
    is_multiple,
    minimum,
    one_of,
    power_of_two_divisor,
    where,
)
from gemm_model.core.kernel_config import TWO_CTA

HEAVY_ACCUMULATORS = 208.0
"""Accumulators of a thread from which load warps give registers to MMA warps [registers]; warp-specialized
kernels on sm90; QuACK and CUTLASS."""


def epilogue_tile(batch: GemmBatch, rows_shared: Flags) -> tuple[Values, Values]:
    """Rows and columns of one epilogue buffer: QuACK `_compute_tile_shape_or_override`, alike in CUTLASS.

    32 columns (64 of an 8-bit output where one warpgroup stores its rows alone), or what divides the tile.
    """
    divisor = power_of_two_divisor(batch.cta_n)
    narrow = minimum(divisor, 32.0)
    alone = where(batch.out_bits == 8, minimum(divisor, 64.0), narrow)
    tall = where(batch.cta_m == 192, 192.0, 128.0)
    rows = minimum(where(rows_shared, tall, 64.0), batch.cta_m)
    return rows, where(rows_shared, narrow, alone)


def more_narrow_buffers(columns: Values) -> Values:
    """Four epilogue buffers of 16 columns or fewer, else two: QuACK `_compute_stages`."""
    return where(columns <= 16, 4.0, 2.0)


def set_registers(accumulators: Values, warpgroups: Values) -> Values:
    """`setmaxnreg` of an MMA thread: QuACK `GemmSm90.__init__`, alike in CUTLASS (which has no three)."""
    return where(warpgroups == 3, 160.0, where(accumulators >= HEAVY_ACCUMULATORS, 240.0, 232.0))


def tcgen05_tile(batch: GemmBatch) -> Flags:
    """MMA shapes of tcgen05: 64 or 128 rows a CTA (a pair: 128 or 256 together), n in sixteens to 256."""
    rows = where(
        batch.schedule == TWO_CTA, one_of(batch.mma_m, (128.0, 256.0)), one_of(batch.mma_m, (64.0, 128.0))
    )
    return rows & is_multiple(batch.cta_n, 16.0) & (batch.cta_n <= 256)


def columns_of_the_tile(batch: GemmBatch, splits_columns: Flags) -> Values:
    """Columns of an instruction: the tile's columns, or half of them if two warpgroups share them."""
    return where(splits_columns, batch.cta_n / 2.0, batch.cta_n)
