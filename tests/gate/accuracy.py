"""Accuracy of the shipped calibration on the shipped tables, by table, type, and with or without residual.

`make golden` records the figures; the gate compares with what was recorded, so that neither damage nor gain
goes unnoticed. Rows that the calibration was fitted to count as well: this is no judgement of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import yaml

from gemm_model.core.batch import BoolArray, FloatArray, GemmBatch
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.persistent.calibration_file import Calibration
from gemm_model.persistent.model import WarpSpecializedModel
from gemm_model.tables.accuracy import choice_figures, error_figures, shape_columns, top1_efficiency
from gemm_model.tables.table import batch_from_frame, read_table, runtimes_us, usable_rows
from tests.gate.manifest import MEASUREMENTS, tables

RECORDED = Path(__file__).parent / "accuracy.yaml"
MOST_SHAPES = 240
"""Shapes of a table that are judged; every so many where there are more."""
POINTS = 0.02
"""Percentage points by which a figure may differ from the recorded one."""
DIGITS = 4

Figures = dict[str, dict[str, dict[str, float]]]
"""By table, by type with ' + residual' where one corrects it, by figure in per cent."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a table in one regime, whole shapes."""

    gpu: GpuSpec
    regime: str
    l2: str
    frame: pd.DataFrame
    batch: GemmBatch
    types: Mapping[str, BoolArray]
    runtime_us: FloatArray


@cache
def samples() -> Mapping[str, Sample]:
    """By table: what is judged of those that hold a family's kernels for a fit or held out from it."""
    return {table.name: _sample(table.gpu, table.name) for table in tables("fit", "held_out")}


def _sample(gpu: str, name: str) -> Sample:
    frame, _ = usable_rows(read_table(MEASUREMENTS / gpu / f"{name}.csv.gz"), needs_tile=True)
    if "kernel" in frame:
        frame = frame[frame["kernel"] == "quack"]
    shape = frame.groupby(shape_columns(frame), sort=False, dropna=False).ngroup()
    every = max(round((shape.max() + 1) / MOST_SHAPES), 1)
    frame = frame[shape % every == 0].reset_index(drop=True)
    runtime_us = runtimes_us(frame)
    assert runtime_us is not None
    (regime,) = set(frame["regime"])
    (l2,) = set(frame["l2"])
    types = {str(dtype): (frame["in_dtype"] == dtype).to_numpy() for dtype in frame["in_dtype"].unique()}
    batch = batch_from_frame(frame, needs_tile=True)
    return Sample(load_gpu(gpu), regime, l2, frame, batch, types, runtime_us)


def accuracy(calibration: str | Calibration = "auto") -> Figures:
    """The figures of every table; with the residual too where the calibration has one."""
    return {name: _of_sample(sample, calibration) for name, sample in samples().items()}


def _of_sample(sample: Sample, calibration: str | Calibration) -> dict[str, dict[str, float]]:
    result = {}
    for residual, suffix in (("off", ""), ("auto", " + residual")):
        options = {"regime": sample.regime, "l2": sample.l2, "calibration": calibration}
        model = WarpSpecializedModel(sample.gpu, residual=residual, **options)
        if residual == "auto" and not model.corrects:
            continue
        predicted_us = model.predict_batch(sample.batch).runtime_us
        for dtype, rows in sample.types.items():
            result[dtype + suffix] = _figures(sample, predicted_us, rows)
    return result


def _figures(sample: Sample, predicted_us: FloatArray, rows: BoolArray) -> dict[str, float]:
    measured_us = sample.runtime_us[rows]
    errors = error_figures(predicted_us[rows], measured_us)
    frame = sample.frame[rows].assign(predicted_us=predicted_us[rows], runtime_us=measured_us)
    first = choice_figures(top1_efficiency(frame)).mean
    figures = {"mape": errors.mape, "p95": errors.p95, "first_choice": first}
    return {name: round(100.0 * value, DIGITS) for name, value in figures.items()}


def write_accuracy() -> None:
    header = "# Per cent, as `make golden` found them: tests/gate/accuracy.py says of which rows.\n"
    RECORDED.write_text(header + yaml.safe_dump(accuracy(), sort_keys=False))


def read_accuracy() -> Figures:
    recorded: Figures = yaml.safe_load(RECORDED.read_text())
    return recorded


def accuracy_differences(recorded: Figures, found: Figures) -> list[str]:
    """One line for each figure that is off the recorded one by more than POINTS."""
    was, now = _flat(recorded), _flat(found)
    lines = [f"{place}: recorded or found only once: run `make golden`" for place in was.keys() ^ now.keys()]
    lines += [
        f"{place}: {was[place]:.2f} % -> {now[place]:.2f} %"
        for place in was.keys() & now.keys()
        if abs(was[place] - now[place]) > POINTS
    ]
    return sorted(lines)


def _flat(figures: Figures) -> dict[str, float]:
    return {
        f"{table}, {kind}, {name}": value
        for table, kinds in figures.items()
        for kind, values in kinds.items()
        for name, value in values.items()
    }
