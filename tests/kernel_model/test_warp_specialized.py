"""The calibrated model's promises: bounds, monotony, agreement of scalar and table, no NaN."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.api import predict
from gemm_model.classic_models.sol import SOLModel
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernels.feasibility import check

MODEL = "KernelModel"
H200 = load_gpu("h200")
TIES = 1 + 1e-3
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


@given(pairs=st.lists(legal, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_one_prediction_is_the_row_of_a_batch(pairs):
    table = KernelModel(H200).predict_batch(batch_of(pairs))
    for index, pair in enumerate(pairs):
        one, row = predict(*pair, "h200"), table.row(index)
        assert (one.limiter, one.error_band) == (row.limiter, row.error_band)
        assert set(one.caveats) <= set(table.caveats)
        assert one.runtime_us == pytest.approx(row.runtime_us, rel=1e-12)
        for name in ("phases_us", "details", "bytes_by_level"):
            mine, theirs = getattr(one, name), getattr(row, name)
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
            assert {type(value) for value in mine.values()} == {float}


def runtime(problem, config, gpu=H200, **options):
    """Of the formulas alone: a residual's trees are steps, with no law to follow."""
    model = KernelModel(gpu, residual="off", **options)
    return model.predict_batch(batch_of([(problem, config)])).runtime_us[0]


@given(pair=legal)
@settings(max_examples=60, deadline=None)
def test_never_faster_than_light_and_always_a_number(pair):
    prediction = KernelModel(H200, residual="off").predict_batch(batch_of([pair]))
    floor = SOLModel(H200).predict_batch(batch_of([pair])).runtime_us[0]
    assert prediction.runtime_us[0] >= floor * (1 - 1e-9)
    for columns in (prediction.phases_us, prediction.details, prediction.bytes_by_level):
        for values in columns.values():
            assert np.isfinite(values).all()
            assert (values >= -1e-9).all()
    assert sum(values[0] for values in prediction.phases_us.values()) == pytest.approx(
        prediction.runtime_us[0]
    )


@given(pair=legal)
@settings(max_examples=60, deadline=None)
def test_more_k_takes_longer(pair):
    # Rows that start on lines of L2: an odd K can be slower than the next even one, in truth as well.
    problem, config = replace(pair[0], k=128 * math.ceil(pair[0].k / 128)), pair[1]
    longer = replace(problem, k=2 * problem.k)
    assert runtime(longer, config) * TIES >= runtime(problem, config)


@given(pair=legal, side=st.sampled_from(["m", "n"]))
@settings(max_examples=60, deadline=None)
def test_a_problem_twice_as_large_takes_longer(pair, side):
    # Whole tiles: a row outside the matrix costs more than one inside, so a ragged size may gain by growing.
    config = pair[1]
    rows, columns = config.cluster_m * config.cta_m, config.cluster_n * config.cta_n
    problem = replace(
        pair[0], m=rows * math.ceil(pair[0].m / rows), n=columns * math.ceil(pair[0].n / columns)
    )
    larger = replace(problem, **{side: 2 * getattr(problem, side)})
    assert runtime(larger, config) * 1.02 >= runtime(problem, config)


@given(pair=legal, factor=st.sampled_from([1.1, 1.5, 2.5]))
@settings(max_examples=60, deadline=None)
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


OFFS = (
    "launch",
    "tensor",
    "port",
    "latency",
    "epilogue",
    "l2",
    "dram",
    "whole_waves",
    "spilling",
    "edge_tiles",
)


@pytest.mark.parametrize("mechanism", OFFS)
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


def test_the_clock_falls_with_intensity():
    busy = KernelModel(H200).predict_batch(
        batch_of([(GemmProblem.of(8192, 8192, 8192), KernelConfig(cta_m=128, cta_n=256, cluster_m=2))])
    )
    idle = KernelModel(H200).predict_batch(
        batch_of([(GemmProblem.of(64, 4096, 8192), KernelConfig(cta_m=64, cta_n=128))])
    )
    assert 1200 < busy.details["sm_clk_mhz"][0] < idle.details["sm_clk_mhz"][0] < 1980


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_1300mhz", "a100_sxm_80gb", "l40s", "rtx_4090"])
def test_other_gpus_are_marked_and_get_no_better_band(gpu):
    problem, config = GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=128)
    here = predict(problem, config, "h200", MODEL, options={"calibration": "h200"})
    there = predict(problem, config, gpu, MODEL, options={"calibration": "h200"})
    assert here.caveats == ()
    assert any("borrowed from h200:quack" in caveat for caveat in there.caveats)
    assert there.error_band is None or there.error_band > here.error_band
    assert there.runtime_us > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"regime": "peak"}, "regime"),
        ({"l2": "hot"}, "l2"),
        ({"without": ("gravity",)}, "gravity"),
        ({"calibration": "z80"}, "z80"),
    ],
)
def test_bad_options_are_named(options, word):
    with pytest.raises(InputError, match=word):
        KernelModel(H200, **options)
