"""Train the trees of cuDNN's heuristic choices, and judge them on unseen layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemm_model.calibration.residual_fit import train
from gemm_model.choice.selection import Ranker
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.forest import Features
from gemm_model.kernel_model.pick_residual import PickResidual, bounded, features
from gemm_model.kernel_model.residual import OFF
from gemm_model.tables.schema import understood
from gemm_model.tables.table import read_table, runtimes_us, usable_rows

FAMILY = "cudnn"
ROLES = ("fit", "fit_choices")
"""Roles (column `role`) of calls that the trees are trained on."""
SHIFTS = tuple(round(0.005 * step, 3) for step in range(11))
"""Shifts that are tried [1, log]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Measured convolutions whose kernels cuDNN picked."""

    seen: Features
    """Of shape (FEATURES, calls)."""
    log_error: FloatArray
    """Log of the time expected without trees over the measured time."""
    layer: tuple[str, ...]
    """The convolution without its direction and number of images."""


def calls_of(tables: Sequence[Path], gpu: GpuSpec) -> Calls:
    """Calls with cuDNN's heuristic choice in some tables, and their expected times without trees."""
    ranker = Ranker(gpu, family=FAMILY, options={"residual": OFF})
    seen, expected_us, measured_us, layers = [], [], [], []
    for path in tables:
        rows, _ = usable_rows(understood(read_table(path)), needs_tile=False)
        rows = rows[rows["kernel"] == FAMILY]
        if "role" in rows:
            rows = rows[rows["role"].isin(ROLES)]
        times_us = runtimes_us(rows)
        if times_us is None:
            raise InputError(f"{path}: no measured times; expected calls of {FAMILY}")
        measured_us.append(times_us)
        for words, dtype in zip(rows["conv"], rows["in_dtype"], strict=True):
            problem = GemmProblem.of_conv(words, dtype)
            best = ranker.rank(problem, 1).best
            fastest = best.prediction
            pick = ranker.heuristic_choice_of(problem)
            expected_us.append(float(pick.time_us(fastest.runtime_us, fastest.limiter)))
            seen.append(features(problem, best.candidate.config, fastest, expected_us[-1]))
            layers.append(words.split(" ", 2)[2])
    log_error = np.log(np.array(expected_us) / np.concatenate(measured_us))
    return Calls(seen=np.concatenate(seen, axis=1), log_error=log_error, layer=tuple(layers))


def held_out(calls: Calls) -> FloatArray:
    """The log error of each call, predicted by trees that have not seen its layer."""
    _, layer = np.unique(np.array(calls.layer), return_inverse=True)
    order: IntArray = np.random.default_rng(0).permutation(layer.max() + 1)
    folds = int(room_numbers("calibration").layer_folds)
    fold = order[layer] % folds
    expected = np.empty(len(layer))
    for number in range(folds):
        held = fold == number
        forest = train(calls.seen[:, ~held], bounded(calls.log_error[~held]))
        expected[held] = forest.predict(calls.seen[:, held])
    return expected


def errors(calls: Calls, expected: FloatArray, shift: float = 0.0) -> FloatArray:
    """Relative error of each call after correction by the expected log error."""
    left: FloatArray = np.abs(np.exp(calls.log_error - bounded(expected + shift)) - 1.0)
    return left


def pick_residual(calls: Calls, gpu: GpuSpec, expected: FloatArray) -> PickResidual:
    """The trees of all calls, with the shift and the band of those that had not seen a layer (`held_out`)."""
    calibration, _ = calibration_for(gpu, FAMILY)
    share = room_numbers("calibration").band_share
    shift = min(SHIFTS, key=lambda each: float(errors(calls, expected, each).mean()))
    return PickResidual(
        fingerprint=calibration.fingerprint(),
        forest=train(calls.seen, bounded(calls.log_error)),
        shift=shift,
        error_band=float(np.quantile(errors(calls, expected, shift), share)),
    )
