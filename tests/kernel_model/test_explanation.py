"""Explanations: the way to the peak adds up, questions keep the residual, advice is for a user."""

from dataclasses import replace

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, explain, load_gpu, predict
from gemm_model.kernel_model.question import World, parse_change
from tests.cases import cases

LARGE = GemmProblem.of(4096, 4096, 4096, "fp8")
DECODE = GemmProblem.of(16, 7168, 2048)


@pytest.mark.parametrize("residual", ["auto", "off"])
@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (LARGE, {"cta_n": 256, "cluster_m": 2}),
        (DECODE, {"cta_n": 64}),
        (GemmProblem.of(64, 64, 64), {"cta_n": 64}),
    ],
)
def test_the_way_to_the_peak_adds_up(problem, kernel, residual):
    found = explain(problem, KernelConfig(cta_m=128, **kernel), "h200", {"residual": residual})
    assert sum(step.added_us for step in found.way_to_peak) == pytest.approx(found.prediction.runtime_us)
    assert found.way_to_peak[0].added_us == pytest.approx(found.achieved["roofline_us"])
    assert (found.way_to_peak[-1].name == "residual") == (residual == "auto")
    assert sum(each.elasticity for each in found.mechanisms) == pytest.approx(1.0, abs=0.05)


def test_speed_and_units_by_hand():
    config = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, kernel="quack")
    found = explain(GemmProblem.of(4000, 4096, 4096), config, "h200", {"residual": "off"})
    prediction, gpu = found.prediction, load_gpu("h200")
    # 32 x 16 tiles, the last row of them not full; 4096 FLOP of each SM in a clock.
    clocks = prediction.runtime_us * prediction.details["sm_clk_mhz"]
    assert found.busy["TENSOR"] == pytest.approx(2 * 4096**3 / (4096 * 132 * clocks))
    assert found.achieved["tflop_per_s"] == pytest.approx(2 * 4000 * 4096**2 / prediction.runtime_us / 1e6)
    assert {"peak of the tensor cores", "clock under load"} < {step.name for step in found.way_to_peak}
    dram_us = prediction.bytes_by_level["dram"] / gpu.dram_bytes_per_us
    assert found.busy["DRAM"] == pytest.approx(dram_us / prediction.runtime_us)
    # L2's own rate, and 1.26 of it for tensor loads (gpu/h200.yaml), of which kernels reach 1.04.
    l2_us = prediction.bytes_by_level["l2"] / (8873e3 * 1.26 * 1.04)
    assert found.busy["L2"] == pytest.approx(l2_us / prediction.runtime_us, rel=0.01)


def test_empty_tile_rows_are_named_and_a_smaller_tile_is_the_advice():
    found = explain(DECODE, KernelConfig(cta_m=128, cta_n=64), "h200")
    assert found.limiter == "FILL"
    assert found.advice[0].change == "tile 64x64"
    best = predict(DECODE, KernelConfig(cta_m=64, cta_n=64), "h200").runtime_us
    assert found.advice[0].runtime_us == pytest.approx(best)


def test_questions_keep_the_residual_of_the_kernel_as_it_is():
    config, gpu = KernelConfig(cta_m=128, cta_n=256, cluster_m=2), load_gpu("h200")
    found = explain(GemmProblem.of(4096, 4096, 4096), config, gpu, what_if=("l2_bytes x1",))
    (same,) = [each for each in found.what_if if each.change == "l2_bytes x1"]
    assert same.relative == pytest.approx(1.0)
    assert all(each.relative <= 1.0 + 1e-9 for each in found.what_if)


def test_empty_ctas_of_clusters_multiply_too_and_sms_without_one_do_not_count():
    config = KernelConfig(cta_m=64, cta_n=128, cluster_m=2, kernel="quack")
    found = explain(GemmProblem.of(4, 1024, 8192), config, "h200", {"residual": "off"})
    clocks = found.prediction.runtime_us * found.prediction.details["sm_clk_mhz"]
    # 8 clusters of two CTAs, the second of each without a row.
    assert found.busy["TENSOR"] == pytest.approx(2 * 128 * 1024 * 8192 / (4096 * 16 * clocks))


def test_what_would_limit_next_within_five_percent_is_a_tie():
    problem, kernel = GemmProblem.of(6144, 6144, 6144), KernelConfig(cta_m=128, cta_n=128, cluster_m=2)
    found = explain(problem, kernel, "h200")
    shares = {each.name: each.elasticity for each in found.mechanisms}
    assert shares["L2"] - shares.get("TENSOR", 0.0) > 0.1
    assert set(found.ties) == {"L2", "TENSOR"}
    assert explain(problem, replace(kernel, cta_n=256), "h200").ties == ("TENSOR",)


@pytest.mark.parametrize(*cases(__file__, "test_a_change_by_name"))
def test_a_change_by_name(words, changed):
    world = World(
        problem=GemmProblem.of(4096, 4096, 4096),
        config=KernelConfig(cta_m=128, cta_n=256, cluster_m=2),
        gpu=load_gpu("h200"),
    )
    made = parse_change(words)(world)
    for place, values in changed.items():
        assert {name: getattr(getattr(made, place), name) for name in values} == values
    assert made.composed_us() > 0


def test_a_mechanism_alone_and_all_of_the_clock_can_be_asked_for():
    world = World(problem=LARGE, config=KernelConfig(cta_m=128, cta_n=128), gpu=load_gpu("h200"))
    assert parse_change("no promotion")(world).without == {"promotion"}
    assert parse_change("no clock")(world).without == {"clock", "power"}
    assert parse_change("no dram")(world).faster == {"DRAM": 1e9}
    assert parse_change("l2 warm")(world).options == {"l2": "warm"}


@pytest.mark.parametrize(*cases(__file__, "test_a_question_that_is_none_is_refused"))
def test_a_question_that_is_none_is_refused(words, sentence, gemm_model):
    with pytest.raises(InputError, match=sentence):
        explain(DECODE, KernelConfig(cta_m=64, cta_n=64), "h200", what_if=(words,))
    found = gemm_model("explain", "--m", 64, "--n", 64, "--k", 64, "--cta", "64x64", "--what-if", words)
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1


def test_a_card_of_one_half_of_the_sms_is_asked_for_as_a_launch_on_them_is():
    config, gpu = KernelConfig(cta_m=128, cta_n=256), load_gpu("h200")
    world = World(problem=GemmProblem.of(4096, 4096, 4096), config=config, gpu=gpu)
    half = parse_change("sms 66")(world)
    assert replace(half, gpu=gpu) == world
    assert half.composed_us() > 1.5 * world.composed_us()
