"""`gemm-model emit`: tables of predictions in the format of a planner, for a card that nobody measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gemm_model.commands import common
from gemm_model.core.files import check_folder_writable
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import ModelShapes, read_config
from gemm_model.models import DEFAULT_MODEL
from gemm_model.report.document import Document

AICONFIGURATOR, VIDUR = ("aiconfigurator", "vidur")


def run(args: argparse.Namespace) -> Document:
    _check(args)

    gpu = as_gpu(args.gpu)
    models = [read_config(name) for name in common.listed(args.model or "")]
    emit = _vidur if args.planner == VIDUR else _aiconfigurator
    files, rows = emit(args, gpu, models)
    return Document(
        gpu=gpu.name,
        model=DEFAULT_MODEL,
        rows=[{"file": str(path)} for path in files],
        result={"planner": args.planner, "rows": rows},
        apart=True,
    )


def _check(args: argparse.Namespace) -> None:
    """Raise InputError for numbers out of range, and for what a planner needs or does not read."""
    common.no_overrides(args)
    if args.planner == VIDUR and not args.model:
        raise InputError("vidur needs --model CONFIG.json: its tables are a model's")
    if args.planner == VIDUR and args.input is not None:
        raise InputError("--input is read for aiconfigurator only")
    if args.planner == AICONFIGURATOR and args.memory_gib is None:
        raise InputError("aiconfigurator needs --memory-gib: the DRAM of a card, in GiB")
    for name in ("backend", "backend_version"):
        if not getattr(args, name).replace(".", "").replace("_", "").isalnum():
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)!r} is no name of a folder")
    check_folder_writable(args.output)


def _aiconfigurator(
    args: argparse.Namespace, gpu: GpuSpec, models: Sequence[ModelShapes]
) -> tuple[list[Path], int]:
    from gemm_model.integrations import aiconfigurator as planner
    from gemm_model.serving import planner_tables
    from gemm_model.tables.table import read_table

    planner.require_pyarrow()
    own = planner_tables.products_of(models, args.node_gpus)
    sizes = planner.grid(own) if args.input is None else read_table(args.input)
    system = planner.system_of(gpu, args.memory_gib, args.node_gpus, args.link_gb_per_s)
    steps = len(sizes) * len(planner.GEMM_TYPES)
    rows = [*planner_tables.aiconfigurator_rows(models, gpu, args.node_gpus)]
    with common.progress("predicting", steps + len(rows)) as advance:
        tables = {"gemm_perf": planner.gemm_table(gpu, sizes, advance)}
        tables |= planner_tables.tables_of(rows, advance)
    files = planner.write_system(args.output, gpu, system, tables, (args.backend, args.backend_version))
    return files, sum(map(len, tables.values()))


def _vidur(args: argparse.Namespace, gpu: GpuSpec, models: Sequence[ModelShapes]) -> tuple[list[Path], int]:
    from gemm_model.integrations.vidur import model_name, write_dataset
    from gemm_model.serving.planner_tables import tables_of, vidur_rows

    names = map(model_name, common.listed(args.model))
    rows = {name: [*vidur_rows(each, gpu, args.node_gpus)] for name, each in zip(names, models, strict=True)}
    with common.progress("predicting", sum(map(len, rows.values()))) as advance:
        tables = {name: tables_of(of_model, advance) for name, of_model in rows.items()}
    files = [file for name in tables for file in write_dataset(args.output, gpu, name, tables[name])]
    return files, sum(map(len, rows.values()))
