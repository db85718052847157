"""What is known of a library's kernels before any measurement: offers, needs, tile order, tile period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, where
from gemm_model.core.kernel_config import AUTO
from gemm_model.kernels.compiled_code import OTHERS, compiled_code
from gemm_model.kernels.mechanisms import MECHANISM_NAMES, OF_LIBRARIES
from gemm_model.kernels.tile_scheduler import STATIC_STRIDE, TileScheduler


def every_combination(batch: GemmBatch) -> Flags:
    return batch.cta_m > 0


def any_mma_ahead() -> float:
    return float("inf")


def whole_fill(_batch: GemmBatch) -> Values:
    """Fill takes as long in all kernels of a family."""
    return 1.0


def one_load(_batch: GemmBatch) -> Values:
    """A k tile is loaded at once, as one stage of the ring."""
    return 1.0


def stores_by_tma(_batch: GemmBatch) -> Values:
    """Stores by TMA fill whole sectors."""
    return 1.0


def nothing_awaited(_batch: GemmBatch) -> Values:
    """MMAs stay under way while the next k tile begins."""
    return 0.0


def by_the_register(
    excess: Values, _accumulators: Values, _columns: Values, _two_sets: Flags
) -> tuple[Values, Values]:
    """Each register beyond the budget (nvcc 13.0).

    SASS of CUTLASS's e4m3 tile 128x256 with slow sums: 47 stores and 49 loads where the excess is 46.
    """
    return excess, where(excess > 0.0, compiled_code(OTHERS).waits[OTHERS], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSpace:
    """The values that the kernels of a family offer for each part of their configuration."""

    cta_m: tuple[int, ...]
    cta_n: tuple[int, ...]
    clusters: tuple[tuple[int, int], ...]
    schedules: tuple[str, ...]
    swizzles: tuple[int, ...]
    """The first is the one that a quick look at a kernel uses."""
    rasters: tuple[str, ...] = ("heuristic",)
    stages: tuple[int, ...] = (AUTO,)
    cta_k: tuple[int, ...] = (AUTO,)
    split_k: tuple[int, ...] = (1,)
    swaps: tuple[bool, ...] = (False,)
    """Whether D^T = B A^T may be computed instead: the tile's rows then run along n."""
    fast_accum: bool = False
    """Whether fp8 sums stay in the tensor core's accumulators."""
    stream_k: bool = False
    """Whether there is a scheduler that deals k tiles evenly to the clusters."""

    combines: Callable[[GemmBatch], Flags] = every_combination
    """Which combinations the library has, of those that its kernels could run."""

    @property
    def orders_per_kernel(self) -> int:
        """Tile orders of one compiled kernel: raster and swizzle are arguments of its launch."""
        return len(self.rasters) * len(self.swizzles)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRules:
    """What one CTA of a family's kernels takes of an SM, and which tiles, clusters and types they exist for.

    The rules take the columns of a batch, or one row as numbers. A warpgroup is 128 threads.
    """

    offers_tile: Callable[[GemmBatch], Flags]
    """Whether there is a kernel of this CTA tile and schedule."""
    warpgroups: Callable[[GemmBatch], Values]
    """MMA warpgroups that share one tile."""
    splits_columns: Callable[[GemmBatch, Values], Flags]
    """Whether those (second argument) share the tile's columns, not its rows."""
    held_stages: Callable[[GemmBatch], Values]
    """Stages of the ring that are held while one is consumed, so that no load can be under way in them."""
    math_in_round_trip: Callable[[GemmBatch], Values]
    """Share of a k tile's MMAs that a load waits for beside those of held stages [1]."""
    mma_columns: Callable[[GemmBatch, Flags], Values]
    """Columns of a warpgroup's MMA instructions; takes whether warpgroups share the tile's columns."""
    epilogue_tile: Callable[[GemmBatch, Flags], tuple[Values, Values]]
    """Rows and columns of the outputs that one epilogue buffer holds; takes whether rows are shared."""
    epilogue_buffers: Callable[[Values], Values]
    """Epilogue buffers beside the operand ring, by their columns; a tile may have fewer."""
    mma_registers: Callable[[Values, Values], Values]
    """Registers that a thread may have, by its accumulators and the warpgroups of the tile."""
    largest_cluster: int
    """CTAs of a cluster, at most."""
    spilled_code: Callable[[Values, Values, Values, Flags], tuple[Values, Values]] = by_the_register
    """What the compiler makes of registers beyond a thread's budget, in a k tile: registers that it stores
    and loads, and loads that it waits for one by one. By those registers, the accumulators of a thread, the
    columns of an instruction, and whether there are two sets of accumulators."""
    mmas_ahead: Callable[[], float] = any_mma_ahead
    """MMA instructions of a k tile that tensor cores take ahead: a load behind them in the code of the warps
    that multiply waits for the others."""
    awaited_math: Callable[[GemmBatch], Values] = nothing_awaited
    """Share of a warpgroup's own MMAs that it waits for before it frees their stage and goes on [1]."""
    fill_share: Callable[[GemmBatch], Values] = whole_fill
    """Time of out-of-bounds fill over that of the family's other kernels [1]."""
    loads_of_k_tile: Callable[[GemmBatch], Values] = one_load
    """Loads that a k tile comes in, each a stage: all come and are multiplied, wherever K ends [1]."""
    stored_sector_share: Callable[[GemmBatch], Values] = stores_by_tma
    """Of the sectors of 32 bytes that a tile's stores send to L2 the part that one store fills [1]; below 1
    threads store their own rows, without a buffer in shared memory."""
    short_ring: bool = False
    """Whether the ring has few stages: a stage's round trip bounds the loads, whatever they queue for."""
    barrier_bytes: float = 1024.0
    """Shared memory that barriers and the tile scheduler take [bytes a CTA]."""
    stage_barrier_bytes: float = 0.0
    """The same for each stage of the operand ring [bytes]."""
    fewest_stages: float = 2.0
    """Stages of the ring, at least; one is released a k tile after its use, so a ring of one never turns."""
    most_stages: float = float("inf")
    """Stages that a kernel takes where more would fit."""
    outputs_replace_sources: bool = False
    """Whether outputs wait in the buffers of a further matrix of the epilogue, once that is read."""
    mixed_widths: bool = False
    """Whether operands of different widths are multiplied."""
    block_scaled: bool = False
    """Whether operands may have block scales."""
    promotes_by_block: bool = False
    """Whether a warpgroup waits for the MMAs of each of its blocks of 64 rows apart, and promotes the slow
    fp8 sums of one beside the MMAs of the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileOrder:
    """In which order a grid walks the tiles; a panel is a row or a column of clusters.

    Panels of one extent are walked together in groups of `swizzle`; within a group consecutive clusters run
    over the group's panels first, then advance along the other extent. Raster 'heuristic' is along the
    shorter extent (a tie goes to n) unless `always_along_m`.
    """

    name: str
    packs_groups: bool = False
    """Whether tiles of convolutions hold several groups of few channels."""
    grouped: Literal["along", "across"] = "along"
    """Whether the grouped panels are those that the raster names, or those of the other extent."""
    always_along_m: bool = False
    """Whether raster 'heuristic' is along m whatever the sizes."""
    whole_extent: bool = False
    """Whether a group is all panels of its extent, whatever the swizzle."""
    own_group: float | None = None
    """Panels of a group where the kernels decide for themselves, whatever the swizzle."""
    cut_to_problem: bool = False
    """Whether a problem of few CTA tiles cuts the swizzle down to 4, 2 or 1, and the order counts CTA tiles,
    not clusters (CUTLASS `get_log_swizzle_size`)."""
    padded: bool = False
    """Whether both extents are rounded up to whole groups, and tiles outside the matrix computed too."""
    splits: Literal["rounds", "move", "apart"] = "rounds"
    """How the splits of a tile add up: in turn, the first splits of all tiles before any second one; in turn,
    side by side, with places that move on where the resident clusters are not whole tiles; or side by side,
    each apart into the workspace, for a second kernel that adds them up."""
    serpentine: bool = False
    """Whether every other group is walked backwards."""
    plain_launch: bool = False
    """Whether single CTAs are launched without naming a cluster of one: consecutive ones then fill GPC after
    GPC, where clusters go to the GPCs in turn."""
    maps_of_groups: bool = False
    """Whether each group has tensor maps of its own, so that rows of a tile behind it are out of bounds; else
    they are the next group's."""
    scheduler: TileScheduler = STATIC_STRIDE
    """Which resident cluster computes which tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePeriod:
    """How the mainloop and the epilogue of consecutive tiles share the MMA warps and their accumulators."""

    accumulators: Literal["registers", "tensor_memory"]
    persistent: bool = True
    """Whether a CTA goes on to further tiles; else each CTA takes one, and the grid comes in waves."""
    groups_tile_by_tile: bool = False
    """Whether kernels of groups fill their ring anew for each tile, and store its outputs by pointers.

    Loops over groups within loops over tiles are not pipelined across tiles, and a store by TMA would write
    the rows of the next group too.
    """

    @property
    def in_tensor_memory(self) -> bool:
        return self.accumulators == "tensor_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """The kernels of one library on some architectures."""

    name: str
    architectures: tuple[str, ...]
    space: ConfigSpace
    resources: ResourceRules
    tile_order: TileOrder
    tile_period: TilePeriod
    dependent_launch: bool = False
    """Whether kernels are launched with programmatic dependent launch unless told otherwise."""
    loader_deals: bool = False
    """Whether the warp that loads tells the others their next tile, once it has asked for all of its own."""
    knows: frozenset[str] = frozenset()
    """Of FURTHER_WORDS: what its kernels do beyond a plain product."""
    plain_products: bool = True
    """Whether it is a family of plain products: else of convolutions, chosen for these alone."""
    providers: tuple[str, ...] = ()
    """What else the column `kernel` of measured tables calls them: providers that run them by other ways."""
    mechanisms: tuple[str, ...] = OF_LIBRARIES
    """Mechanisms of the time model that these kernels have; the others are switched off."""

    @property
    def absent_mechanisms(self) -> frozenset[str]:
        return frozenset(MECHANISM_NAMES) - frozenset(self.mechanisms)
