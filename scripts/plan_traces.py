"""The kernels that are traced for `data/measurements/h200/traces`: 40 of QuACK's, each in its own regime.

    python scripts/plan_traces.py --output traces.csv
    gemm-model trace --rows traces.csv --output traces/

`--held-out` plans 26 others, of other sizes: the model's numbers are read off the 40 and judged on these.
`--unseen` plans 30 more, for what was changed with both in view.

bf16 and e4m3; cooperative and ping-pong; one wave and many; bound by DRAM, L2 and the tensor cores; tiles at
the edge; clusters; split-K. Each is small, so that the trace of all its warps is: kernels of more tiles
repeat what these show. A run of the tracer takes kernels of like size (`gemm_model.bench.tracer.batches`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gemm_model.bench.rows import Row, write_plan
from gemm_model.bench.tracer import batches, expected_ranges
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

GPU = "h200"
PROCESS_S, KERNEL_S, RANGES_PER_S = 30.0, 2.1, 117_000.0
"""Of four runs, two beside each other: two runs of the worker that import and warm up [s]; compiling a kernel
with ranges and its turns [s]; ranges decoded, read and written [1/s]."""

SHAPES = (
    # What for, m, n, k, tile, cluster, schedule.
    ("one wave, tensor", 1408, 3072, 2048, (128, 256), (2, 1), "cooperative"),
    ("one wave, tensor", 1408, 1536, 2048, (128, 128), (1, 1), "pingpong"),
    ("part of a wave", 512, 2048, 4096, (128, 128), (1, 1), "cooperative"),
    ("two waves and a part", 2048, 5120, 2048, (128, 256), (2, 1), "cooperative"),
    ("many waves, tensor", 4096, 4096, 1024, (128, 256), (2, 1), "cooperative"),
    ("many waves, tensor", 4096, 4096, 1024, (128, 128), (2, 1), "pingpong"),
    ("many waves, short k", 4096, 4096, 256, (128, 128), (1, 1), "pingpong"),
    ("many waves, short k", 4096, 4096, 256, (128, 192), (1, 1), "cooperative"),
    ("DRAM, few rows", 16, 8192, 4096, (64, 64), (1, 1), "cooperative"),
    ("DRAM, few rows", 64, 12288, 2048, (64, 128), (1, 2), "pingpong"),
    ("DRAM, output", 4096, 4096, 128, (128, 128), (1, 1), "cooperative"),
    ("L2, narrow tiles", 2048, 2048, 2048, (64, 64), (1, 1), "cooperative"),
    ("L2, narrow tiles", 2048, 4096, 1024, (128, 64), (1, 1), "pingpong"),
    ("edge tiles", 1400, 3000, 2040, (128, 256), (2, 1), "cooperative"),
    ("edge tiles", 1100, 1896, 1000, (128, 128), (1, 1), "pingpong"),
    ("clusters of four", 2048, 4096, 1024, (128, 128), (2, 2), "cooperative"),
    ("clusters of four", 2048, 4096, 1024, (128, 128), (4, 1), "pingpong"),
    ("three warpgroups", 1536, 4096, 1024, (192, 128), (1, 1), "cooperative"),
)
"""Each in both types."""
SPLITS = ((64, 4096, 8192, (64, 128), 2), (64, 4096, 8192, (64, 128), 4))
"""m, n, k, tile and parts of K; each in both types."""
HELD_OUT_SHAPES = (
    ("one wave, tensor", 1152, 2816, 1536, (128, 256), (2, 1), "cooperative"),
    ("one wave, tensor", 1280, 1664, 3072, (128, 128), (1, 1), "pingpong"),
    ("part of a wave", 640, 1792, 2048, (128, 128), (1, 1), "cooperative"),
    ("many waves, tensor", 3072, 5632, 768, (128, 256), (2, 1), "cooperative"),
    ("many waves, tensor", 3584, 3072, 1280, (128, 128), (2, 1), "pingpong"),
    ("many waves, short k", 3072, 4096, 384, (128, 192), (1, 1), "cooperative"),
    ("DRAM, few rows", 32, 6144, 5120, (64, 64), (1, 1), "cooperative"),
    ("DRAM, few rows", 48, 10240, 3072, (64, 128), (1, 2), "pingpong"),
    ("L2, narrow tiles", 2560, 2304, 1024, (64, 128), (1, 1), "cooperative"),
    ("L2, narrow tiles", 1536, 3584, 1536, (128, 64), (1, 1), "pingpong"),
    ("edge tiles", 1304, 2504, 1520, (128, 192), (1, 1), "cooperative"),
    ("many waves, short k", 3328, 2560, 512, (128, 128), (1, 1), "pingpong"),
)
HELD_OUT_SPLITS = ((96, 5120, 6144, (64, 128), 3),)
UNSEEN_SHAPES = (
    ("one wave, tensor", 1664, 2304, 1792, (128, 256), (2, 1), "cooperative"),
    ("one wave, tensor", 1152, 1792, 2560, (128, 128), (1, 1), "pingpong"),
    ("part of a wave", 768, 1536, 3072, (128, 128), (1, 1), "cooperative"),
    ("many waves, tensor", 2560, 6144, 1280, (128, 256), (2, 1), "cooperative"),
    ("many waves, tensor", 2816, 4608, 896, (128, 128), (2, 1), "pingpong"),
    ("many waves, short k", 5120, 2560, 320, (128, 192), (1, 1), "cooperative"),
    ("many waves, short k", 2304, 4608, 448, (128, 128), (1, 1), "pingpong"),
    ("DRAM, few rows", 24, 7168, 4608, (64, 64), (1, 1), "cooperative"),
    ("DRAM, few rows", 56, 9216, 3584, (64, 128), (1, 2), "pingpong"),
    ("L2, narrow tiles", 1792, 3072, 1280, (64, 128), (1, 1), "cooperative"),
    ("L2, narrow tiles", 2304, 2560, 1792, (128, 64), (1, 1), "pingpong"),
    ("edge tiles", 1240, 2712, 1760, (128, 192), (1, 1), "cooperative"),
    ("clusters of four", 1792, 3584, 1536, (128, 128), (2, 2), "cooperative"),
    ("three warpgroups", 1920, 3328, 1280, (192, 128), (1, 1), "cooperative"),
)
UNSEEN_SPLITS = ((80, 6144, 5120, (64, 128), 2),)
PLANS = {
    "traces": (SHAPES, SPLITS),
    "held_out": (HELD_OUT_SHAPES, HELD_OUT_SPLITS),
    "unseen": (UNSEEN_SHAPES, UNSEEN_SPLITS),
}
DTYPES = ("bf16", "e4m3")


def plan(kernels: str = "traces") -> Iterator[Row]:
    """The kernels of one of PLANS, type by type."""
    shapes, splits = PLANS[kernels]
    for dtype in DTYPES:
        for _, m, n, k, tile, cluster, schedule in shapes:
            # Rows of K and of the output start at multiples of 16 bytes.
            depth = k - k % 16
            yield _row(
                (m, n, depth), dtype, KernelConfig(**_tile(tile), **_cluster(cluster), schedule=schedule)
            )
        for m, n, k, tile, parts in splits:
            yield _row((m, n, k), dtype, KernelConfig(**_tile(tile), split_k=parts))


def _tile(tile: tuple[int, int]) -> dict[str, int]:
    return {"cta_m": tile[0], "cta_n": tile[1]}


def _cluster(cluster: tuple[int, int]) -> dict[str, int]:
    return {"cluster_m": cluster[0], "cluster_n": cluster[1]}


def _row(size: tuple[int, int, int], dtype: str, config: KernelConfig) -> Row:
    problem = GemmProblem.of(*size, dtype)
    return Row(kernel="quack", problem=problem, config=config, asked=size)


def estimated_s(rows: list[Row]) -> float:
    """Seconds of one run of the tracer."""
    ranges = sum(expected_ranges(row, load_gpu(GPU)) for row in rows)
    return PROCESS_S + KERNEL_S * len(rows) + ranges / RANGES_PER_S


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="table for `gemm-model trace --rows`")
    parser.add_argument(
        "--parts", type=Path, metavar="FOLDER", help="also one table for each run of the tracer, by size"
    )
    others = parser.add_mutually_exclusive_group()
    for name, what in (("held_out", "26 others that no number is read off"), ("unseen", "30 more")):
        words = {"action": "store_const", "const": name, "dest": "kernels", "default": "traces"}
        others.add_argument(f"--{name.replace('_', '-')}", help=what, **words)
    arguments = parser.parse_args()
    rows = list(plan(arguments.kernels))
    write_plan(rows, arguments.output)
    for number, batch in enumerate(batches(rows, load_gpu(GPU))):
        own = [rows[index] for index in batch]
        print(f"run {number}: {len(own)} kernels, about {estimated_s(own):.0f} s")
        if arguments.parts is not None:
            arguments.parts.mkdir(parents=True, exist_ok=True)
            write_plan(own, arguments.parts / f"traces_{number}.csv")


if __name__ == "__main__":
    main()
