"""Cross-validation: predict every row from a fit that has not seen its shape, configuration, family or
card.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import BoolArray, IntArray
from gemm_model.kernel_model.kernel_time import KernelTime
from gemm_model.kernels.mechanisms import KernelNumbers
from gemm_model.tables.accuracy import config_columns

FOLDS = 8


def folds_of(groups: IntArray, seed: int, count: int = FOLDS) -> IntArray:
    """A fold for each row, whole groups together, folds of about as many groups each."""
    order = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
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

    test: BoolArray
    """Mask of the rows that the fit has not seen."""
    seen: Observations
    unseen: Observations
    numbers: KernelNumbers
    times: KernelTime
    """The fit's times for the unseen rows."""


def sizes(seen: Observations) -> np.ndarray:
    """The table's own sizes; m of grouped rows is the sum over groups."""
    m, n, k = (seen.frame[name].astype(float).astype(int).astype(str) for name in ("m", "n", "k"))
    return (m + "x" + n + "x" + k).to_numpy(dtype=str)
