"""One k tile of the mainloop, in clocks worked out by hand."""

from dataclasses import replace

import pytest

from gemm_model.persistent.mainloop import k_tile
from gemm_model.pipeline.steady_state import time_per_k_tile
from tests.persistent.kernels import B200, H200, found_of, numbers_on, pair_of_ctas, row, schedule_of
from tests.typed_numbers import numbers


def step_of(batch, known=None, rate=4096.0, gpu=H200):
    known = numbers_on(gpu, known)
    return k_tile(batch, gpu, rate, found_of(batch, gpu), schedule_of(batch, gpu), known)


def without_signals(changes=None):
    return numbers(changes).without(["round_trip"])


def test_clocks_of_one_k_tile():
    # 2 x 128 x 256 x 64 FLOP at 4096 a clock and 0.8 of the peak, and 16 clocks to issue.
    step = step_of(row(cta_m=128, cta_n=256))
    assert step.math_clk == pytest.approx(1296)
    # 128 + 256 rows of 128 bytes at 2 x 64 bytes a clock.
    assert step.port_clk == pytest.approx(384)
    # Four stages, one of which is held.
    assert step.latency_clk == pytest.approx((400 + 384 + 1296) / 3)
    assert step.tail_clk == 0


def test_mmas_into_tensor_memory_have_neither_signals_nor_promotion():
    # 2 x 128 x 256 x 128 FLOP in each SM of the pair, at 16384 a clock.
    step = step_of(pair_of_ctas(256), rate=16384.0, gpu=B200)
    assert step.math_clk == pytest.approx(656)
    assert step.tail_clk == 0


@pytest.mark.parametrize(("cta_n", "clk"), [(32, 130 + 16), (64, 170 + 16), (256, 640 + 16)])
def test_reading_operands_from_shared_memory_bounds_narrow_instructions(cta_n, clk):
    """The excess of 72 columns over N, each as half of the MMA's clocks: 80, 160, 640."""
    step = step_of(row(cta_m=64, cta_n=cta_n, schedule="pingpong"), without_signals())
    assert step.math_clk == pytest.approx(clk)


def test_warpgroups_that_split_the_columns_issue_narrower_instructions():
    # 192 x 160 as two halves of 80 columns (1200 clocks), 192 x 128 as three of 64 rows (960 clocks).
    known = without_signals({"narrow_mma.bound_columns": 100.0})
    assert step_of(row(cta_m=192, cta_n=160), known).math_clk == pytest.approx(1200 * 1.125 + 16)
    assert step_of(row(cta_m=192, cta_n=128), known).math_clk == pytest.approx(960 + 16)


@pytest.mark.parametrize(
    ("cluster", "clk"),
    [((1, 1), 150), ((2, 1), 170), ((1, 2), 170), ((2, 2), 190), ((4, 1), 190), ((1, 4), 190)],
)
def test_signals_between_producer_and_consumers_bound_a_k_tile(cluster, clk):
    """Where MMAs take no time."""
    known = numbers().without(["tensor"])
    kernel = {"cta_m": 64, "cta_n": 32, "cluster_m": cluster[0], "cluster_n": cluster[1]}
    assert step_of(row(schedule="pingpong", **kernel), known).math_clk == pytest.approx(clk)


def test_mmas_and_signals_overlap_as_a_norm_of_order_8():
    # 80 clocks of MMAs, 50 of reading their operands and 16 of issuing them, beside 150 of signals.
    step = step_of(row(cta_m=64, cta_n=32, schedule="pingpong"))
    assert step.math_clk == pytest.approx((146**8 + 150**8) ** (1 / 8))


@pytest.mark.parametrize(
    ("cta_m", "schedule", "slow", "fast"),
    [
        # 320 clocks of MMAs, 128 of additions at 64 a clock and 80 of draining; two warpgroups hide them.
        (64, "cooperative", 528, 336),
        (64, "pingpong", 320 + 256 + 80, 336),
        (128, "cooperative", (656**8 + 528**8) ** (1 / 8), 656),
    ],
)
def test_slow_fp8_accumulation_drains_one_warpgroup_and_two_in_turn(cta_m, schedule, slow, fast):
    batch = row(dtype="fp8", cta_m=cta_m, cta_n=128, schedule=schedule)
    known = without_signals()
    assert step_of(batch, known, rate=8192.0).math_clk == pytest.approx(slow)
    assert step_of(replace(batch, fast_accum=True), known, rate=8192.0).math_clk == pytest.approx(fast)


def test_spilling_adds_to_the_mmas():
    # 46 registers of one warpgroup at 10 clocks.
    batch = row(dtype="fp8", cta_m=128, cta_n=128, schedule="pingpong")
    spilling = step_of(batch, rate=8192.0).math_clk
    assert spilling - step_of(batch, numbers().without(["spilling"]), rate=8192.0).math_clk == pytest.approx(
        460
    )


def test_a_stages_round_trip_is_the_pipelines():
    step = step_of(row(cta_m=128, cta_n=128, stages=3))
    expected = time_per_k_tile(step.port_clk, 400.0, step.math_clk, 2.0)
    assert max(step.port_clk, step.math_clk, step.latency_clk) == pytest.approx(expected)


def test_the_port_takes_all_rows_whoever_asked_for_them():
    assert step_of(row(cta_m=128, cta_n=64)).port_clk == pytest.approx(192)
    assert step_of(row(cta_m=128, cta_n=64, cluster_m=2)).port_clk == pytest.approx(192)


def test_the_port_brings_rows_inside_the_matrix_only():
    assert step_of(row((32, 132 * 64, 4096), cta_m=128, cta_n=64)).port_clk == pytest.approx(96)


def test_half_of_b_never_comes_to_one_sm_of_a_pair():
    # Of A 128 rows and of B its own 128 of 256, of 128 bytes each, at 2 x 128 bytes a clock.
    for cluster_n in (1, 2):
        assert step_of(pair_of_ctas(256, cluster_n=cluster_n), gpu=B200).port_clk == pytest.approx(128)


def test_scale_factors_take_the_port_in_pieces():
    # 128 + 128 rows of 128 bytes, and 128 + 256 rows of 16 bytes of scales, which take 64 each.
    batch = pair_of_ctas(256, dtype="nvfp4")
    assert step_of(batch, gpu=B200).port_clk == pytest.approx((32768 + 384 * 64) / 256)
    alike = numbers().without(["scale_factors"])
    assert step_of(batch, alike, gpu=B200).port_clk == pytest.approx((32768 + 384 * 16) / 256)


@pytest.mark.parametrize(("k", "clk"), [(96, 960), (72, 960), (64, 0), (4096, 0), (4104, 960)])
def test_rows_of_a_last_k_tile_beyond_k(k, clk):
    """128 + 192 rows at 3 clocks, whichever CTA of a cluster asks for them."""
    assert step_of(row((4096, 4096, k), cta_m=128, cta_n=192)).tail_clk == clk
    for cluster in ({"cluster_m": 2}, {"cluster_n": 4}):
        assert step_of(row((4096, 4096, k), cta_m=128, cta_n=192, **cluster)).tail_clk == clk


@pytest.mark.parametrize(("k", "dearer"), [(4096, 0.0), (4128, 0.25), (4112, 0.75), (4104, 1.75)])
def test_rows_that_cross_lines_take_the_port_longer(k, dearer):
    """A quarter for each further place in a line of 128 bytes: pitches of multiples of 64, 32, 16."""
    batch = row((4096, 4096, k), cta_m=128, cta_n=128)
    assert step_of(batch).port_clk == pytest.approx(256 * (1 + dearer))
    # In clusters of two each CTA asks for half of B, and only for that do its rows cost more.
    pair = row((4096, 4096, k), cta_m=128, cta_n=128, cluster_m=2)
    assert step_of(pair).port_clk == pytest.approx(256 * (1 + 0.75 * dearer))
