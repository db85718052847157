"""Names that profilers have shown for kernels of cuDNN and cuBLAS, and what they say in our terms."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_model.bench.cublas_names import cells_of_names, parse_cublas_name, parse_sgemm_name
from gemm_model.bench.cudnn_names import conv_cells
from gemm_model.core.conv import ConvProblem
from gemm_model.errors import InputError
from tests.cases import calls, cases

test_calls = calls(__file__)

NAME = (
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}_warpgroupsize{}_g1_"
    "execute_segment_k_{}_kernel__5x_cudnn"
)


CONV = ConvProblem.parse("fprop n=32 c=128 h=28 w=28 k=128 r=3 s=3 pad=1")
BLOCK = "(384, 1, 1)"


@pytest.mark.parametrize(*cases(__file__, "test_names_tell_tiles_and_how_warpgroups_share_them"))
def test_names_tell_tiles_and_how_warpgroups_share_them(tile, groups, shares, grid, expected):
    cells = conv_cells(CONV, NAME.format(tile, groups, shares), grid, BLOCK)
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == expected


def test_ctas_beyond_the_tiles_are_no_parts_of_k():
    # 784 pixels are 13 tiles of 64; in clusters of four along 48 filters three of four CTAs are idle.
    conv = ConvProblem.parse("fprop n=16 c=192 h=7 w=7 k=48 r=3 s=3 pad=1")
    cells = conv_cells(conv, NAME.format("64x64x64", "1x1x1", "off"), "(52, 1, 1)", BLOCK)
    assert (cells["split_k"], cells["scheduler"]) == (1, "static")


@pytest.mark.parametrize(*cases(__file__, "test_segments_of_k_are_as_many_as_a_tile_has_ctas"))
def test_segments_of_k_are_as_many_as_a_tile_has_ctas(sizes, grid, block, expected):
    gradient = ConvProblem.parse(f"wgrad {sizes}")
    cells = conv_cells(gradient, NAME.format("64x64x64", "1x1x1", "on"), grid, block)
    assert (cells["split_k"], cells["scheduler"]) == expected


def test_small_kernels_of_segments_are_no_others():
    name = NAME.format("128x64x64", "1x1x1", "on")
    for names in (f"init_device_workspace_kernel + {name}", f"{name} + sm90_xmma_wgrad_split_k_kernel"):
        assert conv_cells(CONV, names, "(108, 1, 1)", BLOCK)["scheduler"] == "stream_k"


def test_a_call_that_pads_its_images_has_no_tile():
    name = NAME.format("128x64x64", "1x1x1", "off")
    for names in (f"nhwcAddPaddingKernel + {name}", f"{name} + {name}"):
        assert conv_cells(CONV, names, "(108, 1, 1)", BLOCK) == {}


def test_a_tile_holds_as_many_groups_as_its_name_says():
    name = NAME.format("64x64x64", "1x1x1", "off").replace("_g1_", "_g4_")
    # Four groups of 16 channels fill 64; those of 32 are two.
    sixteen, thirty_two = (
        ConvProblem.parse(f"fprop n=32 c={32 * each} h=28 w=28 k={32 * each} r=3 s=3 pad=1 groups=32")
        for each in (16, 32)
    )
    assert conv_cells(sixteen, name, "(108, 1, 1)", BLOCK)["cta_n"] == 64
    for other in (CONV, thirty_two):
        assert conv_cells(other, name, "(108, 1, 1)", BLOCK) == {}


def test_kernels_of_strided_data_gradients_leave_k_whole():
    name = (
        "sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
        "warpgroupsize1x1x1_g1_strided_execute_kernel__5x_cudnn"
    )
    cells = conv_cells(CONV, name, "(60, 2, 1)", BLOCK)
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == (128, 128, 2, "pingpong", 1, "static")


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
