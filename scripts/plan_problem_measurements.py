"""The rows of `data/measurements/h200/epilogues`, `grouped`, `block_scaled` and `convolutions`.

    python scripts/plan_problem_measurements.py --output plans
    gemm-model benchmark --rows plans/grouped.csv --output grouped.csv

`problems.csv` holds them all, to be measured in one go; `smoke.csv` a few that need no long compilation.

Epilogue rows come with the plain product of the same shape and kernel, so that the epilogue's own time
shows. Groups are the tokens of mixture-of-experts layers, dealt to experts by seeded routings. Every draw is
seeded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from plan_library_measurements import (
    WEIGHTS,
    Shape,
    Tile,
    configured,
    listed_shapes,
    sensible,
    spills,
    write_plans,
)

from gemm_model.bench.extended import with_extras
from gemm_model.bench.provider import Config
from gemm_model.bench.rows import Row, padded
from gemm_model.bench.sweep import estimated_kernel_us
from gemm_model.core.conv import KINDS, ConvProblem
from gemm_model.core.epilogue import QUANTIZED_COLUMNS, Epilogue
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.core.routing import Routing

SEED = 20261122
LONGEST_US = 600.0
"""By the rough card of a dry run; a good kernel on an H200 takes about half."""

EPILOGUE_SHAPES = 130
FP8_EPILOGUE_SHAPES = 45
DRAWN_SIZES = ((64, 0, 7), (256, 1, 5), (64, 2, 7))
"""Unit and exponents of 2 of random m, n, k."""

DECODE_M = (1, 8, 16, 32, 64, 128)

QUACK_TILES = (
    Tile(128, 128), Tile(128, 256, 2, 1), Tile(64, 128), Tile(128, 192), Tile(256, 128, 2, 1),
    Tile(64, 256, 1, 1, "pingpong"), Tile(128, 128, 2, 1, "pingpong"),
)  # fmt: skip
QUACK_WORDS = (
    "bias_n", "bias_m", "residual", "alpha,beta", "bias_n,residual", "relu", "gelu", "silu", "bias_n,gelu",
    "gated_silu", "gated_gelu", "bias_n,gated_silu",
)  # fmt: skip
CUTLASS_TILES = (Tile(128, 128), Tile(128, 256, 2, 1), Tile(64, 128, 1, 1, "pingpong"))
CUTLASS_WORDS = (
    "bias_n", "residual", "alpha,beta", "relu", "gelu", "silu", "bias_n,relu", "bias_n,gelu",
    "bias_n,residual",
)  # fmt: skip
CUBLAS_WORDS = ("bias_n", "bias_n,relu", "bias_n,gelu")


class TritonTile(NamedTuple):
    """A kernel of our own: tile, warps, stages with a k tile of 128 bytes."""

    cta_m: int
    cta_n: int
    warps: int
    stages: int


TRITON_TILES = (
    TritonTile(128, 128, 8, 3),
    TritonTile(64, 128, 4, 4),
    TritonTile(128, 256, 8, 3),
    TritonTile(128, 64, 4, 4),
)
TRITON_WORDS = (
    "bias_n", "residual", "alpha,beta", "gelu", "silu", "tanh", "bias_n,gelu", "gated_silu",
    "bias_n,gated_gelu", "output_scale", "row_sum", "col_sum", "silu,quantize_1x128",
    "gated_silu,quantize_1x128",
)  # fmt: skip

GROUPED_QUACK_TILES = (
    Tile(128, 128), Tile(128, 256, 2, 1), Tile(64, 128), Tile(64, 256), Tile(128, 192), Tile(128, 128, 2, 1),
    Tile(256, 128, 2, 1), Tile(64, 128, 1, 1, "pingpong"), Tile(128, 128, 1, 1, "pingpong"),
    Tile(64, 256, 1, 1, "pingpong"),
)  # fmt: skip
GROUPED_GATED_TILES = (Tile(128, 128), Tile(64, 128), Tile(128, 256, 2, 1))
GROUPED_TRITON_TILES = (
    TritonTile(64, 128, 4, 4),
    TritonTile(128, 128, 8, 3),
    TritonTile(64, 256, 8, 3),
    TritonTile(128, 256, 8, 3),
    TritonTile(64, 64, 4, 4),
)
SWIZZLES = (1, 8, 8)
TRITON_GROUPS = (1, 4, 8)


class Experts(NamedTuple):
    """A layer of experts on one GPU: `local` of `experts`, weights n x k each."""

    experts: int
    local: int
    top_k: int
    n: int
    k: int
    gated: bool


LAYERS = (
    Experts(8, 8, 2, 7168, 4096, True), Experts(8, 8, 2, 4096, 3584, False),  # Mixtral 8x7B on 4 GPUs
    Experts(8, 8, 2, 4096, 6144, True),  # Mixtral 8x22B on 8 GPUs
    Experts(256, 16, 8, 4096, 7168, True), Experts(256, 32, 8, 7168, 2048, False),  # DeepSeek-V3
    Experts(256, 8, 8, 4096, 7168, True),
    Experts(128, 128, 8, 1536, 2048, True), Experts(128, 128, 8, 2048, 768, False),  # Qwen3-30B-A3B
    Experts(128, 16, 8, 3072, 4096, True), Experts(128, 32, 8, 4096, 1536, False),  # Qwen3-235B-A22B
)  # fmt: skip
TOKENS = (16, 64, 256, 1024, 2048, 4096, 16384, 65536)
ROUTINGS = ("uniform", "zipf:0.4", "zipf:0.7", "zipf:1.2")

SCALED_WEIGHTS = (
    (2048, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (36864, 7168), (7168, 18432),
    (4096, 4096), (28672, 4096), (4096, 14336), (512, 7168), (8192, 8192),
)  # fmt: skip
"""(n, k) with k in multiples of 512, where torch and cuBLASLt agree on how block scales lie."""

SCALED_M = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SCALED_TRITON_TILES = (
    TritonTile(64, 128, 4, 4),
    TritonTile(128, 128, 8, 3),
    TritonTile(64, 64, 4, 4),
    TritonTile(128, 64, 4, 4),
    TritonTile(128, 128, 8, 4),
)


def configs_of(
    problem: GemmProblem, tiles: Sequence[Tile], kernel: str, draw: random.Random
) -> list[KernelConfig]:
    swizzles = SWIZZLES if kernel == "quack" else (1,)
    return [configured(problem, tile, kernel, swizzle=draw.choice(swizzles)) for tile in tiles]


def triton_config(problem: GemmProblem, tile: TritonTile, draw: random.Random) -> KernelConfig:
    return KernelConfig(
        cta_m=tile.cta_m,
        cta_n=tile.cta_n,
        cta_k=128 * 8 // problem.a_dtype.bits,
        stages=tile.stages,
        warps=tile.warps,
        swizzle=draw.choice(TRITON_GROUPS),
        raster="along_m",
        kernel="triton",
        fast_accum=problem.a_dtype.bits == 8,
    )


def row(problem: GemmProblem, config: Config, kernel: str, **cells: str) -> Row:
    asked = (problem.m, problem.n, problem.k)
    return Row(kernel=kernel, problem=with_extras(problem, cells), config=config, asked=asked)


def quantized(problem: GemmProblem) -> GemmProblem:
    return GemmProblem.of(problem.m, problem.n, problem.k, problem.a_dtype.name, "e4m3")


# --- epilogues -----------------------------------------------------------------------------------------


def epilogue_shapes(draw: random.Random) -> list[Shape]:
    """Layers of models and random sizes, half of them with few rows; n in multiples of 256."""
    listed = [(m, n, k) for m, n, k in listed_shapes() if n % 256 == 0 and k % 64 == 0 and m >= 1]
    few = [(m, n, k) for m in DECODE_M for n, k in WEIGHTS if n % 256 == 0]
    drawn = [
        tuple(unit * round(2 ** draw.uniform(low, high)) for unit, low, high in DRAWN_SIZES)
        for _ in range(EPILOGUE_SHAPES)
    ]
    pools = [[shape for shape in pool if _short(shape)] for pool in (listed, few, drawn)]
    for pool in pools:
        draw.shuffle(pool)
    mixed = [shape for three in zip(*pools, strict=False) for shape in three]
    return list(dict.fromkeys(mixed))[:EPILOGUE_SHAPES]


def _short(shape: Shape) -> bool:
    return estimated_kernel_us(GemmProblem.of(*shape)) <= LONGEST_US


def epilogue_rows(draw: random.Random) -> Iterator[Row]:
    for place, shape in enumerate(epilogue_shapes(draw)):
        problem = padded(GemmProblem.of(*shape))
        yield from quack_epilogues(problem, 2, 4, draw)
        tiles = [tile for tile in CUTLASS_TILES if sensible(problem, tile)]
        for config in configs_of(problem, draw.sample(tiles, 1), "cutlass", draw):
            yield from with_twin(problem, config, draw.sample(CUTLASS_WORDS, 4))
        yield from triton_epilogues(problem, 2, 4, draw)
        yield from with_twin(problem, None, CUBLAS_WORDS, "cublas")
        if place < FP8_EPILOGUE_SHAPES:
            small = padded(GemmProblem.of(*shape, "e4m3"))
            yield from quack_epilogues(small, 1, 4, draw)
            yield from triton_epilogues(small, 1, 3, draw)


def with_twin(
    problem: GemmProblem, config: KernelConfig | None, words: Sequence[str], kernel: str = ""
) -> Iterator[Row]:
    """The plain product first, then each epilogue of the same kernel."""
    name = kernel or (config.kernel if config is not None else "")
    yield row(problem, config, name)
    for word in words:
        target = quantized(problem) if "quantize" in word else problem
        yield row(target, config, name, epilogue=word)


def quack_epilogues(problem: GemmProblem, tiles: int, words: int, draw: random.Random) -> Iterator[Row]:
    fitting = [tile for tile in QUACK_TILES if sensible(problem, tile) and not spills(problem, tile)]
    for config in configs_of(problem, draw.sample(fitting, min(tiles, len(fitting))), "quack", draw):
        yield from with_twin(problem, config, draw.sample(QUACK_WORDS, words))


def triton_epilogues(problem: GemmProblem, tiles: int, words: int, draw: random.Random) -> Iterator[Row]:
    fitting = [tile for tile in TRITON_TILES if sensible(problem, Tile(tile.cta_m, tile.cta_n))]
    for tile in draw.sample(fitting, min(tiles, len(fitting))):
        config = triton_config(problem, tile, draw)
        chosen = [word for word in TRITON_WORDS if fits(word, tile)]
        yield from with_twin(problem, config, draw.sample(chosen, words))


def fits(word: str, tile: TritonTile) -> bool:
    """A quantized tile has 128 columns of output; large tiles leave no memory to read a second matrix."""
    epilogue = Epilogue.parse(word)
    if epilogue.source_share and tile.cta_m * tile.cta_n > 128 * 128:
        return False
    return not epilogue.quantized or tile.cta_n * epilogue.output_share == QUANTIZED_COLUMNS


# --- groups --------------------------------------------------------------------------------------------


def routed_rows(layer: Experts, tokens: int, routing: str, seed: int) -> list[int]:
    """Tokens that each local expert gets; which experts are local is drawn too."""
    rows = Routing.parse(routing, experts=layer.experts, tokens=tokens, top_k=layer.top_k).sample(1, seed)[0]
    return [int(count) for count in np.random.default_rng(seed).permutation(rows)[: layer.local]]


def grouped_rows(draw: random.Random) -> Iterator[Row]:
    for place, (layer, tokens, routing) in enumerate(product(LAYERS, TOKENS, ROUTINGS)):
        rows = routed_rows(layer, tokens, routing, SEED + place)
        cells = {"groups": ",".join(map(str, rows))}
        if not sum(rows):
            continue
        problem = GemmProblem.of(sum(rows), layer.n, layer.k)
        if estimated_kernel_us(with_extras(problem, cells)) > LONGEST_US:
            continue
        yield row(problem, None, "cutlass", **cells)
        yield from grouped_quack(problem, layer, cells, draw)
        yield from grouped_triton(problem, layer, cells, draw)
        if routing != "uniform":
            continue
        small = GemmProblem.of(sum(rows), layer.n, layer.k, "e4m3")
        tiles = [tile for tile in GROUPED_QUACK_TILES if not spills(small, tile)]
        for config in configs_of(small, draw.sample(tiles, 4), "quack", draw):
            yield row(small, config, "quack", **cells)
        for tile in draw.sample(GROUPED_TRITON_TILES, 2):
            yield row(small, triton_config(small, tile, draw), "triton", **cells)


def grouped_quack(
    problem: GemmProblem, layer: Experts, cells: dict[str, str], draw: random.Random
) -> Iterator[Row]:
    for config in configs_of(problem, draw.sample(GROUPED_QUACK_TILES, 7), "quack", draw):
        yield row(problem, config, "quack", **cells)
    for config in configs_of(problem, GROUPED_GATED_TILES if layer.gated else (), "quack", draw):
        yield row(problem, config, "quack", epilogue="gated_silu", **cells)


def grouped_triton(
    problem: GemmProblem, layer: Experts, cells: dict[str, str], draw: random.Random
) -> Iterator[Row]:
    for tile in draw.sample(GROUPED_TRITON_TILES, 4):
        yield row(problem, triton_config(problem, tile, draw), "triton", **cells)
    if layer.gated:
        tile = draw.choice(GROUPED_TRITON_TILES[:2])
        yield row(problem, triton_config(problem, tile, draw), "triton", epilogue="gated_silu", **cells)


# --- block scales --------------------------------------------------------------------------------------


def block_scaled_rows(draw: random.Random) -> Iterator[Row]:
    for (n, k), m in product(SCALED_WEIGHTS, SCALED_M):
        problem = GemmProblem.of(m, n, k, "e4m3")
        if estimated_kernel_us(problem) > LONGEST_US:
            continue
        yield row(problem, None, "cublas")
        for blocks, tiles in (
            ("1x128,128x128", SCALED_TRITON_TILES),
            ("1x128,1x128", SCALED_TRITON_TILES[:2]),
        ):
            yield row(problem, None, "cublas", block_scaling=blocks)
            for tile in tiles:
                if sensible(problem, Tile(tile.cta_m, tile.cta_n)):
                    yield row(problem, triton_config(problem, tile, draw), "triton", block_scaling=blocks)


# --- convolutions --------------------------------------------------------------------------------------

RESNET = (
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1), (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2), (128, 28, 128, 3, 1), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2),
    (512, 28, 128, 1, 1), (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 256, 3, 1),
    (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2), (1024, 14, 256, 1, 1), (1024, 14, 512, 1, 1),
    (512, 14, 512, 3, 2), (512, 7, 512, 3, 1), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2),
    (2048, 7, 512, 1, 1),
)  # fmt: skip
"""Channels, height and width, filters, filter size, stride of ResNet-50."""

CONVNEXT = (
    (96, 56, 192, 2, 2),
    (192, 28, 384, 2, 2),
    (384, 14, 768, 2, 2),
    (96, 56, 384, 1, 1),
    (384, 14, 1536, 1, 1),
)
"""ConvNeXt-T: downsampling and pointwise layers."""

UNET = (
    (64, 256, 64, 3, 1), (64, 128, 128, 3, 1), (128, 128, 128, 3, 1), (128, 64, 256, 3, 1),
    (256, 64, 256, 3, 1), (256, 32, 512, 3, 1), (512, 32, 512, 3, 1), (512, 16, 1024, 3, 1),
    (1024, 16, 1024, 3, 1), (1024, 32, 512, 3, 1), (320, 64, 320, 3, 1), (640, 32, 640, 3, 1),
    (1280, 16, 1280, 3, 1), (1280, 8, 1280, 3, 1), (2560, 8, 1280, 3, 1),
)  # fmt: skip
"""A U-Net for images and Stable Diffusion's."""

OTHER = (
    "n=64 c=8 h=224 w=224 k=64 r=7 s=7 stride=2 pad=3",
    "n=16 c=256 h=56 w=56 k=256 r=3 s=3 pad=2 dilation=2",
    "n=16 c=512 h=28 w=28 k=512 r=3 s=3 pad=4 dilation=4",
    "n=32 c=128 h=28 w=28 k=128 r=3 s=3 pad=1 groups=32",
    "n=32 c=96 h=56 w=56 k=96 r=7 s=7 pad=3 groups=96",
    "n=32 c=384 h=14 w=14 k=384 r=7 s=7 pad=3 groups=384",
    "n=32 c=256 h=35 w=35 k=320 r=1 s=7 pad=0x3",
    "n=4 c=64 d=16 h=56 w=56 k=64 t=3 r=3 s=3 pad=1",
    "n=2 c=128 d=16 h=28 w=28 k=256 t=3 r=3 s=3 pad=1 stride=2",
    "n=2 c=32 d=32 h=64 w=64 k=64 t=3 r=3 s=3 pad=1",
)
"""Stems, dilated, grouped, depthwise, oblong and 3-D convolutions."""

LARGEST_CONVOLUTION_FLOP = 5e11


def convolutions() -> Iterator[ConvProblem]:
    """Convolutions of models; those of one tap on each pixel are plain products and are left out."""
    batches = {RESNET: (4, 8, 16, 32, 64, 128, 256), CONVNEXT: (16, 32, 64, 128), UNET: (1, 2, 4, 8, 16)}
    for layers, counts in batches.items():
        for (c, h, k, r, stride), n, kind in product(layers, counts, KINDS):
            pad = r // 2 if r % 2 else 0
            sizes = f"n={n} c={c} h={h} w={h} k={k} r={r} s={r} stride={stride} pad={pad}"
            yield ConvProblem.parse(f"{kind} {sizes}")
    for sizes, kind in product(OTHER, KINDS):
        yield ConvProblem.parse(f"{kind} {sizes}")


def convolution_rows(draw: random.Random) -> Iterator[Row]:
    for conv in dict.fromkeys(convolutions()):
        for dtype in ("bf16", "fp16"):
            problem = GemmProblem.of_conv(conv, dtype)
            short = problem.flop <= LARGEST_CONVOLUTION_FLOP and not conv.pointwise
            if short and (dtype == "bf16" or draw.random() < 0.4):
                yield row(problem, None, "cudnn")


def plans() -> dict[str, list[Row]]:
    found: dict[str, Any] = {
        "grouped": list(dict.fromkeys(grouped_rows(random.Random(SEED)))),
        "epilogues": list(dict.fromkeys(epilogue_rows(random.Random(SEED + 1)))),
        "block_scaled": list(dict.fromkeys(block_scaled_rows(random.Random(SEED + 2)))),
        "convolutions": list(dict.fromkeys(convolution_rows(random.Random(SEED + 3)))),
    }
    everything = [item for rows in found.values() for item in rows]
    quick = [item for item in everything if item.kernel != "cutlass" or item.config is None]
    found["problems"] = everything
    found["smoke"] = one_of_each(quick, random.Random(SEED + 4))
    return found


def one_of_each(rows: Sequence[Row], draw: random.Random) -> list[Row]:
    """A short row of each kernel and kind of problem, to see that the libraries answer."""
    short = [item for item in rows if estimated_kernel_us(item.problem) < 100.0]
    kinds: dict[tuple[str, str, str], Row] = {}
    for item in draw.sample(short, len(short)):
        cells = item.columns()
        kind = cells.get("conv", "").partition(" ")[0] or cells.get("block_scaling", "")
        word = cells.get("epilogue", "") if item.kernel != "cutlass" else ""
        kinds.setdefault((item.kernel, f"{kind}{bool(cells.get('groups'))}", word), item)
    return list(kinds.values())


if __name__ == "__main__":
    write_plans(__doc__, plans)
