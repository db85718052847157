"""CUDA-core kernels beside their measurements: the ladder's, and the three of the text 'Throughput matching'.

The text gives throughputs on a V100, not tiles. The tiles here are an assumption: CTAs of 32 x 32 threads for the
first two kernels, and for the third the register tile that the text's arithmetic asks for, 4 x 4 (amplification
4). B is contiguous along n, as in the text's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.config.numbers import room_numbers
from gemm_model.hierarchy.blocking import Blocking
from gemm_model.hierarchy.cuda_core_runtime import RuntimeParameters, runtime
from gemm_model.hierarchy.levels import Machine
from gemm_model.hierarchy.matching import Grid, match

COUNTER_OF_UNIT = {"issue": "issue_pct", "smem": "wavefront_pct", "l2": "l2_pct", "dram": "dram_pct"}
"""The hardware counter of a table (percent of the unit's peak) for each unit that may limit a kernel."""
REACHABLE_BY_KERNELS = ("issue_pct", "wavefront_pct")
"""Counters to be judged by the highest that any kernel of the table reached: no code uses all slots."""

Kernel = tuple[str, str, Blocking, int]
"""Name, rung, tiles and CTAs per SM."""
TEXT_SHAPE = (4096, 4096, 4096)
REGISTERS = Blocking(
    cta_m=64, cta_n=64, cta_k=16, warp_m=16, warp_n=32, thread_m=4, thread_n=4, stages=1, vector=1
)
TILED = Blocking(
    cta_m=32, cta_n=32, cta_k=32, warp_m=1, warp_n=32, thread_m=1, thread_n=1, stages=1, vector=1
)
TEXT_KERNELS = {
    "naive": ("text_naive_tflops", replace(TILED, cta_k=1, stages=0, b_major="n"), 2),
    "shared-memory tiling": ("text_tiled_tflops", TILED, 2),
    "register tiling": ("text_register_tflops", REGISTERS, 4),
}
"""The lines of the text's table: number of its throughput, tiles, and CTAs of an SM."""


def predicted(
    machine: Machine, kernels: Sequence[Kernel], shape: tuple[int, int, int], parameters: RuntimeParameters
) -> pd.DataFrame:
    """One row per kernel: runtime, throughput, limiter and the clocks of each unit for one CTA tile."""
    rows = []
    for name, rung, blocking, ctas_per_sm in kernels:
        run = runtime(machine, blocking, shape, ctas_per_sm, parameters)
        rows.append(
            {
                "kernel": name,
                "rung": rung,
                **dict(zip("mnk", shape, strict=True)),
                "predicted_us": run.runtime_us,
                "predicted_tflops": run.fraction_of_peak * machine.peak_tflops,
                "limiter": run.limiter,
                **{f"{unit}_clk": clocks for unit, clocks in run.clocks.items()},
            }
        )
    return pd.DataFrame(rows)


def compared(table: pd.DataFrame, predict: Callable[[tuple[int, int, int]], pd.DataFrame]) -> pd.DataFrame:
    """The measured kernels of `table` with predictions: `error` is predicted / measured runtime - 1."""
    shapes = table[["m", "n", "k"]].drop_duplicates().itertuples(index=False)
    frames = [predict((int(m), int(n), int(k))) for m, n, k in shapes]
    joined = table.merge(pd.concat(frames), on=["kernel", "rung", "m", "n", "k"], how="inner")
    joined["error"] = joined.predicted_us / joined.runtime_us - 1
    joined["counted_limiter"] = _counted_limiter(joined)
    return joined


def _counted_limiter(table: pd.DataFrame) -> pd.Series:
    """The limiter of each row by its counters: the busiest unit, or 'latency' if none is busy."""
    columns = list(COUNTER_OF_UNIT.values())
    if not set(columns) <= set(table.columns):
        return pd.Series("", index=table.index)
    shares = table[columns] / 100.0
    for column in REACHABLE_BY_KERNELS:
        shares[column] /= shares[column].max()
    values = np.nan_to_num(shares.to_numpy(dtype=np.float64), nan=0.0)
    busiest = np.array(list(COUNTER_OF_UNIT))[values.argmax(axis=1)]
    named = np.where(values.max(axis=1) >= room_numbers("hierarchy").busy_share, busiest, "latency")
    return pd.Series(np.where(shares.isna().any(axis=1), "", named), index=table.index)


def by_rung(joined: pd.DataFrame) -> pd.DataFrame:
    """Per rung: kernels, best measured and predicted throughput, mean and largest error."""
    grouped = joined.assign(absolute=joined.error.abs()).groupby("rung", sort=False)
    return grouped.agg(
        rows=("kernel", "size"),
        best_tflops=("tflops", "max"),
        best_predicted=("predicted_tflops", "max"),
        mean_error=("absolute", "mean"),
        largest_error=("absolute", "max"),
    ).reset_index()


def text_predictions(machine: Machine, parameters: RuntimeParameters) -> list[dict[str, Any]]:
    """The text's table for its machine (a V100), in its order.

    `bound_tflops` is the throughput that matching alone allows: no latency, and only the counted instructions.
    """
    numbers, rows = room_numbers("hierarchy"), []
    for name, (measured, blocking, ctas_per_sm) in TEXT_KERNELS.items():
        run = runtime(machine, blocking, TEXT_SHAPE, ctas_per_sm, parameters)
        bound = match(machine, blocking, Grid(rows=10, columns=16, k=TEXT_SHAPE[2])).fraction_of_peak
        found = {"name": name, "measured_tflops": getattr(numbers, measured)}
        found |= {
            "predicted_tflops": run.fraction_of_peak * machine.peak_tflops,
            "bound_tflops": bound * machine.peak_tflops,
        }
        of_cublas = getattr(numbers, measured) / numbers.text_cublas_tflops
        rows.append({**found, "limiter": run.limiter, "measured_of_cublas": of_cublas})
    return rows
