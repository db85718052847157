"""The main job: a table of measured kernels in; predictions, accuracy and plots out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_model import __version__
from gemm_model.core.errors import extra_needed
from gemm_model.core.files import atomic_path, atomic_write, check_folder_writable, sole_writer
from gemm_model.core.prediction import BatchPrediction
from gemm_model.core.settings import Settings
from gemm_model.models import create_model
from gemm_model.report.console import accuracy_summary
from gemm_model.report.document import json_text
from gemm_model.report.progress import Progress
from gemm_model.tables.table import (
    measured_otherwise,
    predict_frame,
    read_table,
    runtimes_us,
    usable_rows,
    with_prediction,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """Results of the main job, and the files written."""

    rows: pd.DataFrame
    prediction: BatchPrediction
    accuracy: list[dict[str, Any]]
    """Accuracy by group of rows; empty if the table has no measurements."""
    notes: list[str]
    files: list[Path]


def predict_file(
    input_path: Path,
    output_dir: Path | None,
    chosen: Settings,
    step: Callable[[str], None],
    *,
    classic: bool = False,
) -> TableReport:
    """Predict every kernel of a file; write predictions, summary and plots if a folder is given.

    Calls `step(name)` before each step; `classic` writes the times under the classic script's names.
    Raises InputError for a bad table, or a folder that another run is writing into, before writing anything.
    """
    if output_dir is not None:
        check_folder_writable(output_dir)
    step(f"reading {input_path}")
    model = create_model(chosen.model, chosen.gpu, chosen.options)
    frame, notes = usable_rows(read_table(input_path), needs_tile=model.needs_tile)
    measured = runtimes_us(frame) is not None
    step(f"predicting {len(frame)} kernels with {chosen.model} on {chosen.gpu.name}")
    bar = Progress("predicting", len(frame))
    try:
        prediction = predict_frame(frame, model, bar.advance)
    finally:
        bar.close()
    rows = with_prediction(frame, prediction)
    accuracy = accuracy_summary(rows) if measured else []
    notes += [*measured_otherwise(frame, model.regime), *prediction.caveats]
    report = TableReport(rows=rows, prediction=prediction, accuracy=accuracy, notes=notes, files=[])
    if output_dir is not None:
        with sole_writer(output_dir):
            report.files.extend(_write(input_path, output_dir, chosen, report, step, classic=classic))
    return report


def with_classic_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Predicted rows with the classic script's `predicted_runtime` and, where measured, `actual_runtime`."""
    named = rows.rename(columns={"predicted_us": "predicted_runtime"})
    if "runtime_us" in named:
        named.insert(list(named).index("predicted_runtime"), "actual_runtime", named["runtime_us"])
    return named


def file_suffix(chosen: Settings) -> str:
    """Suffix of one choice's output files: the model and, if set, its L2 hit rate."""
    hit_rate = chosen.options.get("l2_hit_rate") or 0
    return f"{chosen.model}_l2hit{hit_rate:g}" if hit_rate else chosen.model


def _write(
    input_path: Path,
    output_dir: Path,
    chosen: Settings,
    report: TableReport,
    step: Callable[[str], None],
    *,
    classic: bool,
) -> list[Path]:
    rows, accuracy = report.rows, report.accuracy
    suffix = file_suffix(chosen)
    predictions = output_dir / f"predictions_{suffix}.csv"
    step(f"writing {predictions}")
    with atomic_path(predictions) as temporary:
        (with_classic_names(rows) if classic else rows).to_csv(temporary, index=False)
    files = [predictions]
    if accuracy and find_spec("matplotlib") is None:
        report.notes.append(f"no plots were made: {extra_needed('a plot', 'matplotlib', 'plot')}")
    elif accuracy:
        from gemm_model.report.plots import predicted_against_measured, s_curve

        step("plotting")
        files += [output_dir / f"s_curve_{suffix}.png", output_dir / f"predicted_vs_measured_{suffix}.png"]
        s_curve(rows, suffix, chosen.gpu.name, files[-2])
        predicted_against_measured(rows, suffix, chosen.gpu.name, files[-1])
    summary = {
        "gemm_model": __version__,
        "input": input_path.name,
        "gpu": chosen.gpu.name,
        "model": chosen.model,
        "model_opts": dict(chosen.options),
        "rows": len(rows),
        "accuracy": accuracy,
        "notes": report.notes,
    }
    files.append(output_dir / f"summary_{suffix}.json")
    atomic_write(files[-1], json_text(summary) + "\n")
    return files
