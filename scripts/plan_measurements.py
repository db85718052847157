"""The rows that were measured for `data/measurements/h200/`: which shapes, which configurations, which types.

    python scripts/plan_measurements.py --output plan.csv
    gemm-model benchmark --rows plan.csv --output burst.csv

Every draw is seeded, so the plan is the same each time. A shape gets the whole grid of common tiles and
clusters at swizzle 8, and a random draw from all other legal tiles, clusters and swizzles; the longest shapes
get fewer.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path

from gemm_model.bench.provider import load_provider
from gemm_model.bench.rows import CHAIN_COLUMNS, DETAIL_COLUMNS, IDENTITY_COLUMNS, Row, padded
from gemm_model.bench.sweep import estimated_kernel_us
from gemm_model.core.files import atomic_path
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.tables.table import batch_from_frame, read_table

SEED = 20261121
HOPPER = (9, 0)
TESTLISTS = Path(__file__).parents[1] / "testlists"
DRAWN_SHAPES = {
    "dsv3": None,
    "square": None,
    "llama3_decode": 26,
    "qwen2_5_decode": 16,
    "llama3_prefill": 14,
    "qwen2_5_prefill": 8,
    "random": 48,
}
"""How many shapes of each list; None takes all."""

DECODE_SWEEP = [(m, 4096, 7168) for m in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)]
"""One weight matrix under every small number of tokens."""

LARGEST_K_PITCH = 16384
COMMON_TILES = (
    (64, 128, "cooperative"),
    (128, 64, "cooperative"),
    (128, 128, "cooperative"),
    (128, 192, "cooperative"),
    (128, 256, "cooperative"),
    (256, 128, "cooperative"),
    (64, 128, "pingpong"),
    (64, 256, "pingpong"),
    (128, 128, "pingpong"),
    (128, 192, "pingpong"),
)
TYPES = {"bf16": 78, "e4m3": 72, "fp16": 36}
"""Rows of each shape by operand type."""

LONG_US = ((8000.0, 6), (2500.0, 12), (900.0, 28))
"""Shapes whose rough time exceeds the first number get no more rows than the second."""


def shapes(draw: random.Random) -> list[tuple[int, int, int]]:
    found: dict[tuple[int, int, int], None] = {}
    for name, count in DRAWN_SHAPES.items():
        batch = batch_from_frame(
            read_table(TESTLISTS / f"{name}.csv").assign(in_dtype="bf16"), needs_tile=False
        )
        listed = [(int(m), int(n), int(k)) for m, n, k in zip(batch.m, batch.n, batch.k, strict=True)]
        chosen = listed if count is None else draw.sample(listed, min(count, len(listed)))
        found.update(dict.fromkeys(chosen))
    found.update(dict.fromkeys(DECODE_SWEEP))
    return list(found)


def sensible(problem: GemmProblem, config: KernelConfig) -> bool:
    """Tiles of at most twice the matrix, or the smallest."""
    return config.cta_m <= max(64, 2 * problem.m) and config.cta_n <= max(64, 2 * problem.n)


def chosen_configs(
    problem: GemmProblem, configs: list[KernelConfig], count: int, draw: random.Random
) -> list[KernelConfig]:
    """The common grid first, then a draw from the rest; a draw alone where the grid is more than `count`."""
    fitting = [config for config in configs if sensible(problem, config)]
    common = [
        config
        for config in fitting
        if (config.cta_m, config.cta_n, config.schedule) in COMMON_TILES and config.swizzle == 8
    ]
    if len(common) > count * 2 // 3:
        common = draw.sample(common, count * 2 // 3)
    taken = set(common)
    rest = [config for config in fitting if config not in taken]
    return common + draw.sample(rest, min(len(rest), count - len(common)))


def planned_rows() -> list[Row]:
    draw = random.Random(SEED)
    quack, cublas = load_provider("quack"), load_provider("cublas")
    rows: list[Row] = []
    for m, n, k in shapes(draw):
        for dtype, wanted in TYPES.items():
            asked = GemmProblem.of(m, n, k, dtype)
            problem = padded(asked)
            count = wanted
            for limit_us, fewer in LONG_US:
                if estimated_kernel_us(problem) > limit_us:
                    count = min(count, fewer)
                    break
            configs = [config for config in quack.configs(problem, HOPPER) if config is not None]
            sizes = (asked.m, asked.n, asked.k)
            rows.extend(
                Row(kernel="quack", problem=problem, config=config, asked=sizes)
                for config in chosen_configs(problem, configs, count, draw)
            )
            if not cublas.unsupported(problem, HOPPER):
                rows.append(Row(kernel="cublas", problem=problem, config=None, asked=sizes))
    return rows


def write_plan(rows: list[Row], output: Path) -> None:
    """Writes the rows as a table for `gemm-model benchmark --rows`."""
    columns = (*IDENTITY_COLUMNS, *DETAIL_COLUMNS, *(CHAIN_COLUMNS if rows[0].regime == "graph" else ()))
    names = [name for name in columns if name not in ("gpu", "gpu_uuid")]
    with atomic_path(output) as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.columns() for row in rows)
    print(f"{output}: {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = planned_rows()
    write_plan(rows, arguments.output)


if __name__ == "__main__":
    main()
