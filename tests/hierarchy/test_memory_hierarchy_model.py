import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.bench.simt.ladder import LADDER
from gemm_model.core.batch import batch_of
from gemm_model.hierarchy.cuda_core_runtime import runtime
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.model import runtime_parameters
from gemm_model.models import create_model, model_for

H200 = load_gpu("h200")


def predict(problem, config, **options):
    return (
        create_model("MemoryHierarchyModel", H200, options)
        .predict_batch(batch_of([(problem, config)]))
        .row(0)
    )


def test_a_tile_that_matches_runs_whole_waves_at_the_peak():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=128, cta_n=256, cluster_m=2))
    # 512 tiles over 132 SMs are 4 waves of 128 x 256 x 4096 FMAs at 2048 a clock.
    assert found.runtime_us == pytest.approx(4 * 128 * 256 * 4096 / 2048 / 1980)
    assert found.limiter == "math"
    assert found.details["fraction_of_peak"] == pytest.approx(512 / (4 * 132))
    # Each tile reads 128 rows and 256 columns of 4096 two-byte elements.
    assert found.bytes_by_level["l2"] == pytest.approx(512 * (128 + 256) * 4096 * 2)


def test_a_narrow_tile_waits_for_l2():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=256, cta_n=32, cluster_n=2))
    # An SM's part of L2's 8873 GB/s is 33.95 bytes a clock. Two CTAs share A: each asks for 256 / 2 + 32
    # rows, so that a byte is used 2 x 256 x 32 / 160 times; the tensor cores demand 8192.
    fraction = 8873e3 / (132 * 1980) * 2 * 256 * 32 / 160 / 8192
    assert found.limiter == "l2"
    assert found.runtime_us == pytest.approx(16 * 256 * 32 * 4096 / (2048 * fraction) / 1980)


def test_without_reuse_in_l2_dram_limits():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=128, cta_n=128), reuse_in_l2=False)
    assert found.limiter == "dram"


def test_cuda_core_rows_are_the_ladder_s_runtime():
    kernel = next(k for k in LADDER if k.name == "pipelined_128x128x16_t8x8_w4x8i_s2")
    problem = GemmProblem.of(4096, 4096, 4096, "fp32")
    found = predict(problem, kernel.config, datapath="cuda_cores")
    machine = machine_of(H200, datapath_of(H200, "cuda_cores", "fp32"))
    expected = runtime(machine, kernel.blocking, (4096,) * 3, 2, runtime_parameters())
    assert found.runtime_us == pytest.approx(expected.runtime_us)
    assert found.limiter == expected.limiter == "issue"
    share = 4096**3 / (128 * 132 * 1980 * found.runtime_us)
    assert found.details["fraction_of_peak"] == pytest.approx(share)
    # 132 SMs x 2 tiles at once: 8.25 rows of 32 tiles, so 9 rows of A's tiles and all of B; outputs once.
    assert found.bytes_by_level["dram"] == pytest.approx(1024 / (9 * 32) * (9 + 32) * 128 * 4096 * 4 + 2**26)

    usual = predict(problem, KernelConfig(cta_m=128, cta_n=128, cta_k=16, stages=2), datapath="cuda_cores")
    assert usual.runtime_us == pytest.approx(expected.runtime_us)


def test_a_batch_is_its_rows():
    pairs = [
        (GemmProblem.of(m, 4096, 1024, dtype), KernelConfig(cta_m=128, cta_n=n))
        for m in (128, 4096)
        for n in (64, 256)
        for dtype in ("bf16", "fp8")
    ]
    model = model_for("MemoryHierarchyModel", "h200")
    whole = model.predict_batch(batch_of(pairs))
    single = [model.predict_batch(batch_of([pair])).row(0).runtime_us for pair in pairs]
    assert np.array_equal(whole.runtime_us, single)


def test_bad_options_and_rows():
    problem = GemmProblem.of(512, 512, 512, "bf16")
    config = KernelConfig(cta_m=128, cta_n=128)
    for options, part in (
        ({"datapath": "abacus"}, "datapath is 'abacus'"),
        ({"output": "twice"}, "output is 'twice'"),
        ({"lanes_m": 3}, "lanes_m is 3"),
        ({"issue_efficiency": 2}, "issue_efficiency is 2"),
        ({"nonsense": 1}, "nonsense"),
    ):
        with pytest.raises(InputError, match=part):
            predict(problem, config, **options)
    with pytest.raises(InputError, match="CUDA cores multiply fp32"):
        predict(problem, config, datapath="cuda_cores")
    with pytest.raises(InputError, match="warp tile of 2x128"):
        predict(
            GemmProblem.of(512, 512, 512, "fp32"),
            KernelConfig(cta_m=128, cta_n=128, mma_m=2),
            datapath="cuda_cores",
        )
