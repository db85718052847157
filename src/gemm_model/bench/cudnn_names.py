"""Tile, schedule, cluster and split-K of a cuDNN implicit GEMM kernel, from its name and grid."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from gemm_model.config.numbers import room_numbers
from gemm_model.core.conv import ConvProblem

IMPLICIT_GEMM = re.compile(
    r"sm90_xmma_\w*?tilesize(?P<cta_m>\d+)x(?P<cta_n>\d+)x(?P<cta_k>\d+)"
    r"_warpgroupsize(?P<rows>\d)x(?P<columns>\d)x\d_g(?P<groups>\d+)_\w*?(?P<parts>segment_k_on|segment_k_off|strided)"
)
BESIDE = re.compile(r"init_device_workspace_kernel|_split_k_kernel")
"""Small kernels beside segments of K: one clears their counters, one adds up their sums."""
PERSISTENT_THREADS = 384
"""Threads of a CTA [1]; persistent kernels: a warpgroup that loads and two that multiply; their names."""


def conv_cells(conv: ConvProblem, names: str, grid: str, block: str) -> dict[str, Any]:
    """The columns of a benchmark table that the kernels of one call fill.

    None for an unknown kernel, one whose tile holds other groups than is assumed (`ConvProblem.packed`), and
    a call that pads, slices or transposes its images beside. `grid` and `block`, such as '(60, 2, 1)', are
    those of the last kernel. A tile of one warpgroup is one of two in turn. Segments of K are as many parts
    as there are CTAs for each tile; where there is less than one, or the grid is that of a kernel behind,
    they are dealt to all CTAs. Without segments K is whole: CTAs beyond the tiles fill up clusters (nine
    calls whose grids have twice to four times as many take what whole ones do).
    """
    kernels = [name for name in names.split(" + ") if not BESIDE.search(name)]
    found = IMPLICIT_GEMM.search(kernels[0]) if len(kernels) == 1 else None
    if found is None or int(found["groups"]) != conv.packed:
        return {}
    tile = {name: int(found[name]) for name in ("cta_m", "cta_n", "cta_k")}
    alone = int(found["rows"]) * int(found["columns"]) == 1
    segments = found["parts"] == "segment_k_on"
    extents, threads = _extents(grid), _extents(block)
    # The grid of a kernel that adds up the parts behind is not that of the one that multiplies.
    ctas = extents[0] * extents[1] * extents[2] if threads[0] == PERSISTENT_THREADS else 0
    parts = ctas // _tiles(conv, tile["cta_m"], tile["cta_n"])
    cluster = (
        extents[1] if ctas == room_numbers("bench").cudnn_cluster_ctas and extents[1] in (2, 4, 8) else 1
    )
    return {
        **tile,
        "mma_m": tile["cta_m"],
        "mma_n": tile["cta_n"],
        "cluster_m": cluster,
        "cluster_n": 1,
        "schedule": "pingpong" if alone else "cooperative",
        "swizzle": 1,
        "split_k": parts if segments and parts else 1,
        "scheduler": "stream_k" if segments and not parts else "static",
    }


def _tiles(conv: ConvProblem, cta_m: int, cta_n: int) -> int:
    m, n, _, batch = conv.sizes
    return ceil(m / cta_m) * round(conv.n_runs) * ceil(n / conv.n_runs / cta_n) * batch // conv.packed


def _extents(text: str) -> tuple[int, int, int]:
    """The three numbers of '(60, 2, 1)'."""
    x, y, z = (int(word) for word in re.findall(r"\d+", text))
    return x, y, z
