"""A measured time beside its prediction: the band, and what of each resource would make up the difference."""

import json
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, KernelConfig, load_gpu, predict
from gemm_model.kernel_model.measured import beside_measured
from gemm_model.kernel_model.question import World

WORLD = World(
    problem=GemmProblem.of(4096, 4096, 4096),
    config=KernelConfig(cta_m=128, cta_n=256, cluster_m=2, kernel="quack"),
    gpu=load_gpu("h200"),
    options={"residual": "off", "without": ("power",)},
)
WORDS = ("explain", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x256", "--cluster", "2x1")


def test_a_resource_that_is_slower_by_what_is_told_makes_up_the_difference():
    predicted_us = WORLD.composed_us()
    causes = {each.name: each for each in beside_measured(WORLD, 1.02 * predicted_us).causes}
    for name in ("TENSOR", "LAUNCH"):
        slower = WORLD.but(faster={name: 1.0 / causes[name].slowdown}).composed_us()
        assert slower == pytest.approx(1.02 * predicted_us, rel=4e-3)
    # What the tensor cores, epilogues and L2 take passes in clocks, and the launch does not.
    assert 0.9 < causes["CLOCK"].elasticity < 1.0
    half = {each.name: each.slowdown for each in beside_measured(WORLD, 0.5 * predicted_us).causes}
    assert half["TENSOR"] == pytest.approx(1.0 - 0.5 / causes["TENSOR"].elasticity)
    assert half["LAUNCH"] is None  # it takes less than is missing
    alike_us = [each.alike_us for each in causes.values() if each.alike_us is not None]
    assert sum(alike_us) == pytest.approx(0.02 * predicted_us, rel=5e-3)


def test_intervals_move_the_resource_that_their_numbers_are_of():
    name, base_us = "launch.kernel_us", WORLD.composed_us()
    width = WORLD.intervals()[name]
    slower = replace(WORLD, values={name: WORLD.composed().kernel.numbers.values()[name] + width})
    assert slower.composed_us() == pytest.approx(base_us + width)
    found = {each.name: each.interval_us for each in beside_measured(WORLD, base_us).causes}
    assert width <= found["LAUNCH"] < 0.02 * base_us


def test_the_command_says_whether_a_time_is_within_the_band(gemm_model):
    found = predict(WORLD.problem, WORLD.config, "h200")
    for factor, words in ((1.0, "within the band"), (1.0 + 2.0 * found.error_band, "beyond the band")):
        assert words in gemm_model(*WORDS, f"--against={factor * found.runtime_us:.6f}us").out.splitlines()[0]
    answer = json.loads(gemm_model(*WORDS, "--against=260us", "--format", "json").out)["result"]
    assert answer["difference_us"] == pytest.approx(260.0 - found.runtime_us)
    assert answer["in_band"] is False
    assert gemm_model(*WORDS, "--against=0.26 ms").out == gemm_model(*WORDS, "--against=260us").out
