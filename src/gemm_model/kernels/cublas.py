"""Kernels of cuBLAS: nvjet from Hopper on (what their names tell), multistage kernels before."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, negated, where
from gemm_model.core.further_work import BLOCK_SCALING
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernels import cutlass, multistage, warpgroup_mma
from gemm_model.kernels.family import ConfigSpace, KernelFamily, ResourceRules, TileOrder, TilePeriod

LARGEST_PINGPONG_TILE = 22_528.0
"""Most accumulators of a ping-pong tile [1]; cuBLAS, two sets counted for slow fp8 sums; 7,956 kernels on an
H200: cooperative ones have 23,552 or more. It is 176 registers a thread."""


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Warpgroup MMAs of m64nN in whole eights: either extent of the tile can be the rows of the MMA.

    Tiles seen by name: 8x64 to 8x512, 64x96, 64x112, 128x144, 128x320, 64x448 (cta_m x cta_n: cuBLAS computes
    D^T and names the extent along n first).
    """
    m, n = batch.cta_m, batch.cta_n
    along_m = is_multiple(m, 64.0) & is_multiple(n, 8.0)
    along_n = is_multiple(n, 64.0) & is_multiple(m, 8.0)
    return (along_m | along_n) & (m <= 512) & (n <= 512)


def in_its_schedule(batch: GemmBatch) -> Flags:
    """A tile comes in one schedule: ping-pong while the registers of one warpgroup hold it."""
    sets = where((batch.a_bits == 8) & negated(batch.fast_accum), 2.0, 1.0)
    too_large = sets * batch.cta_m * batch.cta_n > LARGEST_PINGPONG_TILE
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits


def sm90_warpgroups(batch: GemmBatch) -> Values:
    return where(batch.schedule == PINGPONG, 1.0, 2.0)


def sm90_splits_columns(batch: GemmBatch, warpgroups: Values) -> Flags:
    """coopB: a tile of 64 rows is shared by columns."""
    one_group_of_rows: Flags = batch.cta_m == 64
    return (warpgroups > 1) & one_group_of_rows


def sm90_mma_columns(batch: GemmBatch, _splits_columns: Flags) -> Values:
    """The extent that is no rows of the MMA: cuBLAS computes D^T, so rows run along n where they can."""
    return where(is_multiple(batch.cta_n, 64.0), batch.cta_m, batch.cta_n)


EPILOGUES = frozenset({"alpha", "beta", "bias_n", "relu", "gelu", "output_scale"})
"""`cublasLtEpilogue_t`: BIAS runs along the rows of D^T, which are columns of D."""

NVJET_ORDER = TileOrder(name="raster by name, in groups of eight", own_group=8.0, splits="apart")
"""'h' and 'v' in the name are the raster; times of 5,648 kernels on an H200 tell which is which. L2 counters
of 42 kernels in clusters of two tell the group: their requests come out 11 % off with 8 panels, 27 % with
one. Behind a kernel that splits K comes a `splitKreduce_kernel` (profiler)."""

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
        split_k=(1, 2, 3, 4, 5, 6, 8),
        combines=in_its_schedule,
    ),
    resources=ResourceRules(
        offers_tile=offers_sm90_tile,
        warpgroups=sm90_warpgroups,
        splits_columns=sm90_splits_columns,
        held_stages=warpgroup_mma.one_stage_held,
        math_in_round_trip=warpgroup_mma.whole_math,
        mma_columns=sm90_mma_columns,
        epilogue_tile=warpgroup_mma.epilogue_tile,
        epilogue_buffers=warpgroup_mma.two_buffers,
        mma_registers=warpgroup_mma.set_registers,
        largest_cluster=8,
    ),
    tile_order=NVJET_ORDER,
    tile_period=TilePeriod(accumulators="registers"),
    providers=("cublaslt",),
)


def _blackwell(like: KernelFamily) -> KernelFamily:
    """Nvjet on Blackwell: CUTLASS's tiles, in an order of which only the raster is known."""
    space = replace(like.space, swizzles=(1,), rasters=("along_m", "along_n"))
    return replace(like, name="cublas", space=space, knows=EPILOGUES)


def _multistage(like: KernelFamily) -> KernelFamily:
    """CuBLAS before Hopper takes CUTLASS's multistage kernels, among others of the same build."""
    return replace(like, name="cublas", knows=EPILOGUES)


FAMILIES = (
    CUBLAS_SM90,
    *(_blackwell(like) for like in (cutlass.CUTLASS_SM100, cutlass.CUTLASS_SM120)),
    *(_multistage(like) for like in cutlass.FAMILIES if like.tile_period == multistage.ONE_CTA_A_TILE),
)
