"""The closed forms of the tile schedule against the scheduler's own loop, written out."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model import GemmProblem, GroupedGemm, KernelConfig
from gemm_model.core.batch import batch_of
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.tile_schedule import tile_schedule
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from gemm_model.kernels.tile_scheduler import FIRST_COME, STATIC_STRIDE
from tests.cases import cases
from tests.kernel_model.kernels import B200, H200, numbers_on, pair_of_ctas, row

CUTLASS = family_of("cutlass", H200)
QUACK = family_of("quack", H200)


def schedule_of(m, n, family=QUACK, gpu=H200, **kernel):
    batch = batch_of([(GemmProblem.of(m, n, 1024), KernelConfig(cta_m=128, cta_n=128, **kernel))])
    return tile_schedule(batch, resources_of(batch, gpu, family), family.tile_order)


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


@given(clusters_m=st.integers(1, 90), clusters_n=st.integers(1, 90), cluster=st.sampled_from([1, 2, 4]))
@settings(max_examples=60)
def test_waves_are_those_of_the_persistent_loop(clusters_m, clusters_n, cluster):
    found = schedule_of(128 * cluster * clusters_m, 128 * clusters_n, cluster_m=cluster)
    resident = min(H200.clusters_at_once(cluster), clusters_m * clusters_n)
    tiles_of_cluster = Counter(tile % resident for tile in range(clusters_m * clusters_n))
    assert found.resident[0] == resident
    assert found.full_waves[0] == min(tiles_of_cluster.values())
    assert found.waves[0] == max(tiles_of_cluster.values())
    assert found.last_tiles[0] == sum(1 for count in tiles_of_cluster.values() if count > found.full_waves[0])


@pytest.mark.parametrize("swizzle", [1, 2, 8, 16])
def test_raster_follows_the_extent_with_fewer_clusters(swizzle):
    for clusters_m, clusters_n in ((3, 40), (40, 3), (16, 16), (30, 31)):
        minor_is_m, _ = tile_order(clusters_m, clusters_n, swizzle)
        found = schedule_of(128 * clusters_m, 128 * clusters_n, swizzle=swizzle)
        assert bool(found.minor_is_m[0]) == minor_is_m


def mean_panels(order):
    """Distinct first and second places of the tiles of a whole wave of 132, in the mean of all waves."""
    resident = min(132, len(order))
    waves = [order[first : first + resident] for first in range(0, len(order) - resident + 1, resident)]
    return [np.mean([len({tile[extent] for tile in wave}) for wave in waves]) for extent in (0, 1)]


def assert_small(errors):
    assert np.mean(np.abs(errors)) < 0.06
    assert np.quantile(np.abs(errors), 0.9) < 0.15


def test_distinct_panels_of_a_wave_match_the_order_on_average():
    random = np.random.default_rng(7)
    errors = []
    for _ in range(200):
        clusters_m, clusters_n = (int(size) for size in random.integers(1, 70, 2))
        swizzle = int(random.choice([1, 2, 4, 8, 16]))
        _, order = tile_order(clusters_m, clusters_n, swizzle)
        panels = mean_panels(order)
        found = schedule_of(128 * clusters_m, 128 * clusters_n, swizzle=swizzle)
        errors.append((found.minor_panels[0] / panels[0] - 1, found.major_panels[0] / panels[1] - 1))
    assert_small(errors)


@pytest.mark.parametrize("columns", [12, 13, 14])
def test_a_wave_a_little_longer_than_a_group_touches_few_panels_of_the_next(columns):
    """132 tiles at once, a group of 8 columns and 16 rows: four tiles are of the next group."""
    minor_is_m, order = tile_order(16, columns, 8)
    panels = mean_panels(order)[0]
    assert (minor_is_m, panels) == (False, 12)
    assert schedule_of(128 * 16, 128 * columns, swizzle=8).minor_panels[0] == pytest.approx(panels, rel=0.15)


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
    assert (found.fullest_m[0], schedule_of(96, 128).fullest_m[0]) == (1, 0.75)


def cutlass_order(ctas_m, ctas_n, max_swizzle):
    """Tiles in the order of CUTLASS's `PersistentTileSchedulerSm90`, without clusters, index by index."""
    shorter = min(ctas_m, ctas_n)
    log_swizzle = 0
    for log, fewest in ((3, 6), (2, 3), (1, 2)):
        if max_swizzle >= 1 << log and shorter >= fewest:
            log_swizzle = log
            break
    swizzle = 1 << log_swizzle
    rows, columns = (math.ceil(ctas / swizzle) * swizzle for ctas in (ctas_m, ctas_n))
    along_m = columns > rows
    major = rows if along_m else columns
    order = []
    for index in range(rows * columns):
        offset, rest = index % swizzle, index // swizzle
        walked, grouped = rest % major, rest // major * swizzle + offset
        order.append((walked, grouped) if along_m else (grouped, walked))
    return along_m, swizzle, rows, columns, order


@given(ctas_m=st.integers(1, 60), ctas_n=st.integers(1, 60), swizzle=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=60)
def test_cutlass_walks_the_shorter_extent_in_groups_of_the_longer(ctas_m, ctas_n, swizzle):
    along_m, group, rows, columns, order = cutlass_order(ctas_m, ctas_n, swizzle)
    found = schedule_of(128 * ctas_m, 128 * ctas_n, CUTLASS, swizzle=swizzle)
    assert len(set(order)) == rows * columns == found.tiles[0]
    assert bool(found.minor_is_m[0]) == (not along_m)
    assert found.group[0] == group
    # Tiles of padded groups are computed too.
    assert found.filled_m[0] == pytest.approx(ctas_m / rows)
    assert found.filled_n[0] == pytest.approx(ctas_n / columns)


def test_panels_of_a_plain_order_match_it_on_average():
    random = np.random.default_rng(11)
    errors = []
    for _ in range(200):
        ctas_m, ctas_n = (int(size) for size in random.integers(6, 70, 2))
        swizzle = int(random.choice([1, 2, 4, 8]))
        along_m, _, _, _, order = cutlass_order(ctas_m, ctas_n, swizzle)
        panels = mean_panels(order)
        found = schedule_of(128 * ctas_m, 128 * ctas_n, CUTLASS, swizzle=swizzle)
        fast, slow = panels[::-1] if along_m else panels
        errors.append((found.minor_panels[0] / fast - 1, found.major_panels[0] / slow - 1))
    assert_small(errors)


@pytest.mark.parametrize(*cases(__file__, "test_the_raster_of_cutlass_is_what_is_walked"))
def test_the_raster_of_cutlass_is_what_is_walked(raster, grouped):
    found = schedule_of(128 * 20, 128 * 30, CUTLASS, raster=raster)
    assert bool(found.minor_is_m[0]) == (grouped == "m")


@pytest.mark.parametrize(("ctas", "swizzle"), [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (40, 8)])
def test_few_tiles_cut_the_swizzle_of_cutlass_down(ctas, swizzle):
    assert schedule_of(128 * ctas, 128 * 40, CUTLASS, swizzle=8).group[0] == swizzle


def test_triton_groups_rows_whatever_the_shape():
    for ctas_m, ctas_n in ((40, 3), (3, 40)):
        found = schedule_of(128 * ctas_m, 128 * ctas_n, family_of("triton", H200), swizzle=8)
        assert bool(found.minor_is_m[0])
        assert found.group[0] == min(8, ctas_m)
        assert found.tiles[0] == 120


def test_cublas_groups_eight_panels_whatever_the_swizzle():
    for swizzle in (1, 16):
        assert schedule_of(128 * 20, 128 * 30, family_of("cublas", H200), swizzle=swizzle).group[0] == 8


def test_blackwell_walks_all_of_m_first_and_tells_its_last_wave_apart():
    family = family_of("quack", B200)
    found = schedule_of(128 * 20, 128 * 10, family, B200, swizzle=4)
    assert bool(found.minor_is_m[0])
    assert found.group[0] == 20
    # 200 tiles of equal length on 148 SMs, whoever takes them: two rounds.
    assert (found.full_waves[0], found.last_tiles[0]) == (1, 52)
    even = schedule_of(128 * 37, 128 * 8, family, B200)
    assert (even.full_waves[0], even.last_tiles[0], even.waves[0]) == (1, 148, 2)
    static = schedule_of(128 * 37, 128 * 8, family_of("cublas", B200), B200)
    assert (static.full_waves[0], static.last_tiles[0], static.waves[0]) == (2, 0, 2)


def last_work_of(groups, gpu, family="quack"):
    parsed = GroupedGemm.parse(groups)
    problem = GemmProblem.of(parsed.total_rows, 256, max(parsed.k), groups=parsed)
    kernel = {"schedule": "2cta"} if gpu is B200 else {"kernel": family}
    batch = batch_of([(problem, KernelConfig(cta_m=128, cta_n=256, cluster_m=2, **kernel))])
    chosen = family_of(family, gpu)
    found = tile_schedule(batch, resources_of(batch, gpu, chosen), chosen.tile_order)
    return float(np.ravel(found.last_work)[0]), float(np.ravel(found.full_waves)[0])


def test_unlike_groups_last_their_longest_tile_at_least_where_tiles_go_to_whoever_is_free():
    # 148 tiles of 1,024 and as many of 3,072: two waves of either on 74 pairs, four of 2,048.
    two_lengths = "37888x256x1024,37888x256x3072"
    assert last_work_of(two_lengths, B200) == (1, 3)
    assert last_work_of(two_lengths, H200) == (1, 4)
    # No kernel is shorter than its longest tile: 8,192 of 2,048.
    assert last_work_of("2560x256x1024,256x256x8192", B200) == (4, 0)
    # Nor does it jump as a group becomes a little longer: 75 tiles on 74 pairs stay two waves.
    assert last_work_of("9600x256x4096,9600x256x4104", B200) == (pytest.approx(1, abs=0.01), 1)


@pytest.mark.parametrize(*cases(__file__, "test_stream_k_deals_the_last_waves_evenly"))
def test_stream_k_deals_the_last_waves_evenly(sizes, dealt):
    kernel = KernelConfig(cta_m=128, cta_n=128, swizzle=1, kernel="cutlass", scheduler="stream_k")
    batch = batch_of([(GemmProblem.of(*sizes), kernel)])
    found = tile_schedule(batch, resources_of(batch, H200, CUTLASS), CUTLASS.tile_order)
    assert found.full_waves[0] == dealt["full"]
    assert found.resident[0] == dealt["clusters"]
    assert float(np.ravel(found.last_work)[0]) == pytest.approx(dealt["work"])
    assert float(np.ravel(found.sharers)[0]) == dealt["sharers"]
    assert float(np.ravel(found.partial_sums)[0]) == pytest.approx(dealt["sums"])


def test_a_second_kernel_adds_up_every_split_and_a_turn_all_but_the_last():
    batch = batch_of([(GemmProblem.of(512, 512, 4096), KernelConfig(cta_m=128, cta_n=128, split_k=4))])
    cublas = family_of("cublas", H200)
    orders = {"quack": QUACK, "cublas": cublas}
    found = {
        name: tile_schedule(batch, resources_of(batch, H200, family), family.tile_order)
        for name, family in orders.items()
    }
    assert {name: float(np.ravel(each.partial_sums)[0]) for name, each in found.items()} == {
        "quack": 3,
        "cublas": 4,
    }


WITHOUT_CLOCK = ("clock",)


def time_of(batch, gpu, scheduler, rate=4096.0):
    family = family_of("quack", gpu)
    family = replace(family, tile_order=replace(family.tile_order, scheduler=scheduler))
    # Loads that are far shorter than MMAs take no part in the sharpest norm of both.
    known = numbers_on(gpu).without(WITHOUT_CLOCK).having({"overlap.math_loads_order": 32.0})
    return kernel_time(geometry_of(batch, rate, gpu, family), gpu, known)


@pytest.mark.parametrize("columns", [1, 148, 149, 370, 1480])
def test_tiles_alike_take_as_long_whoever_computes_them(columns):
    # MMAs bound them, which ask for no tile.
    batch = pair_of_ctas(256, (256, 256 * columns, 4096))
    static, dynamic = (time_of(batch, B200, scheduler) for scheduler in (STATIC_STRIDE, FIRST_COME))
    assert dynamic.runtime_us == pytest.approx(static.runtime_us, rel=1e-12)


def test_a_wave_that_another_follows_lasts_as_long_as_a_query():
    # 74 pairs at once: three waves of four k tiles of 128 bytes each, far shorter than 20 us.
    batch = pair_of_ctas(256, (256 * 3, 256 * 74, 512))
    slow = replace(B200, next_cluster_us=20.0)
    hidden, asked = (time_of(batch, gpu, FIRST_COME) for gpu in (B200, slow))
    assert asked.waves_us == pytest.approx(2 * 20.0 + hidden.waves_us / 3, rel=1e-9)
    assert asked.launch_us == hidden.launch_us
    assert time_of(batch, slow, STATIC_STRIDE).runtime_us == pytest.approx(hidden.runtime_us)
    # A query that takes no longer than a tile is hidden behind it.
    quick = replace(B200, next_cluster_us=0.99 * hidden.waves_us / 3)
    assert time_of(batch, quick, FIRST_COME).waves_us == hidden.waves_us
    one_wave = pair_of_ctas(256, (256, 256 * 74, 512))
    assert time_of(one_wave, slow, FIRST_COME).waves_us == time_of(one_wave, B200, FIRST_COME).waves_us


def waves_of(tiles, scheduler, per_gpc):
    """The waves of so many tiles, of which L2's way into GPCs is what matters; two GPCs, of 6 and 2 SMs."""
    gpu = replace(
        H200,
        sm_count=8,
        tpc_rounds=per_gpc,
        resident_clusters={1: 8},
        l2_read_bytes_per_clk_per_sm=1024.0,
        l2_read_bytes_per_clk_of_eight=8.0,
    )
    return time_of(row((64, 64 * tiles, 4096), cta_m=64, cta_n=64), gpu, scheduler).waves_us


def test_the_fullest_gpc_holds_up_the_last_tile_alone():
    uneven = ((0, 0, 0, 1),)
    one = waves_of(8, STATIC_STRIDE, uneven)
    assert waves_of(8, FIRST_COME, uneven) == pytest.approx(one, rel=1e-12)
    # Of four waves the first three are at the pace of the mean SM, four a GPC in place of six.
    three_waves = waves_of(32, FIRST_COME, uneven) - waves_of(8, FIRST_COME, uneven)
    static = waves_of(32, STATIC_STRIDE, uneven) - one
    assert three_waves == pytest.approx(static * 4 / 6, rel=0.02)
