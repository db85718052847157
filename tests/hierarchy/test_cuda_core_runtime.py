"""The runtime model against queueing theory, hand counts and the measurements of the ladder."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import load_gpu
from gemm_model.bench.simt.ladder import LADDER, RUNGS, kernel_of
from gemm_model.bench.simt.measurements import read_measurements
from gemm_model.hierarchy.blocking import footprint
from gemm_model.hierarchy.cuda_core_runtime import runtime, throughput, tile_clocks
from gemm_model.hierarchy.ladder_report import by_rung, compared, predicted
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.model import runtime_parameters

H200 = load_gpu("h200")
MACHINE = machine_of(H200, datapath_of(H200, "cuda_cores", "fp32"))
PARAMETERS = runtime_parameters()
TABLE = Path(__file__).parents[2] / "data/measurements/h200/simt.csv.gz"
KERNELS = [(kernel.name, kernel.rung, kernel.blocking, kernel.resident_ctas) for kernel in LADDER]
POSITIVE = st.floats(0.1, 1e4)


def test_mean_value_analysis_by_the_balance_equations():
    # Two customers, one station with rate 1/b, delay with rate 1/w each: states 0, 1, 2 at the station.
    busy, wait = 3.0, 2.0
    weights = [1.0, 2 * busy / wait, 2 * (busy / wait) ** 2]
    expected = (weights[1] + weights[2]) / sum(weights) / busy
    assert throughput(busy, wait, 2) == pytest.approx(expected)


@given(busy=POSITIVE, wait=POSITIVE, customers=st.integers(1, 16))
def test_throughput_stays_under_both_bounds_and_grows(busy, wait, customers):
    rate = throughput(busy, wait, customers)
    assert rate <= min(1 / busy, customers / (busy + wait)) * (1 + 1e-9)
    assert throughput(busy, wait, customers + 1) >= rate * (1 - 1e-9)


@pytest.fixture(scope="module")
def joined():
    if not TABLE.is_file():
        pytest.skip("the measurements are not beside this checkout")
    return compared(read_measurements(TABLE), lambda shape: predicted(MACHINE, KERNELS, shape, PARAMETERS))


def test_predictions_of_every_kernel_and_shape(joined):
    assert joined.kernel.nunique() >= 24
    assert joined.error.abs().mean() < 0.03
    unseen = joined[~((joined.m == 4096) & (joined.n == 4096) & (joined.k == 4096))]
    assert unseen.error.abs().mean() < 0.03
    assert (joined.groupby("rung").error.agg(lambda errors: errors.abs().mean()) < 0.04).all()


def test_the_order_of_the_rungs(joined):
    rungs = by_rung(joined).set_index("rung")
    order = ["naive", "shared", "registers", "pipelined"]
    assert list(rungs.sort_values("best_tflops").index) == order
    assert list(rungs.sort_values("best_predicted").index) == order


def test_the_limiting_unit_is_the_one_that_the_counters_show(joined):
    counted = joined[joined.counted_limiter != ""]
    assert len(counted) == len(LADDER)
    assert (counted.limiter == counted.counted_limiter).mean() > 0.9
    for _, rung in counted.groupby("rung"):
        assert rung.limiter.mode()[0] == rung.counted_limiter.mode()[0]


@pytest.mark.parametrize("size", [4096, 8192])
def test_the_tile_that_the_model_prefers_reaches_85_percent_of_cublas(joined, size):
    measured = read_measurements(TABLE)
    cublas = measured.query(f"kernel == 'cublas' and m == k == {size}").tflops.max()
    cube = joined[(joined.m == size) & (joined.n == size) & (joined.k == size)]
    # A tile and its mirror image are equal to the model.
    preferred = cube[cube.predicted_tflops >= 0.999 * cube.predicted_tflops.max()]
    assert (preferred.tflops >= 0.85 * cublas).all()


def test_tiles_that_the_model_calls_too_small_are(joined):
    cube = joined[(joined.m == 4096) & (joined.n == 4096) & (joined.k == 4096)]
    starved = cube[cube.limiter == "smem"].tflops.max()
    fed = cube[(cube.limiter == "issue") & (cube.rung == "pipelined")].tflops.min()
    assert starved < fed


TILE = next(kernel.blocking for kernel in LADDER if kernel.name == "pipelined_128x128x8_t8x8_w4x8i_s3")


def test_a_power_cap_holds_large_products_at_the_published_rate_and_slows_no_dram():
    l4 = load_gpu("l4")
    free, capped = (machine_of(card, MACHINE.datapath) for card in (replace(l4, fp32_settled_share=None), l4))
    # Published: 10.7 TFLOP/s at 8192 cubed; the datasheet says 30.3.
    reached = [runtime(each, TILE, (8192,) * 3, 2, PARAMETERS).fraction_of_peak for each in (capped, free)]
    assert reached[0] == pytest.approx(0.35, abs=0.02)
    assert reached[1] > 0.6
    thin_us = [runtime(each, TILE, (8192, 8192, 8), 2, PARAMETERS).runtime_us for each in (free, capped)]
    assert thin_us[1] == pytest.approx(thin_us[0], rel=0.1)
    # 28 W at rest; 44 W for FMAs at 0.43 of the peak, at the lowest voltage; 80 pJ a byte of DRAM.
    for shape in ((8192,) * 3, (4096, 128, 4096)):
        found = runtime(capped, TILE, shape, 2, PARAMETERS, 64.0)
        dram_w = 80e-6 * found.dram_bytes / found.runtime_us
        assert 28.0 + 44.0 * found.busy / 0.43 + dram_w == pytest.approx(72.0, rel=0.01)


def test_turing_reads_64_bytes_of_shared_memory_a_clock():
    both = machine_of(load_gpu("t4"), MACHINE.datapath), MACHINE
    clk = [tile_clocks(each, TILE, (4096,) * 3, 2, PARAMETERS)["smem"] for each in both]
    assert clk[0] == 2.0 * clk[1]


def test_products_of_a_batch_fill_waves_together():
    one, many = (runtime(MACHINE, TILE, (128, 128, 999), 2, PARAMETERS, n).runtime_us for n in (1, 132))
    assert one <= many < 1.1 * one


def test_few_warps_cannot_fill_the_schedulers():
    # 3072 / 64 x 3072 / 128 tiles are 8.7 an SM: 4 + 4 + 1, and the lone one's 2 warps fill a quarter.
    kernel = next(k for k in LADDER if k.name == "pipelined_64x128x16_t8x16_w4x8i_s2")
    ragged = runtime(MACHINE, kernel.blocking, (3072, 3072, 3072), 4, PARAMETERS)
    even = runtime(MACHINE, kernel.blocking, (4096, 3072, 3072), 4, PARAMETERS)
    assert ragged.fraction_of_peak < 0.85 * even.fraction_of_peak


WARP = 32


def test_names_and_configurations_tell_kernels_apart():
    assert len({kernel.name for kernel in LADDER}) == len(LADDER) >= 24
    assert len({kernel.config for kernel in LADDER}) == len(LADDER)
    assert {kernel.rung for kernel in LADDER} == set(RUNGS)
    for kernel in LADDER:
        assert kernel_of(kernel.config) is kernel


def test_threads_cover_the_tile():
    for kernel in LADDER:
        assert kernel.threads * kernel.thread_m * kernel.thread_n == kernel.cta_m * kernel.cta_n
        assert kernel.threads == WARP * kernel.blocking.warps
        assert kernel.resident_ctas * kernel.threads <= 2048


def test_staged_kernels_fit_the_h200():
    gpu = load_gpu("h200")
    datapath = datapath_of(gpu, "cuda_cores", "fp32")
    for kernel in LADDER:
        taken = footprint(kernel.blocking, gpu, datapath)
        assert taken.threads == kernel.threads
        # Padding: 4 words for each row of a buffer (one row for each k).
        assert kernel.dynamic_smem_bytes <= taken.smem_bytes + 32 * kernel.stages * kernel.cta_k


def test_every_kernel_compiles(tmp_path, monkeypatch):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    from gemm_model.bench.kernel_cache import CACHE_VARIABLE
    from gemm_model.bench.simt.provider import compiled_path

    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:
        pytest.skip("NVRTC's library is not installed")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    for rung in RUNGS:
        kernel = next(kernel for kernel in LADDER if kernel.rung == rung)
        path = compiled_path(kernel, (9, 0))
        name, _, cubin = path.read_bytes().partition(b"\n")
        assert kernel.expression.partition("<")[0].encode() in name
        assert cubin.startswith(b"\x7fELF")
        assert compiled_path(kernel, (9, 0)) == path


def test_provider_takes_what_divides():
    pytest.importorskip("torch")
    pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    from gemm_model.bench.provider import UnsupportedError, load_provider
    from gemm_model.core.problem import GemmProblem

    provider = load_provider("simt")
    assert provider.unsupported(GemmProblem.of(512, 512, 512, "fp32"), (9, 0)) == ""
    assert "fp32 only" in provider.unsupported(GemmProblem.of(512, 512, 512, "bf16"), (9, 0))
    assert len(provider.configs(GemmProblem.of(512, 512, 512, "fp32"), (9, 0))) == len(LADDER)
    few = provider.configs(GemmProblem.of(96, 96, 32, "fp32"), (9, 0))
    assert 0 < len(few) < len(LADDER)
    assert all(96 % config.cta_m == 0 and 96 % config.cta_n == 0 for config in few)
    with pytest.raises(UnsupportedError, match="m is 100"):
        provider.prepare(GemmProblem.of(100, 128, 128, "fp32"), LADDER[-1].config, None)
