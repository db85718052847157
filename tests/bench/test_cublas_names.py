"""Names that profilers have shown for cuBLAS kernels, and what they say in our terms."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_model.bench.cublas_names import cells_of_names, parse_cublas_name
from gemm_model.core.errors import InputError

Reading = tuple[int, int, int, int, int, int, str, str, bool]

NAMES: dict[str, Reading] = {
    # cta m, n, k, stages, cluster m, n, schedule, raster, split
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": (
        128,
        256,
        64,
        4,
        2,
        1,
        "cooperative",
        "along_m",
        False,
    ),
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_TNT": (
        256,
        128,
        64,
        4,
        1,
        2,
        "cooperative",
        "along_n",
        False,
    ),
    "nvjet_tst_128x128_64x6_2x1_v_bz_TNT": (128, 128, 64, 6, 1, 2, "pingpong", "along_n", False),
    "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT": (8, 64, 64, 16, 1, 4, "pingpong", "along_n", True),
    "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT": (8, 64, 64, 16, 1, 2, "pingpong", "along_n", True),
    "nvjet_tst_512x8_64x3_1x2_h_bz_TNT": (8, 512, 64, 3, 2, 1, "pingpong", "along_m", False),
    "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_NTN": (192, 192, 64, 3, 1, 2, "cooperative", "along_n", False),
    "nvjet_hsh_448x64_64x3_1x1_h_bz_coopA_TNN": (64, 448, 64, 3, 1, 1, "cooperative", "along_m", False),
    "nvjet_tst_176x128_64x5_4x2_h_bz_coopA_bias_TNN": (
        128,
        176,
        64,
        5,
        2,
        4,
        "cooperative",
        "along_m",
        False,
    ),
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": (256, 128, 128, 4, 1, 2, "cooperative", "along_n", False),
    "nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT": (16, 64, 64, 16, 4, 2, "2cta", "along_m", True),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_segment_k_off_"
    "kernel__5x_cublas": (64, 128, 64, 0, 1, 1, "", "", False),
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x256x128_cgasize2x1x1_stage3_gmmastage2_"
    "warpgroupsize2x1x1_tensor64x256x32_kernel": (256, 128, 128, 3, 1, 2, "cooperative", "", False),
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x32x64_stage6_warpsize2x2x1_tensor16x8x16_kernel": (
        *(32, 64, 64, 6, 1, 1),
        *("", "", False),
    ),
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": (64, 128, 64, 4, 1, 1, "", "", False),
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x32_128x2_tn_align8": (
        *(32, 16, 128, 2, 1, 1),
        *("", "", False),
    ),
    "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8EEv": (
        *(64, 256, 32, 4, 1, 1),
        *("", "", False),
    ),
}

UNKNOWN = (
    "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
    "nvjet_tst_h_bz_coopB_TNT",
    "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN",
    "ampere_sgemm_128x64_tn",
    "",
)


@pytest.mark.parametrize(("name", "reading"), NAMES.items())
def test_a_name_says_what_runs(name, reading):
    found = parse_cublas_name(name)
    extents = (found.cta_m, found.cta_n, found.cta_k, found.stages, found.cluster_m, found.cluster_n)
    assert (*extents, found.schedule, found.raster, found.split) == reading


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_refused_by_name(name):
    with pytest.raises(InputError, match="no tile is known from the cuBLAS kernel name"):
        parse_cublas_name(name)


def test_a_call_is_described_by_its_first_kernel_with_a_tile():
    names = ["nvjet_tst_64x16_64x16_2x1_v_bz_splitK_TNT", "cublasLt::splitKreduce_kernel<32, 16>"]
    expected: dict[str, Any] = {
        **{"cta_m": 16, "cta_n": 64, "mma_m": 16, "mma_n": 64, "cta_k": 64, "stages": 16},
        **{"cluster_m": 1, "cluster_n": 2, "schedule": "pingpong", "raster": "along_n"},
        "scheduler": "split_k",
    }
    assert cells_of_names(names) == expected
    assert cells_of_names(names[1:]) == {
        "detail": "no tile is known from the cuBLAS kernel name 'cublasLt::splitKreduce_kernel<32, 16>'"
    }
