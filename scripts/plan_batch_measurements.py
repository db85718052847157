"""The rows of `data/measurements/h200/batched` and `masked`: batches with strides, groups with room to spare.

    python scripts/plan_batch_measurements.py --output plans
    gemm-model benchmark --rows plans/batched.csv --output batched.csv

`batches.csv` holds both, to be measured in one go; `smoke.csv` a few rows that need no long compilation.

Batches are the products of attention, of experts with equal numbers of tokens, of a matrix that all share,
and random ones; some lie with gaps, or row by row in turn, beside the same batch without. Each masked problem
comes with its rows one behind the other. Every draw is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from plan_library_measurements import Tile, sensible, spills, write_plans
from plan_problem_measurements import (
    GROUPED_TRITON_TILES,
    LAYERS,
    TritonTile,
    configs_of,
    one_of_each,
    routed_rows,
    row,
    triton_config,
)

from gemm_model.bench.extended import with_extras
from gemm_model.bench.provider import LibraryChoice
from gemm_model.bench.rows import Row
from gemm_model.bench.sweep import estimated_kernel_us
from gemm_model.core.problem import GemmProblem

SEED = 20261124
LONGEST_US = 350.0
"""By the rough card of a dry run; a good kernel on an H200 takes about half."""
MOST_ELEMENTS = 2**28
"""Elements of a matrix operand of a whole batch, so that the random numbers of the pool suffice."""

QUACK_TILES = (
    Tile(128, 128), Tile(128, 256, 2, 1), Tile(64, 128), Tile(64, 256), Tile(128, 192),
    Tile(64, 64, 1, 1, "pingpong"), Tile(64, 128, 1, 1, "pingpong"), Tile(128, 128, 1, 1, "pingpong"),
    Tile(128, 64), Tile(128, 128, 2, 1),
)  # fmt: skip
TRITON_TILES = (
    TritonTile(64, 64, 4, 4),
    TritonTile(128, 64, 4, 4),
    TritonTile(64, 128, 4, 4),
    TritonTile(128, 128, 8, 3),
    TritonTile(128, 256, 8, 3),
)

SEQUENCES = (64, 128, 192, 256, 384, 512, 1024, 2048, 4096)
HEADS = (16, 32, 48, 64, 96, 128, 192, 256, 512)
HEAD_SIZES = (64, 80, 96, 128, 192, 256)
EXPERT_WEIGHTS = ((4096, 7168), (7168, 2048), (1536, 2048), (2048, 768), (3072, 4096), (4096, 1536))
EXPERTS_AT_ONCE = (2, 4, 8, 16, 32, 64)
EXPERT_TOKENS = (8, 16, 32, 64, 128, 256, 512)
SHARED_WEIGHTS = ((512, 7168), (4096, 4096), (1024, 1024), (2048, 512), (6144, 4096), (512, 128), (128, 512))
SHARED_BATCHES = (2, 3, 4, 8, 16, 32, 64, 128)
GAPS = (8, 64, 4096)
"""Elements between matrices: rows that start at odd multiples of 16 bytes, of 128, of a page."""


class Batch(NamedTuple):
    """One batch, and how it lies: text of `batch_strides`, empty for no gaps."""

    batch: int
    m: int
    n: int
    k: int
    strides: str = ""


def attention(draw: random.Random) -> Iterator[Batch]:
    """Scores (queries x keys) and sums of values of all heads at once."""
    while True:
        batch, size = draw.choice(HEADS), draw.choice(HEAD_SIZES)
        queries, keys = draw.choice(SEQUENCES), draw.choice(SEQUENCES)
        yield Batch(batch, queries, keys, size) if draw.random() < 0.6 else Batch(batch, queries, size, keys)


def experts(draw: random.Random) -> Iterator[Batch]:
    while True:
        n, k = draw.choice(EXPERT_WEIGHTS)
        yield Batch(draw.choice(EXPERTS_AT_ONCE), draw.choice(EXPERT_TOKENS), n, k)


def shared(draw: random.Random) -> Iterator[Batch]:
    """One operand for all, A or B."""
    while True:
        rows, k = draw.choice(SHARED_WEIGHTS)
        other, batch = 16 * round(2 ** draw.uniform(0, 7)), draw.choice(SHARED_BATCHES)
        if draw.random() < 0.5:
            yield Batch(batch, other, rows, k, f"{other * k},0,{other * rows}")
        else:
            yield Batch(batch, rows, other, k, f"0,{other * k},{other * rows}")


def anything(draw: random.Random) -> Iterator[Batch]:
    while True:
        m, n, k = (16 * round(2 ** draw.uniform(low, high)) for low, high in ((0, 7), (1, 7), (1.5, 7)))
        yield Batch(round(2 ** draw.uniform(1, 8)), m, n, k)


def problem_of(found: Batch, dtype: str) -> GemmProblem:
    cells = {"batch": str(found.batch), "batch_strides": found.strides}
    return with_extras(GemmProblem.of(found.m, found.n, found.k, dtype), cells)


def fits(problem: GemmProblem) -> bool:
    elements = problem.batch * max(problem.m, problem.n) * problem.k
    return elements <= MOST_ELEMENTS and estimated_kernel_us(problem) <= LONGEST_US


def drawn(batches: Iterable[Batch], count: int) -> list[Batch]:
    """So many different batches that are short enough, and big enough for fp8's multiples of 16."""
    found: dict[Batch, None] = {}
    for batch in batches:
        if fits(problem_of(batch, "bf16")):
            found[batch] = None
        if len(found) == count:
            break
    return list(found)


def in_turn(found: Batch) -> Batch:
    """Rows of all matrices in turn, as heads lie in a sequence; the output without gaps."""
    return found._replace(strides=f"{found.k},{found.k},{found.m * found.n}")


def with_gaps(found: Batch, gap: int) -> Batch:
    strides = (found.m * found.k, found.n * found.k, found.m * found.n)
    return found._replace(strides=",".join(str(stride + gap) for stride in strides))


def kernels(problem: GemmProblem, counts: tuple[int, int, int], draw: random.Random) -> Iterator[Row]:
    """Rows of QuACK, cuBLASLt and Triton, so many of each, and cuBLAS's heuristic choice."""
    cells = {"batch": str(problem.batch), "broadcast": problem.broadcast}
    cells["batch_strides"] = problem.batch_strides.name if problem.batch_strides else ""
    one = GemmProblem.of(problem.m, problem.n, problem.k, problem.a_dtype.name)
    tiles = [tile for tile in QUACK_TILES if sensible(one, tile) and not spills(one, tile)]
    for config in configs_of(one, draw.sample(tiles, min(counts[0], len(tiles))), "quack", draw):
        yield row(one, config, "quack", **cells)
    for rank in range(counts[1]):
        yield row(one, LibraryChoice(rank=rank), "cublaslt", **cells)
    if problem.a_dtype.bits == 16:
        yield row(one, None, "cublas", **cells)
    own = [tile for tile in TRITON_TILES if sensible(one, Tile(tile.cta_m, tile.cta_n))]
    for tile in draw.sample(own, min(counts[2], len(own))):
        yield row(one, triton_config(one, tile, draw), "triton", **cells)


def batched_rows(draw: random.Random) -> Iterator[Row]:
    kinds = (
        (attention(draw), 60, True), (experts(draw), 25, False), (shared(draw), 40, False),
        (anything(draw), 30, True),
    )  # fmt: skip
    for batches, count, lies_otherwise in kinds:
        for place, found in enumerate(drawn(batches, count)):
            yield from kernels(problem_of(found, "bf16"), (3, 2, 2), draw)
            if place % 3 == 0:
                dtype = "fp16" if place % 6 else "e4m3"
                yield from kernels(problem_of(found, dtype), (2, 2, 1), draw)
            if lies_otherwise and place % 3 == 1:
                # The same draws, so that the same kernels run on both.
                for other in (in_turn(found), with_gaps(found, GAPS[place // 3 % len(GAPS)])):
                    yield from kernels(problem_of(other, "bf16"), (2, 2, 1), random.Random(place))
                yield from kernels(problem_of(found, "bf16"), (2, 2, 1), random.Random(place))


MASKED_TOKENS = (16, 64, 256, 1024, 4096)
MASKED_ROUTINGS = ("uniform", "zipf:0.7")
ROOM = (1, 2, 4)
"""Capacity over the rows of the largest group, in steps of 64."""


def masked_rows(draw: random.Random) -> Iterator[Row]:
    for place, (layer, tokens, routing) in enumerate(product(LAYERS, MASKED_TOKENS, MASKED_ROUTINGS)):
        rows = routed_rows(layer, tokens, routing, SEED + place)
        problem = GemmProblem.of(max(sum(rows), 1), layer.n, layer.k)
        if sum(rows):
            yield from masked_problem(problem, rows, draw)


def masked_problem(problem: GemmProblem, rows: Sequence[int], draw: random.Random) -> Iterator[Row]:
    """Three kernels on the masked layout, and the same on rows one behind the other."""
    capacity = -(-max(rows) // 64) * 64 * draw.choice(ROOM)
    groups = {"groups": ",".join(map(str, rows))}
    mask = {**groups, "group_layout": "masked", "capacity": str(capacity)}
    if (
        estimated_kernel_us(with_extras(problem, mask)) > LONGEST_US
        or len(rows) * capacity * max(problem.k, problem.n) > MOST_ELEMENTS
        or len(rows) * problem.n * problem.k > 4 * MOST_ELEMENTS
    ):
        return
    for tile in draw.sample(GROUPED_TRITON_TILES, 3):
        config = triton_config(problem, tile, draw)
        yield row(problem, config, "triton", **mask)
        yield row(problem, config, "triton", **groups)


def plans() -> dict[str, list[Row]]:
    found = {
        "batched": list(dict.fromkeys(batched_rows(random.Random(SEED)))),
        "masked": list(dict.fromkeys(masked_rows(random.Random(SEED + 1)))),
    }
    everything = [item for rows in found.values() for item in rows]
    return {**found, "batches": everything, "smoke": one_of_each(everything, random.Random(SEED + 2))}


if __name__ == "__main__":
    write_plans(__doc__, plans)
