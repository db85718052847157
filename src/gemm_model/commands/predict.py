"""`gemm-model predict`: a table of kernels, or one kernel."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gemm_model.api import predict
from gemm_model.commands import attention, common, compare, kinds, served, sweep
from gemm_model.config import read_toml
from gemm_model.core.fields import OK, kernel_fields, problem_fields
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.kernel_model.explanation import limits_of
from gemm_model.models import create_model
from gemm_model.report import console
from gemm_model.report.document import FORMATS, Document, screen_text
from gemm_model.report.page.content import Page

if TYPE_CHECKING:
    import pandas as pd

    from gemm_model.report.table_job import TableReport

EXTREMES = 5
"""Rows shown of each end of the ratios [rows]; texts; as in the classic readme."""


def run(args: argparse.Namespace) -> Document:
    if (answer := served.answer(args)) is not None:
        return answer
    if args.input is not None:
        used = (*common.SETTINGS, *common.OUTPUT, "input", "html")
        common.refuse_unused(args, "with --input", used)
        if compare.cards_asked(args):
            raise InputError(f"--gpu is {args.gpu} with --input; expected one card for a table")
        chosen, of_rows = common.settings(args), partial(common.of_rows, args)
        folder, files = args.output, (*FORMATS, "gz", "parquet")
        if folder is not None and folder.suffix.removeprefix(".") in files and not folder.is_dir():
            common.check_document(args, args.html)
            folder = None
        return predict_table_file(args.input, folder, chosen, html=args.html, of_rows=of_rows)
    if args.html is not None:
        raise InputError("--html comes without --input; expected a table (explore makes a page of one shape)")
    common.check_document(args)
    if sweep.asked(args):
        return sweep.sweep(args, _answer)
    if compare.cards_asked(args):
        return compare.compare(args, _answer)
    return attention.predict(args) if attention.asked(args) else predict_kernel(args)


def _answer(args: argparse.Namespace) -> compare.Answer:
    """The kernel of the options on the card of --gpu."""
    if attention.asked(args):
        return attention.answer(args)
    chosen, problem = common.settings(args), kinds.problem(args)
    needs_tile = _needs_tile(args, chosen)
    config = common.config(args)
    kernel = compare.kernel_fields(config, chosen.gpu) if needs_tile else {}
    columns = common.place(chosen, "regime", "l2") | (kernel_fields(config) if needs_tile else {})
    if (expected := kinds.expected(args, chosen, problem, config)) is not None:
        beside = kinds.expected_fields(expected)
        return compare.answer_of(expected.middle, expected.prediction, kernel, columns, **beside)
    found = predict(problem, config, chosen.gpu, chosen.model, options=chosen.options)
    return compare.answer_of(problem, found, kernel, columns)


def _needs_tile(args: argparse.Namespace, chosen: Settings) -> bool:
    """Whether the model reads a configuration; any tile serves one that does not."""
    needed = create_model(chosen.model, chosen.gpu, chosen.options).needs_tile
    args.cta = args.cta if needed else args.cta or "1x1"
    return needed


def predict_table_file(
    input_path: Path,
    output_dir: Path | None,
    chosen: Settings,
    *,
    classic: bool = False,
    html: Path | None = None,
    of_rows: Callable[[Mapping[str, str]], Settings] | None = None,
) -> Document:
    """The main job; `classic` writes the columns that the classic script's readers know."""
    from gemm_model.report.table_job import predict_file

    started = perf_counter()
    report = predict_file(
        input_path,
        output_dir,
        chosen,
        lambda step: common.words(f"[{perf_counter() - started:5.2f} s] {step}"),
        of_rows=of_rows,
        classic=classic,
    )
    for path in report.files:
        common.words(f"wrote {path}")

    def page() -> Page:
        from gemm_model.report.page.table import table_page

        predicted = report.rows[report.rows["disposition"] == OK]
        return table_page(predicted, input_path.name, chosen.gpu, chosen.model, report.notes)

    return Document(
        gpu=", ".join(report.cards),
        model=chosen.model,
        result={"accuracy": report.accuracy, "files": report.files},
        rows=report.rows,
        notes=report.notes,
        text=lambda: _table_text(report, chosen, classic),
        files=[common.page(html, page)],
        apart=output_dir is not None,
    )


def _table_text(report: TableReport, chosen: Settings, classic: bool) -> str:
    if not report.accuracy:
        return _predictions_text(report.rows, report.rows)

    numbered = report.rows.reset_index(drop=True).dropna(subset="ratio")
    parts = []
    for title, rows in zip(("HIGHEST", "LOWEST"), console.extreme_rows(numbered, EXTREMES), strict=True):
        parts.append(f"{len(rows)} {title} RATIOS predicted / measured")
        if not classic:
            parts[-1] += "\n" + _predictions_text(rows, numbered, "runtime_us", "ratio")
        for position, row in rows.iterrows() if classic else ():
            kernel = {str(key): value for key, value in row.items()}
            prediction = report.prediction(int(str(position)))
            parts.append(console.explanation(kernel, prediction, float(row["runtime_us"])))
    title = "ACCURACY IN THE FIT" if report.fitted else "ACCURACY"
    parts.append(
        f"{title} of {chosen.model} on {', '.join(report.cards)}, |predicted / measured - 1|\n"
        + console.accuracy_text(report.accuracy)
    )
    return "\n" + "\n\n".join(parts)


def _predictions_text(rows: pd.DataFrame, table: pd.DataFrame, *measured: str) -> str:
    """Some rows of a table, by the columns that tell its rows apart."""
    sizes = [name for name in ("m", "n", "k", "heads", "seq_q", "seq_kv") if name in rows]
    apart = [name for name in read_toml("columns")["apart"] if name in rows and table[name].nunique() > 1]
    shown = ["predicted_us", *measured, "limiter"]
    return screen_text(rows[[*sizes, *apart, *shown]], [*sizes, *shown])


def predict_kernel(args: argparse.Namespace) -> Document:
    """The prediction of the one kernel that the options describe."""
    chosen = common.settings(args)
    problem = kinds.problem(args)
    needs_tile = _needs_tile(args, chosen)
    notes = []
    if not needs_tile:
        unread = sorted(args.given & set(common.CONFIG))
        notes = [f"{chosen.model} does not read --{name.replace('_', '-')}" for name in unread]
    config = common.config(args)
    expected = kinds.expected(args, chosen, problem, config)
    if expected is None:
        prediction = predict(problem, config, chosen.gpu, chosen.model, options=chosen.options)
    else:
        problem, prediction = expected.middle, expected.prediction
    kernel = kernel_fields(config) if needs_tile else {}
    result: dict[str, Any] = {"problem": problem_fields(problem), "kernel": kernel}
    result["prediction"] = console.prediction_fields(prediction)
    limiters = limits_of(prediction.limiter, problem, config, chosen)
    over_routings = {} if expected is None else kinds.expected_fields(expected)
    if expected is not None:
        result["expected"] = over_routings
    row = {
        **result["problem"],
        **common.place(chosen, "regime", "l2"),
        **kernel,
        **over_routings,
        **console.prediction_row(prediction),
        "limiters": limiters,
    }
    return common.document(
        chosen,
        result=result,
        rows=[row],
        notes=notes,
        text=lambda: (
            ("" if expected is None else f"{kinds.expected_text(expected)}\n")
            + console.explanation({**result["problem"], **kernel}, replace(prediction, limiter=limiters))
        ),
    )
