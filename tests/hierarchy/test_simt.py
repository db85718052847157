"""The ladder and its provider, as far as they go without a GPU."""

import pytest

from gemm_model import InputError, KernelConfig, load_gpu
from gemm_model.bench.simt.ladder import LADDER, RUNGS, SimtKernel, kernel_of
from gemm_model.hierarchy.blocking import footprint
from gemm_model.hierarchy.levels import datapath_of

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


def test_template_arguments():
    kernel = next(k for k in LADDER if k.name == "pipelined_128x256x32_t8x16_w4x8i_s2")
    assert kernel.expression == "pipelined<128, 256, 32, 8, 16, 4, 4, 2, 1, true>"
    naive = next(k for k in LADDER if k.name == "naive_32x32_t1x1_w4x8")
    assert naive.expression == "naive<32, 32, 4>"


def test_bad_kernels_are_refused():
    with pytest.raises(InputError, match="rung is 'magic'"):
        SimtKernel(rung="magic", cta_m=32, cta_n=32)
    with pytest.raises(InputError, match="cta_n is 20; expected a multiple of warp_n, 8"):
        SimtKernel(rung="naive", cta_m=32, cta_n=20)
    with pytest.raises(InputError, match="no kernel with CTA tile 128x128x0"):
        kernel_of(KernelConfig(cta_m=128, cta_n=128))


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
