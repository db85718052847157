"""Borrow a donor's residual on another card, as far as rows of that card support it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.kernel_time import KernelTime, kernel_time
from gemm_model.kernel_model.residual import corrected_us, features
from gemm_model.kernels.mechanisms import KernelNumbers
from gemm_model.tables.accuracy import error_figures


@dataclass(frozen=True, slots=True)
class TakenForest:
    """A share of a donor's forest, and held-out times corrected by it."""

    forest: Forest
    """The donor's, its leaves times `share`."""
    share: float
    """Share of the donor's correction [1], 0 to 1; 0 if it does not lower the held-out error."""
    corrected_us: FloatArray
    """Runtime of each row [us], by the share found on rows of other folds."""


def taken_forest(
    donor: Forest,
    seen: Observations,
    physical_us: FloatArray,
    numbers: KernelNumbers,
    gpu: GpuSpec,
    folds: IntArray,
) -> TakenForest:
    """The share of a donor's forest that the rows of another card support.

    `physical_us` holds times [us] from fits that had not seen the row's shape, by `folds`; `numbers` are
    those that the forest is to correct. A share is judged on folds other than those it was found on.
    """
    times = kernel_time(seen.shape, gpu, numbers.without(seen.shape.family.absent_mechanisms))
    correction = donor.predict(features(seen.shape, times))
    log_error = np.log(physical_us / seen.runtime_us)
    shares = np.empty(len(correction))
    for fold in np.unique(folds):
        held_out = folds == fold
        shares[held_out] = borne_out(log_error[~held_out], correction[~held_out])
    corrected = corrected_us(physical_us, shares * correction, times.floor_us)
    before, after = (error_figures(each, seen.runtime_us).mape for each in (physical_us, corrected))
    helps = after < before
    share = round(borne_out(log_error, correction), 2) if helps else 0.0
    return TakenForest(donor.scaled(share), share, corrected if helps else physical_us)


def whole_forest(
    donor: Forest, seen: Observations, physical_us: FloatArray, times: KernelTime
) -> TakenForest:
    """All of a donor's forest, for rows that the donor's own numbers predict."""
    correction = donor.predict(features(seen.shape, times))
    return TakenForest(donor, 1.0, corrected_us(physical_us, correction, times.floor_us))


def borne_out(log_error: FloatArray, correction: FloatArray) -> float:
    """The share [1] of a predicted error that minimises the squares of log errors, within 0 and 1.

    d/ds sum((e - s t)^2) = 0 at s = sum(e t) / sum(t^2).
    """
    square = float(correction @ correction)
    return float(np.clip(correction @ log_error / square, 0.0, 1.0)) if square > 0.0 else 0.0
