"""What limits a kernel: elasticities add up, are those of finite differences, and are alike everywhere."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from gemm_model import explain, predict, rank
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import GemmModelError
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.kernel_model.elasticity import LIMITERS
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import World, parse_change
from gemm_model.kernels.mechanisms import MECHANISMS, RESOURCES
from gemm_model.kernels.registry import family_of

FAMILIES = (
    *(("h200", "quack"), ("h200", "cutlass"), ("h200", "triton"), ("h200", "cublas")),
    *(("b200_1300mhz", "quack"), ("b200_1300mhz", "triton")),
)
STEP = 1e-4
"""Of a resource's speed, for differences."""


def random_worlds(count, seed, regimes=("burst", "graph", "counters"), epilogues=(None, "gelu", "bias_n")):
    """Kernels that can run, of all families, with their composed times."""
    draw = random.Random(seed)
    while count:
        gpu, name = draw.choice(FAMILIES)
        family = family_of(name, load_gpu(gpu))
        cluster_m, cluster_n = draw.choice(family.space.clusters)
        sizes = (int(2 ** draw.uniform(low, 13.5)) for low in (0, 5, 6))
        kernel = {
            "cta_m": draw.choice(family.space.cta_m),
            "cta_n": draw.choice(family.space.cta_n),
            "schedule": draw.choice(family.space.schedules),
            "stages": draw.choice((0, 0, 2, 3)),
            "fast_accum": draw.random() < 0.5,
        }
        epilogue = draw.choice(epilogues) if name in ("quack", "triton") and gpu == "h200" else None
        try:
            world = World(
                problem=GemmProblem.of(*sizes, draw.choice(("bf16", "e4m3")), "bf16", epilogue=epilogue),
                config=KernelConfig(cluster_m=cluster_m, cluster_n=cluster_n, kernel=name, **kernel),
                gpu=load_gpu(gpu),
                options={"regime": draw.choice(regimes), "l2": draw.choice(("cold", "warm"))},
            )
            KernelModel(world.gpu, residual="off").predict_batch(batch_of([(world.problem, world.config)]))
            yield world, world.composed()
        except GemmModelError:
            continue
        count -= 1


def test_elasticities_add_up_and_are_those_of_finite_differences():
    apart, named = [], 0
    for world, composed in random_worlds(80, seed=5):
        shares, time_us = composed.elasticities(), composed.times.runtime_us
        assert sum(shares.values()) == pytest.approx(1.0)
        felt = {
            name: (1.0 - world.but(faster={name: 1.0 + STEP}).composed_us() / time_us) / STEP
            for name in LIMITERS
        }
        apart.append(max(abs(shares[name] - felt[name]) for name in LIMITERS))
        named += felt[max(shares, key=shares.get)] >= max(felt.values()) - 0.1
    assert np.median(apart) < 0.005
    assert np.percentile(apart, 90) < 0.05
    assert named >= 79


def test_nothing_faster_makes_a_kernel_slower():
    for world, composed in random_worlds(60, seed=6, regimes=("burst", "graph", "sustained", "counters")):
        time_us = composed.times.runtime_us * (1.0 + 1e-9)
        for name in RESOURCES:
            assert world.but(faster={name: 1.01}).composed_us() <= time_us, (name, world)
            assert parse_change(f"no {name.lower()}").made(world).composed_us() <= time_us, (name, world)


FELT = yaml.safe_load(Path(__file__).with_name("felt.yaml").read_text())


@pytest.mark.parametrize("mechanism", [each.name for each in MECHANISMS])
def test_every_mechanism_can_be_switched_off(mechanism):
    words = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", **FELT.get(mechanism, {})}
    gpu, regime = load_gpu(words.pop("gpu", "h200")), words.pop("regime", "burst")
    kinds = {name: words.pop(name) for name in ("epilogue", "groups", "block_scaling") if name in words}
    sizes = [words.pop(name) for name in ("m", "n", "k", "dtype")]
    out = "e4m3" if mechanism == "scaled_outputs" else "bf16"
    world = World(
        problem=GemmProblem.of(*sizes, out, **kinds),
        config=KernelConfig(**{"cta_m": 128, "cta_n": 256, **words}),
        gpu=gpu,
        options={"regime": regime},
    )
    assert world.but(without=(mechanism,)).composed_us() != world.composed_us()


def test_the_limiter_is_the_same_everywhere():
    problem, gpu = GemmProblem.of(16, 7168, 2048), load_gpu("h200")
    config = KernelConfig(cta_m=128, cta_n=64)
    found = explain(problem, config, gpu)
    batch = KernelModel(gpu).predict_batch(batch_of([(problem, config)] * 3))
    assert found.limiter == predict(problem, config, gpu).limiter == "FILL"
    assert {batch.limiter_names[code] for code in batch.limiter} == {"FILL"}
    best = rank(problem, gpu, 1).best
    own = swapped(problem) if best.candidate.swap_ab else problem
    assert best.prediction.limiter == predict(own, best.candidate.config, gpu).limiter


def test_slow_sums_are_added_by_the_mma_warps_and_not_by_tensor_cores():
    problem, config = GemmProblem.of(128, 1024, 16384, "e4m3"), KernelConfig(cta_m=64, cta_n=64)
    assert predict(problem, config, "h200").limiter == "MMA_WARPS"
    assert predict(problem, replace(config, fast_accum=True), "h200").limiter == "SM_INGRESS"


def test_a_decode_product_that_reads_its_weights_is_limited_by_dram():
    problem, config = GemmProblem.of(64, 16384, 8192), KernelConfig(cta_m=64, cta_n=128)
    found = explain(problem, config, "h200", what_if=("dram x1.5",))
    (faster,) = [each for each in found.what_if if each.change == "dram x1.5"]
    assert found.limiter == "DRAM"
    assert faster.relative < 0.9
