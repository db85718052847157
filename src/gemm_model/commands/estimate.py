"""`gemm-model estimate`: a pipeline machine's parameters from measured kernels, or from their traces."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.commands import common
from gemm_model.commands.solve import changed_machine
from gemm_model.core.batch import FloatArray
from gemm_model.core.files import atomic_write
from gemm_model.errors import InputError
from gemm_model.pipeline.estimation import ParameterEstimate, fit_machine
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine
from gemm_model.report.document import Document, File

SIZES = ("m", "n", "k", "tile_m", "tile_n", "tile_k", "stages")
COLUMNS = (*SIZES, "runtime_us")


def run(args: argparse.Namespace) -> Document:
    common.check_outputs(args.output)
    if args.traces is not None:
        return _read_off(args)
    if args.input is None:
        raise InputError("--input is missing; expected a table of measured kernels, or --traces")
    if args.machine is None:
        raise InputError("--machine is missing; expected where the fit starts, such as paper_a6000")
    start = changed_machine(args.machine, args.overrides)
    names = [name.strip() for name in args.fit.split(",")]
    known = {spec.name for spec in fields(PipelineMachine) if spec.name.endswith(("_us", "_per_us"))}
    for name in names:
        if name not in known:
            raise InputError(f"--fit {name!r}; expected some of {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise InputError(f"--fit {args.fit}; expected each parameter once")
    kernels, measured_us = _read_runs(args.input)
    machine, fit = fit_machine(start, kernels, measured_us, names)
    error = f"error {fit.mean_error:.3%} in the mean, {fit.worst_error:.3%} at worst"
    return Document(
        model="PipelineModel",
        result={"machine": machine.name, "mean_error": fit.mean_error, "worst_error": fit.worst_error},
        rows=_rows(fit.parameters),
        notes=[f"{len(measured_us)} runs: {error}", *_not_identified(fit.parameters, "runs")],
        files=[_machine_file(args, machine)],
        apart=True,
    )


def _read_off(args: argparse.Namespace) -> Document:
    """The machine that traces show, by direct observation."""
    from gemm_model.timeline.rates import machine_of_traces
    from gemm_model.timeline.trace import read_trace_table

    common.refuse_unused(args, "with --traces", ("traces", "output", "format"))
    common.no_overrides(args)
    machine, found = machine_of_traces([read_trace_table(path) for path in args.traces])
    return Document(
        model="PipelineModel",
        result={"machine": machine.name},
        rows=_rows(found),
        notes=_not_identified(found, "traces"),
        files=[_machine_file(args, machine)],
        apart=True,
    )


def _machine_file(args: argparse.Namespace, machine: PipelineMachine) -> File:
    return args.output, lambda path: atomic_write(path, _as_yaml(machine))


def _not_identified(estimates: Sequence[ParameterEstimate], seen: str) -> list[str]:
    return [
        f"{estimate.name} is not identified: the {seen} do not tell it from other parameters"
        for estimate in estimates
        if not estimate.identified
    ]


def _read_runs(path: Path) -> tuple[PipelineKernel, FloatArray]:
    """The measured kernels of a table, and their runtimes [us]."""
    from gemm_model.tables.columns import SIZE, TIME, read_columns

    table = read_columns(path, dict.fromkeys(SIZES, SIZE) | {"runtime_us": TIME}).astype(
        dict.fromkeys(SIZES, np.float64)
    )
    kernels = PipelineKernel(**{name: table[name].to_numpy() for name in SIZES})
    return kernels, table["runtime_us"].to_numpy()


def _rows(estimates: Sequence[ParameterEstimate]) -> list[dict[str, Any]]:
    names = {"name": "parameter", "low": "low_95", "high": "high_95"}
    return [{names.get(name, name): value for name, value in asdict(each).items()} for each in estimates]


def _as_yaml(machine: PipelineMachine) -> str:
    """The machine as `load_machine` reads it."""
    import yaml
    from msgspec import to_builtins

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else dict(value)

    return yaml.safe_dump(to_builtins(machine, enc_hook=plain), sort_keys=False)
