"""Measured rows as a fit reads them: geometry, measured quantities, weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.kernel import Geometry, geometry_of
from gemm_model.kernels.family import KernelFamily
from gemm_model.tables.accuracy import shape_columns
from gemm_model.tables.table import batch_from_frame, runtimes_us

NEAR_BEST = 1.15
"""Time over a shape's best [1]; configurations within it take part in the ranking term; chosen."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Measured rows of one regime and one rate class; arrays of equal length."""

    frame: pd.DataFrame
    shape: Geometry
    runtime_us: FloatArray
    sm_clk_mhz: FloatArray
    """In-kernel clock of counter rows, settled clock of sustained rows, else NaN."""
    dram_read_bytes: FloatArray
    l2_bytes: FloatArray
    """Bytes that L2 reads and writes, as `lts__t_bytes` counts them."""
    power_w: FloatArray
    shape_id: IntArray
    weight: FloatArray
    """Weight of a row [1]: a shape weighs as its number of rows to the power 3/4; mean square 1."""
    best_row: IntArray
    """Row of the fastest configuration of the same shape."""
    near_best: BoolArray

    def __len__(self) -> int:
        return len(self.runtime_us)

    def rows(self, keep: BoolArray, gpu: GpuSpec) -> Observations:
        return observe(self.frame[keep], gpu, self.shape.family)


def observe(frame: pd.DataFrame, gpu: GpuSpec, family: KernelFamily) -> Observations:
    """Observations of a checked table, which has the column runtime_us."""
    batch = batch_from_frame(frame, needs_tile=True)
    measured = runtimes_us(frame)
    assert measured is not None
    shape_id = (
        frame.groupby(shape_columns(frame), sort=False, dropna=False).ngroup().to_numpy().astype(np.int64)
    )
    best_us = pd.Series(measured).groupby(shape_id).transform("min").to_numpy()
    best_row = pd.Series(measured).groupby(shape_id).transform("idxmin").to_numpy()
    count = np.bincount(shape_id)[shape_id]
    weight = count**-0.125
    return Observations(
        frame=frame,
        shape=geometry_of(batch, flop_per_clk_per_sm(batch, gpu), gpu, family),
        runtime_us=measured,
        sm_clk_mhz=_in_kernel_clock(frame),
        dram_read_bytes=_optional(frame, "dram_read_bytes"),
        l2_bytes=_optional(frame, "l2_bytes"),
        power_w=_optional(frame, "power_w"),
        shape_id=shape_id,
        weight=weight / np.sqrt(np.mean(weight**2)),
        best_row=best_row,
        near_best=measured <= NEAR_BEST * best_us,
    )


def _in_kernel_clock(frame: pd.DataFrame) -> FloatArray:
    """`sm_mhz` of counter and sustained rows; in bursts it is a probe outside the kernel, hence NaN."""
    clock = _optional(frame, "sm_mhz")
    reliable = frame["regime"].isin(("counters", "sustained")).to_numpy() if "regime" in frame else False
    return np.where(reliable, clock, np.nan)


def _optional(frame: pd.DataFrame, name: str) -> FloatArray:
    if name not in frame:
        return np.full(len(frame), np.nan)
    return pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)
