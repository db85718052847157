"""Predicted against measured phases of traced kernels: errors by phase, and a row a kernel.

    python benchmarks/timeline_phases.py TRACES... [--output phases.csv]

TRACES are tables that `gemm-model trace` wrote, or folders of them. Predictions are of the kernel alone, on a
rested card with a cold L2 (regime counters), as the tracer runs it. A phase is right within 15 % of what was
measured or 0.3 us, the sum of a consumer's waits within 20 % or 0.3 us. And for how many kernels the traced
runtime, less what ranges add, is within 3 % of the untraced one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.model import KernelModel
from gemm_model.timeline.kernel_timeline import kernel_timeline
from gemm_model.timeline.numbers import timeline_numbers
from gemm_model.timeline.phases import compared, unwaited_us
from gemm_model.timeline.trace import Trace, read_trace_table

CLOSE_US = 0.3
CLOSE_SHARE = 0.15
CLOSE_SHARE_OF_WAITS = 0.2
CLOSE_SHARE_OF_RUNTIME = 0.03
OF_THE_PROBLEM = ("m", "n", "k", "batch", "a_dtype", "b_dtype", "out_dtype")


def tables(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        yield from sorted(place.glob("*.csv.gz")) if place.is_dir() else [place]


def kernel_of(trace: Trace) -> tuple[GemmProblem, KernelConfig]:
    kernel = dict(trace.info.kernel)
    m, n, k, batch, a, b, out = (kernel.pop(name) for name in OF_THE_PROBLEM)
    return GemmProblem.of(m, n, k, a, out_dtype=out, b_dtype=b, batch=batch), KernelConfig(**kernel)


def rows_of(path: Path) -> list[dict[str, object]]:
    """A row a phase of one traced kernel."""
    trace = read_trace_table(path)
    problem, config = kernel_of(trace)
    model = KernelModel(load_gpu(trace.info.gpu), regime="counters")
    read_us = unwaited_us(trace, within_tiles=True)
    phases = compared(kernel_timeline(problem, config, model, read_us=read_us).trace, trace)
    without_us = {"untraced_us": trace.info.untraced_us, "unranged_us": trace.info.unranged_us}
    return [{"trace": path.name, **trace.info.kernel, **without_us, **phase} for phase in phases]


def close(row: pd.Series) -> bool:
    share = CLOSE_SHARE_OF_WAITS if "wait" in row["phase"] else CLOSE_SHARE
    return bool(abs(row["predicted"] - row["measured"]) <= max(CLOSE_US, share * row["measured"]))


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """By phase: kernels, median measured, median ratio, share of the kernels whose phase is right."""
    both = rows.dropna(subset=["predicted", "measured"])
    both = both.assign(close=both.apply(close, axis=1), error=(both["predicted"] - both["measured"]).abs())
    found = both.groupby("phase", sort=False).agg(
        kernels=("close", "size"),
        measured=("measured", "median"),
        predicted=("predicted", "median"),
        ratio=("ratio", "median"),
        median_error=("error", "median"),
        close=("close", "mean"),
    )
    return found.round(3)


def runtimes_close(rows: pd.DataFrame) -> tuple[int, int]:
    """Kernels whose traced runtime less the overhead is close to the untraced one, and all of them."""
    kernels = rows.drop_duplicates(["trace", "untraced_us"]).dropna(subset=["untraced_us", "unranged_us"])
    # What ranges add is traced less unranged: traced less that is unranged.
    error = (kernels["unranged_us"] + timeline_numbers().launch_us) / kernels["untraced_us"] - 1.0
    return int((error.abs() <= CLOSE_SHARE_OF_RUNTIME).sum()), len(kernels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, help="CSV: a row a kernel and phase")
    args = parser.parse_args()
    rows = pd.DataFrame([row for path in tables(args.traces) for row in rows_of(path)])
    print(summary(rows).to_string())
    close_ones, kernels = runtimes_close(rows)
    print(f"traced less the overhead within 3 % of untraced: {close_ones} of {kernels} kernels")
    if args.output is not None:
        rows.to_csv(args.output, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
