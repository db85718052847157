"""What the name and the grid of a cuDNN implicit GEMM kernel say: tile, schedule, cluster, split K."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from gemm_model.bench.numbers import bench_numbers
from gemm_model.core.problem import GemmProblem

IMPLICIT_GEMM = re.compile(
    r"sm90_xmma_\w*?tilesize(?P<cta_m>\d+)x(?P<cta_n>\d+)x(?P<cta_k>\d+)"
    r"_warpgroupsize(?P<rows>\d)x(?P<columns>\d)x\d\w*?_segment_k_(?P<shares>on|off)"
)
PERSISTENT_THREADS = 384
"""Threads of a CTA [1]; persistent kernels: a warpgroup that loads and two that multiply; their names."""


def conv_cells(problem: GemmProblem, names: str, grid: str, block: str) -> dict[str, Any]:
    """The columns of a benchmark table that the kernels of one call fill; none for an unknown kernel.

    `grid` and `block`, such as '(60, 2, 1)', are those of the last kernel. A tile of one warpgroup is one of
    two in turn. Segments of K dealt to all CTAs are stream-K; else a grid of several CTAs for a tile tells
    into how many parts K is split.
    """
    found = IMPLICIT_GEMM.search(names)
    if found is None:
        return {}
    tile = {name: int(found[name]) for name in ("cta_m", "cta_n", "cta_k")}
    alone = int(found["rows"]) * int(found["columns"]) == 1
    shares = found["shares"] == "on"
    tiles = ceil(problem.m / tile["cta_m"]) * ceil(problem.n / tile["cta_n"]) * problem.batch
    extents, threads = _extents(grid), _extents(block)
    # The grid of a kernel that adds up the parts behind is not that of the one that multiplies.
    ctas = extents[0] * extents[1] * extents[2] if threads[0] == PERSISTENT_THREADS else 0
    cluster = extents[1] if ctas == bench_numbers().cudnn_cluster_ctas and extents[1] in (2, 4, 8) else 1
    return {
        **tile,
        "mma_m": tile["cta_m"],
        "mma_n": tile["cta_n"],
        "cluster_m": cluster,
        "cluster_n": 1,
        "schedule": "pingpong" if alone else "cooperative",
        "swizzle": 1,
        "split_k": 1 if shares else max(ctas // tiles, 1),
        "scheduler": "stream_k" if shares else "static",
    }


def _extents(text: str) -> tuple[int, int, int]:
    """The three numbers of '(60, 2, 1)'."""
    x, y, z = (int(word) for word in re.findall(r"\d+", text))
    return x, y, z
