"""Tile schedulers: which of the resident clusters computes which tile of a kernel's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from gemm_model.core.batch import FloatArray, IntArray


def by_stride(_tile_us: FloatArray, start_us: FloatArray, _query_us: float) -> IntArray:
    """Static stride: of R clusters, cluster s computes tiles s, s + R, s + 2R, ..."""
    return np.arange(len(_tile_us)) % len(start_us)


def to_the_first(tile_us: FloatArray, start_us: FloatArray, query_us: float) -> IntArray:
    """Each tile goes to the cluster that asks first: list scheduling (Graham 1969), one tile ahead.

    A cluster is launched for its first tile. It asks for its next tile when it begins to load one, so that
    the answer arrives during the computation, and starts the next tile no sooner than the answer. Source:
    QuACK 0.6.5 `gemm_sm100.py`, one query for each tile that the load warp has begun.
    """
    launched = min(len(start_us), len(tile_us))
    asks = [(start_us[first], first, start_us[first] + tile_us[first]) for first in range(launched)]
    heapify(asks)
    taken = list(range(launched))
    for us in tile_us[launched:]:
        asked_us, cluster, free_us = asks[0]
        begun_us = max(free_us, asked_us + query_us)
        heapreplace(asks, (begun_us, cluster, begun_us + us))
        taken.append(cluster)
    return np.array(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileScheduler:
    """How the resident clusters of a persistent kernel get their tiles."""

    name: str
    deal: Callable[[FloatArray, FloatArray, float], IntArray]
    """The cluster of each tile, from each tile's duration in the kernel's order, each cluster's start, and
    the duration of a query [us]."""
    evens_out: bool = False
    """Whether fast clusters take over tiles from slow ones, so that differences between clusters or tiles
    matter for the last tile only."""


STATIC_STRIDE = TileScheduler(name="static stride", deal=by_stride)
FIRST_COME = TileScheduler(name="dynamic, first come first served", deal=to_the_first, evens_out=True)
"""Cluster launch control: a cluster cancels the launch of one that waits, and takes over its tile."""
