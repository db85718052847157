"""Adding up partial sums where several clusters share the K of a tile (split-K, stream-K)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, floor, maximum, where
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.mechanisms import SplitK
from gemm_model.persistent.tile_schedule import TileSchedule

PARTIAL_SUM_BYTES = 4.0
"""A partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turn_clk(batch: GemmBatch, split: SplitK) -> Values:
    """Clocks in which one split adds its sums to those of the splits before it."""
    return split.turn_clk + batch.cta_m * batch.cta_n * PARTIAL_SUM_BYTES / split.bytes_per_clk


def turns_per_wave(batch: GemmBatch, schedule: TileSchedule, order: TileOrder) -> Values:
    """Turns that one wave adds to the time; none without splits, nor in the whole waves of stream-K.

    Where each cluster keeps its place among the splits, the waits overlap, and its own turn is left. Where
    places move and the resident clusters are not whole tiles, a cluster moves on by the remainder each wave,
    and the last in the order waits for those that it was moved before.
    """
    if order.splits == "apart":
        return 0.0
    if order.splits == "stay":
        return where(batch.split_k > 1.0, 1.0, 0.0)
    moved = schedule.resident - batch.split_k * floor(schedule.resident / batch.split_k)
    turns = where(moved > 0, batch.split_k - moved, 1.0)
    return where(batch.split_k > 1.0, turns, 0.0)


def last_turns(batch: GemmBatch, schedule: TileSchedule, order: TileOrder) -> Values:
    """Turns after the last wave: all splits of its tiles but the first wait there, less the turns before.

    Where clusters keep their places, a tile's chain of turns runs beside those that each cluster takes, wave
    by wave, and the longer counts; where places move, a cluster begins each wave's chain anew.
    """
    if order.splits == "apart":
        return 0.0
    before = turns_per_wave(batch, schedule, order)
    if order.splits == "stay":
        before = before * schedule.waves
    return maximum(schedule.sharers - 1.0 - before, 0.0)


def second_kernel_us(
    batch: GemmBatch,
    schedule: TileSchedule,
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


def workspace_bytes(batch: GemmBatch, schedule: TileSchedule) -> Values:
    """Partial sums that are written to L2, and read again."""
    return batch.m * batch.n * batch.batch * schedule.partial_sums * PARTIAL_SUM_BYTES * 2.0
