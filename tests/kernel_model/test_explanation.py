"""Explanations: the way to the peak, two kernels, a measured time, and elasticities add up; advice is for a user."""

import json
import random
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml

from gemm_model import GemmProblem, InputError, KernelConfig, explain, load_gpu, predict, rank
from gemm_model.config.mechanisms import MECHANISMS, RESOURCES
from gemm_model.core.batch import batch_of
from gemm_model.core.problem import swapped
from gemm_model.errors import GemmModelError
from gemm_model.kernel_model.comparison import difference
from gemm_model.kernel_model.elasticity import LIMITERS
from gemm_model.kernel_model.explanation import tied
from gemm_model.kernel_model.launch_context import L2_STATES
from gemm_model.kernel_model.measured import beside_measured
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import World, parse_change
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.registry import families, family_of
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
    # L2's own rate, and 1.26 of it for tensor loads (gpu/h200.yaml), of which kernels reach 1.05.
    l2_us = prediction.bytes_by_level["l2"] / (8873e3 * 1.26 * 1.05)
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


FIRST = World(
    problem=GemmProblem.of(4096, 4096, 4096),
    config=KernelConfig(cta_m=128, cta_n=128, kernel="quack"),
    gpu=load_gpu("h200"),
)
TURNED = "tile and cluster and operands swapped"
WIDE = replace(FIRST.config, cta_n=256, mma_n=256, cluster_m=2)


@pytest.mark.parametrize(
    ("second", "settings"),
    [
        (replace(FIRST, config=WIDE), {"tile", "cluster", "residual"}),
        (replace(FIRST, config=replace(WIDE, kernel="cutlass")), {"tile", "cluster", "library", "residual"}),
        (replace(FIRST, options={"l2": "warm"}), {"launch context", "residual"}),
        (FIRST, set()),
        (replace(FIRST, problem=swapped(FIRST.problem), config=WIDE), {TURNED, "residual"}),
        (replace(FIRST, config=replace(WIDE, fast_accum=True)), {"cluster", "tile and sums", "residual"}),
    ],
)
def test_both_ways_of_sharing_out_add_up(second, settings):
    found = difference(FIRST, second)
    apart = (
        predict(second.problem, second.config, second.gpu, options=second.options).runtime_us
        - predict(FIRST.problem, FIRST.config, FIRST.gpu).runtime_us
    )
    assert found.us == pytest.approx(apart)
    assert sum(found.by_setting.values()) == pytest.approx(apart, abs=1e-9)
    assert sum(found.by_resource.values()) == pytest.approx(apart, abs=1e-9)
    assert set(found.by_setting) == settings


def test_two_settings_share_what_they_save_together():
    """Shapley's value of two: half of what each saves alone and half of what it saves last."""
    off = {"residual": "off"}
    cluster = replace(FIRST, config=replace(FIRST.config, cluster_m=2), options=off)
    wide = replace(FIRST, config=replace(FIRST.config, cta_n=256, mma_n=256), options=off)
    both = replace(FIRST, config=WIDE, options=off)
    us = {name: each.composed_us() for name, each in (("cluster", cluster), ("tile", wide), ("both", both))}
    none_us = FIRST.composed_us()
    expected = ((us["cluster"] - none_us) + (us["both"] - us["tile"])) / 2
    assert difference(replace(FIRST, options=off), both).by_setting["cluster"] == pytest.approx(expected)


def test_kernels_of_different_problems_are_refused():
    other = replace(FIRST, problem=GemmProblem.of(4096, 4096, 2048))
    with pytest.raises(InputError, match="two kernels of different problems, 4096x4096x4096 bf16 and"):
        difference(FIRST, other)


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


GPUS = ("h200", "h200", "h100_sxm", "b200", "a100_sxm_80gb", "l40s", "rtx_5090")
KINDS = (
    *({}, {}, {"batch": 6}, {"epilogue": "gelu"}, {"epilogue": "bias_n,residual"}),
    *({"epilogue": "gated_silu"}, {"groups": "512,300,0,16"}, {"block_scaling": "1x128,128x128"}),
)
STEP = 1e-4
"""Of a resource's speed, for differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels(World):
    """Kernels of one card, library, type and launch context, composed as columns; `problem` is the first one's."""

    pairs: tuple[tuple[GemmProblem, KernelConfig], ...]

    def rows(self):
        found = batch_of(self.pairs)
        return replace(found, kernel=int(found.kernel[0]), math_kind=int(found.math_kind[0]))

    def times_us(self):
        return np.broadcast_to(self.composed().times.runtime_us, len(self.pairs))


def random_kernels(count, seed, regimes=("burst", "graph", "counters")):
    """Kernels that can run, of all libraries and kinds of problem, at most twenty alike."""
    draw, cards = random.Random(seed), [load_gpu(name) for name in GPUS]
    while count > 0:
        gpu, dtype = draw.choice(cards), draw.choice(("bf16", "fp16", "e4m3", "mxfp8", "int8"))
        name = draw.choice(families(gpu))
        options = {"regime": draw.choice(regimes), "l2": draw.choice(L2_STATES)}
        drawn = (drawn_kernel(draw, dtype, name, gpu) for _ in range(400))
        pairs = tuple(islice(filter(None, drawn), min(20, count)))
        if pairs:
            count -= len(pairs)
            first = dict(zip(("problem", "config"), pairs[0], strict=True))
            yield Kernels(**first, gpu=gpu, options=options, pairs=pairs)


def drawn_kernel(draw, dtype, name, gpu):
    kind, space = draw.choice(KINDS), family_of(name, gpu).space
    m, n, k = (int(2 ** draw.uniform(low, 13.5)) for low in (0, 5, 6))
    asked = {field: draw.choice(getattr(space, field)) for field in ("cta_m", "cta_n")}
    asked |= {"schedule": draw.choice(space.schedules), "split_k": draw.choice((1, 1, *space.split_k))}
    asked |= {"stages": draw.choice((0, 0, *space.stages)), "fast_accum": draw.random() < 0.5}
    try:
        problem = GemmProblem.of(828 if "groups" in kind else m, n, k // 64 * 64, dtype, **kind)
        config = KernelConfig(kernel=name, **asked)
        return (problem, config) if check(problem, config, gpu) is None else None
    except GemmModelError:
        return None


def test_elasticities_add_up_and_are_those_of_finite_differences():
    apart, named = [], []
    for kernels in random_kernels(400, seed=5):
        found, time_us = kernels.composed().elasticities(), kernels.times_us()
        shares = np.array([np.broadcast_to(found[name], len(time_us)) for name in LIMITERS])
        assert shares.sum(axis=0) == pytest.approx(1.0)
        faster = [kernels.but(faster={name: 1.0 + STEP}).times_us() for name in LIMITERS]
        felt = (1.0 - np.array(faster) / time_us) / STEP
        apart += np.abs(shares - felt).max(axis=0).tolist()
        named += (felt[shares.argmax(axis=0), range(len(time_us))] >= felt.max(axis=0) - 0.1).tolist()
    assert np.median(apart) < 0.005
    assert np.percentile(apart, 90) < 0.05
    assert np.mean(named) >= 79 / 80


@pytest.mark.parametrize("count", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_nothing_faster_makes_a_kernel_slower_and_what_saves_most_when_removed_is_named(count):
    for some in random_kernels(count, seed=6, regimes=("burst", "graph", "sustained", "counters")):
        time_us, left_us = some.times_us() * (1.0 + 1e-9), {}
        for name in RESOURCES:
            left_us[name] = parse_change(f"no {name.lower()}")(some).times_us()
            assert (some.but(faster={name: 1.01}).times_us() <= time_us).all(), (name, some)
            assert (left_us[name] <= time_us).all(), (name, some)
        for row, (problem, config) in enumerate(some.pairs):
            world = World(problem=problem, config=config, gpu=some.gpu, options=some.options)
            named, least_us = tied(world, world.composed()), min(found[row] for found in left_us.values())
            assert min(left_us[name][row] for name in named) == pytest.approx(least_us)


def test_a_second_kernel_is_part_of_the_time_over_which_a_card_averages_power():
    config = KernelConfig(kernel="cublas", swizzle=8, cta_m=128, cta_n=192, split_k=3)
    problem, gpu = GemmProblem.of(878, 6467, 6272, batch=6), load_gpu("b200")
    world = World(problem=problem, config=config, gpu=gpu, options={"regime": "sustained"})
    assert parse_change("no l2")(world).composed_us() < 0.9 * world.composed_us()


FELT = yaml.safe_load(Path(__file__).with_name("felt.yaml").read_text())


@pytest.mark.parametrize("mechanism", [each.name for each in MECHANISMS])
def test_every_mechanism_can_be_switched_off(mechanism):
    words = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", **FELT.get(mechanism, {})}
    gpu, regime = load_gpu(words.pop("gpu", "h200")), words.pop("regime", "burst")
    kinds = {name: words.pop(name) for name in ("epilogue", "groups", "block_scaling") if name in words}
    sizes = [words.pop(name) for name in ("m", "n", "k", "dtype")]
    out = "e4m3" if mechanism == "scaled_outputs" else "bf16"
    problem = GemmProblem.of(*sizes, out, **kinds)
    config = KernelConfig(**{"cta_m": 128, "cta_n": 256, **words})
    world = World(problem=problem, config=config, gpu=gpu, options={"regime": regime})
    assert world.but(without=(mechanism,)).composed_us() != world.composed_us()


def test_the_limiter_is_the_same_everywhere():
    problem, gpu = GemmProblem.of(16, 7168, 2048), load_gpu("h200")
    config = KernelConfig(cta_m=128, cta_n=64)
    batch = KernelModel(gpu).predict_batch(batch_of([(problem, config)] * 3))
    assert explain(problem, config, gpu).limiter == predict(problem, config, gpu).limiter == "FILL"
    assert {batch.limiter_names[code] for code in batch.limiter} == {"FILL"}
    best = rank(problem, gpu, 1).best
    own = swapped(problem) if best.candidate.swap_ab else problem
    assert best.prediction.limiter == predict(own, best.candidate.config, gpu).limiter


def test_slow_sums_are_added_by_the_mma_warps_and_not_by_tensor_cores():
    problem, config = GemmProblem.of(128, 2048, 16384, "e4m3"), KernelConfig(cta_m=64, cta_n=64)
    assert predict(problem, config, "h200").limiter == "MMA_WARPS"
    assert predict(problem, replace(config, fast_accum=True), "h200").limiter == "GPC_INGRESS"


def test_a_decode_product_that_reads_its_weights_is_limited_by_dram():
    problem, config = GemmProblem.of(64, 16384, 8192), KernelConfig(cta_m=64, cta_n=128)
    found = explain(problem, config, "h200", what_if=("dram x1.5",))
    (faster,) = [each for each in found.what_if if each.change == "dram x1.5"]
    assert found.limiter == "DRAM"
    assert faster.relative < 0.9
