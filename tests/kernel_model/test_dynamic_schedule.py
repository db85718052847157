"""Kernels whose tiles go to whoever is free, beside the same kernels by a static stride."""

from dataclasses import replace

import pytest

from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.registry import family_of
from gemm_model.kernels.tile_scheduler import FIRST_COME, STATIC_STRIDE
from tests.kernel_model.kernels import B200, H200, numbers_on, pair_of_ctas, row

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
