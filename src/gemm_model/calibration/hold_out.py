"""Times of held-out rows, fold by fold, in several processes if that pays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm_model.calibration.fit import Donor, Fit, fit
from gemm_model.calibration.observations import FoldFit, Observations, sizes
from gemm_model.calibration.residual_fit import corrected_fold_us
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.processes import RunAll
from gemm_model.kernel_model.kernel_time import kernel_time

WORTH_A_PROCESS = 1500
"""Fewest rows of a fit in a process of its own [rows]; all fits; measured: it takes about 1 s, as long as a
process needs to start."""


@dataclass(frozen=True, slots=True)
class HeldOutTimes:
    """Times of rows from fits that have not seen them; arrays of equal length, NaN if all fits saw a row."""

    runtime_us: FloatArray
    set_clk_mhz: FloatArray
    corrected_us: FloatArray | None
    """Times with a residual that has not seen the row either; None without a residual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOut:
    """Data that every fold shares: rows by regime, the name of the judged regime, and how to fit."""

    regimes: Mapping[str, Observations]
    main: str
    gpu: GpuSpec
    free: Collection[str]
    start: Mapping[str, float]
    donor: Donor | None
    without: Collection[str]
    with_residual: bool = False
    beside: Observations | None = None
    """More rows for training the residual, if the fold does not hold out their sizes."""

    def fit(self, rows: Mapping[str, Observations]) -> Fit:
        """The fit to rows by regime."""
        known: dict[str, Any] = {name: getattr(self, name) for name in ("free", "start", "donor", "without")}
        return fit(rows, self.gpu, **known)

    def fit_without(self, test: BoolArray) -> FoldFit:
        """The fit to all rows but the `test` rows of `main`, and other rows of their sizes."""
        rows = self.regimes[self.main]
        unseen_sizes = np.unique(sizes(rows)[test])
        known = {self.main: rows.rows(~test, self.gpu)}
        for regime, others in self.regimes.items():
            keep = ~np.isin(sizes(others), unseen_sizes)
            if regime != self.main and keep.any():
                known[regime] = others.rows(keep, self.gpu)
        numbers = self.fit(known).numbers
        unseen = rows.rows(test, self.gpu)
        times = kernel_time(unseen.shape, self.gpu, numbers.without(self.without), regime=self.main)
        return FoldFit(known[self.main], unseen, numbers, times)

    def fold(self, test: BoolArray) -> HeldOutTimes:
        """Times of the `test` rows, from one fit to all other rows."""
        found = self.fit_without(test)
        corrected = corrected_fold_us(found, self.gpu, self.beside) if self.with_residual else None
        times = found.times.runtime_us, found.times.set_clk_mhz
        runtime_us, clk_mhz = (np.broadcast_to(each, int(test.sum())) for each in times)
        return HeldOutTimes(runtime_us, clk_mhz, corrected)

    def times(
        self, folds: IntArray, run_all: RunAll, fitted: Callable[[], None] = lambda: None
    ) -> HeldOutTimes:
        """Times of all rows of `main`, each by the fit of its own fold; every fit sees rows of folds below 0.

        Calls `fitted()` after each fit.
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
    """`run_all` if the work on `rows` rows is longer than the start of a process, else `map`."""
    return map if rows < WORTH_A_PROCESS else run_all
