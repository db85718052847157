"""`gemm-model simulate`: the timeline of a kernel's warps, as a picture, a table and a trace for Perfetto.

By default the kernel model's own timeline, on all SMs; of the pipeline machine one SM, event by event.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.commands import attention, common, solve
from gemm_model.core.batch import batch_of
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.kernel_model.model import KernelModel
from gemm_model.pipeline.machine import PS_PER_US, Workload
from gemm_model.pipeline.model import PipelineModel
from gemm_model.report.document import Document, File
from gemm_model.timeline.chrome_trace import write_chrome_trace
from gemm_model.timeline.simulator import Timeline, simulate
from gemm_model.timeline.views import event_table, plot_timeline, thinned, trace_events, warp_table

if TYPE_CHECKING:
    import pandas as pd

    from gemm_model.timeline.kernel_timeline import KernelTimeline
    from gemm_model.timeline.trace import Trace

OF_THE_MACHINE = ("consumers", "dma_warps")
OF_THE_TIMELINE = ("measured", "table", "sm")
"""Options that only one of the two ways reads."""


def run(args: argparse.Namespace) -> Document:
    if "trace_sms" in args.given and args.trace is None:
        raise InputError("--trace-sms is given without --trace; expected both or neither")
    common.check_document(args, args.trace, args.table, args.plot, args.html)
    if attention.asked(args):
        return attention.simulate(args, drawn)
    if "stages" in args.given and args.stages < 1:
        raise InputError(f"--stages is {args.stages}; expected at least 1")
    if args.machine is not None:
        return _simulate_machine(args)
    chosen = common.settings(args)
    if chosen.model == solve.PIPELINE:
        return _simulate_machine(args)
    if chosen.model != solve.CALIBRATED:
        raise InputError(
            f"model is {chosen.model}; expected {solve.CALIBRATED} or {solve.PIPELINE}, which have timelines"
        )
    return _draw_timeline(args, chosen)


def _draw_timeline(args: argparse.Namespace, chosen: Settings) -> Document:
    """The kernel model's timeline, with a measured one over it where there is one."""
    from gemm_model.timeline.kernel_timeline import kernel_timeline
    from gemm_model.timeline.phases import compared, phase_rows, unwaited_us
    from gemm_model.timeline.trace import read_trace_table, require_same_kernel

    common.refuse_given(args, OF_THE_MACHINE, f"with {solve.CALIBRATED}")
    problem, config = common.problem(args), common.config(args)
    model = KernelModel(chosen.gpu, **chosen.options)
    measured = None if args.measured is None else read_trace_table(args.measured)
    read_us = 0.0 if measured is None else unwaited_us(measured, within_tiles=True)
    drawn = kernel_timeline(problem, config, model, detailed_sm=args.sm, read_us=read_us)
    traces = [drawn.trace]
    if measured is not None:
        require_same_kernel(drawn.trace, measured, args.measured)
        traces.append(measured)
    table: list[dict[str, Any]] | pd.DataFrame
    if args.events:
        table = drawn.trace.rows
    elif len(traces) > 1:
        table = compared(*traces)
    else:
        table = phase_rows(drawn.trace, "predicted")
    title = f"{problem.m} x {problem.n} x {problem.k} on {chosen.gpu.name}"
    paper_us = _pipeline_model_us(args, chosen)
    return common.document(
        chosen,
        result=_result(drawn, traces) | {"pipeline_model_us": paper_us},
        rows=table,
        notes=[*_notes(drawn, traces, title), *_disagreement(drawn, paper_us)],
        files=_files(args, drawn, traces, title),
    )


def _result(drawn: KernelTimeline, traces: list[Trace]) -> dict[str, Any]:
    info, prediction = drawn.trace.info, drawn.prediction
    found: dict[str, Any] = {
        "predicted_us": prediction.runtime_us,
        "phases_us": dict(prediction.phases_us),
        "limiter": prediction.limiter,
        "loads_wait_for": drawn.data_limiter,
        "k_tiles": info.k_tiles,
        "stages": info.stages,
    }
    if len(traces) > 1:
        measured = traces[1].info
        found |= {
            "measured_us": measured.ranged_us,
            "untraced_us": measured.untraced_us,
            "tracing_overhead": measured.overhead,
            "lost_warps": measured.lost_warps,
        }
    return found


def _notes(drawn: KernelTimeline, traces: list[Trace], title: str) -> list[str]:
    phases = ", ".join(f"{name} {us:.3f}" for name, us in drawn.prediction.phases_us.items())
    found = [f"{title}: {drawn.prediction.runtime_us:.3f} us ({phases})", *drawn.prediction.caveats]
    return found + [f"{trace.info.source}: {remark}" for trace in traces for remark in trace.info.remarks()]


def _pipeline_model_us(args: argparse.Namespace, chosen: Settings) -> float | None:
    """The pipeline model's time of the kernel [us]; None if it cannot predict it."""
    batch = batch_of([(common.problem(args), common.config(args))])
    try:
        return float(PipelineModel(chosen.gpu).predict_batch(batch).runtime_us[0])
    except InputError:
        return None


def _disagreement(drawn: KernelTimeline, paper_us: float | None) -> list[str]:
    """The note on which model to trust, if the two differ by more than the error band."""
    own_us, band = drawn.prediction.runtime_us, drawn.prediction.error_band or 0.0
    if paper_us is None or abs(paper_us / own_us - 1.0) <= band:
        return []
    return [
        f"{solve.PIPELINE} gives {paper_us:.3f} us, {paper_us / own_us - 1.0:+.0%}; {solve.WHY_CALIBRATED}"
    ]


def _files(args: argparse.Namespace, drawn: KernelTimeline, traces: list[Trace], title: str) -> list[File]:
    from gemm_model.report.page.pipeline import trace_page
    from gemm_model.timeline.plots import plot_traces
    from gemm_model.timeline.trace import trace_events, write_trace_table

    def write_trace(path: Path) -> None:
        # On a common axis both begin with the first CTA.
        shown = [trace.since_first_cta() for trace in traces] if len(traces) > 1 else traces
        ctas = None if args.trace_sms is None else range(args.trace_sms)
        write_chrome_trace(path, [event for trace in shown for event in trace_events(trace, ctas)])

    return [
        (args.table, lambda path: write_trace_table(drawn.trace, path)),
        (args.trace, write_trace),
        (args.plot, lambda path: plot_traces(traces, path, title, args.sm)),
        common.page(args.html, lambda: trace_page(drawn.trace, title, args.sm)),
    ]


def _simulate_machine(args: argparse.Namespace) -> Document:
    """One SM of the pipeline machine, event by event."""
    common.refuse_given(args, OF_THE_TIMELINE, "on a pipeline machine")
    machine, work, title = solve.machine_and_work(args)
    timeline = simulate(work, machine)
    shares = ", ".join(f"{taken}: {share:.0%}" for taken, share in timeline.occupancy_share().items())
    parts = drawn(args, timeline, title, work)
    parts["notes"][:0] = [
        f"{title}: {timeline.runtime_us:.3f} us; tiles an SM: {work.waves:.0f}, "
        f"k tiles: {work.steps:.0f}, "
        f"a ring of {timeline.stages} stages, consumers {machine.consumers}",
        f"stages of the ring taken, share of the time: {shares}",
    ]
    return Document(
        gpu=None if args.machine else common.settings(args).gpu.name,
        model=solve.PIPELINE,
        result={
            "machine": machine.name,
            "predicted_us": timeline.runtime_us,
            "waves": int(work.waves),
            "k_tiles": int(work.steps),
            "stages": timeline.stages,
            "consumer_wait_us": timeline.consumer_wait() / PS_PER_US,
            "slots_taken_share": timeline.occupancy_share(),
        },
        **parts,
    )


def drawn(
    args: argparse.Namespace, timeline: Timeline, title: str, work: Workload | None = None
) -> dict[str, Any]:
    """Rows, notes and files of one SM's timeline."""
    from gemm_model.report.page.pipeline import pipeline_page

    shown, sms, left_out = thinned(timeline, args.trace_sms or 1)
    files = [
        (args.trace, lambda path: write_chrome_trace(path, *trace_events(shown, work, sms))),
        (args.plot, lambda path: plot_timeline(timeline, path, title)),
        common.page(args.html, lambda: pipeline_page(timeline, title)),
    ]
    rows = event_table(timeline, work) if args.events else warp_table(timeline)
    return {"rows": rows, "notes": left_out if args.trace is not None else [], "files": files}
