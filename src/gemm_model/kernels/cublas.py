"""Rules of cuBLAS's kernels, which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import Flags, Values, is_multiple, negated, one_of, where
from gemm_model.core.kernel_config import AUTO, PINGPONG, TWO_CTA
from gemm_model.kernels import warpgroup_mma


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Whether nvjet has the tile: MMAs of m64nN with N a multiple of 8, rows along either extent of the tile.

    Tiles seen by name: 8x64 to 8x512, 64x96, 64x112, 128x144, 128x320, 64x448 (cta_m x cta_n: cuBLAS computes
    D^T and names the extent along n first). None of 19,111 measured kernels has more accumulators a warpgroup
    than a ping-pong tile may have, and so none spills.
    """
    m, n = batch.cta_m, batch.cta_n
    along_m = is_multiple(m, 64.0) & is_multiple(n, 8.0)
    along_n = is_multiple(n, 64.0) & is_multiple(m, 8.0)
    return (along_m | along_n) & (m <= 512) & (n <= 512) & _holds(batch, sm90_warpgroups(batch))


def _holds(batch: GemmBatch, warpgroups: Values) -> Flags:
    """Whether the warpgroups have the tile's accumulators: two sets for slow fp8 sums."""
    slow = (batch.math_kind == MATH_KINDS.index("fp8")) & negated(batch.fast_accum)
    most = room_numbers("kernels").cublas_pingpong_accumulators * warpgroups
    held: Flags = where(slow, 2.0, 1.0) * batch.cta_m * batch.cta_n <= most
    return held


def in_its_schedule(batch: GemmBatch) -> Flags:
    """Whether the schedule is the tile's own: ping-pong if one warpgroup's registers hold it, else
    cooperative.
    """
    fits: Flags = _holds(batch, 1.0) == (batch.schedule == PINGPONG)
    return fits


def sm90_warpgroups(batch: GemmBatch) -> Values:
    return where(batch.schedule == PINGPONG, 1.0, 2.0)


def sm90_splits_columns(batch: GemmBatch, warpgroups: Values) -> Flags:
    """Whether warpgroups share the columns of a tile: those of 64 rows. Names (coopB) say so of 192 and 320
    rows too, which makes no difference in error.
    """
    return (warpgroups > 1) & one_of(batch.cta_m, (64.0,))


def sm90_mma_columns(batch: GemmBatch, _splits_columns: Flags) -> Values:
    """Columns of the MMA: rows run along the longer of two extents that are multiples of 64.

    Kernel names and the instructions executed by nine tiles agree. If warpgroups share a tile, rows are taken
    to run along n if they can; names say m for some (64x256), which makes no difference in error.
    """
    m, n = batch.cta_m, batch.cta_n
    along_n = is_multiple(n, 64.0) & negated((batch.schedule == PINGPONG) & is_multiple(m, 64.0) & (m > n))
    return where(along_n, m, n)


def offers_sm100_tile(batch: GemmBatch) -> Flags:
    """Whether nvjet has the tile: tcgen05 MMAs with rows along either extent; narrow single-CTA tiles along
    n.

    Tiles seen by name: 8x64 to 64x64, 64x8 to 64x64, 16x128, 24x512 and those of CUTLASS.
    """
    along_n = one_of(batch.cta_n, (64.0, 128.0)) & is_multiple(batch.cta_m, 8.0) & (batch.cta_m <= 64)
    narrow = one_of(batch.cta_m, (64.0, 128.0)) & is_multiple(batch.cta_n, 8.0) & (batch.cta_n <= 64)
    single: Flags = (along_n | narrow) & (batch.schedule != TWO_CTA)
    return warpgroup_mma.tcgen05_tile(batch) | single


WMMA_EXTENTS = (16, 32)
"""Extents of cuBLAS's square wmma tiles before Hopper [elements]; k tiles of 128 in rings of two stages, of other
tiles 32 besides; names in published profiles: `cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8`,
32x32_128x2, `cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_nn_align8`."""
WMMA_K, WMMA_STAGES, HALF_K = 128, 2, 32


def in_multistage_names(batch: GemmBatch) -> Flags:
    """Whether cuBLAS has the kernel before Hopper, by names: wmma tiles are square, their K is not split.

    Not split: published, 4 x 96 x 5120 of two K-major operands takes 16x16_128x2 alone, 20 us.
    """
    wmma = batch.cta_m <= max(WMMA_EXTENTS)
    narrow = (batch.cta_m == batch.cta_n) & (batch.cta_k == WMMA_K) & (batch.stages == WMMA_STAGES)
    wide = (batch.cta_n > max(WMMA_EXTENTS)) & (batch.cta_m * batch.cta_n <= 256 * 128)
    whole_or_half = (batch.cta_k == AUTO) | ((batch.cta_k == HALF_K) & (batch.a_bits == 16))
    rest = wide & whole_or_half & (batch.stages == AUTO)
    found: Flags = where(wmma, narrow & (batch.split_k == 1), rest) > 0
    return found
