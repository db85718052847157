"""Fit the model's constants to measured layers."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.overlap.model import OverlapParameters, chains_of, timeline
from gemm_model.overlap.surfaces import LAYERS, cases_of

SPREAD = 0.35
"""Standard deviation of the logarithm of random starts around the first one [1]; fits of the overlap model;
chosen."""
MAX_EVALUATIONS = 150
"""Most evaluations of a search [1]; fits of the overlap model; chosen."""
CONTRAST_WEIGHT = 0.5
"""Weight of a setting's residual relative to its surface's best one [1]; fits of the overlap model;
chosen."""
MISLED_WEIGHT = 4.0
"""Weight of the shortfall if a setting is not predicted slower by `MARGIN` [1]; settings slower than the best
by more than `RESOLVED`; chosen."""
RESOLVED = 0.01
"""Relative difference of two measured times below which settings tie [1]; all surfaces; chosen."""
MARGIN = 0.02
"""Relative difference demanded of two predicted times [1]; settings that are slower; chosen."""


def fit_parameters(table: pd.DataFrame, gpu: GpuSpec, *, starts: int = 3, seed: int = 0) -> OverlapParameters:
    """Constants that fit the measured layers best: robust least squares on log(predicted / measured).

    Tries `starts` points: the guesses and random ones around them.
    """
    from scipy.optimize import least_squares

    names = [spec.name for spec in fields(OverlapParameters)]
    low, guess, high = np.array([spec.metadata["bounds"] for spec in fields(OverlapParameters)]).T
    chains = chains_of(cases_of(table, gpu), gpu)
    measured = np.log(table["layer_us"].to_numpy())
    overlapped = np.flatnonzero(table["serialized"].to_numpy() == 0)
    best = _best_rows(table)[overlapped]
    slower = measured[overlapped] - measured[best]
    margin = np.clip(slower - RESOLVED, 0.0, MARGIN)

    def residuals(values: FloatArray) -> FloatArray:
        parameters = OverlapParameters(**dict(zip(names, values.tolist(), strict=True)))
        error = np.log(timeline(chains, parameters, gpu.l2_bytes, LAYERS).layer_us) - measured
        contrast = error[overlapped] - error[best]
        misled = np.minimum(contrast + slower - margin, 0.0)
        return np.concatenate([error, CONTRAST_WEIGHT * contrast, MISLED_WEIGHT * misled])

    random, inside = np.random.default_rng(seed), 1e-3 * (high - low)
    factors = [1.0, *(np.exp(random.normal(0.0, SPREAD, len(names))) for _ in range(starts - 1))]
    results = [
        least_squares(
            residuals,
            np.clip(guess * factor, low + inside, high - inside),
            bounds=(low, high),
            x_scale=np.maximum(np.abs(guess), 0.05),
            loss="soft_l1",
            f_scale=0.05,
            max_nfev=MAX_EVALUATIONS,
        )
        for factor in factors
    ]
    found = min(results, key=lambda result: float(result.cost))
    return OverlapParameters(**dict(zip(names, found.x.tolist(), strict=True)))


def _best_rows(table: pd.DataFrame) -> np.ndarray:
    """For each row the position of the fastest overlapped row of its surface."""
    positions = pd.Series(range(len(table)), index=table.index)
    overlapped = table[table["serialized"] == 0]
    best = positions[overlapped.groupby("surface")["layer_us"].idxmin()].to_numpy()
    of_surface = dict(zip(table.loc[table.index[best], "surface"], best, strict=True))
    return table["surface"].map(of_surface).to_numpy()
