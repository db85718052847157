"""`gemm-model trace`: what each warp of a real kernel does when, by an in-kernel tracer on this machine."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

from gemm_model.bench import tracer
from gemm_model.bench.characterization import base_gpu
from gemm_model.bench.rows import Row
from gemm_model.bench.runner import describe_card
from gemm_model.bench.sweep import rows_of_table
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.commands import common
from gemm_model.commands.options import ENDINGS, check_suffix
from gemm_model.config import gpu_names, load_gpu_mapping
from gemm_model.core.fields import counted
from gemm_model.core.files import atomic_write, check_folder_writable, sole_writer
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import AUTO_KERNEL
from gemm_model.errors import InputError
from gemm_model.report.document import Document, csv_text
from gemm_model.timeline.chrome_trace import write_chrome_trace
from gemm_model.timeline.iket import read_iket, trace_of
from gemm_model.timeline.phases import phase_columns, phase_rows
from gemm_model.timeline.trace import Trace, trace_events, write_trace_table

PROBLEM = ("m", "n", "k", "b_dtype", "out_dtype", "dtype", "batch")
OF_ONE_KERNEL = (*PROBLEM, *common.CONFIG, "trace", "iket", "keep")


def run(args: argparse.Namespace) -> Document:
    common.no_overrides(args)
    if args.output is None:
        raise InputError("--output is missing; expected the file, or with --rows the folder, of the trace")
    if args.keep is not None:
        check_folder_writable(args.keep)
        if args.keep.exists() and any(args.keep.iterdir()):
            raise InputError(f"--keep {args.keep}: already holds files; expected a new folder")
    if args.rows is not None:
        common.refuse_given(args, OF_ONE_KERNEL, "with --rows")
        check_folder_writable(args.output)
        return _trace_table(args)
    check_suffix("--output", args.output, ENDINGS["table"])
    common.check_outputs(args.output, args.trace)
    row = _row(args)
    trace = _converted(args, row) if args.iket is not None else _traced([row], args)[0]
    return _answer(args, trace)


def _row(args: argparse.Namespace) -> Row:
    problem = common.problem(args)
    config = common.config(args)
    if config.kernel == AUTO_KERNEL:
        config = replace(config, kernel="quack")
    return Row(kernel=config.kernel, problem=problem, config=config)


def _converted(args: argparse.Namespace, row: Row) -> Trace:
    """The trace in a file of the tracer: its last launch of an instrumented kernel."""
    common.refuse_given(args, ("events_per_warp", "no_waits", "stores", "keep", "device"), "with --iket")
    launches = read_iket(args.iket)
    if not launches:
        raise InputError(f"{args.iket}: no launch of an instrumented kernel; expected one")
    kernel = tracer.traced_kernel(row, load_gpu(args.gpu or "h200"))
    return trace_of(launches[-1], kernel, every_warp=args.all_warps)


def _traced(rows: list[Row], args: argparse.Namespace) -> list[Trace]:
    """The traces of rows on this machine's GPU, in as few runs of the tracer as its buffers allow."""
    if args.gpu is not None:
        raise InputError("--gpu has no effect without --iket; expected it left out")
    tracer.require_tracer()
    options = tracer.TraceOptions(
        device=args.device or tracer.TRACED_DEVICE,
        events_per_warp=args.events_per_warp,
        waits=not args.no_waits,
        stores=args.stores,
        every_warp=args.all_warps,
        keep=args.keep,
    )
    found: dict[int, Trace] = {}
    with ThreadPoolExecutor(1) as pool:
        gpu = pool.submit(_gpu, options.device)
        # One kernel is traced while the card is described.
        for batch in tracer.batches(rows, gpu.result(), stores=args.stores) if len(rows) > 1 else [[0]]:
            common.words(f"tracing {counted(len(batch), 'kernel')}")
            try:
                traces = tracer.trace_rows([rows[i] for i in batch], gpu.result, options)
            except InputError:
                gpu.result()  # Without a GPU, that is why.
                raise
            found |= zip(batch, traces, strict=True)
    return [found[index] for index in range(len(rows))]


def _gpu(device: str) -> GpuSpec:
    """The GPU of this machine."""
    with closing(WorkerProcess(device)) as worker:
        card = describe_card(worker)
    return load_gpu(base_gpu(card["gpu_name"], {name: load_gpu_mapping(name) for name in gpu_names()}))


def _trace_table(args: argparse.Namespace) -> Document:
    """Every kernel of a table: a trace each, and the phases of all."""
    asked = rows_of_table(args.rows, regime="burst", l2="cold")
    rows: list[dict[str, Any]] = []
    with sole_writer(args.output):
        for number, trace in enumerate(_traced(asked, args)):
            name = f"{number:03d}.csv.gz"
            write_trace_table(trace, args.output / name)
            times_us = {"untraced_us": trace.info.untraced_us, "unranged_us": trace.info.unranged_us}
            about = {**trace.info.kernel, **times_us}
            rows.append({"trace": name, **about, **phase_columns(trace)})
        names = list(dict.fromkeys(name for row in rows for name in row))
        rows = [{name: row.get(name, "") for name in names} for row in rows]
        atomic_write(args.output / "phases.csv", csv_text(rows))
    return Document(
        result={"folder": args.output, "traces": len(rows)},
        rows=rows,
        text=lambda: f"{args.output}: {counted(len(rows), 'trace')} and phases.csv",
        apart=True,
    )


def _answer(args: argparse.Namespace, trace: Trace) -> Document:
    info = trace.info
    return Document(
        gpu=info.gpu,
        result={
            "traced_us": info.ranged_us,
            "untraced_us": info.untraced_us,
            "unranged_us": info.unranged_us,
            "tracing_overhead": info.overhead,
            "lost_warps": info.lost_warps,
            "file": args.output,
        },
        rows=phase_rows(trace, "measured"),
        notes=info.remarks(),
        files=[
            (args.output, lambda path: write_trace_table(trace, path)),
            (args.trace, lambda path: write_chrome_trace(path, trace_events(trace))),
        ],
        apart=True,
    )
