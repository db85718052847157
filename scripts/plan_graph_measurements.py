"""The rows of `data/measurements/<gpu>/graph`: kernels back to back in CUDA graphs.

    python scripts/plan_graph_measurements.py --output plan.csv
    gemm-model benchmark --rows plan.csv --regime graph --output graph.csv
    python scripts/plan_graph_measurements.py --pairs-of data/measurements/h200/graph.csv.gz --output plan.csv

Shapes and QuACK's configurations are drawn from the burst rows of the H200, so that each row is also known by
itself: for each shape half of its configurations are of the fastest quarter, half of the rest. Of some rows
there is a twin: without PDL, with a warm or half-warm rotation, settled, or in turn with a second kernel.
Every draw is seeded. `--also` adds rows of other plans (`plan_library_measurements.py`): their kernels
are compiled once. `--pairs-of` draws from a measured table instead: rows that have a twin without PDL, and
some of CUTLASS's, each to be measured in turn with and without it.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from plan_measurements import HOPPER

from gemm_model.bench.provider import load_provider
from gemm_model.bench.rotation import MOST_COPIES
from gemm_model.bench.rows import NORM, Chain, Row, row_from_columns, write_plan
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.tables.table import read_table

SEED = 20261123
MEASURED = Path(__file__).parents[1] / "data" / "measurements" / "h200"
SHAPE = ["in_dtype", "out_dtype", "m", "n", "k"]
KERNEL = ["in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule"]

LONGEST_US = 3000.0
FAST_QUARTER = 0.25
FEW_TOKENS = 64
SHARE_OF_FEW_TOKENS = 0.3
"""Of the shapes of each table: m of up to FEW_TOKENS."""
KERNELS_OF_A_TYPE = 64
"""QuACK's kernels that are most often among the fastest of a shape: few, so that compiling them is quick."""
H200_L2_BYTES = 60 * 2**20

QUACK_SHAPES = {"burst": 70, "unseen": 24, "unseen_second": 24, "unseen_layers": 32, "wide": 60}
CONFIGS_OF_A_SHAPE = 6
CUBLAS_SHAPES = {"burst": 240, "unseen": 40, "unseen_second": 40, "unseen_layers": 60, "wide": 650}
"""Shapes of each table of burst rows, for each kind of kernels."""
LIBRARY_ROWS = 280
"""Of each further plan."""
PAIRS = {"quack": 400, "cutlass": 60}
"""Rows of each family that are measured in turn with and without PDL."""
PAIRED_CUTLASS_KERNELS = 14
"""CUTLASS's kernels that most rows have: each compiles for a minute, twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """How many rows are measured a second time in another chain."""

    without_pdl: int = 0
    warm: int = 0
    half_warm: int = 0
    settled: int = 0
    after_norm: int = 0
    with_next_gemm: int = 0


TWINS = {
    "quack": Twins(without_pdl=550, warm=100, half_warm=60, settled=160, after_norm=50, with_next_gemm=50),
    "cublas": Twins(warm=40, half_warm=20, settled=80, after_norm=25, with_next_gemm=25),
    "library": Twins(settled=20, warm=20),
}


def burst_rows() -> pd.DataFrame:
    """QuACK's burst rows, as text, with their table and their rank among the rows of their shape."""
    tables = [
        read_table(MEASURED / f"{name}.csv.gz").assign(table=name)
        for name in dict.fromkeys((*QUACK_SHAPES, *CUBLAS_SHAPES))
    ]
    rows = pd.concat(tables, ignore_index=True)
    rows = rows[rows["kernel"] == "quack"].assign(time_us=pd.to_numeric(rows["runtime_us"]))
    rows = rows[rows["time_us"] < LONGEST_US]
    return rows.assign(rank=rows.groupby(SHAPE)["time_us"].rank(pct=True))


def frequent_kernels(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the kernels that are most often in the fastest quarter of their shape."""
    counts = rows[rows["rank"] <= FAST_QUARTER].groupby(KERNEL).size().reset_index(name="count")
    counts = counts.sort_values(["count", *KERNEL], ascending=[False, *(True for _ in KERNEL)])
    return rows.merge(counts.groupby("in_dtype").head(KERNELS_OF_A_TYPE)[KERNEL], on=KERNEL)


def drawn_shapes(rows: pd.DataFrame, counts: dict[str, int], draw: random.Random) -> list[pd.DataFrame]:
    """The rows of each drawn shape, so many shapes of each table, with their share of few tokens."""
    found: dict[tuple[str, ...], pd.DataFrame] = {}
    for table, count in counts.items():
        shapes = {key: part for key, part in rows[rows["table"] == table].groupby(SHAPE) if key not in found}
        few = [key for key in shapes if int(key[2]) <= FEW_TOKENS]
        many = [key for key in shapes if int(key[2]) > FEW_TOKENS]
        of_few = min(len(few), round(count * SHARE_OF_FEW_TOKENS))
        chosen = draw.sample(few, of_few) + draw.sample(many, min(len(many), count - of_few))
        found |= {key: shapes[key] for key in chosen}
    return list(found.values())


def graph_row(cells: pd.Series) -> Row:
    return row_from_columns({str(name): value for name, value in cells.items()}, regime="graph", l2="rotated")


def quack_rows(rows: pd.DataFrame, draw: random.Random) -> Iterator[Row]:
    usable = frequent_kernels(rows)
    enough = usable.groupby(SHAPE)["time_us"].transform("size") >= CONFIGS_OF_A_SHAPE
    for part in drawn_shapes(usable[enough], QUACK_SHAPES, draw):
        in_order = [graph_row(cells) for _, cells in part.sort_values("time_us", kind="stable").iterrows()]
        quarter = max(CONFIGS_OF_A_SHAPE // 2, math.ceil(FAST_QUARTER * len(in_order)))
        yield from draw.sample(in_order[:quarter], CONFIGS_OF_A_SHAPE // 2)
        rest = in_order[quarter:]
        yield from draw.sample(rest, min(len(rest), CONFIGS_OF_A_SHAPE // 2))


def cublas_rows(rows: pd.DataFrame, draw: random.Random) -> Iterator[Row]:
    provider = load_provider("cublas")
    for part in drawn_shapes(rows, CUBLAS_SHAPES, draw):
        row = replace(graph_row(part.iloc[0]), kernel="cublas", config=None)
        if not provider.unsupported(row.problem, HOPPER):
            yield row


def library_rows(plan: Path, draw: random.Random) -> list[Row]:
    """Rows of another plan, whole shapes."""
    cells = read_table(plan)
    shapes = [part for _, part in cells.groupby(SHAPE)]
    found: list[Row] = []
    for part in draw.sample(shapes, len(shapes)):
        rows = [graph_row(row) for _, row in part.iterrows()]
        if len(found) + len(rows) <= LIBRARY_ROWS:
            found += rows
    return found


def twins(rows: Sequence[Row], wanted: Twins, draw: random.Random) -> Iterator[Row]:
    """Rows of the plan in other chains, each kind a draw of its own."""

    def some(count: int, among: Iterable[Row] = rows) -> list[Row]:
        candidates = list(among)
        return draw.sample(candidates, min(count, len(candidates)))

    for row in some(wanted.without_pdl):
        assert isinstance(row.config, KernelConfig)
        yield replace(row, config=replace(row.config, pdl=False))
    for row in some(wanted.warm):
        yield replace(row, chain=Chain(rotation=1))
    for row in some(wanted.half_warm):
        yield replace(row, chain=Chain(rotation=half_warm_copies(row)))
    for row in some(wanted.settled):
        yield replace(row, chain=Chain(settled=True))
    sixteen_bits = [row for row in rows if row.problem.a_dtype.bits == 16]
    for row in some(wanted.after_norm, sixteen_bits):
        yield replace(row, chain=Chain(partner=NORM))
    for row in some(wanted.with_next_gemm, sixteen_bits):
        problem = row.problem
        yield replace(row, chain=Chain(partner=f"{problem.m}x{problem.k}x{problem.n}"))


def paired_rows(table: Path, draw: random.Random) -> Iterator[Row]:
    """Rows of a measured table, of the sizes and kernels that it has, with PDL and without in turn."""
    rows = read_table(table)
    rows = rows[(rows["disposition"] == "ok") & (rows["partner"] == "") & (rows["rotation"] == "0")]
    told = rows[rows["settled"] == "0"]
    kernels = told[told["kernel"] == "cutlass"].groupby(KERNEL).size()
    common = kernels.sort_values(ascending=False, kind="stable").head(PAIRED_CUTLASS_KERNELS).index
    candidates = {
        "quack": told[(told["kernel"] == "quack") & (told["pdl"] == "0")],
        "cutlass": told[(told["kernel"] == "cutlass") & told.set_index(KERNEL).index.isin(common)],
    }
    for family, count in PAIRS.items():
        found = [graph_row(cells) for _, cells in candidates[family].iterrows()]
        for row in draw.sample(found, min(count, len(found))):
            assert isinstance(row.config, KernelConfig)
            yield replace(row, config=replace(row.config, pdl=True), chain=Chain(paired=True))


def half_warm_copies(row: Row) -> int:
    """Copies of the weights that fill L2 about once."""
    weight_bytes = row.problem.b_bytes
    return min(MOST_COPIES, max(1, round(H200_L2_BYTES / weight_bytes)))


def planned_rows(library_plans: Sequence[Path]) -> list[Row]:
    measured = burst_rows()
    plan: dict[Row, None] = {}
    quack = list(quack_rows(measured, random.Random(SEED)))
    plan.update(dict.fromkeys([*quack, *twins(quack, TWINS["quack"], random.Random(SEED + 1))]))
    cublas = list(cublas_rows(measured, random.Random(SEED + 2)))
    plan.update(dict.fromkeys([*cublas, *twins(cublas, TWINS["cublas"], random.Random(SEED + 3))]))
    for library_plan in library_plans:
        found = library_rows(library_plan, random.Random(SEED + 4))
        plan.update(dict.fromkeys([*found, *twins(found, TWINS["library"], random.Random(SEED + 5))]))
    return list(plan)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--also", type=Path, action="append", default=[], help="plan of a library's rows")
    parser.add_argument("--pairs-of", type=Path, help="measured table whose kernels are paired")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.pairs_of is None:
        rows = planned_rows(arguments.also)
    else:
        rows = list(paired_rows(arguments.pairs_of, random.Random(SEED + 6)))
    write_plan(rows, arguments.output)


if __name__ == "__main__":
    main()
