"""Names that profilers have shown for cuBLAS kernels, and what they say in our terms."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_model.bench.cublas_names import cells_of_names, parse_cublas_name, parse_sgemm_name
from gemm_model.core.errors import InputError

NAMES = {
    # tile, stages, cluster, schedule, raster, scheduler
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "128x256x64 stages=4 2x1 cooperative along_m static",
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_TNT": "256x128x64 stages=4 1x2 cooperative along_n static",
    "nvjet_tst_128x128_64x6_2x1_v_bz_TNT": "128x128x64 stages=6 1x2 pingpong along_n static",
    "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT": "8x64x64 stages=16 1x4 pingpong along_n split_k",
    "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT": "8x64x64 stages=16 1x2 pingpong along_n split_k",
    "nvjet_tst_512x8_64x3_1x2_h_bz_TNT": "8x512x64 stages=3 2x1 pingpong along_m static",
    "nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_NTN": "192x192x64 stages=3 1x2 cooperative along_n static",
    "nvjet_hsh_448x64_64x3_1x1_h_bz_coopA_TNN": "64x448x64 stages=3 1x1 cooperative along_m static",
    "nvjet_tst_176x128_64x5_4x2_h_bz_coopA_bias_TNN": "128x176x64 stages=5 2x4 cooperative along_m static",
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": "256x128x128 stages=4 1x2 cooperative along_n static",
    "nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_TNT": "16x64x64 stages=16 4x2 2cta along_m split_k",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_segment_k_off_"
    "kernel__5x_cublas": "64x128x64 stages= 1x1 static",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x256x128_cgasize2x1x1_stage3_gmmastage2_warpgrou"
    "psize2x1x1_tensor64x256x32_kernel": "256x128x128 stages=3 1x2 cooperative static",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x32x64_stage6_warpsize2x2x1_tensor16x8x16"
    "_kernel": "32x64x64 stages=6 1x1 static",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": "64x128x64 stages=4 1x1 static",
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x32_128x2_tn_align8": "32x16x128 stages=2 1x1 static",
    "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn"
    "_align8EEv": "64x256x32 stages=4 1x1 static",
}
UNKNOWN = (
    "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
    "nvjet_tst_h_bz_coopB_TNT",
    "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN",
    "",
)
SGEMM = {
    "ampere_sgemm_128x64_tn": "64 128 32 64 8 2",
    "ampere_sgemm_64x32_sliced1x4_tn": "32 64 16 16 8 2",
    "void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)": "128 256 64 64 8 4",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x64x8_stage3_warpsize2x2x1_ffma": "256 64 64 64 8 3",
}
"""Tile of our D, warp's tile, k tile and stages; block sizes of published profiles are 32 threads to a warp."""


@pytest.mark.parametrize(("name", "reading"), NAMES.items())
def test_a_name_says_what_runs(name, reading):
    form = "{cta_m}x{cta_n}x{cta_k} stages={stages} {cluster_m}x{cluster_n} {schedule} {raster} {scheduler}"
    assert form.format(**parse_cublas_name(name)).split() == reading.split()


@pytest.mark.parametrize("name", [*UNKNOWN, *SGEMM])
def test_an_unknown_name_is_refused_by_name(name):
    with pytest.raises(InputError, match="no tile is known from the cuBLAS kernel name"):
        parse_cublas_name(name)


def test_kernels_of_cuda_cores_tell_their_tiles_and_others_none():
    assert {name: " ".join(map(str, parse_sgemm_name(name).values())) for name in SGEMM} == SGEMM
    assert not any(map(parse_sgemm_name, (*UNKNOWN, *NAMES)))


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
