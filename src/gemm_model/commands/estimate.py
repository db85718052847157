"""`gemm-model estimate`: a pipeline machine's parameters from measured kernels."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.commands import common
from gemm_model.commands.pipeline_choice import changed_machine
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_write
from gemm_model.pipeline.estimation import Fit, Runs, fit_machine
from gemm_model.pipeline.machine import PipelineMachine, machine_names

COLUMNS = tuple(spec.name for spec in fields(Runs))
DEFAULT_FIT = "mac_per_us,math_startup_us,load_bytes_per_us,load_startup_us,epilogue_us,init_us"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", type=Path, required=True, help=f"CSV file with the columns {', '.join(COLUMNS)}"
    )
    parser.add_argument(
        "--machine",
        required=True,
        help=f"where the fit starts: a YAML file, or one of {', '.join(machine_names())}; words "
        "parameter=value change its parameters",
    )
    parser.add_argument("--fit", default=DEFAULT_FIT, help="parameters to fit (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="YAML file for the fitted machine")
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    start = changed_machine(args.machine, args.overrides)
    names = [name.strip() for name in args.fit.split(",")]
    known = {spec.name for spec in fields(PipelineMachine) if spec.name.endswith(("_us", "_per_us"))}
    for name in names:
        if name not in known:
            raise InputError(f"--fit {name!r}; expected some of {', '.join(sorted(known))}")
    runs = _read_runs(args.input)
    machine, fit = fit_machine(start, runs, names)
    common.show(_table(fit), args.format)
    common.words(
        f"{len(runs.runtime_us)} runs: error {fit.mean_error:.3%} in the mean, {fit.worst_error:.3%} at worst"
    )
    for estimate in fit.parameters:
        if not estimate.identified:
            common.words(f"{estimate.name} is not identified: the runs do not tell it from other parameters")
    if args.output is not None:
        atomic_write(args.output, _as_yaml(machine))
        common.words(f"wrote {args.output}")
    return 0


def _read_runs(path: Path) -> Runs:
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as CSV ({str(error).splitlines()[0]})") from None
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; expected {', '.join(COLUMNS)}")
    columns = {}
    for name in COLUMNS:
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if wrong.size:
            raise InputError(
                f"{path}: row {wrong[0] + 2}, column {name} is {table[name].iloc[wrong[0]]}; "
                "expected a positive number"
            )
        columns[name] = values
    return Runs(**columns)


def _table(fit: Fit) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "parameter": estimate.name,
                "value": estimate.value,
                "low_95": estimate.low,
                "high_95": estimate.high,
                "identified": estimate.identified,
                "at_bound": estimate.at_bound,
            }
            for estimate in fit.parameters
        ]
    )


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
