"""Adding up partial sums where several clusters share the K of a tile (split-K, stream-K)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, any_of, ceil, floor, is_zero, maximum, where
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.mechanisms import KernelNumbers, SplitK
from gemm_model.persistent.tile_schedule import TileSchedule, TileWaves

PARTIAL_SUM_BYTES = 4.0
"""A partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turn_clk(batch: GemmBatch, split: SplitK) -> Values:
    """Clocks in which one split adds its sums to those of the splits before it."""
    return split.turn_clk + batch.cta_m * batch.cta_n * PARTIAL_SUM_BYTES / split.bytes_per_clk


def turns_clk(batch: GemmBatch, schedule: TileWaves, order: TileOrder, numbers: KernelNumbers) -> Values:
    """Clocks of the turns of one wave: the MMAs are drained before, and begin anew behind."""
    turns = turns_per_wave(batch, schedule, order)
    if is_zero(turns):
        return 0.0
    return where(turns > 0.0, turns * turn_clk(batch, numbers.split_k) + numbers.epilogue.tile_clk, 0.0)


def turns_per_wave(batch: GemmBatch, schedule: TileWaves, order: TileOrder) -> Values:
    """Turns that one wave adds to the time; none without splits, nor in the whole waves of stream-K.

    In rounds it is a cluster's own turn: those that it waits for were taken before. Where places move and the
    resident clusters are not whole tiles, a cluster moves on by the remainder each wave, and the last in the
    order waits for those that it was moved before.
    """
    if order.splits == "apart" or not any_of(batch.split_k > 1.0):
        return 0.0
    if order.splits == "rounds":
        return where(batch.split_k > 1.0, 1.0, 0.0)
    moved = schedule.resident - batch.split_k * floor(schedule.resident / batch.split_k)
    turns = where(moved > 0, batch.split_k - moved, 1.0)
    return where(batch.split_k > 1.0, turns, 0.0)


def exposed_turns_us(
    batch: GemmBatch, schedule: TileWaves, order: TileOrder, waves_us: Values, turn_us: Values
) -> Values:
    """Turns beside the waves, which take `waves_us` with those of `turns_per_wave`.

    In rounds, if the chain of all turns of a tile, behind one mainloop, is longer than what the last wave
    waits (`exposed_turns`), it counts.
    """
    turns = exposed_turns(batch, schedule, order)
    if is_zero(turns):
        return 0.0
    if order.splits == "move":
        return turns * turn_us
    per_wave = turns_per_wave(batch, schedule, order)
    mainloop_us = waves_us / schedule.waves - per_wave * turn_us
    chain_us = where(batch.split_k > 1.0, mainloop_us + schedule.sharers * turn_us - waves_us, 0.0)
    return maximum(turns * turn_us, chain_us)


def exposed_turns(batch: GemmBatch, schedule: TileWaves, order: TileOrder) -> Values:
    """Turns behind the last wave, at least.

    In rounds, the splits of a tile that run at once in the last wave wait for each other there, as do shares
    of stream-K. Where places move, a cluster begins each wave's chain anew.
    """
    if order.splits == "apart" or not any_of(schedule.sharers > 1.0):
        return 0.0
    if order.splits == "move":
        return maximum(schedule.sharers - 1.0 - turns_per_wave(batch, schedule, order), 0.0)
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
