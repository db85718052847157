"""What of the further libraries' providers can be seen without a GPU."""

import os
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, KernelConfig
from gemm_model.bench.cutlass import build
from gemm_model.bench.provider import CompileError, LibraryChoice, UnsupportedError
from gemm_model.bench.rows import Row, row_from_columns
from gemm_model.errors import MissingExtraError

HOPPER = (9, 0)
BF16 = GemmProblem.of(256, 512, 1024, "bf16")
FP8 = GemmProblem.of(256, 512, 1024, "fp8")


def test_a_library_choice_survives_its_table():
    row = Row(kernel="cublaslt", problem=BF16, config=LibraryChoice(rank=0))
    assert row.columns()["heuristic_rank"] == 0
    assert row_from_columns(row.columns()) == row
    as_text = {name: str(value) for name, value in row.columns().items()}
    measured = as_text | {"cta_m": "128", "cta_n": "256"}
    assert row_from_columns(measured) == row


def test_scheduler_and_warps_survive_their_table():
    config = KernelConfig(cta_m=128, cta_n=64, kernel="cutlass", scheduler="split_k", split_k=4, warps=12)
    row = Row(kernel="cutlass", problem=BF16, config=config)
    assert row_from_columns({name: str(value) for name, value in row.columns().items()}) == row


def test_cutlass_macros_name_the_kernel():
    plain = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, kernel="cutlass")
    assert build.macros(BF16, plain) == (
        "-DGEMM_IN_TYPE=cutlass::bfloat16_t",
        "-DGEMM_OUT_TYPE=cutlass::bfloat16_t",
        *("-DGEMM_CTA_M=128", "-DGEMM_CTA_N=256", "-DGEMM_CTA_K=64"),
        *("-DGEMM_CLUSTER_M=2", "-DGEMM_CLUSTER_N=1"),
        "-DGEMM_MAINLOOP=cutlass::gemm::KernelTmaWarpSpecializedCooperative",
        "-DGEMM_EPILOGUE=cutlass::epilogue::TmaWarpSpecializedCooperative",
        "-DGEMM_SCHEDULER=cutlass::gemm::PersistentScheduler",
        "-DGEMM_SPLITS=0",
    )
    fast = KernelConfig(cta_m=64, cta_n=128, schedule="pingpong", fast_accum=True, scheduler="stream_k")
    assert build.macros(FP8, fast)[4:] == (
        "-DGEMM_CTA_K=128",
        *("-DGEMM_CLUSTER_M=1", "-DGEMM_CLUSTER_N=1"),
        "-DGEMM_MAINLOOP=cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum",
        "-DGEMM_EPILOGUE=cutlass::epilogue::TmaWarpSpecialized",
        "-DGEMM_SCHEDULER=cutlass::gemm::StreamKScheduler",
        "-DGEMM_SPLITS=1",
    )


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A compiler and headers that only look like ones; the compiler counts its calls and refuses CTA_N=8."""
    include = tmp_path / "site" / "cutlass_library" / "source" / "include" / "cutlass"
    include.mkdir(parents=True)
    (include / "version.h").write_text("#define CUTLASS_MAJOR 4\n")
    (tmp_path / "site" / "cutlass_library" / "__init__.py").touch()
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo 13.0; exit; }\n'
        f"echo call >> {tmp_path}/calls\n"
        'case "$*" in *CTA_N=8\\ *) echo "kernel.cu(7): error: no such tile" >&2; exit 1;; esac\n'
        'while [ "$1" != -o ]; do shift; done; echo compiled > "$2"\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GEMM_MODEL_CACHE_DIR", str(tmp_path / "cache"))
    build._version.cache_clear()
    build._digest.cache_clear()
    return tmp_path


def test_a_cutlass_kernel_is_compiled_once(toolkit):
    config = KernelConfig(cta_m=128, cta_n=256, kernel="cutlass")
    first = build.build(BF16, config)
    assert first.parent == toolkit / "cache" / "cutlass"
    assert first.read_text() == "compiled\n"
    assert build.build(BF16, config) == first
    assert build.build(FP8, config) != first
    assert (toolkit / "calls").read_text().count("call") == 2


def test_what_nvcc_says_is_said(toolkit):
    with pytest.raises(CompileError, match=r"nvcc: kernel\.cu\(7\): error: no such tile"):
        build.build(BF16, KernelConfig(cta_m=128, cta_n=8, kernel="cutlass"))
    assert not list((toolkit / "cache" / "cutlass").glob("*.so"))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtraError, match="nvcc"):
        build.compiler()


def test_the_triton_kernel_compiles_for_hopper_with_and_without_specialized_warps():
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    from gemm_model.bench.triton import TritonProvider
    from gemm_model.bench.triton_kernels import compiled

    provider = TritonProvider()
    plain = KernelConfig(cta_m=128, cta_n=128, cta_k=64, stages=3, warps=4, kernel="triton")
    kernel = compiled(provider.kernel_key(BF16, plain), HOPPER)
    assert kernel.metadata.num_warps == 4
    # three stages of 256 rows of 128 bytes and the output tile, and barriers
    assert 131072 <= kernel.metadata.shared < 131072 + 2048
    with pytest.raises(UnsupportedError, match="expected fast_accum 1"):  # as a row would say what never runs
        provider.kernel_key(FP8, replace(plain, cta_k=128))
    provider.kernel_key(FP8, replace(plain, cta_k=128, fast_accum=True))
    # whether the warps specialize is the compiler's own affair: a kernel or a reason
    specialized = KernelConfig(cta_m=128, cta_n=128, cta_k=64, stages=3, warps=12, kernel="triton")
    try:
        assert compiled(provider.kernel_key(BF16, specialized), HOPPER).metadata.num_warps == 12
    except CompileError as error:
        assert str(error)


def test_triton_offers_what_fits_into_shared_memory():
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    from gemm_model.bench.triton import TritonProvider

    configs = TritonProvider().configs(BF16, HOPPER)
    largest = {
        config.stages for config in configs if (config.cta_m, config.cta_n, config.cta_k) == (128, 256, 64)
    }
    # 2 x 48 KB + 64 KB and 3 x 48 KB + 64 KB fit into 227 KB, 4 x 48 KB + 64 KB do not
    assert largest == {2, 3}
    assert len(configs) == len(set(configs))
