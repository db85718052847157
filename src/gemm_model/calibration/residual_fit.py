"""Training the clipped residual, and judging it on rows that neither it nor the physical fit has seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gemm_model.calibration.cross_validation import FoldFit
from gemm_model.calibration.observations import Observations
from gemm_model.classic_models.sol import SOLModel
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.persistent.residual import FEATURES, corrected_us, features, lightgbm, trees_text

TREES = 200
LEAVES = 88
LEARNING_RATE = 0.1
ROWS_PER_LEAF = 20
LEAF_PENALTY = 20.0
"""On the square of a leaf's value, in rows: leaves of few rows say little."""
OUTLIER_SCALE = 0.1
"""Log error from which Huber's loss grows linearly: a little above the largest correction."""


def train(seen: Observations, gpu: GpuSpec, parameters: KernelParameters) -> Any:
    """Trees (`lightgbm.Booster`) fitted to log(physical / measured) of the rows, by Huber's loss.

    Nothing is drawn at random: the same rows give the same trees.
    """
    package = lightgbm()
    times = kernel_time(seen.shape, gpu, parameters)
    log_error = np.log(times.runtime_us / seen.runtime_us)
    settings = {
        "objective": "huber",
        "alpha": OUTLIER_SCALE,
        "num_leaves": LEAVES,
        "learning_rate": LEARNING_RATE,
        "min_data_in_leaf": ROWS_PER_LEAF,
        "lambda_l2": LEAF_PENALTY,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    rows = package.Dataset(
        features(seen.shape, times), log_error, feature_name=list(FEATURES), params={"verbosity": -1}
    )
    # As the file has them: thresholds and leaves rounded.
    return package.Booster(model_str=trees_text(package.train(settings, rows, TREES)))


def held_out_with_residual(fits: Iterable[FoldFit], rows: int, gpu: GpuSpec) -> tuple[FloatArray, FloatArray]:
    """Runtime of each row in us, physical and corrected; NaN for rows that no fold holds out.

    A fold's trees are trained on the rows of that fold's fit, and on the times that this fit gives them.
    """
    physical_us, with_residual_us = np.full(rows, np.nan), np.full(rows, np.nan)
    for each in fits:
        physical_us[each.test] = each.times.runtime_us
        with_residual_us[each.test] = _corrected(each, gpu)
    return physical_us, with_residual_us


def _corrected(each: FoldFit, gpu: GpuSpec) -> FloatArray:
    booster = train(each.seen, gpu, each.parameters)
    log_error = booster.predict(features(each.unseen.shape, each.times), num_threads=1)
    floor_us = SOLModel(gpu).predict_batch(each.unseen.shape.batch).runtime_us
    return corrected_us(each.times.runtime_us, log_error, floor_us)
