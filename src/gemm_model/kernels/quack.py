"""Rules of QuACK's CuTe DSL GEMM kernels (quack-kernels 0.6.5), which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Flags,
    Values,
    any_of,
    ceil,
    is_multiple,
    maximum,
    minimum,
    one_of,
    power_of_two_divisor,
    where,
)
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernels.compiled_code import OTHERS, compiled_code


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Tile limits of `GemmSm90.__init__`."""
    m, n = batch.cta_m, batch.cta_n
    widest = where(m == 192, 256.0, 160.0)
    by_16 = is_multiple(n, 16.0)
    by_32 = is_multiple(n, 32.0)
    cooperative = where(
        one_of(m, (192.0, 320.0)),
        by_32 & (n <= widest),
        one_of(m, (64.0, 128.0, 256.0)) & ((by_16 & (n <= 256)) | (by_32 & (n <= 512))),
    )
    widest_turn = where(m == 64, 256.0, where(m == 128, 208.0, 128.0))
    pingpong = one_of(m, (64.0, 128.0, 192.0)) & by_16 & (n <= widest_turn)
    return where(batch.schedule == PINGPONG, pingpong, cooperative)


def sm90_warpgroups(batch: GemmBatch) -> Values:
    """Layout of MMA atoms in `GemmSm90.__init__`; ping-pong gives each tile to one warpgroup."""
    three = (batch.cta_m == 192) & (batch.cta_n <= 128)
    cooperative = where(three, 3.0, where(batch.cta_m > 64, 2.0, 1.0))
    return where(batch.schedule == PINGPONG, 1.0, cooperative)


def sm90_splits_columns(batch: GemmBatch, warpgroups: Values) -> Flags:
    """`_setup_tiled_mma`: rows of 192 and 320 that two warpgroups cannot halve in blocks of 64."""
    wide: Flags = ((batch.cta_m == 192) & (batch.cta_n > 128)) | (batch.cta_m == 320)
    return (warpgroups > 1) & wide


MMAS_OF_K_TILE = 4.0
"""MMA instructions of a k tile [1]; k tiles of 128 bytes; PTX ISA: 32 bytes of K each."""


def whole_instructions(
    excess: Values, accumulators: Values, columns: Values, two_sets: Flags
) -> tuple[Values, Values]:
    """The compiler spills the accumulators of whole instructions that cover the excess; with one set, at each
    MMA.

    Loads are waited for one by one if no register is free for an earlier load. Tiles that move more
    registers, and their waits, are counted in SASS (`compiled_code.yaml`).
    """
    if not any_of(excess > 0.0):
        return 0.0 * excess, 0.0 * excess
    code = compiled_code("quack")
    block = columns / 2.0
    moved = where(two_sets, ceil(excess / block) * block, MMAS_OF_K_TILE * block)
    waits: Values = where(excess > 0.0, code.waits[OTHERS], 0.0)
    for sums, wide, counted, waited in code.tiles():
        such = (accumulators == sums) & (columns == wide) & two_sets
        if not any_of(such):
            continue
        moved, waits = where(such, counted, moved), where(such, waited, waits)
    return where(excess > 0.0, moved, 0.0), waits


def offers_sm120_tile(batch: GemmBatch) -> Flags:
    """`GemmSm120.__init__`: columns in multiples of 32; whole blocks of 128 with block scales."""
    m, n = batch.cta_m, batch.cta_n
    plain = is_multiple(m, 64.0) & (m <= 256) & is_multiple(n, 32.0) & (n <= 256)
    whole = one_of(m, (128.0, 256.0)) & one_of(n, (128.0, 256.0))
    unscaled: Flags = (batch.a_scale_bits == 0) & (batch.b_scale_bits == 0)
    return plain & (whole | unscaled)


def sm120_warpgroups(batch: GemmBatch) -> Values:
    """MMA warpgroups of a tile: eight warps share it, or four warps alternate with four others."""
    return where(batch.schedule == PINGPONG, 1.0, 2.0)


def sm120_epilogue_tile(batch: GemmBatch, _rows_shared: Flags) -> tuple[Values, Values]:
    """`GemmSm120._compute_tile_shape_or_override`: 64 rows, at least the 32 columns of two warps."""
    widest = where(batch.out_bits == 8, 64.0, 32.0)
    columns = maximum(minimum(power_of_two_divisor(batch.cta_n), widest), 32.0)
    return where(batch.cta_m > 0, 64.0, 64.0), columns
