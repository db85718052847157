"""Train the clipped residual, judged on rows that neither it nor the physical fit has seen; or borrow a donor's.

On another card a donor's residual is borrowed as far as rows of that card support it. Held-out rows are predicted
fold by fold, in several processes if that pays.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gemm_model.calibration.fit import Donor, Fit, fit
from gemm_model.calibration.observations import FoldFit, Observations, sizes
from gemm_model.classic_models.sol import SOLModel
from gemm_model.config.mechanisms import KernelNumbers
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.processes import RunAll
from gemm_model.errors import MissingExtraError
from gemm_model.kernel_model.forest import LEAF_UNIT, MAX_DEPTH, Features, Forest
from gemm_model.kernel_model.kernel_time import KernelTime, kernel_time
from gemm_model.kernel_model.residual import FEATURES, corrected_us, features
from gemm_model.tables.accuracy import error_figures


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
    return map if rows < room_numbers("calibration").process_rows else run_all


NEVER_FASTER_BY = ("ctas_at_once", "rows_of_clusters", "columns_of_clusters")
"""Features that only make a correction slower as they grow; chosen: a product with more tiles is no faster, and
held-out errors are the same without this (2.43 and 2.43 % of Triton's, 2.28 and 2.25 of cuBLAS's in 16 bits)."""


def catboost() -> ModuleType:
    """The package that trains oblivious trees; raises MissingExtraError where it is not there."""
    try:
        import catboost as package
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise MissingExtraError(
            f"training a residual needs the package catboost: pip install 'gemm-model[residual]' ({reason})"
        ) from error
    return package  # type: ignore[no-any-return]


def train(
    seen: Features,
    log_error: FloatArray,
    weight: FloatArray | None = None,
    falling: Collection[int] = (),
    **drawn: Any,
) -> Forest:
    """A forest fitted to the log errors of rows (`seen` of shape (features, rows)), by Huber's loss.

    Each row's loss counts by its `weight` (default: equally). The forest falls, or stays, as a feature of
    `falling` grows. Training is deterministic; CatBoost's options `drawn` let trees see a part of rows and features.
    Raises MissingExtraError without CatBoost.
    """
    chosen = room_numbers("calibration")
    options = {"iterations": chosen.trees, "bootstrap_type": "No", "random_seed": 0} | drawn
    trees = catboost().CatBoostRegressor(
        depth=MAX_DEPTH,
        learning_rate=chosen.learning_rate,
        l2_leaf_reg=chosen.leaf_penalty,
        border_count=chosen.borders,
        monotone_constraints=dict.fromkeys(falling, -1),
        loss_function=f"Huber:delta={chosen.residual_outlier_scale}",
        boosting_type="Plain",
        random_strength=0,
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
        **options,
    )
    trees.fit(seen.T, log_error, sample_weight=weight)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        trees.save_model(str(path), format="json")
        return _forest(json.loads(path.read_text())["oblivious_trees"], len(seen))


def train_averaged(seen: Features, log_error: FloatArray, weight: FloatArray) -> Forest:
    """The mean of several forests, whose trees each see a part of the rows and features."""
    numbers = room_numbers("calibration")
    drawn: dict[str, Any] = {
        "bootstrap_type": "Bernoulli",
        "iterations": numbers.averaged_trees,
        "subsample": numbers.tree_rows,
        "rsm": numbers.tree_features,
    }
    seeds = range(int(numbers.averaged_forests))
    return Forest.mean([train(seen, log_error, weight, random_seed=seed, **drawn) for seed in seeds])


def _forest(trees: list[dict[str, Any]], feature_count: int) -> Forest:
    """A forest from CatBoost's JSON, each distinct split once and leaves in whole steps."""
    asked = [[(split["float_feature_index"], split["border"]) for split in tree["splits"]] for tree in trees]
    splits = sorted({split for tree in asked for split in tree})
    position = {split: index for index, split in enumerate(splits)}
    depth = max(len(tree) for tree in asked)
    # A shallower tree repeats its leaves for both answers to an arbitrary extra question.
    numbers = [[position[split] for split in tree] + [0] * (depth - len(tree)) for tree in asked]
    leaves = [np.tile(tree["leaf_values"], (1 << depth) // len(tree["leaf_values"])) for tree in trees]
    longest = np.iinfo(np.int16)
    steps = np.round(np.array(leaves) / LEAF_UNIT).clip(longest.min, longest.max)
    return Forest(
        features=feature_count,
        split_feature=np.array([feature for feature, _ in splits], dtype=np.uint8),
        split_border=np.array([border for _, border in splits], dtype=np.float32),
        tree_splits=np.array(numbers, dtype=np.uint16).T.copy(),
        leaves=steps.astype(np.int16),
    )


def train_on(parts: Sequence[Observations], gpu: GpuSpec, numbers: KernelNumbers) -> Forest:
    """A forest for the errors that the physical model with these numbers makes on the rows of all parts.

    Shapes are weighted as in the fit, whose weights are squared there with the errors; of a shape, fast
    configurations count more than slow ones, because a choice is made among them.
    """
    chosen = room_numbers("calibration")
    inputs, log_errors, weights = [], [], []
    for seen in parts:
        times = kernel_time(seen.shape, gpu, numbers.without(seen.shape.family.absent_mechanisms))
        inputs.append(features(seen.shape, times))
        log_errors.append(np.log(times.runtime_us / seen.runtime_us))
        share_of_best = seen.runtime_us[seen.best_row] / seen.runtime_us
        speed = np.maximum(share_of_best, chosen.slow_row_speed)
        weights.append(seen.weight**2 * speed**chosen.fast_row_power)
    falling = [FEATURES.index(name) for name in NEVER_FASTER_BY]
    return train(np.concatenate(inputs, axis=1), np.concatenate(log_errors), np.concatenate(weights), falling)


def corrected_fold_us(each: FoldFit, gpu: GpuSpec, beside: Observations | None = None) -> FloatArray:
    """Runtime of a fold's unseen rows in us, corrected by trees trained on its seen rows.

    The trees also see rows of `beside` whose sizes are not held out.
    """
    parts = [each.seen]
    if beside is not None and (other := ~np.isin(sizes(beside), sizes(each.unseen))).any():
        parts.append(beside.rows(other, gpu))
    forest = train_on(parts, gpu, each.numbers)
    log_error = forest.predict(features(each.unseen.shape, each.times))
    floor_us = SOLModel(gpu).predict_batch(each.unseen.shape.batch).runtime_us
    result: FloatArray = corrected_us(each.times.runtime_us, log_error, floor_us)
    return result


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
