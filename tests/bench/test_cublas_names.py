"""Names that profilers have shown for cuBLAS kernels, and what they say in our terms."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_model.bench.cublas_names import cells_of_names, parse_cublas_name, parse_sgemm_name
from gemm_model.core.errors import InputError

NAMES, UNKNOWN, SGEMM = yaml.safe_load(Path(__file__).with_name("cublas_names.yaml").read_text()).values()


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
