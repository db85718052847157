"""Kernels of cuBLAS: nvjet from Hopper on (known from kernel names), multistage kernels before."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, negated, one_of, where
from gemm_model.core.kernel_config import AUTO, PINGPONG, TWO_CTA
from gemm_model.core.kind_columns import BLOCK_SCALING
from gemm_model.kernels import cutlass, multistage, warpgroup_mma
from gemm_model.kernels.family import ConfigSpace, KernelFamily, ResourceRules, TileOrder
from gemm_model.kernels.tile_scheduler import STATIC_STRIDE


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Whether nvjet has the tile: MMAs of m64nN with N a multiple of 8, rows along either extent of the tile.

    Tiles seen by name: 8x64 to 8x512, 64x96, 64x112, 128x144, 128x320, 64x448 (cta_m x cta_n: cuBLAS computes
    D^T and names the extent along n first).
    """
    m, n = batch.cta_m, batch.cta_n
    along_m = is_multiple(m, 64.0) & is_multiple(n, 8.0)
    along_n = is_multiple(n, 64.0) & is_multiple(m, 8.0)
    return (along_m | along_n) & (m <= 512) & (n <= 512)


def in_its_schedule(batch: GemmBatch) -> Flags:
    """Whether the schedule is the tile's own: ping-pong if one warpgroup's registers hold it, else
    cooperative.
    """
    sets = where((batch.a_bits == 8) & negated(batch.fast_accum), 2.0, 1.0)
    too_large = sets * batch.cta_m * batch.cta_n > room_numbers("kernels").cublas_pingpong_accumulators
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits


def sm90_warpgroups(batch: GemmBatch) -> Values:
    return where(batch.schedule == PINGPONG, 1.0, 2.0)


def sm90_splits_columns(batch: GemmBatch, warpgroups: Values) -> Flags:
    """Whether warpgroups share the columns of a tile: those of 64 rows. Names (coopB) say so of 192 and 320
    rows too, which makes no difference in error.
    """
    one_group_of_rows: Flags = batch.cta_m == 64
    return (warpgroups > 1) & one_group_of_rows


def sm90_mma_columns(batch: GemmBatch, _splits_columns: Flags) -> Values:
    """Columns of the MMA: rows run along the longer of two extents that are multiples of 64.

    Kernel names and the instructions executed by nine tiles agree. If warpgroups share a tile, rows are taken
    to run along n if they can; names say m for some (64x256), which makes no difference in error.
    """
    m, n = batch.cta_m, batch.cta_n
    along_n = is_multiple(n, 64.0) & negated((batch.schedule == PINGPONG) & is_multiple(m, 64.0) & (m > n))
    return where(along_n, m, n)


EPILOGUES = frozenset({"alpha", "beta", "bias_n", "relu", "gelu", "output_scale"})
"""Epilogues of `cublasLtEpilogue_t`: BIAS runs along the rows of D^T, which are columns of D."""

NVJET_ORDER = TileOrder(
    name="raster by name, in groups of eight", own_group=8.0, splits="apart", gpcs_in_turn=True
)
"""Tile order of nvjet. 'h' and 'v' in the name are the raster; the times of 5,648 kernels on an H200 show
which is which. L2 counters of 42 kernels in clusters of two show groups of 8 panels (requests 11 % off; 27 %
with one panel). A `splitKreduce_kernel` follows each kernel that splits K (profiler)."""

CUBLAS_SM90 = KernelFamily(
    name="cublas",
    architectures=("sm90",),
    # CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F and _BLK128x128_32F
    knows=EPILOGUES | {BLOCK_SCALING},
    space=ConfigSpace(
        cta_m=(*range(8, 49, 8), 64, 80, 96, 128, 160, 192, 256),
        cta_n=(*range(8, 97, 8), 112, 128, 144, 160, 168, 176, 192, 224, 256, 320, 384, 448, 512),
        clusters=(*cutlass.WIDE_CLUSTERS[:-1],),
        schedules=("cooperative", "pingpong"),
        swizzles=(1,),
        rasters=("along_m", "along_n"),
        # cuBLASLt's heuristic lists up to 14 parts on an H200 (K up to 18,944).
        split_k=(1, 2, 3, 4, 5, 6, 8, 12, 16),
        combines=in_its_schedule,
    ),
    resources=ResourceRules(
        offers_tile=offers_sm90_tile,
        warpgroups=sm90_warpgroups,
        splits_columns=sm90_splits_columns,
        mma_columns=sm90_mma_columns,
        largest_cluster=8,
        # Counters of ping-pong kernels: a wait for each block and k tile, and fewer clocks beside the MMAs of
        # two blocks with 80 sums of a thread than of one with 48.
        promotes_by_block=True,
    ),
    tile_order=NVJET_ORDER,
    loads_b_first=True,
    providers=("cublaslt",),
)


def offers_sm100_tile(batch: GemmBatch) -> Flags:
    """Whether nvjet has the tile: tcgen05 MMAs with rows along either extent; narrow single-CTA tiles along
    n.

    Tiles seen by name: 8x64 to 64x64, 64x8 to 64x64, 16x128, 24x512 and those of CUTLASS.
    """
    along_n = one_of(batch.cta_n, (64.0, 128.0)) & is_multiple(batch.cta_m, 8.0) & (batch.cta_m <= 64)
    narrow = one_of(batch.cta_m, (64.0, 128.0)) & is_multiple(batch.cta_n, 8.0) & (batch.cta_n <= 64)
    single: Flags = (along_n | narrow) & (batch.schedule != TWO_CTA)
    return warpgroup_mma.tcgen05_tile(batch) | single


NARROW = (8, 16, 24, 32, 48)
"""Narrow extents of candidate tiles [elements]; beside an extent of 64 or 128, not on Hopper; chosen from the
8 to 56 that kernel names show on Hopper, because other cards' sets are known in part only."""
SPLITS = (*CUBLAS_SM90.space.split_k, 24, 32)
"""Split-K candidates on other architectures: cuBLASLt accepts any number (CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
the numbers that its heuristic picks are known for Hopper only."""


def _blackwell(like: KernelFamily) -> KernelFamily:
    """Nvjet on Blackwell: CUTLASS's tiles; of the tile order only the raster is known; static stride as on
    sm90.
    """
    space = replace(like.space, swizzles=(1,), rasters=("along_m", "along_n"), split_k=SPLITS)
    order = replace(like.tile_order, splits="apart", scheduler=STATIC_STRIDE)
    return replace(like, name="cublas", space=space, tile_order=order, knows=EPILOGUES)


def _sm100(like: KernelFamily) -> KernelFamily:
    """Nvjet on datacenter Blackwell has narrow tiles and splits besides.

    By names in published profiles: `nvjet_sm100_tst_64x8_64x16_1x2_h_bz_splitK_TNT`, `8x64_64x16_4x1_v`.
    """
    family = _blackwell(like)
    space = replace(family.space, cta_m=(*NARROW, 64, 128), cta_n=(*NARROW, *range(64, 257, 32)))
    return replace(family, space=space, resources=replace(like.resources, offers_tile=offers_sm100_tile))


WMMA_EXTENTS = (16, 32)
"""Extents of cuBLAS's square wmma tiles before Hopper [elements]; k tiles of 128 in rings of two stages; names
in published profiles: `cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8`, 32x32_128x2."""
MULTISTAGE_EXTENTS = (64, 128, 256)
"""Extents of the others, 256 beside at most 128 or 256x128 [elements]; `ampere_bf16_s16816gemm_bf16_64x64_ldg8_
f2f_stages_64x6_tn` to 256x128_64x3 in published profiles."""
WMMA_K, WMMA_STAGES = 128, 2


def in_multistage_names(batch: GemmBatch) -> Flags:
    """Whether cuBLAS has the kernel before Hopper, by names: wmma tiles are square, their K is not split.

    Not split: published, 4 x 96 x 5120 of two K-major operands takes 16x16_128x2 alone, 20 us.
    """
    wmma = batch.cta_m <= max(WMMA_EXTENTS)
    narrow = (batch.cta_m == batch.cta_n) & (batch.cta_k == WMMA_K) & (batch.stages == WMMA_STAGES)
    wide = (batch.cta_n > max(WMMA_EXTENTS)) & (batch.cta_m * batch.cta_n <= 256 * 128)
    rest = wide & (batch.cta_k == AUTO) & (batch.stages == AUTO)
    found: Flags = where(wmma, narrow & (batch.split_k == 1), rest) > 0
    return found


def _multistage(like: KernelFamily) -> KernelFamily:
    """CuBLAS before Hopper: CUTLASS's multistage kernels and others of the same kind."""
    extents = (*WMMA_EXTENTS, *MULTISTAGE_EXTENTS)
    space = replace(
        like.space,
        split_k=SPLITS,
        cta_m=extents,
        cta_n=extents,
        cta_k=(AUTO, WMMA_K),
        stages=(AUTO, WMMA_STAGES),
        combines=in_multistage_names,
    )
    order = replace(like.tile_order, splits="apart")
    return replace(like, name="cublas", space=space, tile_order=order, knows=EPILOGUES)


FAMILIES = (
    CUBLAS_SM90,
    _sm100(cutlass.CUTLASS_SM100),
    _blackwell(cutlass.CUTLASS_SM120),
    *(_multistage(like) for like in cutlass.FAMILIES if like.tile_period == multistage.ONE_CTA_A_TILE),
)
