"""Triton's matrix multiplication: blocks of powers of two, grouped along m; persistent from Hopper on."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, maximum, power_of_two_divisor, where
from gemm_model.core.epilogue import EPILOGUE_WORDS
from gemm_model.core.kind_columns import BLOCK_SCALING, GROUPS
from gemm_model.kernels import multistage, warpgroup_mma
from gemm_model.kernels.family import ConfigSpace, KernelFamily, ResourceRules, TileOrder, TilePeriod
from gemm_model.kernels.mechanisms import OF_LIBRARIES


def offers_tile(batch: GemmBatch) -> Flags:
    """Blocks are powers of two, at least one MMA instruction of m16n8."""
    m, n = batch.cta_m, batch.cta_n
    whole = (power_of_two_divisor(m) == m) & (power_of_two_divisor(n) == n)
    return whole & (m >= 16) & (n >= 8) & (m <= 256) & (n <= 256)


GROUPED_ALONG_M = TileOrder(name="groups of m", always_along_m=True, plain_launch=True)
"""GROUP_M of the tutorials: `swizzle` blocks of m, then along n. The launcher names no cluster of one CTA."""

WRITTEN = frozenset({*EPILOGUE_WORDS, GROUPS})
"""Words that Triton kernels support: their author writes the epilogue and the loop over tiles."""

SPACE = ConfigSpace(
    cta_m=(64, 128, 256),
    cta_n=(32, 64, 128, 256),
    clusters=((1, 1),),
    schedules=("cooperative",),
    swizzles=(8, 1, 4, 16),
    rasters=("along_m",),
    stages=(2, 3, 4, 5, 6),
    fast_accum=True,
)


DEFAULT_NUM_STAGES = 3
"""Stages of a kernel that names none [1]; all GPUs with asynchronous copies; `triton.Config`, Triton 3.6."""
SPECIALIZED_WARPS = 12.0
"""Warps of a warp-specialized kernel [warps]; Hopper; four load, two groups of four multiply; Triton 3.6."""


def warpgroups(batch: GemmBatch) -> Values:
    """MMA warpgroups of a tile: all four or eight MMA warps share it."""
    given = where(batch.warps == SPECIALIZED_WARPS, 2.0, maximum(batch.warps / 4.0, 1.0))
    return where(batch.warps > 0.0, given, multistage.warpgroups(batch))


def held_stages(batch: GemmBatch) -> Values:
    """Stages held: warps that both load and multiply hold the stage in use; specialized warps release it at
    once.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 0.0, 1.0)


def math_in_round_trip(batch: GemmBatch) -> Values:
    """Share of MMAs that a load waits for: the MMA warps issue a load together with the previous k tile's
    MMAs.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 1.0, 0.0)


def awaited_math(batch: GemmBatch) -> Values:
    """Share of MMAs waited for: specialized warps wait for each k tile's; Triton 3.6 pipelines other
    kernels.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 1.0, 0.0)


def in_step(batch: GemmBatch) -> Values:
    """1 where CTAs stay in step: the MMA warps issue the loads, but where warps are specialized."""
    return where(batch.warps == SPECIALIZED_WARPS, 0.0, 1.0)


def mmas_ahead() -> float:
    """MMA instructions that an SM's tensor cores queue [1]; Hopper."""
    return room_numbers("kernels").triton_mmas_ahead


RULES = ResourceRules(
    offers_tile=offers_tile,
    warpgroups=warpgroups,
    held_stages=held_stages,
    math_in_round_trip=math_in_round_trip,
    # The allocator reuses the operands' stages for the output's layout conversion.
    epilogue_buffers=warpgroup_mma.no_buffers,
    mma_registers=warpgroup_mma.whole_register_file,
    barrier_bytes=0.0,
    fewest_stages=1.0,
    most_stages=float(DEFAULT_NUM_STAGES),
)

TMA_RULES = replace(RULES, epilogue_buffers=warpgroup_mma.whole_tile, largest_cluster=8)
"""Kernels that load and store by TMA: the output tile has shared memory of its own."""

TRITON_SM90 = KernelFamily(
    name="triton",
    architectures=("sm90",),
    knows=WRITTEN | {BLOCK_SCALING},
    space=replace(SPACE, slow_sums=False),
    resources=replace(
        TMA_RULES, mmas_ahead=mmas_ahead, awaited_math=awaited_math, in_step=in_step, short_ring=True
    ),
    tile_order=GROUPED_ALONG_M,
    tile_period=TilePeriod(groups_tile_by_tile=True),
    mechanisms=(*OF_LIBRARIES, "device_descriptors", "pointer_stores"),
)

TRITON_SM120 = replace(TRITON_SM90, architectures=("sm120",), resources=TMA_RULES)

TRITON_SM100 = replace(
    TRITON_SM90,
    architectures=("sm100",),
    knows=WRITTEN,
    resources=replace(TMA_RULES, block_scaled=True),
    tile_period=TilePeriod(in_tensor_memory=True, groups_tile_by_tile=True),
)

TRITON_MULTISTAGE = KernelFamily(
    name="triton",
    architectures=multistage.ASYNC_COPY,
    knows=WRITTEN,
    space=SPACE,
    resources=RULES,
    tile_order=GROUPED_ALONG_M,
    tile_period=multistage.ONE_CTA_A_TILE,
    mechanisms=multistage.MECHANISMS,
)

TRITON_SM70 = replace(
    TRITON_MULTISTAGE,
    architectures=("sm70",),
    space=replace(SPACE, stages=(2,)),
    resources=replace(RULES, most_stages=2.0),
)

FAMILIES = (TRITON_SM90, TRITON_SM120, TRITON_SM100, TRITON_MULTISTAGE, TRITON_SM70)
