"""A calibration from start to end: fit, cross-validation, error bands, power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.cross_validation import (
    FOLDS,
    config_groups,
    fold_fits,
    folds_of,
    held_out,
    size_groups,
)
from gemm_model.calibration.fit import Fit, fit
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.power import SustainedErrors, fit_power, validate_power
from gemm_model.calibration.residual_fit import catboost, held_out_with_residual, train_on
from gemm_model.calibration.tables import CalibrationData, load_tables
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.calibration_file import KERNEL_FAMILY, SITUATIONS, Calibration, situation
from gemm_model.persistent.clock import PowerModel
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.persistent.residual import Residual, fingerprint
from gemm_model.tables.accuracy import (
    ChoiceFigures,
    ErrorFigures,
    choice_figures,
    error_figures,
    shape_columns,
    top1_efficiency,
)
from gemm_model.tables.table import read_table

BAND_QUANTILE = 0.9
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Validation:
    """Figures of one way of holding out, for one type and one table."""

    what: str
    table: str
    in_dtype: str
    errors: ErrorFigures
    top1: ChoiceFigures | None
    top4: ChoiceFigures | None


@dataclass(frozen=True, slots=True)
class KindResult:
    """What came of one rate class."""

    fit: Fit
    predicted_us: FloatArray
    """Of the burst rows, each from a fit that had not seen its shape."""
    corrected_us: FloatArray | None
    """The same with a residual that had not seen the shape either; None where none was asked for."""
    burst: Observations
    validations: list[Validation]


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The calibration, what each class came to, and the rows it stands on."""

    calibration: Calibration
    kinds: dict[str, KindResult]
    sustained: dict[str, SustainedErrors]
    residual: Residual | None
    data: CalibrationData


def calibrate(
    inputs: Sequence[Path],
    gpu: GpuSpec,
    *,
    hold_out_lists: Sequence[Path] = (),
    seed: int = 0,
    with_residual: bool = True,
    progress: Callable[[str], None] = lambda _step: None,
) -> CalibrationResult:
    """Fit each rate class of types in the tables, and judge the fit on held-out rows.

    `with_residual` trains and judges the clipped residual too; raises MissingExtraError without CatBoost.
    """
    if with_residual:
        catboost()
    data = load_tables(inputs, gpu)
    family = _listed_shapes(hold_out_lists)
    kinds = {
        kind: _kind(kind, regimes, gpu, family, seed, with_residual, progress)
        for kind, regimes in data.by_kind.items()
    }
    power: dict[str, PowerModel] = {}
    sustained: dict[str, SustainedErrors] = {}
    for kind, regimes in data.by_kind.items():
        if "sustained" in regimes:
            progress(f"{kind}: power model")
            seen, parameters = observe(regimes["sustained"], gpu), kinds[kind].fit.parameters
            power[kind] = fit_power(seen, gpu, parameters)
            sustained[kind] = validate_power(seen, gpu, parameters, seed)
    calibration = Calibration(
        gpu=gpu.name,
        kernel=KERNEL_FAMILY,
        parameters={kind: _rounded(result.fit.parameters) for kind, result in kinds.items()},
        error_band={kind: _bands(result, result.predicted_us, gpu) for kind, result in kinds.items()},
        power={kind: replace(found, **_digits(asdict(found))) for kind, found in power.items()},
        fitted_to={
            "tables": [path.name for path in inputs],
            "rows": {
                kind: {name: len(rows) for name, rows in found.items()}
                for kind, found in data.by_kind.items()
            },
            "seed": seed,
        },
    )
    residual = _residual(calibration, kinds, gpu, progress) if with_residual else None
    return CalibrationResult(calibration, kinds, sustained, residual, data)


def _residual(
    calibration: Calibration, kinds: dict[str, KindResult], gpu: GpuSpec, progress: Callable[[str], None]
) -> Residual:
    """Trained on all rows of the burst regime and the times that the finished calibration gives them."""
    progress("residual")
    return Residual(
        gpu=gpu.name,
        fingerprint=fingerprint(calibration),
        forests={
            kind: train_on(result.burst, gpu, calibration.parameters[kind]) for kind, result in kinds.items()
        },
        error_band={
            kind: _bands(result, result.corrected_us, gpu)
            for kind, result in kinds.items()
            if result.corrected_us is not None
        },
    )


def _kind(
    kind: str,
    regimes: dict[str, pd.DataFrame],
    gpu: GpuSpec,
    family: set[tuple[int, int, int]],
    seed: int,
    with_residual: bool,
    progress: Callable[[str], None],
) -> KindResult:
    counters = observe(regimes["counters"], gpu) if "counters" in regimes else None
    burst = observe(regimes["burst"], gpu)
    progress(f"{kind}: fit to {len(burst)} rows")
    found = fit(burst, counters, gpu)

    validations: list[Validation] = []

    def validated(what: str, folds: IntArray) -> tuple[FloatArray, FloatArray | None]:
        progress(f"{kind}: {what} held out")
        whole_shapes = what in ("shape", "family")
        fits = fold_fits(burst, counters, gpu, folds)
        if not with_residual:
            predicted_us = held_out(fits, len(burst))
            validations.extend(_figures(what, burst, predicted_us, whole_shapes))
            return predicted_us, None
        predicted_us, corrected_us = held_out_with_residual(fits, len(burst), gpu)
        validations.extend(_figures(what, burst, predicted_us, whole_shapes))
        validations.extend(_figures(f"{what} + residual", burst, corrected_us, whole_shapes))
        return predicted_us, corrected_us

    predicted_us, corrected_us = validated("shape", folds_of(size_groups(burst), seed))
    validated("config", folds_of(config_groups(burst), seed))
    listed = _in_family(burst, family)
    if listed.any() and not listed.all():
        validated("family", np.where(listed, 0, -1))
    cards = _cards(burst)
    if cards is not None:
        validated("card", cards)
    return KindResult(found, predicted_us, corrected_us, burst, validations)


def _figures(what: str, seen: Observations, predicted_us: FloatArray, whole_shapes: bool) -> list[Validation]:
    """By table and type; choice figures where whole shapes were predicted."""
    known = np.isfinite(predicted_us)
    frame = seen.frame[known].assign(
        actual_runtime=seen.runtime_us[known], predicted_runtime=predicted_us[known]
    )
    result = []
    for (table, name), rows in frame.groupby(["table", "in_dtype"]):
        result.append(
            Validation(
                what=what,
                table=str(table),
                in_dtype=str(name),
                errors=error_figures(rows["predicted_runtime"].to_numpy(), rows["actual_runtime"].to_numpy()),
                top1=choice_figures(top1_efficiency(rows)) if whole_shapes else None,
                top4=choice_figures(best_of_top(rows, 4)) if whole_shapes else None,
            )
        )
    return result


def best_of_top(frame: pd.DataFrame, count: int) -> pd.Series:
    """For each shape: best measured time over the best among the `count` configurations predicted fastest."""
    keys = shape_columns(frame)
    shapes = frame.groupby(keys, sort=False, dropna=False)
    rank = shapes["predicted_runtime"].rank(method="first")
    chosen = frame[rank <= count].groupby(keys, sort=False, dropna=False)["actual_runtime"].min()
    efficiency: pd.Series = shapes["actual_runtime"].min() / chosen
    return efficiency


def situations(seen: Observations, gpu: GpuSpec, p: KernelParameters) -> IntArray:
    """The situation of each row, as the model itself sees it."""
    times = kernel_time(seen.shape, gpu, p)
    memory_us = np.maximum(times.l2_us, times.dram_us)
    return situation(seen.shape.schedule.waves, times.waves_us, memory_us, times.tensor_us)


def _bands(result: KindResult, predicted_us: FloatArray, gpu: GpuSpec) -> dict[str, float]:
    """Held-out error that BAND_QUANTILE of the rows stay within, by situation (of all rows where few are)."""
    error = np.abs(predicted_us / result.burst.runtime_us - 1.0)
    where = situations(result.burst, gpu, result.fit.parameters)
    overall = float(np.quantile(error, BAND_QUANTILE))
    bands = {}
    for code, name in enumerate(SITUATIONS):
        rows = where == code
        enough = rows.sum() >= 30
        bands[name] = round(float(np.quantile(error[rows], BAND_QUANTILE)) if enough else overall, 4)
    return bands


def _listed_shapes(paths: Sequence[Path]) -> set[tuple[int, int, int]]:
    listed: set[tuple[int, int, int]] = set()
    for path in paths:
        listed |= set(_asked_sizes(read_table(path)))
    return listed


def _in_family(seen: Observations, family: set[tuple[int, int, int]]) -> BoolArray:
    return np.array([size in family for size in _asked_sizes(seen.frame)], dtype=bool)


def _asked_sizes(frame: pd.DataFrame) -> list[tuple[int, int, int]]:
    """m, n, k of each row, before padding where the table tells."""
    names = ("asked_m", "asked_n", "asked_k") if "asked_m" in frame else ("m", "n", "k")
    return list(zip(*(frame[name].astype(float).astype(int) for name in names), strict=True))


def _cards(seen: Observations) -> IntArray | None:
    """A fold for each card, where there are several with a fair share of the rows."""
    if "gpu_uuid" not in seen.frame:
        return None
    codes, names = pd.factorize(seen.frame["gpu_uuid"])
    if len(names) < 2:
        return None
    rows = np.bincount(codes)
    return np.where(rows[codes] >= 0.02 * len(codes), codes, -1).astype(np.int64)


def _digits(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for name, value in values.items()}


def _rounded(parameters: KernelParameters) -> KernelParameters:
    return KernelParameters(**_digits(asdict(parameters)))


__all__ = ["FOLDS", "CalibrationResult", "KindResult", "Validation", "best_of_top", "calibrate", "situations"]
