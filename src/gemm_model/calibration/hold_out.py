"""Times of held-out rows, fold by fold, where there is room for it in several processes at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from gemm_model.calibration.cross_validation import fold_fit
from gemm_model.calibration.fit import Donor
from gemm_model.calibration.observations import Observations
from gemm_model.calibration.residual_fit import corrected_fold_us
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.elementwise import Values
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.processes import RunAll

WORTH_A_PROCESS = 1500
"""Fewest rows of a fit [rows]; fits in processes of their own; measured: it takes about 1 s, as long as a
process needs to start."""


@dataclass(frozen=True, slots=True)
class HeldOutTimes:
    """What fits that have not seen them say of rows; arrays of equal length, NaN where all fits saw a row."""

    runtime_us: FloatArray
    set_clk_mhz: FloatArray
    corrected_us: FloatArray | None
    """With a residual that has not seen the row either; None where none is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOut:
    """What every fold of a hold-out shares: rows by regime, the judged one's name, and how to fit."""

    regimes: Mapping[str, Observations]
    main: str
    gpu: GpuSpec
    free: Collection[str]
    start: Mapping[str, float]
    donor: Donor | None
    without: Collection[str]
    with_residual: bool = False
    beside: Observations | None = None
    """Further rows that the residual is trained on, if of sizes that the fold does not hold out."""

    def fold(self, test: BoolArray) -> HeldOutTimes:
        """Of the `test` rows alone, from one fit to the others."""
        found = fold_fit(
            self.regimes,
            self.main,
            self.gpu,
            test,
            free=self.free,
            start=self.start,
            donor=self.donor,
            without=self.without,
        )
        corrected = corrected_fold_us(found, self.gpu, self.beside) if self.with_residual else None
        return HeldOutTimes(
            _each(found.times.runtime_us, test), _each(found.times.set_clk_mhz, test), corrected
        )

    def times(
        self, folds: IntArray, run_all: RunAll, fitted: Callable[[], None] = lambda: None
    ) -> HeldOutTimes:
        """Of all rows of `main`, each by the fit of its own fold; folds below 0 are seen by every fit.

        `fitted` is called after each fit.
        """
        tests = [folds == fold for fold in np.unique(folds[folds >= 0])]
        runtime_us, clk_mhz, corrected_us = (np.full(len(folds), np.nan) for _ in range(3))
        for test, found in zip(tests, worth_it(run_all, len(folds))(self.fold, tests), strict=True):
            fitted()
            runtime_us[test], clk_mhz[test] = found.runtime_us, found.set_clk_mhz
            if found.corrected_us is not None:
                corrected_us[test] = found.corrected_us
        return HeldOutTimes(runtime_us, clk_mhz, corrected_us if self.with_residual else None)


def worth_it(run_all: RunAll, rows: int) -> RunAll:
    """`run_all` for work on so many rows; `map` where a process would take longer to start."""
    return map if rows < WORTH_A_PROCESS else run_all


def _each(values: Values, test: BoolArray) -> FloatArray:
    """A value for each test row."""
    result: FloatArray = np.broadcast_to(values, int(test.sum()))
    return result
