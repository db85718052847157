"""Pair rows of fused epilogues with plain rows of the same kernel, to learn the time that an epilogue
adds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import FloatArray
from gemm_model.tables.accuracy import config_columns

TWIN_COLUMNS = ("in_dtype", "m", "n", "k", "batch", "gpu_uuid")
"""Columns in which twins agree, beside those of their kernel."""
MEASURED = "measured_us"
"""The column that keeps the measured time when `beside_twins` changes it."""


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
