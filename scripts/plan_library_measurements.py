"""The rows of `data/measurements/h200/cublaslt`, `cutlass`, `triton_persistent`, ...: libraries side by side.

    python scripts/plan_library_measurements.py --output plans
    gemm-model benchmark --rows plans/cutlass.csv --output cutlass.csv

Writes one plan a family, a plan of split-K and stream-K over the families, samples of each for a second card
and for the counters, two plans for an H100. Every draw is seeded. The first `SHARED` problems are measured
in all families; decode shapes (m of 1 to 64) take turns with the others.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from plan_measurements import TESTLISTS, write_plan

from gemm_model.bench.provider import Config, LibraryChoice
from gemm_model.bench.rows import Row, padded
from gemm_model.bench.sweep import estimated_kernel_us
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.tables.table import batch_from_frame, read_table

SEED = 20261123
Shape = tuple[int, int, int]

LISTS = ("dsv3", "square", "llama3_prefill", "qwen2_5_prefill", "llama3_decode", "qwen2_5_decode", "random")
DECODE_M = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
WEIGHTS = (
    (2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (36864, 7168), (7168, 18432),
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (8192, 28672),
    (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (1024, 8192), (512, 7168), (1536, 7168),
    (256, 7168), (768, 2048), (2048, 512), (5120, 5120), (1280, 8192), (2048, 4096), (16384, 1024),
)  # fmt: skip
"""(n, k) of decode layers: DeepSeek-V3, Llama 3, Qwen2.5, slices of them, narrow and short ones."""

SHAPES = 560
TYPES = (("bf16", 1.0), ("e4m3", 0.55), ("fp16", 0.3))
"""Operand types and the share of shapes that is measured in them."""

LONGEST_US = 700.0
"""By the rough card of a dry run; a good kernel on an H200 takes about half."""

SHARED = 284
"""Problems (shapes in a type) that every family measures."""

CUBLASLT_ROWS, CUTLASS_ROWS, TRITON_ROWS, SPLIT_ROWS, QUACK_ROWS = 8000, 6000, 4000, 3000, 2000
SPLIT_PROBLEMS = 130
REPEATED_ROWS, COUNTED_ROWS, H100_ROWS = 1000, 500, 1000
PROPOSALS = 8
"""Kernels of one problem [1]; cuBLASLt's heuristic, best first; chosen."""


class Tile(NamedTuple):
    """A compiled kernel: tile, cluster, schedule."""

    cta_m: int
    cta_n: int
    cluster_m: int = 1
    cluster_n: int = 1
    schedule: str = "cooperative"


CUTLASS_TILES = {
    "bf16": (
        Tile(128, 256, 2, 1), Tile(128, 256, 1, 2), Tile(128, 256), Tile(256, 128, 2, 1),
        Tile(256, 128, 1, 2), Tile(128, 128), Tile(128, 128, 2, 1), Tile(128, 192, 2, 1),
        Tile(128, 64), Tile(128, 32),
        Tile(64, 16, 1, 1, "pingpong"), Tile(64, 32, 1, 1, "pingpong"), Tile(64, 64, 1, 1, "pingpong"),
        Tile(64, 128, 1, 1, "pingpong"), Tile(64, 128, 2, 1, "pingpong"), Tile(64, 256, 1, 1, "pingpong"),
        Tile(128, 128, 2, 1, "pingpong"), Tile(128, 128, 1, 2, "pingpong"),
    ),
    "fp16": (
        Tile(128, 256, 2, 1), Tile(128, 128), Tile(64, 128, 1, 1, "pingpong"),
        Tile(128, 128, 2, 1, "pingpong"),
    ),
    "e4m3": (
        Tile(128, 256, 2, 1), Tile(128, 256, 1, 2), Tile(256, 128, 2, 1), Tile(128, 128), Tile(128, 64),
        Tile(64, 64, 1, 1, "pingpong"), Tile(64, 128, 1, 1, "pingpong"), Tile(64, 256, 1, 1, "pingpong"),
        Tile(128, 128, 2, 1, "pingpong"),
    ),
}  # fmt: skip
"""Tiles, clusters and schedules; CUTLASS's static scheduler by operand type, e4m3 with fast sums; chosen."""

SLOW_CUTLASS_TILES = (
    Tile(128, 128), Tile(128, 128, 2, 1), Tile(128, 64), Tile(128, 256, 2, 1),
    Tile(64, 128, 1, 1, "pingpong"), Tile(64, 64, 1, 1, "pingpong"),
)  # fmt: skip
"""e4m3 kernels that add every k step to a second set of accumulators; 128x256 spills."""

SPLIT_CUTLASS_TILES = {
    "bf16": (Tile(128, 32), Tile(128, 64), Tile(128, 128), Tile(128, 256, 2, 1)),
    "fp16": (Tile(128, 64),),
    "e4m3": (Tile(128, 64), Tile(128, 128)),
}
"""Kernels with the stream-K scheduler, which also splits k into equal parts; e4m3 with fast accumulation."""

RASTERS = ("heuristic", "heuristic", "along_m", "along_n")
CUTLASS_SWIZZLES = (1, 1, 2, 4, 8)
SPLITS = (2, 3, 4, 6, 8, 12, 16)

TRITON_KERNELS = (
    (64, 32, 4, (3, 5)), (64, 64, 4, (3, 5)), (64, 128, 4, (3, 4)), (64, 256, 4, (3,)), (64, 256, 8, (3,)),
    (128, 64, 4, (3, 4)), (128, 64, 12, (4,)), (128, 128, 4, (3,)), (128, 128, 8, (2, 3, 4)),
    (128, 128, 12, (3, 4)), (128, 256, 8, (2, 3)), (128, 256, 12, (2, 3)), (256, 64, 8, (3,)),
    (256, 128, 8, (3,)),
)  # fmt: skip
"""Tile, warps and stages [1]; Triton with a k tile of 128 bytes; chosen."""

LONG_K_TRITON_KERNELS = ((64, 32, 4, (3,)), (64, 64, 4, (3,)), (64, 128, 4, (3,)), (128, 128, 8, (2,)))
"""Tile, warps and stages [1]; Triton with a k tile of 256 bytes; chosen."""

TRITON_GROUPS = (1, 4, 8)

QUACK_TILES = (
    Tile(64, 64), Tile(64, 128), Tile(128, 64), Tile(128, 128), Tile(128, 192), Tile(128, 256),
    Tile(256, 128), Tile(64, 128, 1, 1, "pingpong"), Tile(64, 256, 1, 1, "pingpong"),
    Tile(128, 128, 1, 1, "pingpong"), Tile(128, 256, 2, 1), Tile(256, 128, 2, 1), Tile(128, 128, 2,
    1), Tile(128, 192, 1, 2),
)  # fmt: skip
ODD_QUACK_TILES = (
    Tile(128, 96),
    Tile(128, 160),
    Tile(128, 224),
    Tile(256, 96),
    Tile(64, 96, 1, 1, "pingpong"),
)
SPILLING_QUACK_TILES = (Tile(128, 192, 1, 1, "pingpong"), Tile(192, 128, 1, 1, "pingpong"), Tile(256, 192))
"""e4m3 tiles that no table has because they spill most."""

SPILLING_ROWS = 240
SPLIT_QUACK_TILES = (
    Tile(64, 64),
    Tile(64, 128),
    Tile(128, 64),
    Tile(128, 128),
    Tile(64, 128, 1, 1, "pingpong"),
)


def listed_shapes() -> list[Shape]:
    found: dict[Shape, None] = {}
    for name in LISTS:
        frame = read_table(TESTLISTS / f"{name}.csv").assign(in_dtype="bf16")
        batch = batch_from_frame(frame, needs_tile=False)
        found.update(
            ((int(m), int(n), int(k)), None) for m, n, k in zip(batch.m, batch.n, batch.k, strict=True)
        )
    return list(found)


def shapes(draw: random.Random) -> list[Shape]:
    """Decode shapes and all others in turn, none of them too long."""
    fits = [shape for shape in listed_shapes() if estimated_kernel_us(GemmProblem.of(*shape)) <= LONGEST_US]
    decode = [(m, n, k) for m in DECODE_M for n, k in WEIGHTS]
    decode += [shape for shape in fits if shape[0] <= max(DECODE_M)]
    others = [shape for shape in fits if shape[0] > max(DECODE_M)]
    while len(others) < SHAPES:
        m, n, k = (64 * round(2 ** draw.uniform(1, 7)) for _ in range(3))
        if estimated_kernel_us(GemmProblem.of(m, n, k)) <= LONGEST_US:
            others.append((m, n, k))
    for group in (decode, others):
        draw.shuffle(group)
    mixed = [shape for pair in zip(decode, others, strict=False) for shape in pair]
    return list(dict.fromkeys(mixed))[:SHAPES]


def problems(draw: random.Random) -> list[tuple[GemmProblem, Shape]]:
    """Padded problems with the sizes that were asked for."""
    return [
        (padded(GemmProblem.of(*shape, dtype)), shape)
        for shape in shapes(draw)
        for dtype, share in TYPES
        if draw.random() < share
    ]


def sensible(problem: GemmProblem, tile: Tile) -> bool:
    """Tiles of at most twice the matrix, or 128 x 64 and smaller."""
    return tile.cta_m <= max(128, 2 * problem.m) and tile.cta_n <= max(64, 2 * problem.n)


def k_elements(problem: GemmProblem, k_bytes: int = 128) -> int:
    return k_bytes * 8 // problem.a_dtype.bits


def configured(problem: GemmProblem, tile: Tile, kernel: str, **more: Any) -> KernelConfig:
    return KernelConfig(**tile._asdict(), kernel=kernel, cta_k=k_elements(problem), **more)


def cublaslt_configs(_problem: GemmProblem, _draw: random.Random) -> list[Config]:
    return [LibraryChoice(rank=rank) for rank in range(PROPOSALS)]


def cutlass_configs(problem: GemmProblem, draw: random.Random) -> list[Config]:
    """Each kernel in CUTLASS's own order first, then in drawn ones."""
    kernels = [(tile, problem.a_dtype.bits == 8) for tile in CUTLASS_TILES[problem.a_dtype.name]]
    if problem.a_dtype.bits == 8:
        kernels += [(tile, False) for tile in SLOW_CUTLASS_TILES]
    kernels = [(tile, fast) for tile, fast in kernels if sensible(problem, tile)]
    draw.shuffle(kernels)
    orders = [("heuristic", 1)] * len(kernels)
    orders += [(draw.choice(RASTERS), draw.choice(CUTLASS_SWIZZLES)) for _ in kernels for _ in range(2)]
    return list(
        dict.fromkeys(
            configured(problem, tile, "cutlass", raster=raster, swizzle=swizzle, fast_accum=fast)
            for (tile, fast), (raster, swizzle) in zip(kernels * 3, orders, strict=True)
        )
    )


def triton_configs(problem: GemmProblem, draw: random.Random) -> list[Config]:
    kernels = [
        (Tile(cta_m, cta_n), warps, count, k_bytes)
        for k_bytes, listed in ((128, TRITON_KERNELS), (256, LONG_K_TRITON_KERNELS))
        for cta_m, cta_n, warps, stages in listed
        for count in stages
        if sensible(problem, Tile(cta_m, cta_n))
    ]
    draw.shuffle(kernels)
    return [
        replace(
            configured(problem, tile, "triton", raster="along_m", fast_accum=problem.a_dtype.bits == 8),
            cta_k=k_elements(problem, k_bytes),
            stages=stages,
            warps=warps,
            swizzle=draw.choice(TRITON_GROUPS),
        )
        for tile, warps, stages, k_bytes in kernels
    ]


def quack_configs(problem: GemmProblem, draw: random.Random) -> list[Config]:
    tiles = [tile for tile in QUACK_TILES if sensible(problem, tile)]
    tiles = [tile for tile in tiles if not spills(problem, tile)]
    odd = [tile for tile in ODD_QUACK_TILES if sensible(problem, tile) and not spills(problem, tile)]
    draw.shuffle(tiles)
    chosen = tiles + draw.sample(odd, min(2, len(odd)))
    return [configured(problem, tile, "quack", swizzle=draw.choice((1, 8, 8))) for tile in chosen]


def spills(problem: GemmProblem, tile: Tile) -> bool:
    """e4m3 sums are held twice: 256 registers of a thread are too many."""
    groups = 1 if tile.schedule == "pingpong" or tile.cta_m == 64 else 2
    return problem.a_dtype.bits == 8 and 2 * tile.cta_m * tile.cta_n // (128 * groups) >= 256


def split_configs(problem: GemmProblem, draw: random.Random) -> list[Config]:
    """CUTLASS's split-K and stream-K and QuACK's split-K, each with the unsplit kernel beside it."""
    found: list[Config] = []
    splits = [split for split in SPLITS if problem.k // k_elements(problem) >= 2 * split]
    fast = problem.a_dtype.bits == 8
    for tile in SPLIT_CUTLASS_TILES[problem.a_dtype.name]:
        plain = configured(problem, tile, "cutlass", swizzle=1, fast_accum=fast)
        found.append(replace(plain, scheduler="stream_k"))
        found += [
            replace(plain, scheduler="split_k", split_k=split)
            for split in draw.sample(splits, min(3, len(splits)))
        ]
    for tile in draw.sample(SPLIT_QUACK_TILES, 3):
        plain = configured(problem, tile, "quack", swizzle=8)
        found.append(plain)
        found += [replace(plain, split_k=split) for split in draw.sample(splits, min(4, len(splits)))]
    return [config for config in found if isinstance(config, KernelConfig) and config.cta_m <= 128]


def rows_of(
    chosen: Sequence[tuple[GemmProblem, Shape]],
    configs: Callable[[GemmProblem, random.Random], list[Config]],
    count: int,
    draw: random.Random,
    kernel: str = "",
) -> list[Row]:
    """At most `count` rows, about the same number of configurations of each problem."""
    listed = [(problem, shape, configs(problem, draw)) for problem, shape in chosen]
    rows: list[Row] = []
    for place in range(max(len(found) for _, _, found in listed)):
        for problem, shape, found in listed:
            if place < len(found) and len(rows) < count:
                config = found[place]
                name = config.kernel if isinstance(config, KernelConfig) else kernel
                rows.append(Row(kernel=name, problem=problem, config=config, asked=shape))
    return rows


def spilling_rows(chosen: Sequence[tuple[GemmProblem, Shape]], draw: random.Random) -> Iterator[Row]:
    """The three tiles on short e4m3 problems of more than one tile: they take ten times as long."""
    fitting = [
        (problem, shape)
        for problem, shape in chosen
        if problem.a_dtype.bits == 8 and problem.m >= 256 and estimated_kernel_us(problem) < LONGEST_US / 4
    ]
    for problem, shape in fitting[: SPILLING_ROWS // len(SPILLING_QUACK_TILES)]:
        for tile in SPILLING_QUACK_TILES:
            config = configured(problem, tile, "quack", swizzle=draw.choice((1, 8)))
            yield Row(kernel="quack", problem=problem, config=config, asked=shape)


def splitting(problem: GemmProblem) -> bool:
    """Few tiles and a long k: where splitting is worth a look."""
    tiles = -(-problem.m // 128) * -(-problem.n // 128)
    return tiles <= 264 and problem.k >= 1024


def plans() -> dict[str, list[Row]]:
    draw = random.Random(SEED)
    everything = problems(draw)
    shared = everything[:SHARED]
    few = [(problem, shape) for problem, shape in everything if splitting(problem)][:SPLIT_PROBLEMS]
    default = [
        Row(kernel="cublas", problem=problem, config=None, asked=shape) for problem, shape in everything
    ]
    found = {
        "cublaslt": default + rows_of(everything, cublaslt_configs, CUBLASLT_ROWS, draw, "cublaslt"),
        "cutlass": rows_of(shared, cutlass_configs, CUTLASS_ROWS, draw),
        "triton": rows_of(shared, triton_configs, TRITON_ROWS, draw),
        "quack": rows_of(shared, quack_configs, QUACK_ROWS, draw) + list(spilling_rows(everything, draw)),
        "splits": rows_of(few, split_configs, SPLIT_ROWS, draw),
    }
    for name in tuple(found):
        found[f"repeat_{name}"] = sample(found[name], REPEATED_ROWS, draw)
        found[f"counters_{name}"] = sample(found[name], COUNTED_ROWS, draw)
    found["h100_cublaslt"] = sample(found["cublaslt"], H100_ROWS, draw)
    found["h100_cutlass"] = sample(found["cutlass"], H100_ROWS, draw)
    found["smoke"] = smoke(found)
    return found


def sample(rows: Sequence[Row], count: int, draw: random.Random) -> list[Row]:
    """Whole problems up to about `count` rows."""
    by_problem: dict[GemmProblem, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    kept: list[Row] = []
    for problem in draw.sample(list(by_problem), len(by_problem)):
        if len(kept) + len(by_problem[problem]) <= count:
            kept += by_problem[problem]
    return kept


def smoke(found: dict[str, list[Row]]) -> list[Row]:
    """A few rows of what needs no long compilation, to see that the libraries answer."""
    default = [row for row in found["cublaslt"] if row.kernel == "cublas"]
    return default[:6] + found["cublaslt"][len(found["cublaslt"]) // 2 :][:10] + found["triton"][:8]


def write_plans(words: str | None, plans: Callable[[], Mapping[str, Sequence[Row]]]) -> None:
    """What the scripts of several plans do: a table of each plan in the folder that `--output` names."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the plans")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in plans().items():
        write_plan(rows, folder / f"{name}.csv")


if __name__ == "__main__":
    write_plans(__doc__, plans)
