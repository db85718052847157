"""Predicting every row from a fit that has not seen it: by shape, by configuration, by family, by card."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gemm_model.calibration.fit import fit
from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.kernel_time import KernelTime, kernel_time
from gemm_model.tables.accuracy import config_columns

FOLDS = 8


def folds_of(groups: IntArray, seed: int, count: int = FOLDS) -> IntArray:
    """A fold for each row, whole groups together, folds of about as many groups each."""
    order = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    result: IntArray = (order % min(count, len(order)))[groups]
    return result


def size_groups(seen: Observations) -> IntArray:
    """Rows of equal m, n and k have one number, whatever their types.

    A kernel takes almost the same time for bf16 as for fp16: one type must not tell of the other's shapes.
    """
    groups: IntArray = np.unique(_sizes(seen), return_inverse=True)[1].astype(np.int64)
    return groups


def config_groups(seen: Observations) -> IntArray:
    """Rows of one kernel configuration have one number."""
    grouped = seen.frame.groupby(config_columns(seen.frame), sort=False, dropna=False)
    return grouped.ngroup().to_numpy().astype(np.int64)


@dataclass(frozen=True, slots=True)
class FoldFit:
    """The fit of one fold."""

    test: BoolArray
    """Which rows it has not seen."""
    seen: Observations
    unseen: Observations
    parameters: KernelParameters
    times: KernelTime
    """What the fit predicts for the unseen rows."""


def fold_fits(
    burst: Observations,
    counters: Observations | None,
    gpu: GpuSpec,
    folds: IntArray,
    *,
    start: KernelParameters | None = None,
    without: Collection[str] = (),
    frozen: Collection[str] = (),
) -> Iterator[FoldFit]:
    """For each fold, a fit to the rows of all other folds; folds below 0 are seen by every fit.

    Counter rows of a held-out shape are left out of that fold's fit as well.
    """
    for fold in np.unique(folds[folds >= 0]):
        test = folds == fold
        unseen_sizes = np.unique(_sizes(burst)[test])
        known = None
        if counters is not None:
            keep = ~np.isin(_sizes(counters), unseen_sizes)
            known = counters.rows(keep, gpu, without) if keep.any() else None
        seen = burst.rows(~test, gpu, without)
        found = fit(seen, known, gpu, start=start, without=without, frozen=frozen)
        unseen = burst.rows(test, gpu, without)
        times = kernel_time(unseen.shape, gpu, found.parameters, without=without)
        yield FoldFit(test, seen, unseen, found.parameters, times)


def held_out(fits: Iterable[FoldFit], rows: int) -> FloatArray:
    """Runtime in us of each of `rows` rows, from the fit that had not seen it; NaN where all had."""
    predicted_us = np.full(rows, np.nan)
    for each in fits:
        predicted_us[each.test] = each.times.runtime_us
    return predicted_us


def _sizes(seen: Observations) -> np.ndarray:
    batch = seen.shape.batch
    return np.char.add(
        np.char.add(batch.m.astype(int).astype(str), "x"),
        np.char.add(np.char.add(batch.n.astype(int).astype(str), "x"), batch.k.astype(int).astype(str)),
    )
