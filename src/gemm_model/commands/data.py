"""`gemm-model data`: show, import, export, verify and compare data sets of measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_model.bench.row_log import command_line, package_versions, timestamp
from gemm_model.commands import common
from gemm_model.commands.options import ENDINGS, check_suffix
from gemm_model.core.files import atomic_path
from gemm_model.dataset.compare import compare
from gemm_model.dataset.schema import as_texts, typed
from gemm_model.dataset.storage import RUN_NAME, DataSet, RunRecord, new_run_name
from gemm_model.errors import InputError, PartialResultError
from gemm_model.fleet.journal import unsealed
from gemm_model.report.document import Document, text_table
from gemm_model.tables.table import read_table


def run(args: argparse.Namespace) -> Document | None:
    common.no_overrides(args)
    if args.what == "export":
        if args.output is not None:
            check_suffix("--output", args.output, ENDINGS["table"])
        common.check_outputs(args.output)
    else:
        common.check_document(args)
    expected = {"import": "one CSV file or more", "diff": "one other table"}.get(args.what, "none")
    if (args.what == "import") != bool(args.tables) and args.what != "diff":
        raise InputError(f"data {args.what} takes {expected} after the data set; got {len(args.tables)}")
    if args.what == "diff" and len(args.tables) != 1:
        raise InputError(f"data diff takes {expected} after the first; got {len(args.tables)}")
    chosen = () if args.what in ("import", "diff") else ("gpu", "family", "regime", "run_name")
    skips = ("skip_damaged",) if args.what == "export" else ()
    common.refuse_unused(
        args, f"for {args.what}", ("what", "dataset", "tables", "output", "format", *chosen, *skips)
    )
    return ACTIONS[args.what](args)


def _import(args: argparse.Namespace) -> Document:
    # All files are read before the first is written, so a bad file leaves the data set unchanged.
    tables = [(path, read_table(path)) for path in args.tables]
    for path, texts in tables:
        typed(texts, "", str(path))
    dataset = DataSet.create(args.dataset)
    rows = []
    for path, texts in tables:
        provenance = {
            "file": path.name,
            "rows": len(texts),
            "commands": [command_line()],
            "started": [timestamp()],
            "packages": package_versions(),
        }
        record = RunRecord(run=new_run_name(), provenance=provenance)
        grown = dataset.add_rows(record, 0, texts, str(path))
        rows.append({"file": path.name, "run": grown.run, "rows": len(texts), "parts": len(grown.parts)})
    return _answer({"dataset": args.dataset, "action": "import"}, rows)


def _export(args: argparse.Namespace) -> None:
    dataset = DataSet(args.dataset)
    parts = _parts(args)
    damaged = dataset.damage(parts) if args.skip_damaged else {}
    rows = as_texts(dataset.read_parts([part for part in parts if part.path not in damaged]))
    if args.output is None:
        raise InputError("data export: no --output given; expected the CSV file to write")
    with atomic_path(args.output) as unfinished:
        rows.to_csv(unfinished, index=False, lineterminator="\n")
    common.words(f"wrote {args.output}: {len(rows)} rows")
    if damaged:
        raise PartialResultError(f"{args.dataset}: left out {_listed(damaged)}")


def _verify(args: argparse.Namespace) -> None:
    parts = _parts(args)
    damaged = DataSet(args.dataset).damage(parts)
    rows = [{"part": path, "damage": why} for path, why in damaged.items()]
    result = {"dataset": args.dataset, "action": "verify", "parts": len(parts), "damaged": len(damaged)}
    text = f"{len(parts)} parts, {sum(part.rows for part in parts)} rows, {len(damaged)} damaged"
    common.show(args, _answer(result, rows, text))
    if damaged:
        raise InputError(
            f"{args.dataset}: {_listed(damaged)}; the other {len(parts) - len(damaged)} parts are whole"
        )


def _listed(damaged: dict[str, str]) -> str:
    return "; ".join(f"part {path} {why}" for path, why in damaged.items())


def _list(args: argparse.Namespace) -> Document:
    dataset = DataSet(args.dataset)
    wanted = {part.path for part in _parts(args)}
    rows: list[dict[str, Any]] = []
    for record in dataset.runs():
        for part in record.parts:
            if part.path in wanted:
                figures = {"run": record.run, "gpu": part.gpu, "family": part.family, "regime": part.regime}
                rows.append(
                    figures | {"rows": part.rows, "remarks": "; ".join(record.card_remarks.values()) or None}
                )
    notes = [
        f"run {run} has {count} rows in its journal; `gemm-model benchmark --resume` goes on with it"
        for run, count in unsealed(dataset).items()
    ]
    result = {"dataset": args.dataset, "action": "show", "rows": sum(row["rows"] for row in rows)}
    return _answer(result, rows, f"{text_table(rows)}\n{result['rows']} rows", notes)


def _diff(args: argparse.Namespace) -> Document:
    found = compare(_measurements(args.dataset), _measurements(args.tables[0]))
    rows = found.differences
    apart = (
        f"{found.only_first} rows only in {args.dataset}, {found.only_second} only in {args.tables[0]}, "
        f"{found.other_disposition} in both without two times"
    )
    result = {"action": "diff", "only_first": found.only_first, "only_second": found.only_second}
    return _answer(result, rows, f"{text_table(rows)}\n{apart}")


def _measurements(path: Path) -> pd.DataFrame:
    """Of a CSV file, a data set, or a run of one (`FOLDER/RUN`)."""
    if RUN_NAME.fullmatch(path.name):
        return DataSet(path.parent).read(run=path.name)
    return DataSet(path).read() if path.is_dir() else read_table(path)


def _parts(args: argparse.Namespace) -> list[Any]:
    chosen = {"gpu": args.gpu, "family": args.family, "regime": args.regime, "run": args.run_name}
    parts = DataSet(args.dataset).parts(**chosen)
    if not parts and any(chosen.values()):
        raise InputError(f"{args.dataset}: no such rows; `gemm-model data show` says what there is")
    return parts


def _answer(
    result: dict[str, Any], rows: list[dict[str, Any]], text: str | None = None, notes: Sequence[str] = ()
) -> Document:
    return Document(result=result, rows=rows, text=None if text is None else lambda: text, notes=notes)


ACTIONS: dict[str, Callable[[argparse.Namespace], Document | None]] = {
    "import": _import,
    "export": _export,
    "verify": _verify,
    "show": _list,
    "diff": _diff,
}
