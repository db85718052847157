"""The closed forms of the tile schedule against the scheduler's own loop, written out."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.feasibility import resources
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.tile_schedule import tile_schedule

H200 = load_gpu("h200")
QUACK = family_of("quack", H200)


def schedule_of(m, n, **kernel):
    batch = batch_of([(GemmProblem.of(m, n, 1024), KernelConfig(cta_m=128, cta_n=128, **kernel))])
    return tile_schedule(batch, H200, resources(batch, H200, QUACK), QUACK.tile_order)


def tile_order(clusters_m, clusters_n, swizzle):
    """Cluster coordinates in the order of their work index: groups along the fast extent, serpentine."""
    minor_is_m = math.ceil(clusters_n / swizzle) * swizzle > math.ceil(clusters_m / swizzle) * swizzle
    fast, slow = (clusters_m, clusters_n) if minor_is_m else (clusters_n, clusters_m)
    group = min(swizzle, fast)
    order = []
    for first in range(0, fast, group):
        width = min(group, fast - first)
        steps = range(slow) if (first // group) % 2 == 0 else reversed(range(slow))
        order += [(first + column, step) for step in steps for column in range(width)]
    return minor_is_m, order


@given(
    clusters_m=st.integers(1, 90),
    clusters_n=st.integers(1, 90),
    cluster=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=60, deadline=None)
def test_waves_are_those_of_the_persistent_loop(clusters_m, clusters_n, cluster):
    found = schedule_of(128 * cluster * clusters_m, 128 * clusters_n, cluster_m=cluster)
    slots = min(H200.clusters_at_once(cluster), clusters_m * clusters_n)
    tiles_of_slot = Counter(tile % slots for tile in range(clusters_m * clusters_n))
    assert found.slots[0] == slots
    assert found.full_waves[0] == min(tiles_of_slot.values())
    assert found.waves[0] == max(tiles_of_slot.values())
    assert found.last_tiles[0] == sum(1 for count in tiles_of_slot.values() if count > found.full_waves[0])


@pytest.mark.parametrize("swizzle", [1, 2, 8, 16])
def test_raster_follows_the_extent_with_fewer_clusters(swizzle):
    for clusters_m, clusters_n in ((3, 40), (40, 3), (16, 16), (30, 31)):
        minor_is_m, _ = tile_order(clusters_m, clusters_n, swizzle)
        found = schedule_of(128 * clusters_m, 128 * clusters_n, swizzle=swizzle)
        assert bool(found.minor_is_m[0]) == minor_is_m


def test_distinct_panels_of_a_wave_match_the_order_on_average():
    random = np.random.default_rng(7)
    errors = []
    for _ in range(200):
        clusters_m, clusters_n = (int(size) for size in random.integers(1, 70, 2))
        swizzle = int(random.choice([1, 2, 4, 8, 16]))
        _, order = tile_order(clusters_m, clusters_n, swizzle)
        slots = min(132, len(order))
        waves = [order[first : first + slots] for first in range(0, len(order) - slots + 1, slots)]
        fast = np.mean([len({tile[0] for tile in wave}) for wave in waves])
        slow = np.mean([len({tile[1] for tile in wave}) for wave in waves])
        found = schedule_of(128 * clusters_m, 128 * clusters_n, swizzle=swizzle)
        errors.append((found.minor_panels[0] / fast - 1, found.major_panels[0] / slow - 1))
    errors = np.abs(errors)
    assert errors.mean() < 0.06
    assert np.quantile(errors, 0.9) < 0.15


def test_one_wave_touches_every_panel_once():
    found = schedule_of(128 * 8, 128 * 8)
    assert found.full_waves[0] == 1
    assert found.last_tiles[0] == 0
    assert (found.minor_panels[0], found.major_panels[0]) == (8, 8)


def test_split_k_multiplies_tiles_and_divides_steps():
    whole = schedule_of(512, 512)
    split = schedule_of(512, 512, split_k=4)
    assert split.tiles[0] == 4 * whole.tiles[0]
    assert split.k_tiles[0] == whole.k_tiles[0] / 4


def test_rows_outside_the_matrix():
    found = schedule_of(129, 128)
    assert found.filled_m[0] == pytest.approx(129 / 256)
    assert found.filled_n[0] == 1
