"""What a kernel family is: configurations, resources, tile order and tile period (`config/families.toml`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from gemm_model.config.mechanisms import MECHANISM_NAMES, OF_LIBRARIES
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, where
from gemm_model.core.kernel_config import AUTO
from gemm_model.kernels import warpgroup_mma
from gemm_model.kernels.compiled_code import OTHERS, compiled_code
from gemm_model.kernels.tile_scheduler import STATIC_STRIDE, TileScheduler


def always(value: float) -> Callable[..., Any]:
    """The rule that is a number, whatever the kernel; a table of `config/families.toml` gives the number alone."""
    return partial(_constant, value)


def _constant(value: float, *_: object) -> float:
    return value


NO, NOTHING, ONE, TWO, NO_LIMIT = map(always, (False, 0.0, 1.0, 2.0, float("inf")))


def every_combination(batch: GemmBatch) -> Flags:
    return batch.cta_m > 0


def by_the_register(
    excess: Values, _accumulators: Values, _columns: Values, _two_sets: Flags
) -> tuple[Values, Values]:
    """Nvcc 13.0 spills each register beyond the budget, and no others.

    SASS of CUTLASS's e4m3 tile 128x256 with slow accumulation: 47 stores and 49 loads for an excess of 46.
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
    """Swizzles; a quick look at a kernel uses the first."""
    rasters: tuple[str, ...] = ("heuristic",)
    stages: tuple[int, ...] = (AUTO,)
    cta_k: tuple[int, ...] = (AUTO,)
    split_k: tuple[int, ...] = (1,)
    swaps: tuple[bool, ...] = (False,)
    """Whether kernels also compute D^T = B A^T; the tile's rows then run along n."""
    fast_accum: bool = False
    """Whether fp8 sums stay in the tensor core's accumulators."""
    slow_sums: bool = True
    """Whether fp8 sums may be promoted to a second set of accumulators instead, where there is one."""
    stream_k: bool = False
    """Whether there is a scheduler that deals k tiles evenly to the clusters."""

    combines: Callable[[GemmBatch], Flags] = every_combination
    """Mask of the combinations that the library has, among those that could run."""

    @property
    def orders_per_kernel(self) -> int:
        """Tile orders of one compiled kernel: raster and swizzle are arguments of its launch."""
        return len(self.rasters) * len(self.swizzles)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRules:
    """Resources of one CTA of a family, and the tiles, clusters and types that its kernels exist for.

    The rules take the columns of a batch, or one row as numbers. A warpgroup is 128 threads.
    """

    offers_tile: Callable[[GemmBatch], Flags]
    """Whether there is a kernel of this CTA tile and schedule."""
    warpgroups: Callable[[GemmBatch], Values]
    """MMA warpgroups that share one tile."""
    splits_columns: Callable[[GemmBatch, Values], Flags] = NO
    """Whether the warpgroups (second argument) share the tile's columns instead of its rows."""
    held_stages: Callable[[GemmBatch], Values] = ONE
    """Stages of the ring that are held while one is consumed, and so cannot receive a load; one that is released one k
    tile after its use, because one MMA group stays in flight, is held."""
    math_in_round_trip: Callable[[GemmBatch], Values] = ONE
    """Share of a k tile's MMAs that a load waits for, beside those of held stages [1]."""
    mma_columns: Callable[[GemmBatch, Flags], Values] = warpgroup_mma.columns_of_the_tile
    """Columns of a warpgroup's MMA instructions; takes whether warpgroups share the tile's columns."""
    epilogue_tile: Callable[[GemmBatch, Flags], tuple[Values, Values]] = warpgroup_mma.epilogue_tile
    """Rows and columns of the outputs that one epilogue buffer holds; takes whether rows are shared."""
    epilogue_buffers: Callable[[Values], Values] = TWO
    """Epilogue buffers beside the operand ring, by their columns; a tile may have fewer."""
    mma_registers: Callable[[Values, Values], Values] = warpgroup_mma.set_registers
    """Registers that a thread may have, by its accumulators and the warpgroups of the tile."""
    largest_cluster: int = 1
    """CTAs of a cluster, at most."""
    spilled_code: Callable[[Values, Values, Values, Flags], tuple[Values, Values]] = by_the_register
    """Spilled code of a k tile: registers stored and loaded, and loads waited for one by one. Takes the
    excess registers, the accumulators of a thread, the columns of an instruction, and whether there are two
    sets of accumulators."""
    mmas_ahead: Callable[[], float] = NO_LIMIT
    """MMA instructions of a k tile that the tensor cores queue. A load that follows the MMAs in the code of
    the same warps waits for the rest."""
    awaited_math: Callable[[GemmBatch], Values] = NOTHING
    """Share of a warpgroup's MMAs that it waits for before it frees their stage [1]."""
    in_step: Callable[[GemmBatch], Values] = NOTHING
    """1 where CTAs stay in step, since the warps that multiply also load; 0 with producer warps [1]."""
    loads_of_k_tile: Callable[[GemmBatch], Values] = ONE
    """Loads of a k tile, each a stage; all arrive and are multiplied, even beyond the end of K [1]."""
    stored_sector_share: Callable[[GemmBatch], Values] = ONE
    """Share of a 32-byte L2 sector that one store fills [1]; below 1 if threads store their own rows without
    a buffer in shared memory."""
    short_ring: bool = False
    """Whether the ring is so short that a stage's round trip bounds the loads."""
    barrier_bytes: float = 1024.0
    """Shared memory that barriers and the tile scheduler take [bytes a CTA]."""
    stage_barrier_bytes: float = 0.0
    """The same for each stage of the operand ring [bytes]."""
    fewest_stages: float = 2.0
    """Fewest stages of the ring. A stage is released one k tile after its use, so a ring of one never
    turns."""
    most_stages: float = float("inf")
    """Most stages that a kernel takes where none are asked for, even if more would fit."""
    outputs_replace_sources: bool = False
    """Whether outputs reuse the buffers of the epilogue's source matrix once it has been read."""
    mixed_widths: bool = False
    """Whether operands may have different widths."""
    block_scaled: bool = False
    """Whether operands may have block scales."""
    promotes_by_block: bool = False
    """Whether a warpgroup waits for each of its blocks of 64 rows separately, and promotes the sums of one
    block beside the MMAs of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileOrder:
    """The order in which a grid walks the tiles; a panel is a row or a column of clusters.

    Panels of one extent are walked together in groups of `swizzle`; within a group consecutive clusters run
    over the group's panels first, then advance along the other extent. Raster 'heuristic' is along the
    shorter extent (a tie goes to n) unless `always_along_m`.
    """

    name: str
    packs_groups: bool = False
    """Whether tiles of convolutions hold several groups of few channels."""
    grouped: Literal["along", "across"] = "along"
    """Whether groups are panels of the extent that the raster names, or of the other extent."""
    always_along_m: bool = False
    """Whether raster 'heuristic' always runs along m."""
    whole_extent: bool = False
    """Whether a group holds all panels of its extent, for any swizzle."""
    own_group: float | None = None
    """Panels of a group if the kernels fix it, for any swizzle."""
    cut_to_problem: bool = False
    """Whether a problem of few CTA tiles cuts the swizzle down to 4, 2 or 1, and the order counts CTA tiles,
    not clusters (CUTLASS `get_log_swizzle_size`)."""
    padded: bool = False
    """Whether both extents are rounded up to whole groups, and tiles outside the matrix computed too."""
    splits: Literal["rounds", "move", "apart"] = "rounds"
    """How the splits of a tile add up. 'rounds': in turn, all first splits before any second one. 'move': in
    turn, side by side, with positions that shift if the resident clusters are no whole number of tiles.
    'apart': side by side into the workspace, added up by a second kernel."""
    serpentine: bool = False
    """Whether every other group is walked backwards."""
    plain_launch: bool = False
    """Whether single CTAs are launched without a cluster attribute. Consecutive CTAs then fill one GPC after
    another; launches with clusters go to the GPCs in turn."""
    fills_gpcs: bool = False
    """Whether consecutive clusters of any size fill one GPC after another; cuBLAS: L2 counters of 487 kernels."""
    maps_of_groups: bool = False
    """Whether each group has tensor maps of its own, so that rows behind it are out of bounds; otherwise they
    belong to the next group."""
    scheduler: TileScheduler = STATIC_STRIDE
    """How tiles are assigned to resident clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePeriod:
    """How the mainloop and the epilogue of consecutive tiles share the MMA warps and their accumulators."""

    in_tensor_memory: bool = False
    """Whether accumulators are in tensor memory; otherwise they are in registers."""
    persistent: bool = True
    """Whether a CTA computes several tiles; otherwise each CTA computes one, and the grid runs in waves."""
    groups_tile_by_tile: bool = False
    """Whether grouped kernels refill their ring for each tile and store outputs through pointers.

    A loop over groups within a loop over tiles is not pipelined across tiles, and a TMA store would overwrite
    rows of the next group.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """The kernels of one library on some architectures."""

    name: str
    architectures: tuple[str, ...]
    space: ConfigSpace
    resources: ResourceRules
    tile_order: TileOrder
    tile_period: TilePeriod = TilePeriod()
    dependent_launch: bool = False
    """Whether kernels use programmatic dependent launch by default."""
    triggers_early: bool = False
    """Whether cooperative kernels let the next grid start before they store their last tile."""
    loads_b_first: bool = False
    """Whether a k tile's load of B comes before that of A: kernels of D^T."""
    loader_deals: bool = False
    """Whether the load warp announces the next tile to the others after it has issued its own loads."""
    knows: frozenset[str] = frozenset()
    """KIND_WORDS that its kernels support."""
    plain_products: bool = True
    """Whether it computes GEMMs; otherwise it is a family of convolutions and chosen for these only."""
    providers: tuple[str, ...] = ()
    """Other names in the column `kernel` of measured tables: providers that run the same kernels."""
    mechanisms: tuple[str, ...] = OF_LIBRARIES
    """Mechanisms of the kernel model that apply to these kernels; all others are switched off."""

    @property
    def absent_mechanisms(self) -> frozenset[str]:
        return frozenset(MECHANISM_NAMES) - frozenset(self.mechanisms)
