"""`gemm-model simulate`: every event of one SM's pipeline, as a trace, a table and a plot."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemm_model.commands import common
from gemm_model.commands.pipeline_choice import add_machine, machine_and_work
from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import AUTO
from gemm_model.pipeline.machine import PS_PER_US
from gemm_model.report.document import Document, text_table
from gemm_model.timeline.chrome_trace import write_chrome_trace
from gemm_model.timeline.simulator import simulate
from gemm_model.timeline.views import event_table, plot_timeline, trace_events, warp_table

EXAMPLES = (
    "--m 4096 --n 4096 --k 4096 --cta 128x128 --trace trace.json --trace-sms 4",
    "--m 512 --n 512 --k 512 --cta 64x64x64 --machine paper_a6000 --events --format csv",
)
MAX_TRACE_SMS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_problem(parser, required=True)
    common.add_config(parser)
    parser.set_defaults(stages=None)
    add_machine(parser)
    common.add_output(parser)
    parser.add_argument("--trace", type=Path, help="write the timeline as Chrome trace, for Perfetto")
    parser.add_argument(
        "--trace-sms", type=common.whole_number, default=1, help="how many SMs the trace shows"
    )
    parser.add_argument("--plot", type=Path, help="picture of one SM over its waves (.png, .svg, .pdf)")
    common.add_page(parser, "the timeline, with every wait and its reason")
    parser.add_argument("--events", action="store_true", help="print every event in place of the totals")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.trace_sms <= MAX_TRACE_SMS:
        raise InputError(f"--trace-sms is {args.trace_sms}; expected 1 to {MAX_TRACE_SMS}")
    if "trace_sms" in args.given and args.trace is None:
        raise InputError("--trace-sms is given without --trace; expected both or neither")
    for path in (args.output, args.trace):
        common.check_outputs(path)
    if args.stages is not None and args.stages < 1:
        raise InputError(f"--stages is {args.stages}; expected at least 1")
    args.stages = args.stages or AUTO
    common.check_plot(args.plot)
    machine, work, title = machine_and_work(args)
    timeline = simulate(work, machine)
    table = event_table(timeline, work) if args.events else warp_table(timeline)
    shares = ", ".join(f"{taken}: {share:.0%}" for taken, share in timeline.occupancy_share().items())
    document = Document(
        verb="simulate",
        gpu=None if args.machine else common.settings(args).gpu.name,
        model="PipelineModel",
        result={
            "machine": machine.name,
            "predicted_us": timeline.runtime_us,
            "waves": int(work.waves),
            "k_tiles": int(work.steps),
            "stages": timeline.stages,
            "consumer_wait_us": timeline.consumer_wait() / PS_PER_US,
            "slots_taken_share": timeline.occupancy_share(),
        },
        rows=table,
        notes=[
            f"{title}: {timeline.runtime_us:.3f} us; tiles an SM: {work.waves:.0f}, "
            f"k tiles: {work.steps:.0f}, "
            f"a ring of {timeline.stages} stages, consumers {machine.consumers}",
            f"stages of the ring taken, share of the time: {shares}",
        ],
        text=lambda: text_table(table),
    )
    common.show(args, document)
    if args.trace is not None:
        events, counters = trace_events(timeline, work, args.trace_sms)
        write_chrome_trace(args.trace, events, counters)
        common.words(f"wrote {args.trace}")
    if args.plot is not None:
        plot_timeline(timeline, args.plot, title)
        common.words(f"wrote {args.plot}")
    if args.html is not None:
        from gemm_model.report.page.pipeline import pipeline_page

        common.write_page(pipeline_page(timeline, title), args.html)
    return 0
