"""The rows that are measured for `data/measurements/h100_sxm`, most of them rows that an H200 has timed too.

    python scripts/plan_h100_measurements.py --output-folder plan
    gemm-model benchmark --rows plan/burst.csv --output burst.csv timing.repeats=16 timing.row_budget_ms=12

8,000 rows of the burst regime: shapes of the H200's tables `burst` and `wide`, each with the kernel that
was fastest there, others of the faster half and others still, and 60 shapes that no table has; 600 of them
under a profiler, 800 back to back, and 1,000, of whole shapes, once more on a second card. `gemm-model
benchmark` mixes the order of the rows, so that a run that is stopped early loses a little of everything.
All use the kernels of the table `burst`, which spares compiling others. `design` holds the 250 rows that
`gemm-model calibrate --quick` would measure. Every draw is seeded.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from plan_measurements import HOPPER, chosen_configs
from plan_wide_measurements import shapes

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.provider import load_provider
from gemm_model.bench.rows import Row, padded, row_from_columns, write_plan
from gemm_model.bench.sweep import estimated_kernel_us, estimated_row_ms, shape_key
from gemm_model.calibration.quick import designed_rows
from gemm_model.core.gpu import load_gpu
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.calibration_file import load_calibration

SEED = 20261123
H200_TABLES = Path(__file__).parents[1] / "data" / "measurements" / "h200"
SHAPE, KERNEL = (
    ["m", "n", "k", "in_dtype"],
    ["in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule"],
)
LONGEST_US, LONGEST_COUNTED_US = 3000.0, 1000.0
BURST_ROWS = {"bf16": 8, "e4m3": 8, "fp16": 4}
"""Of each shape of the table `burst`, by type."""
WIDE_SHAPES, WIDE_ROWS = 240, 12
NEW_SHAPES, NEW_ROWS = 60, {"bf16": 14, "e4m3": 14, "fp16": 6}
BURST, COUNTERS, SUSTAINED, REPEATED = 8000, 600, 800, 1000
"""Rows of each plan."""
BURST_SETTINGS = TimingSettings(repeats=16, min_repeats=4, placements=16, row_budget_ms=12.0)
SUSTAINED_SETTINGS = TimingSettings(settle_ms=100.0, sustained_ms=70.0)
COUNTERS_ROW_S = 0.2
"""400 rows under one profiler take 80 s on an H200."""


def measured(name: str) -> pd.DataFrame:
    """QuACK's rows of an H200's table that take less than LONGEST_US there."""
    frame = pd.read_csv(H200_TABLES / f"{name}.csv.gz", low_memory=False)
    kept = frame[(frame["kernel"] == "quack") & (frame["runtime_us"] < LONGEST_US)]
    return kept.dropna(axis="columns", how="all")


def drawn(found: pd.DataFrame, count: int, draw: random.Random) -> Iterator[Row]:
    """The fastest row of a shape, as many of the faster half, and others, which are slow ones too."""
    ordered: list[dict[Any, Any]] = found.sort_values("runtime_us", kind="stable").to_dict("records")
    fast, slow = ordered[1 : len(ordered) // 2], ordered[max(len(ordered) // 2, 1) :]
    chosen = draw.sample(fast, min(count // 2, len(fast)))
    chosen += draw.sample(slow, min(count - 1 - len(chosen), len(slow)))
    for cells in (*ordered[:1], *chosen):
        yield row_from_columns({str(name): cell for name, cell in cells.items()})


def known_rows(draw: random.Random) -> Iterator[Row]:
    """Rows that an H200 has timed."""
    burst, wide = measured("burst"), measured("wide")
    for (*_, dtype), found in burst.groupby(SHAPE, sort=True):
        yield from drawn(found, BURST_ROWS[str(dtype)], draw)
    wide = wide.merge(burst[KERNEL].drop_duplicates(), on=KERNEL)
    of_shape = [found for _, found in wide.groupby(SHAPE, sort=True) if len(found) >= WIDE_ROWS]
    for found in draw.sample(of_shape, WIDE_SHAPES):
        yield from drawn(found, WIDE_ROWS, draw)


def new_rows(draw: random.Random) -> Iterator[Row]:
    """Rows of shapes that no table has, on the kernels of the table `burst`."""
    burst = measured("burst")
    taken = {
        (int(m), int(n), int(k))
        for name in ("burst", "wide")
        for m, n, k in measured(name)[["m", "n", "k"]].drop_duplicates().itertuples(index=False)
    }
    compiled = set(burst[KERNEL].drop_duplicates().itertuples(index=False, name=None))
    quack = load_provider("quack")
    for m, n, k in shapes(draw, NEW_SHAPES, taken):
        for dtype, count in NEW_ROWS.items():
            problem = padded(GemmProblem.of(m, n, k, dtype))
            configs = [
                config
                for config in quack.configs(problem, HOPPER)
                if config is not None
                and (dtype, config.cta_m, config.cta_n, config.cluster_m, config.cluster_n, config.schedule)
                in compiled
            ]
            for config in chosen_configs(problem, configs, count, draw):
                yield Row(kernel="quack", problem=problem, config=config, asked=(m, n, k))


def whole_shapes(rows: list[Row], count: int, draw: random.Random) -> list[Row]:
    """All rows of so many shapes that they are `count` or a few more."""
    by_shape: dict[Any, list[Row]] = {}
    for row in rows:
        by_shape.setdefault(shape_key(row), []).append(row)
    chosen: list[Row] = []
    for key in draw.sample(sorted(by_shape), len(by_shape)):
        if len(chosen) < count:
            chosen += by_shape[key]
    return chosen


def spread(rows: list[Row], count: int, draw: random.Random) -> list[Row]:
    """A draw in equal parts from short, middling and long kernels."""
    ordered = sorted(rows, key=lambda row: estimated_kernel_us(row.problem))
    third = len(ordered) // 3
    parts = ordered[:third], ordered[third : 2 * third], ordered[2 * third :]
    return [row for part in parts for row in draw.sample(part, count // 3 + 1)][:count]


def plans() -> dict[str, tuple[list[Row], float]]:
    """Rows of each plan, and about how many seconds they take."""
    draw = random.Random(SEED)
    new = list(new_rows(draw))
    known = list(known_rows(draw))
    rows = new + draw.sample(known, min(BURST - len(new), len(known)))
    short = [row for row in rows if estimated_kernel_us(row.problem) < LONGEST_COUNTED_US]
    repeated = whole_shapes(rows, REPEATED, draw)

    def burst_s(part: list[Row]) -> float:
        return sum(estimated_row_ms(row, BURST_SETTINGS) for row in part) / 1e3

    sustained_s = (SUSTAINED_SETTINGS.settle_ms + SUSTAINED_SETTINGS.sustained_ms) / 1e3
    designed = designed_rows(load_gpu("h100_sxm"), load_calibration("h200"))
    return {
        "design": (designed, burst_s(designed)),
        "burst": (rows, burst_s(rows)),
        "repeat": (repeated, burst_s(repeated)),
        "counters": (spread(short, COUNTERS, draw), COUNTERS * COUNTERS_ROW_S),
        "sustained": (spread(rows, SUSTAINED, draw), SUSTAINED * sustained_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output-folder", type=Path, required=True)
    arguments = parser.parse_args()
    for name, (rows, seconds) in plans().items():
        path = arguments.output_folder / f"{name}.csv"
        write_plan(rows, path)
        print(f"{path}: {len(rows)} rows, about {seconds:.0f} s of a card")


if __name__ == "__main__":
    main()
