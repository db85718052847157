from dataclasses import replace
from fnmatch import fnmatch

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.emit import emit
from tests.cases import cases

H200, B200 = load_gpu("h200"), load_gpu("b200_1300mhz")
PROBLEM = GemmProblem.of(4096, 4096, 4096)
PINGPONG = KernelConfig(cta_m=128, cta_n=192, cluster_m=2, schedule="pingpong", swizzle=4)
PAIR = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, schedule="2cta")


def test_quack_text_builds_the_config():
    text = emit("quack", PROBLEM, Candidate(config=PINGPONG, swap_ab=True), H200)
    config = eval(text, {"GemmConfig": dict})
    expected = {"tile_m": 128, "tile_n": 192, "pingpong": True, "cluster_m": 2, "swap_ab": True}
    assert config.items() >= (expected | {"max_swizzle_size": 4, "device_capacity": 9}).items()


def test_quack_tile_is_that_of_the_mma():
    config = eval(emit("quack", PROBLEM, Candidate(config=PAIR), B200), {"GemmConfig": dict})
    assert (config["tile_m"], config["device_capacity"]) == (256, 10)


@pytest.mark.slow
def test_quack_itself_takes_the_text():
    gemm_config = pytest.importorskip("quack.gemm_config")
    config = eval(emit("quack", PROBLEM, Candidate(config=PINGPONG), H200), vars(gemm_config))
    assert config == gemm_config.GemmConfig(
        tile_m=128, tile_n=192, pingpong=True, is_dynamic_persistent=False, cluster_m=2, max_swizzle_size=4
    )


def test_triton_text_builds_the_config():
    kernel = KernelConfig(cta_m=128, cta_n=256, stages=3, swizzle=8)
    config = eval(
        emit("triton", PROBLEM, Candidate(config=kernel), H200),
        {"triton": type("triton", (), {"Config": lambda meta, **kwargs: (meta, kwargs)})},
    )
    assert config == (
        {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8},
        {"num_warps": 8, "num_stages": 3},
    )


def test_cutlass_text_names_tile_cluster_schedule_and_order():
    text = emit("cutlass", PROBLEM, Candidate(config=PINGPONG), H200)
    for words in (
        *("cute::Shape<cute::_128, cute::_192, cute::_64>", "cute::Shape<cute::_2, cute::_1, cute::_1>"),
        *("KernelTmaWarpSpecializedPingpong>", "cutlass::epilogue::TmaWarpSpecialized>"),
        *("cutlass::arch::Sm90", "max_swizzle_size = 4"),
    ):
        assert words in text
    assert text.count("(") == text.count(")")
    assert text.count("<") == text.count(">")


def test_cutlass_pair_of_ctas_and_fast_accumulation():
    assert "KernelTmaWarpSpecialized2SmSm100" in emit("cutlass", PROBLEM, Candidate(config=PAIR), B200)
    fast = KernelConfig(cta_m=128, cta_n=128, fast_accum=True)
    text = emit("cutlass", GemmProblem.of(64, 64, 64, "fp8"), Candidate(config=fast), H200)
    assert "KernelTmaWarpSpecializedCooperativeFP8FastAccum" in text
    assert "cutlass::float_e4m3_t" in text


@pytest.mark.parametrize(*cases(__file__, "test_a_kernel_that_the_library_lacks_is_not_emitted"))
def test_a_kernel_that_the_library_lacks_is_not_emitted(target, kernel, words):
    with pytest.raises(InputError, match=words):
        emit(target, PROBLEM, Candidate(config=KernelConfig(**kernel)), H200)


def test_cutlass_tiles_of_64_rows_are_those_of_one_warpgroup():
    text = emit("cutlass", PROBLEM, Candidate(config=KernelConfig(cta_m=64, cta_n=128)), H200)
    assert "KernelTmaWarpSpecialized>" in text
    assert "cutlass::epilogue::TmaWarpSpecialized>" in text


@pytest.mark.parametrize(*cases(__file__, "test_cublas_text_is_the_pattern_of_a_measured_kernel_s_name"))
def test_cublas_text_is_the_pattern_of_a_measured_kernel_s_name(kernel, dtype, name):
    config = KernelConfig(**kernel, kernel="cublas")
    problem = GemmProblem.of(4096, 4096, 4096, dtype)
    pattern, _, splits = emit("cublas", problem, Candidate(config=config), H200).partition(" with ")
    assert fnmatch(name, pattern)
    assert splits == (f"SPLITK_NUM {config.split_k}" if config.split_k > 1 else "")
    other = replace(config, cluster_m=2, cluster_n=2)
    assert not fnmatch(name, emit("cublas", problem, Candidate(config=other), H200).partition(" with ")[0])
