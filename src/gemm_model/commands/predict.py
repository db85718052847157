"""`gemm-model predict`: a table of kernels, or one kernel."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.core.settings import Settings

if TYPE_CHECKING:
    from gemm_model.report.table_job import TableReport

EXTREMES = 5
"""Rows shown of each end of the ratios, as in the classic readme."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", type=Path, help="CSV file of kernels, measured or not (also .gz)")
    parser.add_argument("--output", type=Path, help="folder for predictions, plots and summary")
    common.add_settings(parser)
    common.add_problem(parser, required=False)
    common.add_config(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    if args.input is not None:
        if args.m is not None or args.cta is not None:
            raise InputError("--input comes with --m or --cta; expected a table or one kernel, not both")
        return predict_table_file(args.input, args.output, common.settings(args), args.format)
    return _predict_one(args)


def predict_table_file(
    input_path: Path, output_dir: Path | None, chosen: Settings, output_format: str
) -> int:
    """The main job with its console output; the classic script runs the same."""
    from gemm_model.report.table_job import predict_file

    started = perf_counter()
    report = predict_file(
        input_path,
        output_dir,
        chosen,
        lambda step: common.words(f"[{perf_counter() - started:5.2f} s] {step}"),
    )
    if output_format == "csv":
        report.rows.to_csv(sys.stdout, index=False)
    elif output_format == "json":
        print(
            json.dumps(
                {"rows": len(report.rows), "accuracy": report.accuracy, "notes": report.notes}, indent=2
            )
        )
    elif report.accuracy:
        _print_extremes(report)
        from gemm_model.report.console import accuracy_text

        print(f"\nACCURACY of {chosen.model} on {chosen.gpu.name}, |predicted / measured - 1|")
        print(accuracy_text(report.accuracy))
    else:
        common.show(report.rows[["m", "n", "k", "predicted_runtime", "limiter"]], "table")
    for note in report.notes:
        common.words(f"note: {note}")
    for path in report.files:
        common.words(f"wrote {path}")
    return 0


def _print_extremes(report: TableReport) -> None:
    from gemm_model.report.console import explanation, extreme_rows

    numbered = report.rows.reset_index(drop=True)
    highest, lowest = extreme_rows(numbered, EXTREMES)
    for title, rows in (("HIGHEST", highest), ("LOWEST", lowest)):
        print(f"\n{len(rows)} {title} RATIOS predicted / measured")
        for position, row in rows.iterrows():
            prediction = report.prediction.row(int(str(position)))
            print(
                "\n"
                + explanation(
                    {str(key): value for key, value in row.items()}, prediction, float(row["actual_runtime"])
                )
            )


def _predict_one(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from gemm_model.api import predict
    from gemm_model.models import create_model
    from gemm_model.report.console import explanation

    chosen = common.settings(args)
    problem = common.problem(args)
    needs_tile = create_model(chosen.model, chosen.gpu, chosen.options).needs_tile
    if not needs_tile and args.cta is None:
        args.cta = "1x1"
    config = common.config(args)
    prediction = predict(problem, config, chosen.gpu, chosen.model, options=chosen.options)
    kernel = {"m": problem.m, "n": problem.n, "k": problem.k}
    if needs_tile:
        names = ("cta_m", "cta_n", "cluster_m", "cluster_n", "schedule")
        kernel |= {name: getattr(config, name) for name in names}
    if args.format == "json":
        told = {**kernel, **asdict(prediction)}
        if prediction.residual_share is not None:
            told["residual_share"] = prediction.residual_share
        print(json.dumps(told, indent=2))
    elif args.format == "csv":
        import pandas as pd

        figures = {"predicted_runtime": prediction.runtime_us, "limiter": prediction.limiter}
        figures |= {f"phase_{name}_us": value for name, value in prediction.phases_us.items()}
        common.show(pd.DataFrame([{**kernel, **figures, **prediction.details}]), "csv")
    else:
        print(explanation(kernel, prediction))
    return 0
