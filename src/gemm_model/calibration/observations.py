"""Measured rows as a fit reads them: geometry, measured quantities, weights; their groups, folds and twins.

Twins are rows of fused epilogues and plain rows of the same kernel: they tell the time that an epilogue adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.config.mechanisms import KernelNumbers
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.kernel import Geometry, geometry_of
from gemm_model.kernel_model.kernel_time import KernelTime
from gemm_model.kernels.family import KernelFamily
from gemm_model.tables.accuracy import config_columns, shape_columns
from gemm_model.tables.table import batch_from_frame, runtimes_us

TWIN_COLUMNS = ("in_dtype", "m", "n", "k", "batch", "gpu_uuid")
"""Columns in which twins agree, beside those of their kernel."""
MEASURED = "measured_us"
"""The column that keeps the measured time when `beside_twins` changes it."""


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
    weight = count ** room_numbers("calibration").count_power
    return Observations(
        frame=frame,
        shape=geometry_of(batch, flop_per_clk_per_sm(batch, gpu), gpu, family),
        runtime_us=measured,
        sm_clk_mhz=_in_kernel_clock(frame),
        dram_read_bytes=_optional(frame, "dram_read_bytes"),
        l2_bytes=_optional(frame, "l2_bytes"),
        shape_id=shape_id,
        weight=weight / np.sqrt(np.mean(weight**2)),
        best_row=best_row,
        near_best=measured <= room_numbers("calibration").near_best * best_us,
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


def folds_of(groups: IntArray, seed: int, count: int | None = None) -> IntArray:
    """A fold for each row, whole groups together, folds of about as many groups each."""
    order = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    count = count or int(room_numbers("calibration").folds)
    result: IntArray = (order % min(count, len(order)))[groups]
    return result


def size_groups(seen: Observations) -> IntArray:
    """Rows of equal m, n and k have one number, whatever their types.

    A kernel takes almost the same time in bf16 and fp16, so a shape is held out in all types at once.
    """
    groups: IntArray = np.unique(sizes(seen), return_inverse=True)[1].astype(np.int64)
    return groups


def config_groups(seen: Observations) -> IntArray:
    """Rows of one kernel configuration have one number."""
    grouped = seen.frame.groupby(config_columns(seen.frame), sort=False, dropna=False)
    return grouped.ngroup().to_numpy().astype(np.int64)


@dataclass(frozen=True, slots=True)
class FoldFit:
    """The fit of one fold."""

    seen: Observations
    unseen: Observations
    numbers: KernelNumbers
    times: KernelTime
    """The fit's times for the unseen rows."""


def sizes(seen: Observations) -> np.ndarray:
    """The table's own sizes; m of grouped rows is the sum over groups."""
    m, n, k = (seen.frame[name].astype(float).astype(int).astype(str) for name in ("m", "n", "k"))
    return (m + "x" + n + "x" + k).to_numpy(dtype=str)


def beside_twins(rows: Observations, plain: Observations, predicted_us: FloatArray) -> pd.DataFrame:
    """The rows' table, rescaled as if the plain kernel took its predicted time.

    A row with a measured plain twin is scaled by the twin's `predicted_us` (of `plain`) over its measured
    time. A fit then learns what the epilogue adds, and not the model's error on the kernel. Rows without a
    twin keep their times.
    """
    ratio = np.nan_to_num(of_twins(rows, plain, predicted_us / plain.runtime_us), nan=1.0)
    return rows.frame.assign(**{MEASURED: rows.runtime_us, "runtime_us": rows.runtime_us * ratio})


def added_us(
    rows: Observations, plain: Observations, rows_us: FloatArray, plain_us: FloatArray
) -> FloatArray:
    """What each of the rows takes longer than its plain twin [us]; NaN without one."""
    result: FloatArray = rows_us - of_twins(rows, plain, plain_us)
    return result


def of_twins(rows: Observations, plain: Observations, values: FloatArray) -> FloatArray:
    """Of each of the rows the median of its plain twins' `values`; NaN without one."""
    names = [name for name in TWIN_COLUMNS if name in rows.frame and name in plain.frame]
    names += [name for name in config_columns(rows.frame) if name in plain.frame]
    keys = [plain.frame[name].astype(str).to_numpy() for name in names]
    medians = pd.Series(values).groupby(keys).median().rename("value").rename_axis(names).reset_index()
    found: FloatArray = rows.frame[names].astype(str).merge(medians, on=names, how="left")["value"].to_numpy()
    return found
