"""Adding up partial sums where several clusters share the K of a tile (split-K)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, floor, where
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.mechanisms import SplitK
from gemm_model.persistent.tile_schedule import TileSchedule

PARTIAL_SUM_BYTES = 4.0
"""A partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turn_clk(batch: GemmBatch, split: SplitK) -> Values:
    """Clocks in which one split adds its sums to those of the splits before it."""
    return split.turn_clk + batch.cta_m * batch.cta_n * PARTIAL_SUM_BYTES / split.bytes_per_clk


def turns_per_wave(batch: GemmBatch, schedule: TileSchedule, order: TileOrder) -> Values:
    """Turns that one wave adds to the time; none without splits.

    Where each cluster keeps its place among the splits, the waits overlap, and its own turn is left. Where
    places move and the resident clusters are not whole tiles, a cluster moves on by the remainder each wave,
    and the last in the order waits for those that it was moved before.
    """
    if not order.splits_move:
        return where(batch.split_k > 1.0, 1.0, 0.0)
    moved = schedule.resident - batch.split_k * floor(schedule.resident / batch.split_k)
    turns = where(moved > 0, batch.split_k - moved, 1.0)
    return where(batch.split_k > 1.0, turns, 0.0)


def last_turns(batch: GemmBatch, schedule: TileSchedule, order: TileOrder) -> Values:
    """Turns after the last wave: all its splits but the first wait there, less those that the wave counts."""
    return batch.split_k - 1.0 - turns_per_wave(batch, schedule, order)


def setup_us(batch: GemmBatch, split: SplitK) -> Values:
    """Clearing the counters of the tiles before a kernel that splits K."""
    return where(batch.split_k > 1.0, split.setup_us, 0.0)


def workspace_bytes(batch: GemmBatch) -> Values:
    """Partial sums that all splits but the last write to L2, and read again."""
    return batch.m * batch.n * batch.batch * PARTIAL_SUM_BYTES * 2.0 * (batch.split_k - 1.0)
