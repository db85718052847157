"""The time that no kernel is faster than: it keeps kernels out of a ranking, so that it must hold for all."""

from itertools import product

import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, Ranker, families, gpus, load_gpu

ROUNDING = 1e-12


def problems(seed, dtype, count):
    """Shapes from 8 to 16,384 along each extent, one in three of them few rows, some batches."""
    draw = np.random.default_rng(seed)
    for place in range(count):
        m, n, k = (8 * np.exp2(draw.uniform(0, 11, 3)).astype(int)).tolist()
        rows = int(draw.integers(1, 65)) if place % 3 == 0 else m
        yield GemmProblem.of(rows, n, k, dtype, batch=1 + 2 * (place % 4 == 3))


def nearest(ranker, problem):
    """The smallest time of a kernel over the least that is known of it."""
    smallest = np.inf
    for space in ranker.spaces(problem):
        grid = space.grid_of(problem)
        least_us = ranker.model.least_times(grid).physical_us
        evaluation = ranker.model.evaluate(grid)
        smallest = min(smallest, (evaluation.runtime_us / least_us).min())
    return smallest


def every_family():
    """Of each GPU; all but the first GPU of an architecture are slow."""
    known = set()
    for name in gpus():
        gpu = load_gpu(name)
        for family in families(gpu):
            marks = [pytest.mark.slow] if (gpu.architecture, family) in known else []
            yield pytest.param(name, family, marks=marks)
            known.add((gpu.architecture, family))


@pytest.mark.parametrize(("gpu", "family"), list(every_family()))
def test_no_kernel_of_any_gpu_and_family_is_faster(gpu, family):
    for seed, (dtype, regime) in enumerate(
        product(("bf16", "e4m3"), ("burst", "graph", "sustained", "counters"))
    ):
        ranker = Ranker(gpu, family=family, options={"regime": regime, "residual": "off"})
        for problem in problems(seed, dtype, 2):
            try:
                found = nearest(ranker, problem)
            except InputError:
                continue
            assert found >= 1.0 - ROUNDING


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_a_kernel_that_waits_for_no_load_is_hardly_slower(regime):
    ranker = Ranker("h200", options={"residual": "off", "regime": regime})
    assert nearest(ranker, GemmProblem.of(8192, 8192, 8192)) < 1.05
    assert nearest(ranker, GemmProblem.of(128, 128, 64)) < 1.03


def test_nor_is_one_that_reads_a_large_operand_once():
    ranker = Ranker("h200", options={"residual": "off"})
    assert nearest(ranker, GemmProblem.of(16, 8192, 8192)) < 1.04


@pytest.mark.parametrize("l2", ["warm", "written"])
def test_operands_that_l2_holds_need_not_be_read(l2):
    ranker = Ranker("h200", options={"residual": "off", "l2": l2})
    assert nearest(ranker, GemmProblem.of(16, 4096, 1024)) >= 1.0 - ROUNDING


@pytest.mark.parametrize("family", families(load_gpu("h200")))
def test_nor_with_its_residual(family):
    ranker = Ranker("h200", family=family)
    split = GemmProblem.of(48, 512, 14336)
    fused = GemmProblem.of(2048, 2048, 1024, epilogue="gelu,bias")
    for problem in (*problems(5, "bf16", 6), split, *([fused] if family != "cudnn" else [])):
        for space, candidates, prediction in ranker.predictions(problem):
            grid = space.grid_of(problem)
            least = ranker.model.least_times(grid)
            least_us = np.repeat(least.kept * least.physical_us, grid.orders)[candidates]
            assert (prediction.runtime_us >= least_us * (1.0 - ROUNDING)).all()


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of(828, 4096, 1024, groups="512,300,0,16"),
        GemmProblem.of(4096, 512, 2048, epilogue="gated_silu,bias"),
        GemmProblem.of(300, 4096, 4096, epilogue="beta,quantize_1x128"),
        GemmProblem.of_conv("fprop n=8 c=96 h=28 w=28 k=256 r=3 s=3 pad=1"),
    ],
)
@pytest.mark.parametrize("family", families(load_gpu("h200")))
def test_nor_where_it_does_more_than_a_product(family, problem):
    ranker = Ranker("h200", family=family, options={"residual": "off"})
    try:
        assert nearest(ranker, problem) >= 1.0 - ROUNDING
    except InputError as refused:
        assert "do no" in str(refused)
