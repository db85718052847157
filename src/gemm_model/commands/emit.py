"""`gemm-model emit`: tables of predictions in the format of a planner, for a card that nobody measured."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.commands.options import add_options
from gemm_model.core.errors import InputError

EXAMPLES = (
    "aiconfigurator --gpu h200 --memory-gib 141 --output systems",
    "aiconfigurator --gpu l40s --memory-gib 48 --link-gb-per-s 32 --output systems --input shapes.csv",
)
PLANNERS = ("aiconfigurator",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "emit", planners=PLANNERS)
    common.add_input(parser, "table of sizes m, n, k (default: a grid of those that models have)")
    common.add_format(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    common.no_overrides(args)
    for name in ("memory_gib", "node_gpus", "link_gb_per_s"):
        if not 0 < getattr(args, name) < 1e6:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected 1 to 1000000")
    for name in ("backend", "backend_version"):
        if not getattr(args, name).replace(".", "").replace("_", "").isalnum():
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)!r} is no name of a folder")
    if args.output.exists() and not args.output.is_dir():
        raise InputError(f"--output {args.output} is a file; expected a folder")
    from gemm_model.core.gpu import as_gpu
    from gemm_model.integrations import aiconfigurator as planner
    from gemm_model.models import DEFAULT_MODEL
    from gemm_model.report.document import Document

    planner.require_pyarrow()
    gpu = as_gpu(args.gpu)
    sizes = None
    if args.input is not None:
        from gemm_model.tables.table import read_table

        sizes = read_table(args.input)
    backend = planner.Backend(name=args.backend, version=args.backend_version)
    system = planner.system_of(gpu, args.memory_gib, args.node_gpus, args.link_gb_per_s)
    rows = len(planner.grid() if sizes is None else sizes) * len(planner.GEMM_TYPES)
    with common.progress("predicting", rows) as advance:
        table = planner.gemm_table(gpu, backend, sizes, advance)
    rows_written = [{"file": str(path)} for path in planner.write_system(args.output, system, table, backend)]
    common.print_document(
        Document(
            verb="emit",
            gpu=gpu.name,
            model=DEFAULT_MODEL,
            rows=rows_written,
            result={"planner": args.planner, "gemms": len(table)},
        ),
        args.format or "table",
    )
    return 0
