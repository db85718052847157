"""What limits a kernel: elasticities add up, are those of finite differences, and are alike everywhere."""

import random
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml

from gemm_model import KernelConfig, explain, load_gpu, predict, rank
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import GemmModelError
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.kernel_model.elasticity import LIMITERS
from gemm_model.kernel_model.explanation import tied
from gemm_model.kernel_model.launch_context import L2_STATES
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import World, parse_change
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.mechanisms import MECHANISMS, RESOURCES
from gemm_model.kernels.registry import families, family_of

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
