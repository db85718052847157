"""Who computes which tile: by hand, and against clusters that are watched tile by tile."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.core.gpu import load_gpu
from gemm_model.kernels.registry import families, family_of
from gemm_model.kernels.tile_scheduler import FIRST_COME, STATIC_STRIDE

ALIKE = np.array([0.0, 0.0, 0.0])


def dealt(scheduler, tile_us, start_us=ALIKE, query_us=0.0):
    return scheduler.deal(np.array(tile_us, float), np.array(start_us, float), query_us).tolist()


def test_a_stride_does_not_look_at_the_time():
    assert dealt(STATIC_STRIDE, [9, 1, 1, 1, 1, 1, 1]) == [0, 1, 2, 0, 1, 2, 0]


def test_tiles_that_last_equally_long_are_dealt_alike():
    equal = [5.0] * 11
    assert dealt(FIRST_COME, equal) == dealt(STATIC_STRIDE, equal)
    # CTAs that start one after the other ask one after the other.
    late = [0.0, 0.4, 0.8]
    assert dealt(FIRST_COME, equal, late) == dealt(STATIC_STRIDE, equal, late)
    assert dealt(FIRST_COME, equal, late, query_us=7.0) == dealt(STATIC_STRIDE, equal, late)


def test_a_long_tile_leaves_those_that_follow_to_others():
    # All ask for a second tile as they begin the first, so that cluster 0 has tile 3, behind its long one.
    # Clusters 1 and 2 ask for the rest at 1, 2 and 3.
    assert dealt(FIRST_COME, [9, 1, 1, 1, 1, 1, 1, 1, 1]) == [0, 1, 2, 0, 1, 2, 1, 2, 1]


def test_a_cluster_that_starts_late_computes_fewer():
    # Cluster 0 asks at 0, 1, 2, 3 and 4, cluster 1, which then begins its first tile, at 4.
    assert dealt(FIRST_COME, [1.0] * 7, [0.0, 4.0]) == [0, 1, 0, 0, 0, 0, 0]
    # Where the answer takes 2, cluster 0 asks at 0, 2, 4 and 6, cluster 1 at 4 and 6.
    assert dealt(FIRST_COME, [1.0] * 7, [0.0, 4.0], query_us=2.0) == [0, 1, 0, 0, 0, 1, 0]


def test_fewer_tiles_than_clusters_go_to_the_first():
    for scheduler in (STATIC_STRIDE, FIRST_COME):
        assert dealt(scheduler, [1.0, 1.0]) == [0, 1]


@given(
    tile_us=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    start_us=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    query_us=st.integers(0, 6),
)
@settings(max_examples=100)
def test_first_come_is_what_clusters_do_that_are_watched_in_time(tile_us, start_us, query_us):
    """Microsecond by microsecond: who begins a tile asks for the next one in the order."""
    clusters = range(min(len(start_us), len(tile_us)))
    expected = list(clusters)
    free = {cluster: start_us[cluster] + tile_us[cluster] for cluster in clusters}
    asks = {cluster: start_us[cluster] for cluster in clusters}
    now = 0
    while len(expected) < len(tile_us):
        asking = [cluster for cluster in clusters if asks[cluster] == now]
        if not asking:
            now += 1
            continue
        cluster = asking[0]
        begins = max(free[cluster], now + query_us)
        free[cluster] = begins + tile_us[len(expected)]
        asks[cluster] = begins
        expected.append(cluster)
    assert dealt(FIRST_COME, tile_us, start_us, float(query_us)) == expected


def test_only_blackwells_kernels_of_quack_and_cutlass_are_dynamic():
    dynamic = {
        (name, gpu)
        for gpu in ("a100_sxm_80gb", "h200", "b200_sxm", "rtx_5090")
        for name in families(load_gpu(gpu))
        if family_of(name, load_gpu(gpu)).tile_order.scheduler is FIRST_COME
    }
    assert dynamic == {
        ("quack", "b200_sxm"),
        ("cutlass", "b200_sxm"),
        ("cudnn", "b200_sxm"),
        ("quack", "rtx_5090"),
    }
