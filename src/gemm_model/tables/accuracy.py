"""Accuracy of predictions against measurements: errors of times, and efficiency of choices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_model.tables import attention
from gemm_model.tables.table import CONFIG_COLUMNS, SHAPE_COLUMNS

LOW_PERCENTILE = 5
HIGH_PERCENTILE = 95
SINGLE_CONFIG_COVERAGE = 0.5
"""Share of a table's shapes [1]; a configuration measured on so many can stand for all; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Errors |predicted / measured - 1| over the rows of a table."""

    rows: int
    mape: float
    median: float
    p95: float
    worst: float
    mean_ratio: float
    rank_correlation: float
    """Spearman's, between predicted and measured runtimes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFigures:
    """Best measured time of a shape over the measured time of the chosen configuration, over shapes."""

    shapes: int
    mean: float
    p5: float
    minimum: float


def error_figures(predicted_us: np.ndarray, actual_us: np.ndarray) -> ErrorFigures:
    """Error figures of predictions against measurements (arrays of equal length, microseconds)."""
    ratio = predicted_us / actual_us
    error = np.abs(ratio - 1)
    return ErrorFigures(
        rows=len(error),
        mape=float(error.mean()),
        median=float(np.median(error)),
        p95=float(np.percentile(error, HIGH_PERCENTILE)),
        worst=float(error.max()),
        mean_ratio=float(ratio.mean()),
        rank_correlation=_spearman(predicted_us, actual_us),
    )


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    ranks = pd.DataFrame({"a": a, "b": b}).rank()
    return float(np.corrcoef(ranks["a"], ranks["b"])[0, 1])


def shape_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of a table that identify a row's GEMM or attention."""
    if attention.is_attention_table(frame):
        return [name for name in attention.PROBLEM_COLUMNS if name in frame]
    return [name for name in (*SHAPE_COLUMNS, "batch") if name in frame]


def config_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of a table that identify a row's kernel configuration."""
    return [name for name in CONFIG_COLUMNS if name in frame]


def top1_efficiency(frame: pd.DataFrame) -> pd.Series:
    """For each shape: best measured time over that of the configuration predicted fastest.

    The frame has the columns of `predict_table`'s result. Configurations that the model predicts to be
    equally fast count with the mean of their measured efficiencies, because the model cannot tell them apart.
    """
    shapes = frame.groupby(shape_columns(frame), sort=False, dropna=False)
    best_us = shapes["runtime_us"].transform("min")
    fastest_us = shapes["predicted_us"].transform("min")
    chosen = frame["predicted_us"] <= fastest_us * (1 + 1e-12)
    efficiency = (best_us / frame["runtime_us"])[chosen]
    keys = [frame.loc[chosen, name] for name in shape_columns(frame)]
    return efficiency.groupby(keys, sort=False, dropna=False).mean()


def best_single_config(frame: pd.DataFrame) -> pd.Series | None:
    """Efficiency by shape of the configuration that is best on average, on the shapes it was measured on.

    Only configurations measured on at least half of the shapes count; None if there are none.
    """
    shape = frame.groupby(shape_columns(frame), sort=False, dropna=False)
    config = frame.groupby(config_columns(frame), sort=False, dropna=False)
    efficiency = pd.DataFrame(
        {
            "shape": shape.ngroup().to_numpy(),
            "config": config.ngroup().to_numpy(),
            "efficiency": (shape["runtime_us"].transform("min") / frame["runtime_us"]).to_numpy(),
        }
    )
    by_config = efficiency.groupby(["config", "shape"])["efficiency"].mean().unstack("shape")
    widespread = by_config[by_config.notna().mean(axis=1) >= SINGLE_CONFIG_COVERAGE]
    if widespread.empty:
        return None
    return widespread.iloc[int(widespread.mean(axis=1).to_numpy().argmax())].dropna()


def choice_figures(efficiency: pd.Series) -> ChoiceFigures:
    """Mean, 5th percentile and minimum of an efficiency by shape."""
    values = efficiency.to_numpy(dtype=float)
    return ChoiceFigures(
        shapes=len(values),
        mean=float(values.mean()),
        p5=float(np.percentile(values, LOW_PERCENTILE)),
        minimum=float(values.min()),
    )
