"""The kernel model's promises: bounds, monotony, agreement of scalar and table, no NaN."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model import GemmProblem, KernelConfig, load_gpu, predict
from gemm_model.classic_models.sol import SOLModel
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.kernel_model import traced
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernels.candidates import candidate_spaces
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.registry import families, family_of
from tests.cases import cases

MODEL = "KernelModel"
H200 = load_gpu("h200")
"""What the search for the clock leaves open."""

sizes = st.integers(1, 20000)
problems = st.builds(
    GemmProblem.of, sizes, sizes, sizes, st.sampled_from(["bf16", "fp16", "fp8"]), batch=st.integers(1, 3)
)
configs = st.builds(
    KernelConfig,
    cta_m=st.sampled_from([64, 128, 192, 256]),
    cta_n=st.sampled_from([32, 64, 128, 160, 256]),
    cluster_m=st.sampled_from([1, 2]),
    cluster_n=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["cooperative", "pingpong"]),
    swizzle=st.sampled_from([1, 4, 8]),
    split_k=st.sampled_from([1, 1, 2]),
)
legal = st.tuples(problems, configs).filter(lambda pair: check(*pair, H200) is None)


@given(pairs=st.lists(legal, min_size=1, max_size=8), regime=st.sampled_from(["burst", "graph", "counters"]))
@settings(max_examples=60)
def test_one_prediction_is_the_row_of_a_batch_within_its_bounds(pairs, regime):
    model, batch = KernelModel(H200, regime=regime), batch_of(pairs)
    table = model.predict_batch(batch)
    for index, pair in enumerate(pairs):
        one, row = model.predict_row(numbers_of(*pair)), table.row(index)
        assert (one.limiter, one.error_band) == (row.limiter, row.error_band)
        assert set(one.caveats) <= set(table.caveats)
        assert one.runtime_us == pytest.approx(row.runtime_us, rel=1e-12)
        for name in ("phases_us", "details", "bytes_by_level"):
            mine, theirs = getattr(one, name), getattr(row, name)
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
            assert {type(value) for value in mine.values()} == {float}
            assert all(np.isfinite(value) for value in mine.values())
            assert all(value >= -1e-9 for part, value in mine.items() if part != "residual")
    assert sum(table.phases_us.values()) == pytest.approx(table.runtime_us)
    physical = KernelModel(H200, regime=regime, residual="off").predict_batch(batch).runtime_us
    assert (np.abs(table.runtime_us / physical - 1) <= 0.08 + 1e-9).all()
    light = SOLModel(H200).predict_batch(batch).runtime_us
    assert (np.minimum(table.runtime_us, physical) >= light * (1 - 1e-9)).all()


def runtime(problem, config, gpu=H200, **options):
    """Of the formulas alone: a residual's trees are steps, with no law to follow."""
    model = KernelModel(gpu, residual="off", **options)
    return model.predict_batch(batch_of([(problem, config)])).runtime_us[0]


@given(pair=legal, factor=st.sampled_from([1.1, 1.5, 2.5]))
@settings(max_examples=60)
def test_a_better_gpu_is_never_slower(pair, factor):
    before = runtime(*pair)
    better = (
        replace(H200, sm_clk_mhz=H200.sm_clk_mhz * factor),
        replace(
            H200, dram_clk_mhz=H200.dram_clk_mhz * factor, dram_read_gb_per_s=H200.dram_read_gb_per_s * factor
        ),
        replace(H200, l2_bytes=H200.l2_bytes * factor),
        replace(H200, l2_read_gb_per_s=H200.l2_read_gb_per_s * factor),
    )
    for gpu in better:
        assert runtime(*pair, gpu) <= before * (1 + 1e-5)


@pytest.mark.parametrize(*cases(__file__, "test_a_kernel_without_a_mechanism_is_not_slower"))
def test_a_kernel_without_a_mechanism_is_not_slower(mechanism):
    for shape in ((16, 7168, 2048), (4096, 7168, 2048), (1000, 3000, 520)):
        problem = GemmProblem.of(*shape)
        config = KernelConfig(cta_m=128, cta_n=128, cluster_m=2)
        assert runtime(problem, config, without=(mechanism,)) <= runtime(problem, config) * (1 + 2e-3)


def test_outputs_that_l2_keeps_in_a_chain_are_not_bound_by_dram():
    # 64 MiB of outputs, overwritten in an L2 of 96 MiB: 77 us at DRAM's 864 GB/s, once they have to leave.
    gpu, problem = load_gpu("l40s"), GemmProblem.of(2048, 16384, 32, "bf16")
    config = KernelConfig(cta_m=128, cta_n=128, kernel="cublas")
    chained, alone = (
        runtime(problem, config, gpu, regime=regime, l2=l2)
        for regime, l2 in (("graph", "warm"), ("burst", "cold"))
    )
    assert chained < 64 * 2**20 / 864e3 < alone


def test_limiter_of_clear_cases():
    big = predict(
        GemmProblem.of(8192, 8192, 8192), KernelConfig(cta_m=128, cta_n=256, cluster_m=2), "h200", MODEL
    )
    assert big.limiter == "TENSOR"
    tiny = predict(GemmProblem.of(64, 64, 64), KernelConfig(cta_m=64, cta_n=64), "h200", MODEL)
    assert tiny.limiter == "LAUNCH"
    thin = predict(GemmProblem.of(64, 57344, 8192), KernelConfig(cta_m=64, cta_n=128), "h200", MODEL)
    assert thin.limiter in ("DRAM", "L2")


OPTIONS = [{}, {"regime": "sustained"}, {"regime": "graph", "without": ["l2_capacity"]}]
KERNELS = [
    pytest.param(gpu, name, options, marks=[pytest.mark.slow] if gpu != "h200" and options else [])
    for gpu in ("h200", "b200_1300mhz", "a100_sxm_80gb")
    for name in families(gpu)
    for options in OPTIONS
]


@pytest.mark.parametrize(("card", "family", "options"), KERNELS)
def test_traced_formulas_predict_the_same(card, family, options, monkeypatch):
    gpu, problem = load_gpu(card), GemmProblem.of(1000, 520, 776, batch=3)
    monkeypatch.setattr(traced, "OFTEN", 0.5)
    usual, quick = KernelModel(gpu, **options), KernelModel(gpu, **options)
    for each in (usual._whole, usual._searched, usual._least):
        each.of = lambda batch, resources, _=None, formulas=each.formulas: formulas(batch, resources)
    grid = candidate_spaces(family_of(family, gpu), gpu, problem)[0].grid_of(problem)
    table, physical_us = usual.predict_batch(grid.rows()), usual.evaluate(grid).runtime_us
    for _ in range(2):  # the first one traces
        assert quick.evaluate(grid).runtime_us == pytest.approx(physical_us, rel=1e-12)
        assert (quick.least_times(grid).physical_us <= physical_us.min(axis=0) * (1.0 + 1e-9)).all()
        found = quick.predict_batch(grid.rows())
        assert found.runtime_us == pytest.approx(table.runtime_us, rel=1e-12)
        assert (found.limiter == table.limiter).all()
    for place in range(0, len(grid.rows()), 101 * grid.orders):
        row = grid.rows().mapped(lambda _, column, place=place: column[place].item())
        assert usual.predict_row(row) == quick.predict_row(row) == quick.predict_row(row)
    assert all(
        each.made for of in (quick._whole, quick._searched, quick._least) for each in of.known.values()
    )
