"""The clock under load and under a power cap, by hand."""

from dataclasses import replace

import pytest

from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.clock import (
    Work,
    burst_clock_mhz,
    capped_clock_share,
    counted_quiet,
    energy_uj,
    light_load_share,
    voltage_squared,
)
from tests.cases import cases
from tests.kernel_model.kernels import B200, H200, row, times_of
from tests.typed_numbers import numbers

CLOCK, POWER = numbers().clock, numbers().power


@pytest.mark.parametrize(*cases(__file__, "test_the_clock_stands_at_light_load_sags_and_settles"))
def test_the_clock_stands_at_light_load_sags_and_settles(shares, waves_us, lost):
    math, *memory = shares
    assert burst_clock_mhz(H200, CLOCK, math, sum(memory), waves_us) == pytest.approx(1980 * (0.92 - lost))


def test_a_card_that_sags_less_under_mmas_sags_less_under_any_load():
    """Its clock inside MMAs is lower by 6 % where the other's is by 10 %."""
    stiffer = replace(H200, mma_clk_share=0.94)
    lost = 0.27 * 0.6
    assert burst_clock_mhz(stiffer, CLOCK, 0.95, 1.1, 360.0) == pytest.approx(1980 * (0.92 - lost))
    assert load_gpu("h800_sxm").mma_clk_share == pytest.approx(0.9121)


def test_the_clock_is_never_below_two_fifths():
    steep = numbers({"clock.droop_mma": 6.0, "clock.droop_memory": 4.0}).clock
    assert burst_clock_mhz(H200, steep, 1.0, 2.0, 1e9) == pytest.approx(0.4 * 1980)


def test_a_locked_clock_sags_under_mma_load_and_comes_back():
    assert light_load_share(B200, CLOCK) == 1.0
    assert light_load_share(H200, CLOCK) == 0.92
    # 100 us of the sag of 0.16, then none; L2 and DRAM do not count.
    for waves_us, lost in ((50.0, 0.16), (100.0, 0.16), (200.0, 0.08), (1600.0, 0.01)):
        assert burst_clock_mhz(B200, CLOCK, 0.8, 2.0, waves_us) == pytest.approx(1300 * (1.0 - lost))


@pytest.mark.parametrize(
    ("clusters", "ctas", "quiet"), [(11, 1, True), (12, 2, False), (5, 4, True), (6, 4, False)]
)
def test_few_busy_tpcs_stay_at_the_boost_clock_under_a_profiler(clusters, ctas, quiet):
    assert counted_quiet(H200, float(clusters), float(ctas)) is quiet
    batch = row((64, 64 * clusters * ctas, 4096), cta_m=64, cta_n=64, cluster_n=ctas)
    counted = times_of(batch, regime="counters").sm_clk_mhz
    assert (counted == pytest.approx(1980)) is quiet
    assert times_of(batch, regime="burst").sm_clk_mhz < 1900


def test_types_of_shorter_significands_draw_less():
    """bf16 multiplies 8 bits of significand where fp16 multiplies 11: as if the MMAs drew 8/11 of fp16's."""
    kernel = {"cta_m": 128, "cta_n": 256, "cluster_m": 2}
    bf16, fp16 = (row((8192, 8192, 8192), dtype, **kernel) for dtype in ("bf16", "fp16"))
    lighter = numbers({"clock.droop_mma": 2.0 * 8 / 11})
    assert times_of(bf16).sm_clk_mhz > 1.01 * times_of(fp16).sm_clk_mhz
    assert times_of(fp16, lighter).sm_clk_mhz == pytest.approx(times_of(bf16).sm_clk_mhz, rel=1e-4)
    settled = [times_of(batch, regime="sustained", l2="warm").set_clk_mhz for batch in (bf16, fp16)]
    assert settled[0] > 1.03 * settled[1]


def test_kernels_back_to_back_sag_like_the_same_kernel_alone():
    """H200 rows of one card: kernels of 25 to 500 us take 0.99 to 1.00 times as long, less their launches."""
    batch = row((2048, 2048, 2048), cta_m=128, cta_n=256, cluster_m=2)
    alone, chained = (times_of(batch, regime=regime) for regime in ("burst", "graph"))
    assert alone.sm_clk_mhz < 0.92 * 1980
    assert chained.sm_clk_mhz == pytest.approx(alone.sm_clk_mhz)
    assert chained.waves_us == pytest.approx(alone.waves_us)


def test_voltage_has_a_floor():
    assert voltage_squared(POWER, 0.8) == pytest.approx(0.64)
    assert voltage_squared(POWER, 0.5) == pytest.approx(0.36)


@pytest.mark.parametrize("clocked_w", [300.0, 900.0, 2000.0, 5000.0])
def test_capped_clock_meets_the_cap(clocked_w):
    share = capped_clock_share(POWER, 700.0, 100.0, clocked_w, 100.0)
    spent_w = 100.0 + 100.0 + clocked_w * share * max(share, 0.6) ** 2
    assert spent_w == pytest.approx(700.0, rel=1e-4) if 0.4 < share < 1 else share in (0.4, 1.0)
    assert (share == 1.0) == (clocked_w == 300.0)


@pytest.mark.parametrize(
    ("idle_w", "cap_w", "watts"), [(130.0, 700.0, 130), (None, 350.0, 65.1), (None, None, 0)]
)
def test_a_card_at_rest_draws_what_was_measured_or_a_share_of_its_cap(idle_w, cap_w, watts):
    assert replace(H200, idle_power_w=idle_w, power_cap_w=cap_w).resting_w == pytest.approx(watts)


def test_a_higher_cap_never_slows_a_sustained_kernel():
    batch = row((8192, 8192, 8192), cta_m=128, cta_n=256, cluster_m=2)
    clocks = [
        times_of(batch, gpu=replace(H200, power_cap_w=cap), regime="sustained", l2="warm").set_clk_mhz
        for cap in (400.0, 700.0, None)
    ]
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[2] == pytest.approx(1980)


@pytest.mark.parametrize("cap_w", [200.0, 250.0, 300.0, 350.0])
def test_a_capped_kernel_runs_at_the_clock_that_it_calls_for(cap_w):
    """Memory-bound kernels too, whose rule rises with the clock, and those at the kink between both."""
    for sizes in ((14560, 384, 5728), (512, 16384, 2048), (8192, 8192, 512), (8192, 8192, 8192)):
        batch, gpu = row(sizes, cta_m=128, cta_n=64), replace(H200, power_cap_w=cap_w)
        found = times_of(batch, gpu=gpu, regime="sustained", l2="warm")
        assert found.sm_clk_mhz == pytest.approx(found.set_clk_mhz * light_load_share(H200, CLOCK), rel=3e-4)


def test_energy_adds_up():
    # 1e6 FLOP at 1 pJ, 1e4 L2 bytes at 30 pJ, 1e3 DRAM bytes at 80 pJ, 2 us at 100 W.
    work = Work(1e6, 1e4, 1e3)
    assert energy_uj(POWER, 100.0, work, 1.0, 2.0) == pytest.approx(1.0 + 0.3 + 0.08 + 200.0)
    assert energy_uj(POWER, 100.0, work, 0.5, 2.0) == pytest.approx(1.3 * 0.36 + 0.08 + 200.0)
