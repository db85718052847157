"""`gemm-model simulate`: every event of one SM's pipeline, as a trace, a table and a plot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gemm_model.commands import common
from gemm_model.commands.pipeline_choice import add_machine, machine_and_work
from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import AUTO
from gemm_model.timeline.chrome_trace import write_chrome_trace
from gemm_model.timeline.simulator import simulate
from gemm_model.timeline.views import event_table, plot_timeline, trace_events, warp_table

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_problem(parser, required=True)
    common.add_config(parser)
    parser.set_defaults(stages=None)
    add_machine(parser)
    parser.add_argument("--output", type=Path, help="Chrome-trace JSON file, for Perfetto")
    parser.add_argument("--sms", type=int, default=1, help="how many SMs the trace shows (default: 1)")
    parser.add_argument("--plot", type=Path, help="picture of one SM over its waves (.png, .svg, .pdf)")
    parser.add_argument("--events", action="store_true", help="print every event in place of the totals")
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    if args.sms < 1:
        raise InputError(f"--sms is {args.sms}; expected at least 1")
    if args.stages is not None and args.stages < 1:
        raise InputError(f"--stages is {args.stages}; expected at least 1")
    args.stages = args.stages or AUTO
    if args.plot is not None and args.plot.suffix not in PLOT_SUFFIXES:
        raise InputError(
            f"--plot {args.plot}; expected a name that ends in one of {', '.join(PLOT_SUFFIXES)}"
        )
    machine, work, title = machine_and_work(args)
    timeline = simulate(work, machine)
    table = event_table(timeline, work) if args.events else warp_table(timeline)
    if args.format == "json":
        print(
            json.dumps(
                {
                    "runtime_us": timeline.runtime_us,
                    "waves": int(work.waves),
                    "k_steps": int(work.steps),
                    "stages": timeline.stages,
                    "consumer_wait_us": timeline.consumer_wait() / 1e6,
                    "slots_taken_share": timeline.occupancy_share(),
                    "rows": json.loads(table.to_json(orient="records")),
                },
                indent=2,
            )
        )
    else:
        common.show(table, args.format)
    shares = ", ".join(f"{taken}: {share:.0%}" for taken, share in timeline.occupancy_share().items())
    common.words(
        f"{title}: {timeline.runtime_us:.3f} us; tiles an SM: {work.waves:.0f}, k steps: {work.steps:.0f}, "
        f"a ring of {timeline.stages} slots, consumers {machine.consumers}"
    )
    common.words(f"slots of the ring taken, share of the time: {shares}")
    if args.output is not None:
        events, counters = trace_events(timeline, work, args.sms)
        write_chrome_trace(args.output, events, counters)
        common.words(f"wrote {args.output}")
    if args.plot is not None:
        plot_timeline(timeline, args.plot, title)
        common.words(f"wrote {args.plot}")
    return 0
