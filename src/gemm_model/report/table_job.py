"""The main job: a table of measured kernels in; predictions, accuracy and plots out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from gemm_model import __version__
from gemm_model.attention.model import attention_model
from gemm_model.core.batch import IntArray
from gemm_model.core.fields import OK, counted
from gemm_model.core.files import atomic_path, atomic_write, check_folder_writable, sole_writer
from gemm_model.core.prediction import BatchPrediction, Prediction
from gemm_model.core.regimes import SUSTAINED
from gemm_model.core.settings import Settings
from gemm_model.errors import RefusedKernelError, extra_needed
from gemm_model.kernel_model.calibration_file import CALIBRATION_DIR
from gemm_model.kernels.registry import names_in_tables
from gemm_model.models import DEFAULT_MODEL, create_model
from gemm_model.report.console import accuracy_summary
from gemm_model.report.document import json_text
from gemm_model.report.progress import Progress
from gemm_model.tables import attention
from gemm_model.tables import table as tables
from gemm_model.tables.schema import card_notes, require_card

FITTED_ROWS = CALIBRATION_DIR / "fitted_rows.npz"
"""Differences between the codes (`row_codes`), in order, of the rows that each calibration is fitted to."""
PLACE = ("gpu", "regime", "l2", "settings")
"""Columns that say where rows are predicted: rows of several such places are answered apart."""
_ALIKE_BY = ("m", "n", "k", "cta_m", "cta_n", "heads", "seq_q", "seq_kv", "runtime_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """Results of the main job, and the files written."""

    rows: pd.DataFrame
    """All rows of the table; `disposition` is 'ok' where there is a prediction."""
    cards: tuple[str, ...]
    predictions: tuple[tuple[IntArray, BatchPrediction], ...]
    """Of each card the places of its predicted rows, and what is predicted of them."""
    accuracy: list[dict[str, Any]]
    """Accuracy by group of rows; empty if the table has no measurements."""
    fitted: tuple[str, ...]
    """Calibrations that were fitted to this table: its accuracy then is that of the fit."""
    notes: list[str]
    files: list[Path]

    def prediction(self, place: int) -> Prediction:
        """The prediction of the row at a place of the table."""
        places, prediction = next(each for each in self.predictions if place in each[0])
        return prediction.row(int(np.searchsorted(places, place)))


def predict_file(
    input_path: Path,
    output_dir: Path | None,
    chosen: Settings,
    step: Callable[[str], None],
    *,
    of_rows: Callable[[Mapping[str, str]], Settings] | None = None,
    classic: bool = False,
) -> TableReport:
    """Predict every kernel of a file; write predictions, summary and plots if a folder is given.

    `step` is called with each step before it starts; `classic` writes the times under the classic script's names.
    `of_rows` tells the settings of rows by their `gpu` and `regime`, each an empty text where a row names
    none: rows of several cards and regimes are then predicted for those, each apart. Raises InputError for a
    bad table, or a folder that another run is writing into, before writing anything.
    """
    if output_dir is not None:
        check_folder_writable(output_dir)
    step(f"reading {input_path}")
    table = attention.understood_kernels(tables.read_table(input_path))
    parts = by_place(table, chosen, of_rows)
    for each, places in parts if "runtime_us" in table else ():
        require_card(table.iloc[places], each.gpu)
    found = _every(table, parts, step, tell_regime=of_rows is not None)
    rows = pd.concat([part for part, _, _ in found]).iloc[np.argsort(np.concatenate([p for _, p in parts]))]
    rows.attrs = dict(table.attrs)
    report = TableReport(
        rows=rows,
        cards=tuple(dict.fromkeys(each.gpu.name for each, _ in parts)),
        predictions=tuple(
            (places[(part["disposition"] == OK).to_numpy()], prediction)
            for (_, places), (part, prediction, _) in zip(parts, found, strict=True)
            if prediction is not None
        ),
        accuracy=_accuracy([part for part, _, _ in found]),
        notes=list(dict.fromkeys(note for _, _, notes in found for note in notes)),
        fitted=tuple(
            dict.fromkeys(name for each, places in parts for name in _fitted_to(table.iloc[places], each))
        ),
        files=[],
    )
    if report.fitted:
        report.notes.insert(0, f"in the fit: {', '.join(report.fitted)} was fitted to rows of this table")
    if output_dir is not None:
        with sole_writer(output_dir):
            report.files.extend(_write(input_path, output_dir, chosen, report, step, classic=classic))
    return report


def _every(
    table: pd.DataFrame,
    parts: Sequence[tuple[Settings, IntArray]],
    step: Callable[[str], None],
    *,
    tell_regime: bool,
) -> list[tuple[pd.DataFrame, BatchPrediction | None, list[str]]]:
    """Rows, prediction and notes of each place. Raises RefusedKernelError where no place has a kernel that can run."""
    found: list[tuple[pd.DataFrame, BatchPrediction | None, list[str]]] = []
    refused = []
    for each, places in parts:
        part = table.iloc[places]
        try:
            found.append(_predicted(part, each, step, tell_regime=tell_regime))
        except RefusedKernelError as error:
            refused.append(error)
            note = f"no prediction on {each.gpu.name}: {error}"
            found.append((_without_prediction(part, each), None, [note]))
    if len(refused) == len(parts):
        raise refused[0]
    return found


def by_place(
    table: pd.DataFrame, chosen: Settings, of_rows: Callable[[Mapping[str, str]], Settings] | None
) -> list[tuple[Settings, IntArray]]:
    """The settings of each card, regime and more that a table's rows name, with the places of its rows."""
    columns = [name for name in PLACE if name in table]
    if of_rows is None or not columns:
        return [(chosen, np.arange(len(table)))]
    cells = table[columns].fillna("").astype(str)
    if "regime" in cells and attention.is_attention_table(table):
        cells["regime"] = cells["regime"].where(cells["regime"] == SUSTAINED, "")
    codes = cells.groupby(columns, sort=False).ngroup().to_numpy()
    found: list[tuple[Settings, list[IntArray]]] = []
    for code in dict.fromkeys(codes):
        places = np.flatnonzero(codes == code)
        each = of_rows(cells.iloc[places[0]].to_dict())
        same = next((own for other, own in found if other == each), None)
        if same is None:
            found.append((each, same := []))
        same.append(places)
    return [(each, np.sort(np.concatenate(places))) for each, places in found]


def _without_prediction(table: pd.DataFrame, chosen: Settings) -> pd.DataFrame:
    _, disposition = tables.dispositions(table, needs_tile=True)
    return table.assign(gpu=chosen.gpu.name, disposition=disposition.replace(OK, tables.CANNOT_RUN))


def _predicted(
    table: pd.DataFrame, chosen: Settings, step: Callable[[str], None], *, tell_regime: bool
) -> tuple[pd.DataFrame, BatchPrediction, list[str]]:
    """All rows of one card, the predictions of those that are 'ok', and what is to be said of them."""
    model = create_model(chosen.model, chosen.gpu, chosen.options)
    of_attention = attention.is_attention_table(table)
    needs_tile = model.needs_tile and not of_attention
    frame, notes = tables.usable_rows(table, needs_tile=needs_tile)
    table, disposition = tables.dispositions(table, needs_tile=needs_tile)
    step(f"predicting {counted(len(frame), 'kernel')} with {chosen.model} on {chosen.gpu.name}")
    bar = Progress("predicting", len(frame))

    def predict(rows: pd.DataFrame) -> BatchPrediction:
        if of_attention:
            attended = attention_model(chosen.gpu, chosen.model, chosen.options)
            return attention.predict_attention_frame(rows, attended)
        return tables.predict_frame(rows, model, bar.advance)

    try:
        prediction, disposition, refused = tables.predict_usable(table, disposition, predict)
    finally:
        bar.close()
    rows = tables.with_prediction(table.assign(**_place(table, chosen, tell_regime)), prediction, disposition)
    otherwise = [] if of_attention else tables.measured_otherwise(frame, model.regime)
    otherwise += card_notes(table, chosen.gpu)
    return rows, prediction, [*notes, *refused, *otherwise, *prediction.caveats]


def _place(table: pd.DataFrame, chosen: Settings, tell_regime: bool) -> dict[str, Any]:
    """The columns that say where rows are predicted; what a measurement says of itself stays."""
    found: dict[str, Any] = {"gpu": chosen.gpu.name}
    if tell_regime and ("settings" in table or chosen.changes):
        found["settings"] = chosen.changes.get("settings", "")
    for name in ("regime", "l2") if tell_regime else ():
        value = chosen.options.get(name)
        given = table[name].replace("", np.nan) if name in table and "runtime_us" in table else None
        if value is not None:
            found[name] = value if given is None else given.fillna(value)
    return found


def row_codes(table: pd.DataFrame) -> IntArray:
    """A number [1] for each row, alike for rows of the same sizes, tile and measured time to five digits."""
    values = table.reindex(columns=_ALIKE_BY).apply(pd.to_numeric, errors="coerce").to_numpy(float)
    words = (" ".join(f"{value:.5g}" for value in row) for row in values)
    return np.array([crc32(each.encode()) for each in words], dtype=np.int64)


def _fitted_to(table: pd.DataFrame, chosen: Settings) -> list[str]:
    """The card's shipped calibrations that saw most of the measured rows that the table has of their family."""
    if chosen.model != DEFAULT_MODEL or "runtime_us" not in table:
        return []
    rows = table[pd.to_numeric(table["runtime_us"], errors="coerce").notna()]
    called, codes, found = names_in_tables(), row_codes(rows), []
    families = rows["kernel"].map(lambda name: called.get(name, "attention")) if "kernel" in rows else None
    with np.load(FITTED_ROWS) as fits:
        for name in fits:
            gpu, _, family = name.partition(":")
            some = codes if families is None else codes[families == family]
            if gpu == chosen.gpu.name and np.isin(some, np.cumsum(fits[name])).sum() > len(some) / 2:
                found.append(name)
    return found


def _accuracy(parts: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """The figures of each card and regime apart, of its rows with a measurement."""
    found: list[dict[str, Any]] = []
    apart = [name for name in PLACE if len({str(part[name].iloc[0]) for part in parts if name in part}) > 1]
    for part in parts:
        measured = part[part["ratio"].notna().to_numpy()] if "ratio" in part else part.head(0)
        place = "".join(f"{part[name].iloc[0]} " for name in apart)
        figures = accuracy_summary(measured) if len(measured) else []
        found += [{**row, "rows of": f"{place}{row['rows of']}"} for row in figures]
    return found


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
