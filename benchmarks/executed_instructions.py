"""Instructions that a consumer warp of cuBLAS's kernels executes for each tile, and for each of its k tiles.

    python benchmarks/executed_instructions.py launch
    ncu --clock-control none -k regex:nvjet --page raw --csv \\
        --metrics launch__grid_size,smsp__inst_executed \\
        python benchmarks/executed_instructions.py launch > counts.csv
    python benchmarks/executed_instructions.py count counts.csv

Nothing is timed. Each kernel is launched with several depths of K; what the four schedulers of an SM issue
for a tile is a line in its k tiles. The busiest has the warp that loads, all have one of each consumer.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from launched_and_counted import launch_or_count, metric, profiled_launches

SIZES = ((2048, 2048), (4096, 4096), (8192, 8192))
DEPTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
SUMS = ("slow", "fast")
NAME = re.compile(r"nvjet_sm90_\w*?_(\d+)x(\d+)_(\d+)x\d+_\w+")
"""Of a kernel: its tile, along n first, and its k tile [elements]."""
SCHEDULERS = 4
"""Of an SM; each has one warp of each warpgroup."""


def problems() -> Iterator[tuple[int, int, int, str]]:
    """m, n, k and how sums are added, in the order of the launches."""
    for (m, n), k, sums in itertools.product(SIZES, DEPTHS, SUMS):
        yield m, n, k, sums


def launch() -> None:
    """Every problem once, in e4m3."""
    import torch

    scale = torch.ones((), device="cuda")
    for m, n, k, sums in problems():
        a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
        fast = sums == "fast"
        torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16, use_fast_accum=fast)
    torch.cuda.synchronize()


def count(table: Path) -> Iterator[str]:
    """A line for each kernel and size: instructions of a consumer warp for each tile, and each k tile."""
    counts: dict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for row, (m, n, k, _) in zip(profiled_launches(table), problems(), strict=True):
        name = NAME.search(row["Kernel Name"])
        if name is None:
            continue
        along_n, along_m, cta_k = map(int, name.groups())
        consumers = 2 if "coop" in name.group() else 1
        tiles = math.ceil(n / along_n) * math.ceil(m / along_m)
        ctas = metric(row["launch__grid_size"])
        mean = metric(row["smsp__inst_executed.sum"]) / SCHEDULERS / tiles
        busiest = metric(row["smsp__inst_executed.max"]) / math.ceil(tiles / ctas)
        others = mean - (busiest - mean) / (SCHEDULERS - 1)
        counts[name.group(), m, n].append((math.ceil(k / cta_k), others / consumers, tiles / ctas))
    for (kernel, m, n), points in counts.items():
        if len(points) > 1:
            k_tiles, executed, tiles_of_cta = np.array(points).T
            each, fixed = np.polyfit(k_tiles, executed, 1)
            yield (
                f"{kernel} {m}x{n}: {fixed:.0f} for each tile, {each:.1f} for each k tile, "
                f"with {tiles_of_cta[0]:.1f} tiles of a CTA"
            )


if __name__ == "__main__":
    launch_or_count(__doc__, launch, count)
