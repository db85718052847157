"""`gemm-model calibrate`: fit the kernel model's parameters to measured tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemm_model.commands import common
from gemm_model.commands.quick_calibration import quick_calibration
from gemm_model.config import is_yaml_file
from gemm_model.core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        type=Path,
        action="append",
        default=[],
        help="CSV of measurements (also .gz); may be given several times: burst, counters, sustained",
    )
    parser.add_argument("--gpu", default="h200", help="the GPU that was measured (default: h200)")
    parser.add_argument("--output", type=Path, required=True, help="the calibration file to write (YAML)")
    parser.add_argument(
        "--residual",
        type=Path,
        help="train the clipped residual too, and a file to write it to (YAML; needs lightgbm)",
    )
    parser.add_argument("--report", type=Path, help="a file for the report as well as stdout")
    parser.add_argument(
        "--hold-out",
        type=Path,
        action="append",
        default=[],
        help="a test list whose shapes form a family to be held out; may be given several times",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="on a machine with a GPU: describe it, measure 250 designed rows, adapt the nearest calibration",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the folds (default: 0)")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from gemm_model.calibration.report import report_text, write_calibration, write_residual
    from gemm_model.calibration.run import calibrate
    from gemm_model.core.files import atomic_write

    if args.quick == bool(args.input):
        raise InputError("expected either --input with measurements or --quick on a machine with a GPU")
    for option, path in (("--output", args.output), ("--residual", args.residual)):
        if path is not None and not is_yaml_file(path.name):
            raise InputError(f"{option} is {path}; expected a file that ends in .yaml")
    if args.quick:
        return quick_calibration(args.output)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None)
        result = calibrate(
            args.input,
            common.settings(args).gpu,
            hold_out_lists=args.hold_out,
            seed=args.seed,
            with_residual=args.residual is not None,
            progress=lambda step: bar.update(task, description=step),
        )
    text = report_text(result)
    print(text)
    write_calibration(result, args.output)
    if args.residual is not None:
        write_residual(result, args.residual)
    if args.report is not None:
        atomic_write(args.report, text + "\n")
    common.words(f"wrote {args.output}")
    if args.residual is not None:
        common.words(f"wrote {args.residual}")
    return 0
