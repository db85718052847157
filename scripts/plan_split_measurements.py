"""The rows of `data/measurements/h200/decode_splits*`: with which split of K are decode shapes fastest?

    python scripts/plan_split_measurements.py --output plans
    gemm-model benchmark --rows plans/again_quack.csv --output again_quack.csv

A choice among splits is judged by times that differ by a few percent, so that one card's noise decides. Plans
`again_*` hold the rows of earlier tables that come near the fastest of their problem and family, for further
cards. Plans `fresh_*` hold decode shapes of layers that no table has, with the kernels that
`plan_library_measurements.py` gives to shapes. Every draw is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from plan_library_measurements import (
    DECODE_M,
    Shape,
    cublaslt_configs,
    cutlass_configs,
    rows_of,
    split_configs,
    write_plans,
)

from gemm_model.bench.provider import Config
from gemm_model.bench.rows import Row, padded, row_from_columns
from gemm_model.core.kernel_config import STREAM_K, KernelConfig
from gemm_model.core.problem import GemmProblem

SEED = 20261128
MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements" / "h200"
TABLES = {
    "quack": ("splits", "quack_variants", "burst"),
    "cutlass": ("splits", "cutlass"),
    "cublaslt": ("cublaslt",),
}
"""By provider, where its decode shapes stand with and without a split."""
PROBLEM = ["in_dtype", "fast_accum", "m", "n", "k"]
NEAR = 0.15
"""Rows that take so much more than the fastest of their problem may be the fastest on another card."""
LAYERS = (
    (5376, 21504), (21504, 5376), (4608, 3072), (3072, 24576), (6144, 10752), (5120, 25600), (5120, 17920),
    (7680, 5120), (7168, 20480), (8192, 22528), (12288, 8192), (4096, 13696), (4096, 12800), (3072, 8192),
    (9216, 3072), (2560, 9728), (2560, 4096), (6144, 24576), (12288, 12288), (16384, 6656), (2880, 4096),
    (5120, 2880), (1792, 6656), (2304, 9216), (4608, 18432), (2688, 8064), (3328, 13312), (1024, 16384),
)  # fmt: skip
"""(n, k) of layers of further models: Gemma, Qwen3, Phi, Yi, Command R, GLM, Granite, gpt-oss, and slices."""
FRESH = {"bf16": 34, "fp16": 14, "e4m3": 16}
"""Fresh problems by operand type."""
PLAIN_CUTLASS = 6
"""Kernels without a split of each fresh problem."""
ALL = 10_000


def again(kernel: str, tables: Sequence[str]) -> list[Row]:
    """Rows near the fastest of their problem, of problems measured with and without a split."""
    frames = [
        pd.read_csv(MEASUREMENTS / f"{name}.csv.gz", dtype=str, keep_default_na=False) for name in tables
    ]
    frame = pd.concat(frames, ignore_index=True).fillna("")
    measured_us = pd.to_numeric(frame["runtime_us"], errors="coerce")
    decode = pd.to_numeric(frame["m"]) <= max(DECODE_M)
    kept = (frame["kernel"] == kernel) & decode & measured_us.notna() & frame["regime"].isin(("", "burst"))
    frame, measured_us = frame[kept], measured_us[kept]
    split = frame["split_k"].where(frame["scheduler"] != STREAM_K, STREAM_K).replace("", "1")
    by_problem = [frame[name] for name in PROBLEM]
    whole = split.eq("1").groupby(by_problem).transform("any")
    several = split.groupby(by_problem).transform("nunique") > 1
    fastest_us = measured_us.groupby(by_problem).transform("min")
    near = measured_us <= fastest_us * (1.0 + NEAR)
    return [row_from_columns(cells) for cells in frame[whole & several & near].to_dict("records")]


def fresh_problems(draw: random.Random) -> list[tuple[GemmProblem, Shape]]:
    """Decode shapes of `LAYERS`, each at most once in a type."""
    shapes = [(m, n, k) for m in DECODE_M for n, k in LAYERS]
    return [
        (padded(GemmProblem.of(*shape, dtype)), shape)
        for dtype, count in FRESH.items()
        for shape in draw.sample(shapes, count)
    ]


def of_family(family: str, problem: GemmProblem, draw: random.Random) -> list[Config]:
    """Its kernels for a decode shape, with and without a split."""
    found = [
        config
        for config in split_configs(problem, draw)
        if isinstance(config, KernelConfig) and config.kernel == family
    ]
    plain = cutlass_configs(problem, draw)[:PLAIN_CUTLASS] if family == "cutlass" else []
    return list(dict.fromkeys([*plain, *found]))


def plans() -> dict[str, list[Row]]:
    draw = random.Random(SEED)
    found = {f"again_{name}": again(name, tables) for name, tables in TABLES.items()}
    problems = fresh_problems(draw)
    for family in ("quack", "cutlass"):
        found[f"fresh_{family}"] = rows_of(problems, partial(of_family, family), ALL, draw)
    found["fresh_cublaslt"] = rows_of(problems, cublaslt_configs, ALL, draw, "cublaslt")
    return found


if __name__ == "__main__":
    write_plans(__doc__, plans)
