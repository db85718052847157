"""Rules of CUTLASS's kernels, which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, maximum, one_of, where
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernels import quack


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Whether the collective builder has the tile; n must be a multiple of 8 (wgmma)."""
    return one_of(batch.cta_m, (64.0, 128.0, 256.0)) & is_multiple(batch.cta_n, 8.0) & (batch.cta_n <= 256)


def sm90_warpgroups(batch: GemmBatch) -> Values:
    """MMA warpgroups of a tile: two share a cooperative tile's rows; 64 rows have one
    (KernelTmaWarpSpecialized).
    """
    return where((batch.schedule == PINGPONG) | (batch.cta_m == 64), 1.0, 2.0)


MMA_COLUMNS = (16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0)
"""Columns of CuTe's instructions beside 8 [columns]; sm90; `mma_sm90.hpp` without its extended shapes."""


def sm90_mma_columns(batch: GemmBatch, _splits_columns: Flags) -> Values:
    """Columns of the widest instruction that divides the tile (`ss_op_selector`): 32 of a tile of 160 or 224."""
    columns: Values = 8.0
    for wide in MMA_COLUMNS:
        columns = where(is_multiple(batch.cta_n, wide), wide, columns)
    return columns


def in_the_collective_builder(batch: GemmBatch) -> Flags:
    """Whether C++ has the kernel persistent: cooperative ones need 128 rows (a static assertion of
    `sm90_gemm_tma_warpspecialized_cooperative`), those of 64 rows are kernels of the CuTe DSL.
    """
    built: Flags = (batch.schedule == PINGPONG) | (batch.cta_m > 64)
    return built


DEEP_K_BYTES = 384.0
"""Bytes of K in a row of a k tile [B]; sm_103 kernels with 768 elements of fp4; CUTLASS's
`sm103_blockscaled_mma_warpspecialized`."""
LOAD_K_BYTES = 128.0
"""Bytes of K in a row of one load [B]; the same kernels; the widest swizzle of a TMA box, PTX ISA."""
DIRECT_STORE_BYTES = 16.0
"""Bytes that a thread stores to its own row at a time [B]; epilogues without shared memory; CUTLASS's
`sm100_epilogue_nosmem`."""
SECTOR_BYTES = 32.0
"""Size of a sector, the unit of writes to L2 [B]; all GPUs; CUDA C++ Best Practices Guide, coalesced
access."""


def deep_k_tile(batch: GemmBatch) -> Flags:
    """Whether the k tile is deep; only with block-scaled operands, because fp4 without scales runs as fp8."""
    scaled_fp4: Flags = (maximum(batch.a_bits, batch.b_bits) == 4.0) & (batch.a_scale_bits > 0.0)
    deep: Flags = batch.cta_k * batch.a_bits / 8.0 == DEEP_K_BYTES
    return scaled_fp4 & deep


def loads_of_deep_k_tile(batch: GemmBatch) -> Values:
    """Loads of a deep k tile: two stages of whole k tiles would not fit into shared memory."""
    return where(deep_k_tile(batch), DEEP_K_BYTES / LOAD_K_BYTES, 1.0)


def direct_sector_share(batch: GemmBatch) -> Values:
    """Share of a sector that one store fills. Deep k tiles leave no shared memory for the outputs
    (`NoSmemWarpSpecialized1Sm`, `2Sm`), so that threads store their own rows.
    """
    return where(deep_k_tile(batch), DIRECT_STORE_BYTES / SECTOR_BYTES, 1.0)


def offers_sm120_tile(batch: GemmBatch) -> Flags:
    """Whether the collective builder has the tile: with block scales 128 rows and 32 or 64 columns too, and
    from CUTLASS 4.6 on 8 and 16, which are not offered (`sm120_blockscaled_mma_builder`).
    """
    narrow: Flags = (batch.cta_m == 128) & one_of(batch.cta_n, (32.0, 64.0))
    return quack.offers_sm120_tile(batch) | narrow
