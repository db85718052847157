"""The rows of `data/measurements/h200/unseen_problems` and `unseen_epilogues`: sizes that no other table has.

    python scripts/plan_unseen_problems.py --output plans
    gemm-model benchmark --rows plans/unseen_epilogues.csv --in-order --output unseen_epilogues.csv

Nothing is to be fitted to them. Layers, weights and filters are of other models than those of
`plan_problem_measurements.py`. Each plain product comes right before its epilogues, so that what they add is
a difference of neighbours. Six layers come with eight routings each, on the same kernels. Every draw is
seeded.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from plan_batch_measurements import anything, attention, drawn, experts, kernels, problem_of, shared
from plan_library_measurements import Shape, Tile, sensible, write_plans
from plan_problem_measurements import (
    CUBLAS_WORDS,
    DECODE_M,
    GROUPED_QUACK_TILES,
    GROUPED_TRITON_TILES,
    QUACK_WORDS,
    SCALED_TRITON_TILES,
    Experts,
    configs_of,
    one_of_each,
    routed_rows,
    row,
    spills,
    triton_config,
    triton_epilogues,
    with_twin,
)

from gemm_model.bench.extended import with_extras
from gemm_model.bench.rows import Row, padded
from gemm_model.bench.sweep import estimated_kernel_us
from gemm_model.core.conv import KINDS, ConvProblem
from gemm_model.core.problem import GemmProblem
from gemm_model.tables.table import read_table

SEED = 20261130
LONGEST_US = 600.0
"""By the rough card of a dry run; a good kernel on an H200 takes about half."""
MEASURED = Path(__file__).parents[1] / "data" / "measurements"
OWN_TABLES = ("unseen_problems", "unseen_epilogues")

EPILOGUE_SHAPES = 48
EPILOGUE_WEIGHTS = (
    (16384, 6144), (6144, 8192), (5376, 2560), (13824, 5120), (5120, 6912), (1792, 3072), (8960, 1536),
    (27648, 5120), (2304, 9216), (11008, 4096), (3072, 8192), (768, 3072),
)  # fmt: skip
"""(n, k) of layers of models that are in no test list."""
EPILOGUE_TILES = (
    Tile(128, 128),
    Tile(128, 256, 2, 1),
    Tile(64, 128),
    Tile(128, 128, 2, 1, "pingpong"),
)

LAYERS = (
    Experts(128, 16, 4, 5760, 2880, True), Experts(128, 16, 4, 2880, 2880, False),  # gpt-oss-120b
    Experts(16, 4, 4, 5376, 6144, True), Experts(16, 4, 4, 6144, 2688, False),  # DBRX
    Experts(128, 32, 8, 2816, 4096, True), Experts(128, 32, 8, 4096, 1408, False),  # GLM-4.5-Air
    Experts(16, 4, 2, 12800, 4096, True), Experts(16, 8, 2, 4096, 6400, False),  # Phi-3.5-MoE
    Experts(16, 8, 1, 4096, 5120, True), Experts(16, 16, 1, 5120, 2048, False),  # Llama 4 Scout
)  # fmt: skip
TOKENS = (32, 128, 512, 3072, 12288)
ROUTINGS = ("uniform", "zipf:0.5", "zipf:1.0")
PROBLEMS_OF_A_LAYER = 4


class RoutedLayer(NamedTuple):
    """A layer whose experts are all on one GPU, and how its tokens come."""

    layer: Experts
    tokens: int
    routing: str


ROUTED_LAYERS = (
    RoutedLayer(Experts(60, 60, 4, 2816, 2048, True), 96, "uniform"),  # Qwen1.5-MoE-A2.7B
    RoutedLayer(Experts(60, 60, 4, 2048, 1408, False), 1536, "zipf:0.8"),
    RoutedLayer(Experts(64, 64, 8, 2048, 1024, False), 640, "uniform"),  # OLMoE
    RoutedLayer(Experts(64, 64, 6, 2816, 2048, True), 6144, "zipf:0.4"),  # DeepSeek-V2-Lite
    RoutedLayer(Experts(40, 40, 8, 1024, 1536, True), 320, "zipf:1.0"),  # Granite 3.1 3B-A800M
    RoutedLayer(Experts(16, 16, 4, 2688, 6144, True), 2560, "zipf:0.6"),  # DBRX on 8 GPUs
)
ROUTINGS_OF_A_LAYER = 8

SCALED_WEIGHTS = ((5120, 5120), (10240, 4096), (3072, 8192), (1536, 5120), (16384, 2560), (6144, 6144))
SCALED_KERNELS = (("1x128,128x128", SCALED_TRITON_TILES, 2), ("1x128,1x128", SCALED_TRITON_TILES[:2], 1))
"""Blocks, Triton's tiles for them, and how many of those are measured."""
SCALED_M = (16, 48, 192, 384, 768, 1536, 3072)

BATCHES = (16, 12, 16, 16)
"""Of attention, experts with equal tokens, shared operands and anything [batches]."""

FILTERS = (
    "n={n} c=144 h=40 w=40 k=144 r=3 s=3 pad=1", "n={n} c=192 h=36 w=36 k=288 r=3 s=3 pad=1",
    "n={n} c=80 h=73 w=73 k=192 r=3 s=3 pad=0", "n={n} c=48 h=96 w=96 k=96 r=3 s=3 pad=1",
    "n={n} c=160 h=24 w=24 k=160 r=1 s=7 pad=0x3", "n={n} c=512 h=20 w=20 k=512 r=3 s=3 pad=1",
    "n={n} c=128 h=80 w=80 k=128 r=3 s=3 pad=1", "n={n} c=256 h=40 w=40 k=512 r=3 s=3 stride=2 pad=1",
    "n={n} c=64 h=112 w=112 k=128 r=3 s=3 pad=1", "n={n} c=448 h=12 w=12 k=384 r=3 s=3 pad=1",
)  # fmt: skip
"""Of networks that no other table has: Inception, YOLO, VGG and odd sizes; `n` images."""
IMAGES = (2, 12, 48)
LARGEST_CONVOLUTION_FLOP = 5e11
CONVOLUTIONS = 48


def measured_sizes() -> frozenset[Shape]:
    """m, n and k of every row of the shipped tables but the two that this script plans."""
    found: set[Shape] = set()
    for path in sorted(MEASURED.glob("*/*.csv.gz")):
        frame = read_table(path)
        if path.name.split(".")[0] not in OWN_TABLES and {"m", "n", "k"} <= set(frame):
            sizes = frame[["m", "n", "k"]].apply(pd.to_numeric, errors="coerce").dropna().astype(int)
            found |= set(sizes.itertuples(index=False, name=None))
    return frozenset(found)


def new(problem: GemmProblem, seen: frozenset[Shape]) -> bool:
    return (problem.m, problem.n, problem.k) not in seen and estimated_kernel_us(problem) <= LONGEST_US


def epilogue_shapes(seen: frozenset[Shape], draw: random.Random) -> list[GemmProblem]:
    """A third decode, a third prefill of unseen layers, a third of random sizes."""
    found: dict[GemmProblem, None] = {}
    while len(found) < EPILOGUE_SHAPES:
        n, k = draw.choice(EPILOGUE_WEIGHTS)
        third = len(found) % 3
        if third == 0:
            shape = (draw.choice((*DECODE_M, 24, 96)), n, k)
        elif third == 1:
            shape = (draw.choice((384, 640, 1280, 2560, 5120)), n, k)
        else:
            shape = (
                48 * round(2 ** draw.uniform(0, 7)),
                256 * round(2 ** draw.uniform(1, 5)),
                64 * round(2 ** draw.uniform(2, 7)),
            )
        problem = padded(GemmProblem.of(*shape))
        if new(problem, seen):
            found[problem] = None
    return list(found)


def epilogue_rows(seen: frozenset[Shape], draw: random.Random) -> Iterator[Row]:
    """Each plain product right before the epilogues of the same kernel."""
    for problem in epilogue_shapes(seen, draw):
        tiles = [tile for tile in EPILOGUE_TILES if sensible(problem, tile)]
        for config in configs_of(problem, draw.sample(tiles, 1), "quack", draw):
            yield from with_twin(problem, config, draw.sample(QUACK_WORDS, 2))
        yield from triton_epilogues(problem, 1, 2, draw)
        yield from with_twin(problem, None, draw.sample(CUBLAS_WORDS, 1), "cublas")


def grouped_problem(layer: Experts, rows: Iterable[int], dtype: str = "bf16") -> GemmProblem:
    counts = list(rows)
    cells = {"groups": ",".join(map(str, counts))}
    return with_extras(GemmProblem.of(sum(counts), layer.n, layer.k, dtype), cells)


def grouped_kernels(
    problem: GemmProblem, quack: int, triton: int, draw: random.Random, epilogue: str = ""
) -> Iterator[Row]:
    """So many kernels of each of two families."""
    cells = {"groups": problem.groups.name if problem.groups else "", "epilogue": epilogue}
    plain = GemmProblem.of(problem.m, problem.n, problem.k, problem.a_dtype.name)
    tiles = [tile for tile in GROUPED_QUACK_TILES if not spills(plain, tile)]
    for config in configs_of(plain, draw.sample(tiles, min(quack, len(tiles))), "quack", draw):
        yield row(plain, config, "quack", **cells)
    for tile in draw.sample(GROUPED_TRITON_TILES, triton):
        yield row(plain, triton_config(plain, tile, draw), "triton", **cells)


def grouped_rows(draw: random.Random) -> Iterator[Row]:
    for place, layer in enumerate(LAYERS):
        asked = draw.sample(list(product(TOKENS, ROUTINGS)), PROBLEMS_OF_A_LAYER + 4)
        few = 0
        for number, (tokens, routing) in enumerate(asked):
            rows = routed_rows(layer, tokens, routing, SEED + 100 * place + number)
            if few == PROBLEMS_OF_A_LAYER or not sum(rows):
                continue
            problem = grouped_problem(layer, rows)
            if estimated_kernel_us(problem) > LONGEST_US:
                continue
            few += 1
            yield from grouped_kernels(problem, 7, 5, draw)
            if few == 1:
                yield from grouped_kernels(grouped_problem(layer, rows, "e4m3"), 5, 3, draw)


def routed(draw: random.Random) -> Iterator[Row]:
    """Four kernels of QuACK and two of Triton, the same on all routings of a layer."""
    for place, (layer, tokens, routing) in enumerate(ROUTED_LAYERS):
        seed = draw.randrange(2**32)
        for number in range(ROUTINGS_OF_A_LAYER):
            rows = routed_rows(layer, tokens, routing, SEED + 1000 + 10 * place + number)
            yield from grouped_kernels(grouped_problem(layer, rows), 4, 2, random.Random(seed))


def block_scaled_rows(seen: frozenset[Shape], draw: random.Random) -> Iterator[Row]:
    for (n, k), m in product(SCALED_WEIGHTS, SCALED_M):
        problem = GemmProblem.of(m, n, k, "e4m3")
        if not new(problem, seen):
            continue
        for blocks, offered, count in SCALED_KERNELS:
            yield row(problem, None, "cublas", block_scaling=blocks)
            fitting = [tile for tile in offered if m > 64 or tile.cta_m == 64]
            for tile in draw.sample(fitting, min(count, len(fitting))):
                yield row(problem, triton_config(problem, tile, draw), "triton", block_scaling=blocks)


def batched_rows(seen: frozenset[Shape], draw: random.Random) -> Iterator[Row]:
    for batches, count in zip((attention, experts, shared, anything), BATCHES, strict=True):
        unseen = (found for found in batches(draw) if (found.m, found.n, found.k) not in seen)
        for found in drawn(unseen, count):
            yield from kernels(problem_of(found, "bf16"), (2, 1, 1), draw)


def convolution_rows(draw: random.Random) -> Iterator[Row]:
    found = []
    for sizes, images, kind in product(FILTERS, IMAGES, KINDS):
        problem = GemmProblem.of_conv(ConvProblem.parse(f"{kind} {sizes.format(n=images)}"), "bf16")
        if problem.flop <= LARGEST_CONVOLUTION_FLOP:
            found.append(row(problem, None, "cudnn"))
    yield from draw.sample(found, min(CONVOLUTIONS, len(found)))


def plans() -> dict[str, list[Row]]:
    seen = measured_sizes()
    parts = (
        grouped_rows(random.Random(SEED)),
        routed(random.Random(SEED + 1)),
        block_scaled_rows(seen, random.Random(SEED + 2)),
        batched_rows(seen, random.Random(SEED + 3)),
        convolution_rows(random.Random(SEED + 4)),
    )
    found = {
        "unseen_epilogues": list(dict.fromkeys(epilogue_rows(seen, random.Random(SEED + 5)))),
        "unseen_problems": list(dict.fromkeys(item for part in parts for item in part)),
    }
    everything = [item for rows in found.values() for item in rows]
    return {**found, "unseen_smoke": one_of_each(everything, random.Random(SEED + 6))}


if __name__ == "__main__":
    write_plans(__doc__, plans)
