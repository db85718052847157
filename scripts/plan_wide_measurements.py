"""The rows of `data/measurements/h200/wide`: many shapes, a few configurations each.

    python scripts/plan_wide_measurements.py --not-in data/measurements/h200/burst.csv.gz --output plan.csv
    gemm-model benchmark --rows plan.csv --output wide.csv

Shapes are layers of imagined transformers, log-uniform sizes, and very short or very long K; each is measured
in one type. Half of its configurations are drawn from those that the model predicts to be fast, half from all
that are legal. Every draw is seeded; with another calibration the fast half is another one.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.bench.rows import Row, padded, write_plan
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.candidates import CandidateSpace, candidate_spaces
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from gemm_model.models import DEFAULT_MODEL, create_model

SEED = 20261122
Shape = tuple[int, int, int]

HIDDEN_STEPS = (64, 128, 128, 128, 256, 512)
WIDER = (1.0, 1.25, 1.5, 2.0, 8 / 3, 3.0, 3.5, 4.0, 16 / 3, 7.0)
"""Of a layer: its larger extent over the hidden size (output, fused q, k and v, gate and up, ...)."""
ALIGNMENTS = (8, 16, 32, 64, 128, 256)
LARGEST_GFLOP = 600.0
LONGEST_US = 2500.0
CLUSTERS_OF_FOUR = 0.5
"""Share of the candidates of 4x1 and 1x4 that may be drawn beside the fast ones."""
FAST = 300
"""Configurations that count as fast: the first so many by prediction, tile orders counted one by one."""
TYPES = ("bf16", "fp16", "e4m3"), (0.42, 0.08, 0.5)


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def aligned(draw: random.Random, low: float, high: float) -> int:
    step = draw.choice(ALIGNMENTS)
    return max(round(log_uniform(draw, low, high) / step), 1) * step


def tokens(draw: random.Random, most: int) -> int:
    if draw.random() < 0.5:
        return 2 ** draw.randint(0, int(math.log2(most)))
    return round(log_uniform(draw, 1, most))


def layer(draw: random.Random) -> Shape:
    step = draw.choice(HIDDEN_STEPS)
    hidden = max(round(log_uniform(draw, 512, 16384) / step), 1) * step
    other = max(round(hidden * draw.choice(WIDER) / step), 1) * step
    return (tokens(draw, 8192), *draw.choice(((other, hidden), (hidden, other))))


def vocabulary(draw: random.Random) -> Shape:
    return tokens(draw, 256), aligned(draw, 32000, 256000), aligned(draw, 1024, 12288)


def any_sizes(draw: random.Random) -> Shape:
    return round(log_uniform(draw, 16, 16384)), aligned(draw, 64, 16384), aligned(draw, 64, 32768)


def short_k(draw: random.Random) -> Shape:
    return aligned(draw, 256, 16384), aligned(draw, 256, 16384), aligned(draw, 64, 512)


def long_k(draw: random.Random) -> Shape:
    return aligned(draw, 16, 1536), aligned(draw, 64, 1536), aligned(draw, 8192, 65536)


KINDS: tuple[Sequence[Callable[[random.Random], Shape]], Sequence[float]] = (
    (layer, vocabulary, any_sizes, short_k, long_k),
    (0.42, 0.03, 0.4, 0.08, 0.07),
)


def shapes(draw: random.Random, count: int, taken: set[Shape]) -> Iterator[Shape]:
    found: set[Shape] = set()
    while len(found) < count:
        shape = draw.choices(*KINDS)[0](draw)
        if 2e-9 * math.prod(shape) <= LARGEST_GFLOP and shape not in taken | found:
            found.add(shape)
            yield shape


def drawn_configs(draw: random.Random, problem: GemmProblem, space: CandidateSpace, wanted: int) -> list[int]:
    """Positions in the space: half of them fast ones, half any sensible ones."""
    batch = space.batch(problem)
    times = create_model(DEFAULT_MODEL, GPU).predict_batch(batch).runtime_us
    sensible = (batch.cta_m <= max(64, 2 * problem.m)) & (batch.cta_n <= max(64, 2 * problem.n))
    usable = sensible & ~space.swapped & (times < LONGEST_US)
    in_order = [int(position) for position in np.argsort(times, kind="stable") if usable[position]]
    fast = draw.sample(in_order[:FAST], min(wanted // 2, len(in_order)))
    four = np.maximum(batch.cluster_m, batch.cluster_n) > 2
    others = [position for position in in_order if position not in set(fast)]
    rest = [position for position in others if not four[position] or draw.random() < CLUSTERS_OF_FOUR]
    return fast + draw.sample(rest, min(wanted - len(fast), len(rest)))


def as_run(problem: GemmProblem, config: KernelConfig) -> KernelConfig:
    """The configuration with the stages and the k extent that the kernel chooses itself."""
    found = resources_of(batch_of([(problem, config)]), GPU, family_of("quack", GPU))
    return replace(config, stages=int(found.stages[0]), cta_k=int(np.ravel(found.cta_k)[0]))


def planned_rows(count: int, configs: int, taken: set[Shape]) -> Iterator[Row]:
    draw = random.Random(SEED)
    for m, n, k in shapes(draw, count, taken):
        problem = padded(GemmProblem.of(m, n, k, draw.choices(*TYPES)[0]))
        space = candidate_spaces(family_of("quack", GPU), GPU, problem)[0]
        for position in drawn_configs(draw, problem, space, configs):
            config = as_run(problem, space.candidate(position).config)
            yield Row(kernel="quack", problem=problem, config=config, asked=(m, n, k))


GPU = load_gpu("h200")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=int, default=2400)
    parser.add_argument("--configs", type=int, default=18, help="of each shape")
    parser.add_argument("--not-in", type=Path, action="append", default=[], help="tables with other shapes")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    taken: set[Shape] = set()
    for table in arguments.not_in:
        sizes = pd.read_csv(table, usecols=["m", "n", "k"]).drop_duplicates()
        taken |= {(int(m), int(n), int(k)) for m, n, k in sizes.itertuples(index=False)}
    rows = list(planned_rows(arguments.shapes, arguments.configs, taken))
    write_plan(rows, arguments.output)
    print(f"{arguments.output}: {len(rows)} rows")


if __name__ == "__main__":
    main()
