"""Adding up partial sums where several clusters share the K of a tile (split-K, stream-K)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, any_of, ceil, floor, is_zero, maximum, minimum, where
from gemm_model.kernel_model.tile_schedule import TileSchedule, TileWaves
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.feasibility import Resources
from gemm_model.kernels.mechanisms import KernelNumbers, SplitK

PARTIAL_SUM_BYTES = 4.0
"""A partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turn_clk(batch: GemmBatch, split: SplitK) -> Values:
    """Clocks in which one split adds its sums to those of the splits before it."""
    return split.turn_clk + _sums_clk(batch, split)


def fold_clk(batch: GemmBatch, resources: Resources, split: SplitK) -> Values:
    """Clocks of the last split's turn where it reads the sums back, beside storing the tile.

    Each warpgroup waits for the sums of one epilogue buffer after the other, so that two read twice as fast
    as one; adding, which waits for nothing, is as fast for one as for two. Source: QuACK 0.6.5
    `epilogue_split_k`, which adds by `red.add` and reads by `load_add`; kernels of one wave (h200 splits).
    """
    return split.turn_clk + _sums_clk(batch, split) / resources.warpgroups


def _sums_clk(batch: GemmBatch, split: SplitK) -> Values:
    return batch.cta_m * batch.cta_n * PARTIAL_SUM_BYTES / split.bytes_per_clk


def turns_clk(batch: GemmBatch, resources: Resources, order: TileOrder, numbers: KernelNumbers) -> Values:
    """Clocks of a cluster's own turn in each wave: the MMAs are drained before, and begin anew behind.

    None without splits, nor in the whole waves of stream-K. In rounds it is a cluster's own turn: those that
    it waits for were taken before. Where places move it is the last split's; waits for others are exposed.
    """
    if order.splits == "apart" or not any_of(batch.split_k > 1.0):
        return 0.0
    split = numbers.split_k
    own = fold_clk(batch, resources, split) if order.splits == "move" else turn_clk(batch, split)
    return where(batch.split_k > 1.0, own + numbers.epilogue.tile_clk, 0.0)


def moved_turns(batch: GemmBatch, schedule: TileWaves) -> Values:
    """Turns that each wave waits for beside its own where places move; none if its clusters are whole tiles.

    Else a cluster moves on by the remainder each wave, and the last in the order waits for those that it was
    moved before.
    """
    return batch.split_k * ceil(schedule.resident / batch.split_k) - schedule.resident


def exposed_turns_us(
    batch: GemmBatch, schedule: TileWaves, order: TileOrder, waves_us: Values, turn_us: Values
) -> Values:
    """Turns beside the waves, which take `waves_us` with those of `turns_clk`.

    In rounds, if the chain of all turns of a tile, behind one mainloop, is longer than what the last wave
    waits (`exposed_turns`), it counts.
    """
    if order.splits == "apart" or not any_of(schedule.sharers > 1.0):
        return 0.0
    if order.splits == "move":
        chain_us = _longest_chain_us(batch, schedule, waves_us, turn_us)
        return where(batch.split_k > 1.0, chain_us - waves_us, 0.0)
    mainloop_us = waves_us / schedule.waves - where(batch.split_k > 1.0, turn_us, 0.0)
    chain_us = where(batch.split_k > 1.0, mainloop_us + schedule.sharers * turn_us - waves_us, 0.0)
    return maximum(exposed_turns(batch, schedule, order) * turn_us, chain_us)


def _longest_chain_us(batch: GemmBatch, schedule: TileWaves, waves_us: Values, turn_us: Values) -> Values:
    """The longest chain of waits where places move, exactly: for a cluster's wave before, or for a turn.

    A piece of K follows on the one before it in its tile, and on that of its cluster a wave before. A chain
    of so many steps from wave to wave waits for all turns from the first split to the last one, in each wave
    anew for those that `moved_turns` counts; but not for more than there are pieces.
    """
    moved = moved_turns(batch, schedule)

    def chain_us(steps: Values) -> Values:
        pieces = schedule.tiles - 1.0 - steps * schedule.resident
        turns = minimum(batch.split_k - 1.0 + steps * moved, pieces)
        return (steps + 1.0) * waves_us / schedule.waves + turns * turn_us

    whole = floor((schedule.tiles - batch.split_k) / (schedule.resident + moved))
    return maximum(chain_us(whole), chain_us(minimum(whole + 1.0, schedule.waves - 1.0)))


def exposed_turns(batch: GemmBatch, schedule: TileWaves, order: TileOrder) -> Values:
    """Turns behind the last wave, at least.

    In rounds, the splits of a tile that run at once in the last wave wait for each other there, as do shares
    of stream-K. Side by side, all splits of a tile do, unless clusters have moved.
    """
    if order.splits == "apart" or not any_of(schedule.sharers > 1.0):
        return 0.0
    if order.splits == "move":
        return where(moved_turns(batch, schedule) > 0.0, 0.0, batch.split_k - 1.0)
    last = schedule.splits_at_once * schedule.last_tiles / schedule.resident
    at_once = ceil(where(schedule.last_tiles > 0.0, last, schedule.splits_at_once))
    return maximum(where(batch.split_k > 1.0, at_once, schedule.sharers) - 1.0, 0.0)


def second_kernel_us(
    batch: GemmBatch,
    schedule: TileWaves,
    order: TileOrder,
    split: SplitK,
    sm_count: int,
    sm_clk_mhz: Values,
) -> Values:
    """A small kernel more where clusters share tiles: it clears their counters before, or adds up behind.

    One that adds up reads the partial sums of all splits, each SM at the rate of `bytes_per_clk`.
    """
    added_us: Values = 0.0
    if order.splits == "apart":
        sums_bytes = batch.m * batch.n * batch.batch * schedule.partial_sums * PARTIAL_SUM_BYTES
        added_us = sums_bytes / (split.bytes_per_clk * sm_count * sm_clk_mhz)
    return where(schedule.sharers > 1.0, split.second_kernel_us + added_us, 0.0)


def profiled_second_us(second_us: Values, schedule: TileWaves, order: TileOrder, launch_us: float) -> Values:
    """The second kernel as a profiler, which times each kernel for itself, adds it.

    One that adds up is launched anew, on a card that has waited. Where splits come in rounds a memset makes
    ready for them, which is no kernel: the profiler's rows begin with the GEMM's own grid.
    """
    if order.splits == "rounds":
        return 0.0
    if order.splits == "move":
        return second_us
    return second_us + where(schedule.sharers > 1.0, launch_us, 0.0)


def workspace_bytes(batch: GemmBatch, schedule: TileSchedule, order: TileOrder) -> Values:
    """Partial sums that are written to L2, and read again.

    Those of whole tiles, filled rows and columns too, where splits come in rounds: CUTLASS adds each register
    by an atomic operation (`BlockStripedReduce`). Where splits lie side by side no such cost was found.
    """
    if is_zero(schedule.partial_sums):
        return 0.0
    filled = schedule.filled_m * schedule.filled_n if order.splits == "rounds" else 1.0
    sums = batch.m * batch.n / filled * batch.batch
    return sums * schedule.partial_sums * PARTIAL_SUM_BYTES * 2.0
