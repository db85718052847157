"""`gemm-model estimate`: a pipeline machine's parameters from measured kernels."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.commands import common
from gemm_model.commands.pipeline_choice import changed_machine
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_write
from gemm_model.pipeline.estimation import Fit, Runs, fit_machine
from gemm_model.pipeline.machine import PipelineMachine, machine_names
from gemm_model.report.document import Document, text_table

COLUMNS = tuple(spec.name for spec in fields(Runs))
DEFAULT_FIT = "mac_per_us,math_startup_us,load_bytes_per_us,load_startup_us,epilogue_us,init_us"


EXAMPLES = (
    "--input runs.csv --machine paper_a6000 --output mine.yaml",
    "--input runs.csv --machine balanced --fit mac_per_us,load_bytes_per_us --format json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_input(parser, f"measured kernels: columns {', '.join(COLUMNS)}")
    parser.add_argument(
        "--machine",
        required=True,
        help=f"where the fit starts: a YAML file, or one of {', '.join(machine_names())}; words "
        "parameter=value change its parameters",
    )
    parser.add_argument("--fit", default=DEFAULT_FIT, help="parameters to fit")
    parser.add_argument("--output", type=Path, help="YAML file for the fitted machine")
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    common.check_outputs(args.output)
    if args.input is None:
        raise InputError("--input is missing; expected a table of measured kernels")
    start = changed_machine(args.machine, args.overrides)
    names = [name.strip() for name in args.fit.split(",")]
    known = {spec.name for spec in fields(PipelineMachine) if spec.name.endswith(("_us", "_per_us"))}
    for name in names:
        if name not in known:
            raise InputError(f"--fit {name!r}; expected some of {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise InputError(f"--fit {args.fit}; expected each parameter once")
    runs = _read_runs(args.input)
    machine, fit = fit_machine(start, runs, names)
    rows = _rows(fit)
    unknown = [estimate.name for estimate in fit.parameters if not estimate.identified]
    document = Document(
        verb="estimate",
        model="PipelineModel",
        result={"machine": machine.name, "mean_error": fit.mean_error, "worst_error": fit.worst_error},
        rows=rows,
        notes=[
            f"{len(runs.runtime_us)} runs: error {fit.mean_error:.3%} in the mean, "
            f"{fit.worst_error:.3%} at worst",
            *(f"{name} is not identified: the runs do not tell it from other parameters" for name in unknown),
        ],
        text=lambda: text_table(rows),
    )
    if args.output is not None:
        atomic_write(args.output, _as_yaml(machine))
    common.print_document(document, args.format or "table")
    if args.output is not None:
        common.words(f"wrote {args.output}")
    return 0


def _read_runs(path: Path) -> Runs:
    from gemm_model.tables.columns import SIZE, TIME, read_columns

    numbers = {name: TIME if name == "runtime_us" else SIZE for name in COLUMNS}
    table = read_columns(path, numbers)
    return Runs(**{name: table[name].to_numpy(np.float64) for name in COLUMNS})


def _rows(fit: Fit) -> list[dict[str, Any]]:
    return [
        {
            "parameter": estimate.name,
            "value": float(estimate.value),
            "low_95": float(estimate.low),
            "high_95": float(estimate.high),
            "identified": bool(estimate.identified),
            "at_bound": bool(estimate.at_bound),
        }
        for estimate in fit.parameters
    ]


def _as_yaml(machine: PipelineMachine) -> str:
    """The machine as `load_machine` reads it."""
    import yaml

    def plain(value: object) -> object:
        if isinstance(value, np.generic):
            return value.item()
        return list(value) if isinstance(value, tuple) else value

    values = {spec.name: plain(getattr(machine, spec.name)) for spec in fields(machine)}
    values["tiles"] = {spec.name: plain(getattr(machine.tiles, spec.name)) for spec in fields(machine.tiles)}
    values["sources"] = dict(machine.sources)
    return yaml.safe_dump(values, sort_keys=False)
