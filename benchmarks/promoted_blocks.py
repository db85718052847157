"""Clocks of a k tile of cuBLAS's e4m3 kernels with slow sums, by the blocks of 64 rows of a warpgroup.

    ncu --clock-control none --cache-control none -k regex:nvjet --page raw --csv \\
        --metrics sm__cycles_active.avg python benchmarks/promoted_blocks.py launch > cycles.csv
    python benchmarks/promoted_blocks.py count cycles.csv

Each problem is launched at three depths of K; the cycles between the first and the last, over their k tiles,
are less what the MMAs take at their peak rate. Kernels that the depths share by name are told, ping-pong ones
and those whose warpgroups share a tile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from launched_and_counted import launch_or_count, metric, profiled_launches

PROBLEMS = (
    *((2048, 640, 3904), (3648, 320, 5568), (2368, 512, 896), (384, 1856, 3712), (256, 4608, 3584)),
    *((640, 1472, 1344), (2176, 640, 4096), (3520, 320, 5120), (2432, 512, 2048), (448, 1792, 4096)),
    *((1984, 640, 3072), (3712, 320, 4096), (640, 1536, 2048), (2304, 512, 3072), (320, 3520, 4096)),
    (640, 2048, 4096),
)
"""m, n and the first depth of K: cuBLAS of torch 2.11 takes ping-pong kernels of one wave for most."""
DEEPER = (0, 1024, 3072)
CTA_K = 128
FLOP_PER_CLK = 8192.0
"""Of an SM in e4m3 (H100, H200)."""
NAME = re.compile(r"nvjet_sm90_\w*?_(\d+)x(\d+)_128x\d+_\w+")


def problems() -> Iterator[tuple[int, int, int]]:
    """m, n and k in the order of the launches."""
    for m, n, k in PROBLEMS:
        for deeper in DEEPER:
            yield m, n, k + deeper


def launch() -> None:
    """Every problem once; nothing is timed."""
    import torch

    scale = torch.ones((), device="cuda")
    for m, n, k in problems():
        a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
        torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16, use_fast_accum=False)
        torch.cuda.synchronize()


def count(table: Path) -> Iterator[str]:
    """A line for each number of blocks and sums of a thread: clocks of a k tile beside its MMAs."""
    cycles: dict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for row, (m, n, k) in zip(profiled_launches(table), problems(), strict=True):
        if name := NAME.search(row["Kernel Name"]):
            mean = metric(row["sm__cycles_active.avg"])
            cycles[name.group(), m, n].append((k, mean))
    beside: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for (kernel, _, _), points in cycles.items():
        if len(points) == len(DEEPER):
            (first, before), *_, (last, after) = points
            of_name = NAME.search(kernel)
            assert of_name is not None
            extents = [int(extent) for extent in of_name.groups()]
            rows = max(extent for extent in extents if extent % 64 == 0)
            outputs = extents[0] * extents[1]
            mma_clk = 2.0 * outputs * CTA_K / FLOP_PER_CLK
            schedule = "cooperative" if "coop" in kernel else "ping-pong"
            k_tile_clk = (after - before) / ((last - first) / CTA_K)
            beside[schedule, rows // 64, outputs // 128].append(k_tile_clk - mma_clk)
    for (schedule, blocks, sums), clocks in sorted(beside.items()):
        yield (
            f"{schedule}, {blocks} blocks of rows, tile of {sums} x 128 outputs: {np.median(clocks):.0f} clk "
            f"beside the MMAs of a k tile ({len(clocks)} launches)"
        )


if __name__ == "__main__":
    launch_or_count(__doc__, launch, count)
