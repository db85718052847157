"""The page of a table of kernels: predictions, and comparison with measurements if the table has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.calibration.run import CalibrationResult, KindResult
from gemm_model.core.fields import counted
from gemm_model.core.gpu import GpuSpec
from gemm_model.models import DEFAULT_MODEL, Model, create_model
from gemm_model.report.console import accuracy_summary
from gemm_model.report.page.content import SHOWN, Columns, Fact, Figure, Listing, Page
from gemm_model.tables.table import predict_frame, with_prediction


def calibration_page(result: CalibrationResult, gpu: GpuSpec, calibration: Path) -> Page:
    """The page of `calibrate`; limiters and bytes are those of the calibration file that was written."""
    model = create_model(DEFAULT_MODEL, gpu, {"calibration": str(calibration)})
    rows = pd.concat([_held_out(kind, model) for kind in result.kinds.values()], ignore_index=True)
    page = table_page(rows, f"Calibration {calibration.name}", gpu, "fits that had not seen the shape")
    return replace(page, notes=[*page.notes, *result.data.notes])


def _held_out(kind: KindResult, model: Model) -> pd.DataFrame:
    rows = with_prediction(kind.rows.frame, predict_frame(kind.rows.frame, model))
    rows["predicted_us"] = kind.predicted_us if kind.corrected_us is None else kind.corrected_us
    rows["ratio"] = rows["predicted_us"] / rows["runtime_us"]
    known: pd.DataFrame = rows[np.isfinite(rows["ratio"])]
    return known


NO_MEASUREMENTS = (
    "This table holds no measurements (column runtime_us): the S-curve, predicted against measured and the "
    "errors are left out."
)
OF_MEASURED = ("s_curve", "predicted_measured", "ratio_by_time")
"""Kinds of figures of a table with measurements alone."""
FILTERS = {"type": "Type", "family": "Family", "limiter": "Limiter"}


def table_page(rows: pd.DataFrame, title: str, gpu: GpuSpec, model: str, notes: Sequence[str] = ()) -> Page:
    """The page of a predicted table (`gemm_model.tables.table.with_prediction`)."""
    measured = "runtime_us" in rows
    columns = table_columns(rows)
    types = sorted(set(columns.texts["type"]))
    return Page(
        title=title,
        subtitle=f"{counted(len(rows), 'kernel')} on {gpu.name}, predicted by {model}",
        facts=_facts(rows, measured),
        figures=_figures(columns, measured, gpu, types),
        listings=_accuracy(rows) if measured else (),
        notes=[*([] if measured else [NO_MEASUREMENTS]), *notes],
        columns=columns,
    )


def table_columns(rows: pd.DataFrame) -> Columns:
    """The columns that a page shows of a predicted table; texts that it lacks are empty."""

    def number(name: str) -> np.ndarray:
        return pd.to_numeric(rows[name]).to_numpy(dtype=np.float64)

    numbers = {name: number(name) for name in ("m", "n", "k")}
    batch = number("batch") if "batch" in rows else 1.0
    numbers["flop"] = 2.0 * numbers["m"] * numbers["n"] * numbers["k"] * batch
    numbers["predicted_us"] = number("predicted_us")
    if "runtime_us" in rows:
        numbers["measured_us"] = number("runtime_us")
    if "dram_bytes" in rows:
        numbers["dram_bytes"] = number("dram_bytes")

    def text(*names: str) -> list[str]:
        found = next((name for name in names if name in rows), None)
        if found is None:
            return [""] * len(rows)
        return rows[found].astype(object).fillna("").astype(str).tolist()

    def extent(first: str, second: str) -> list[str]:
        if first not in rows:
            return [""] * len(rows)
        pairs = zip(number(first).tolist(), number(second).tolist(), strict=True)
        return [f"{high:g}x{wide:g}" for high, wide in pairs]

    texts = {
        "type": text("in_dtype", "a_dtype"),
        "family": text("kernel", "family"),
        "schedule": text("schedule"),
        "limiter": text("limiter"),
        "tile": extent("cta_m", "cta_n"),
        "cluster": extent("cluster_m", "cluster_n"),
    }
    return Columns(numbers=numbers, texts=texts, filters=FILTERS)


def _facts(rows: pd.DataFrame, measured: bool) -> list[Fact]:
    shapes = len(rows[["m", "n", "k"]].drop_duplicates())
    facts = [Fact("Kernels", f"{len(rows):,}", counted(shapes, "shape"))]
    if measured:
        figures = accuracy_summary(rows)[0]
        facts += [
            Fact("Mean error", f"{figures['mape']:.1%}", f"median {figures['median']:.1%}"),
            Fact("95th percentile", f"{figures['p95']:.1%}", "of the absolute error"),
            Fact("First choice", f"{figures['top1']:.1%}", "of the best measured speed"),
        ]
    limiter = rows["limiter"].astype(str).value_counts(normalize=True)
    return [*facts, Fact("Usual limiter", str(limiter.index[0]), f"of {limiter.iloc[0]:.0%} of the kernels")]


def _figures(columns: Columns, measured: bool, gpu: GpuSpec, types: Sequence[str]) -> list[Figure]:
    settings: dict[str, dict[str, Any]] = {kind: {} for kind in OF_MEASURED if measured}
    if "dram_bytes" in columns.numbers:
        roofs = {"dram_bytes_per_us": gpu.dram_bytes_per_us, "peaks": _peaks(gpu, types)}
        settings["throughput"] = {"settings": roofs, "wide": not measured}
    if columns.texts["tile"][0]:
        settings["error_map" if measured else "speed_map"] = {"wide": True}
    return [Figure(kind=kind, **SHOWN["table_figures"][kind], **own) for kind, own in settings.items()]


def _peaks(gpu: GpuSpec, types: Sequence[str]) -> dict[str, float]:
    """Peak TFLOP/s of the rate classes of some types on a GPU; those that it lacks are left out."""
    from gemm_model.core.dtypes import operand_type

    kinds = dict.fromkeys(operand_type(name)[0].math_kind for name in types if name)
    return {kind: gpu.flop_per_us(kind) / 1e6 for kind in kinds if kind in gpu.flop_per_clk_per_sm}


def _accuracy(rows: pd.DataFrame) -> list[Listing]:
    names = {"rows": "{:,}", "mape": "{:.2%}", "median": "{:.2%}", "p95": "{:.2%}", "top1": "{:.2%}"}
    cells = [
        (str(group["rows of"]), *(form.format(group[name]) for name, form in names.items()))
        for group in accuracy_summary(rows)
    ]
    return [Listing(**SHOWN["listings"]["accuracy"], rows=cells)]
