"""Kernels of CUTLASS: the 3.x collectives from Hopper on, multistage kernels before."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, maximum, one_of, where
from gemm_model.core.epilogue import ACTIVATIONS, REDUCTIONS, SCALARS, SOURCES, VECTORS
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.kind_columns import BLOCK_SCALING, CONV, GROUPS
from gemm_model.kernels import multistage, quack, warpgroup_mma
from gemm_model.kernels.family import ConfigSpace, KernelFamily, ResourceRules, TileOrder, TilePeriod
from gemm_model.kernels.mechanisms import OF_LIBRARIES, SLOW_DIVISION

VISITED = frozenset({*SCALARS, *SOURCES, *VECTORS, *ACTIVATIONS, *REDUCTIONS})
"""Words with a node in epilogue visitor trees. A gate has none, because it halves the outputs."""
COLLECTIVES = VISITED | {GROUPS, CONV}
"""With array and grouped problems, and implicit GEMM."""

WIDE_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4), (4, 4))
RASTERS = ("heuristic", "along_m", "along_n")
SWIZZLES = (1, 2, 4, 8)


def offers_sm90_tile(batch: GemmBatch) -> Flags:
    """Whether the collective builder has the tile; n must be a multiple of 8 (wgmma)."""
    return one_of(batch.cta_m, (64.0, 128.0, 256.0)) & is_multiple(batch.cta_n, 8.0) & (batch.cta_n <= 256)


def sm90_warpgroups(batch: GemmBatch) -> Values:
    """MMA warpgroups of a tile: two share a cooperative tile's rows; 64 rows have one
    (KernelTmaWarpSpecialized).
    """
    return where((batch.schedule == PINGPONG) | (batch.cta_m == 64), 1.0, 2.0)


SM90_ORDER = TileOrder(
    name="the shorter extent first, in groups of the longer",
    grouped="across",
    cut_to_problem=True,
    padded=True,
    splits="rounds",
    plain_launch=True,
    maps_of_groups=True,
)
"""`PersistentTileSchedulerSm90`: it walks the raster's extent, the shorter one, in groups of `swizzle` panels
of the other. Splits: `PersistentTileSchedulerSm90StreamK`, whose work index counts tiles first. Launch:
`GemmUniversalAdapter` names no cluster where it is 1x1x1."""

CUTLASS_SM90 = KernelFamily(
    name="cutlass",
    architectures=("sm90",),
    # `sm90_mma_tma_gmma_ss_warpspecialized_fp8_blockwise_scaling`
    knows=COLLECTIVES | {BLOCK_SCALING},
    space=ConfigSpace(
        cta_m=(64, 128, 256),
        cta_n=(8, 16, *range(32, 257, 32)),
        clusters=WIDE_CLUSTERS,
        schedules=("cooperative", "pingpong"),
        swizzles=SWIZZLES,
        rasters=RASTERS,
        fast_accum=True,
        stream_k=True,
    ),
    resources=ResourceRules(
        offers_tile=offers_sm90_tile,
        warpgroups=sm90_warpgroups,
        largest_cluster=8,
        # StageCountAutoCarveout: the epilogue's storage with its barriers in whole 128 bytes, and a pair of
        # barriers a stage.
        barrier_bytes=128.0,
        stage_barrier_bytes=16.0,
        # ReuseSmemC of the TMA epilogue.
        outputs_replace_sources=True,
    ),
    tile_order=SM90_ORDER,
    # `cutlass::epilogue::thread::SiLu` divides by 1 + exp(-x).
    mechanisms=(*OF_LIBRARIES, SLOW_DIVISION),
)

CUTLASS_SM100 = KernelFamily(
    name="cutlass",
    architectures=("sm100",),
    knows=COLLECTIVES,
    space=replace(
        CUTLASS_SM90.space,
        cta_m=(64, 128),
        cta_n=(16, *range(32, 257, 32)),
        schedules=("cooperative", "2cta"),
        stream_k=False,
    ),
    resources=replace(quack.QUACK_SM100.resources, epilogue_buffers=warpgroup_mma.two_buffers),
    tile_order=quack.QUACK_SM100.tile_order,
    tile_period=TilePeriod(in_tensor_memory=True),
    mechanisms=quack.TENSOR_MEMORY_MECHANISMS,
)

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


CUTLASS_SM103 = replace(
    CUTLASS_SM100,
    architectures=("sm103",),
    resources=replace(
        CUTLASS_SM100.resources, loads_of_k_tile=loads_of_deep_k_tile, stored_sector_share=direct_sector_share
    ),
)
"""Kernels of sm_103. Those of sm_100 run there too; cta_k identifies the deep k tiles."""


def offers_sm120_tile(batch: GemmBatch) -> Flags:
    """Whether the collective builder has the tile: with block scales 128 rows and 32 or 64 columns too, and
    from CUTLASS 4.6 on 8 and 16, which are not offered (`sm120_blockscaled_mma_builder`).
    """
    narrow: Flags = (batch.cta_m == 128) & one_of(batch.cta_n, (32.0, 64.0))
    return quack.offers_sm120_tile(batch) | narrow


CUTLASS_SM120 = KernelFamily(
    name="cutlass",
    architectures=("sm120",),
    knows=VISITED | {GROUPS},
    space=replace(CUTLASS_SM90.space, cta_n=(32, 64, 96, 128, 256), clusters=((1, 1),), stream_k=False),
    resources=replace(quack.QUACK_SM120.resources, offers_tile=offers_sm120_tile),
    tile_order=SM90_ORDER,
)

THREADBLOCK_SWIZZLE = TileOrder(name="groups of n", grouped="across", always_along_m=True)
"""CUTLASS 2.x `GemmIdentityThreadblockSwizzle`: blocks along m, in groups of n."""

MULTISTAGE_SPACE = replace(
    CUTLASS_SM120.space, cta_n=(32, 64, 128, 256), schedules=("cooperative",), rasters=("heuristic",)
)


def _multistage(architectures: tuple[str, ...], rules: ResourceRules) -> KernelFamily:
    return KernelFamily(
        name="cutlass",
        architectures=architectures,
        knows=COLLECTIVES,
        space=MULTISTAGE_SPACE,
        resources=rules,
        tile_order=THREADBLOCK_SWIZZLE,
        tile_period=multistage.ONE_CTA_A_TILE,
        mechanisms=multistage.MECHANISMS,
    )


FAMILIES = (
    CUTLASS_SM90,
    CUTLASS_SM100,
    CUTLASS_SM103,
    CUTLASS_SM120,
    _multistage(multistage.ASYNC_COPY, multistage.resource_rules()),
    _multistage(multistage.REGISTER_COPY, multistage.resource_rules(stages=2.0)),
)
