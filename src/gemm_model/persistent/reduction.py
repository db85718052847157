"""Adding up partial sums where several clusters share the K of a tile (split-K)."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, where
from gemm_model.kernels.mechanisms import SplitK

PARTIAL_SUM_BYTES = 4.0
"""A partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turns_clk(batch: GemmBatch, split: SplitK) -> Values:
    """Clocks that the last split of a tile waits for the others: they add their sums one after another."""
    sums_clk = batch.cta_m * batch.cta_n * PARTIAL_SUM_BYTES / split.bytes_per_clk
    return (batch.split_k - 1.0) * (split.turn_clk + sums_clk)


def setup_us(batch: GemmBatch, split: SplitK) -> Values:
    """Clearing the counters of the tiles before a kernel that splits K."""
    return where(batch.split_k > 1.0, split.setup_us, 0.0)


def workspace_bytes(batch: GemmBatch) -> Values:
    """Partial sums that all splits but the last write to L2, and read again."""
    return batch.m * batch.n * batch.batch * PARTIAL_SUM_BYTES * 2.0 * (batch.split_k - 1.0)
