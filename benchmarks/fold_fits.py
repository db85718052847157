"""Fits to all folds of a table's rows but one, in turn, and what they predict for that one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from gemm_model.calibration.cross_validation import FoldFit, fold_fit
from gemm_model.calibration.fit import DEFAULT_FREE, Donor
from gemm_model.calibration.observations import Observations
from gemm_model.calibration.residual_fit import corrected_fold_us
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec


def fold_fits(
    regimes: Mapping[str, Observations],
    main: str,
    gpu: GpuSpec,
    folds: IntArray,
    *,
    free: Collection[str] = DEFAULT_FREE,
    start: Mapping[str, float] | None = None,
    donor: Donor | None = None,
    without: Collection[str] = (),
) -> Iterator[FoldFit]:
    """For each fold of the rows of regime `main`, a fit to the rows of all other folds.

    Folds below 0 are seen by every fit. Rows of other regimes of a held-out shape are left out as well.
    """
    for fold in np.unique(folds[folds >= 0]):
        yield fold_fit(
            regimes, main, gpu, folds == fold, free=free, start=start, donor=donor, without=without
        )


def held_out_with_residual(fits: Iterable[FoldFit], rows: int, gpu: GpuSpec) -> FloatArray:
    """Runtime of each row in us, corrected; NaN for rows that no fold holds out.

    A fold's trees are trained on the rows of that fold's fit, and on the times that this fit gives them.
    """
    with_residual_us = np.full(rows, np.nan)
    for each in fits:
        with_residual_us[each.test] = corrected_fold_us(each, gpu)
    return with_residual_us
