"""The tile schedule of a persistent kernel: tiles, clusters, waves, and the panels that a wave touches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Values,
    ceil,
    floor,
    is_number,
    maximum,
    minimum,
    power_of_two_divisor,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import RASTERS
from gemm_model.kernels.feasibility import Resources

HEURISTIC, ALONG_M, ALONG_N = range(len(RASTERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSchedule:
    """Who computes what, when; each field a number or an array. A tile here is the work of one cluster."""

    tiles: Values
    """Cluster tiles of the whole problem, batch and split-K included."""
    slots: Values
    """Clusters that run at once: the persistent grid."""
    full_waves: Values
    """Waves in which every slot has a tile."""
    last_tiles: Values
    """Tiles of the partial last wave; 0 where the waves come out even."""
    k_steps: Values
    """Pipeline steps of one tile."""
    fast_is_m: Values
    """Whether consecutive tiles advance along m (True) or along n."""
    fast_panels: Values
    """Distinct panels of the fast extent that one full wave touches, as cluster rows or columns."""
    slow_panels: Values
    group: Values
    """Cluster rows (or columns) that are walked together."""
    filled_m: Values
    """Share of the tile rows that lie inside the matrix; the rest is zero-filled and computed too."""
    filled_n: Values

    @property
    def waves(self) -> Values:
        return self.full_waves + where(self.last_tiles > 0, 1.0, 0.0)


def resident_clusters(cluster_size: Values, gpu: GpuSpec) -> Values:
    """Clusters of a size that run at once (at least one)."""
    if is_number(cluster_size):
        return float(max(gpu.clusters_at_once(int(cluster_size)), 1))
    sizes = cluster_size.astype(np.int64)
    table = np.ones(int(sizes.max()) + 1)
    for size in np.unique(sizes):
        table[size] = max(gpu.clusters_at_once(int(size)), 1)
    return table[sizes]


def _round_up(value: Values, step: Values) -> Values:
    return ceil(value / step) * step


def tile_schedule(
    batch: GemmBatch, gpu: GpuSpec, found: Resources, *, whole_waves: bool = True
) -> TileSchedule:
    """The static persistent schedule: slot s takes tiles s, s + slots, s + 2 slots, ...

    Order of the tiles: groups of `swizzle` cluster rows or columns along the fast extent, walked along the
    slow one in serpentines; the fast extent of raster 'heuristic' is the one with fewer clusters, rounded up
    to groups (a tie goes to n). Source: QuACK `TileScheduler`. On sm100 the CuTe DSL's scheduler walks all
    of m first. With `whole_waves` False the last wave takes only its share of a wave (for what-if tables).
    """
    clusters_m = ceil(ceil(batch.m / batch.cta_m) / batch.cluster_m)
    clusters_n = ceil(ceil(batch.n / batch.cta_n) / batch.cluster_n)
    per_matrix = clusters_m * clusters_n
    tiles = per_matrix * batch.batch * batch.split_k
    slots = minimum(resident_clusters(batch.cluster_m * batch.cluster_n, gpu), tiles)
    full_waves = floor(tiles / slots) if whole_waves else tiles / slots
    k_steps = ceil(ceil(batch.k / found.cta_k) / batch.split_k)

    fewer_m = _round_up(clusters_n, batch.swizzle) > _round_up(clusters_m, batch.swizzle)
    fast_is_m = where(batch.raster == HEURISTIC, fewer_m, batch.raster == ALONG_M)
    group_limit = batch.swizzle
    if gpu.kernel_architecture == "sm100":
        fast_is_m = where(batch.raster == HEURISTIC, fewer_m | True, fast_is_m)
        group_limit = maximum(clusters_m, batch.swizzle)
    fast = where(fast_is_m, clusters_m, clusters_n)
    slow = where(fast_is_m, clusters_n, clusters_m)
    group = minimum(group_limit, fast)
    fast_panels, slow_panels = _panels(slots / batch.split_k, per_matrix, fast, slow, group)
    padded_m = clusters_m * batch.cluster_m * batch.cta_m
    padded_n = clusters_n * batch.cluster_n * batch.cta_n
    return TileSchedule(
        tiles=tiles,
        slots=slots,
        full_waves=full_waves,
        last_tiles=tiles - full_waves * slots,
        k_steps=k_steps,
        fast_is_m=fast_is_m,
        fast_panels=fast_panels,
        slow_panels=slow_panels,
        group=group,
        filled_m=batch.m / padded_m,
        filled_n=batch.n / padded_n,
    )


def _panels(
    slots: Values, per_matrix: Values, fast: Values, slow: Values, group: Values
) -> tuple[Values, Values]:
    """Distinct fast and slow panels of one wave, averaged over the waves.

    The last group may be narrower than the others; each counts by its share of the tiles. A wave larger than
    a matrix of the batch touches several matrices.
    """
    matrices = maximum(slots / per_matrix, 1.0)
    wave = minimum(slots, per_matrix)
    regular = floor(fast / group) * group
    tail = where(fast > regular, fast - regular, group)
    share = regular / fast
    fast_regular, slow_regular = _panels_in_group(wave, fast, slow, group)
    fast_tail, slow_tail = _panels_in_group(wave, fast, slow, tail)
    fast_panels = share * fast_regular + (1.0 - share) * fast_tail
    slow_panels = share * slow_regular + (1.0 - share) * slow_tail
    return fast_panels * matrices, slow_panels * matrices


def _panels_in_group(wave: Values, fast: Values, slow: Values, width: Values) -> tuple[Values, Values]:
    """Distinct panels of a wave that begins in a group of `width` fast panels.

    The wave covers wave / width steps along the slow extent, and a part of one more unless it begins at a
    step (it begins at multiples of the common divisor). Where it runs past the end of its group it touches
    the next group's fast panels too, and turns back over the same slow panels: of the steps it then saves a
    quarter on average.
    """
    aligned = minimum(minimum(power_of_two_divisor(wave), power_of_two_divisor(width)), wave)
    steps = (wave - aligned) / width + 1.0
    past_the_end = where(fast > width, minimum(steps / slow, 1.0), 0.0)
    inside = steps <= slow
    fast_panels = where(inside, width * (1.0 + past_the_end), width * (1.0 + steps / slow))
    slow_panels = where(inside, steps * (1.0 - 0.25 * past_the_end), slow)
    return minimum(minimum(fast_panels, fast), wave), minimum(maximum(slow_panels, 1.0), slow)
