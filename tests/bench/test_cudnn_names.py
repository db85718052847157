"""What names and grids of cuDNN's kernels say of their tiles."""

import pytest

from gemm_model.bench.cudnn_names import conv_cells

NAME = (
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}_warpgroupsize{}_g1_"
    "execute_segment_k_{}_kernel__5x_cudnn"
)


@pytest.mark.parametrize(
    ("tile", "groups", "shares", "grid", "expected"),
    [
        # 25,088 pixels are 196 tiles, dealt to 30 clusters of four.
        ("128x128x64", "1x1x1", "off", "(30, 4, 1)", (128, 128, 4, "pingpong", 1, "static")),
        ("256x128x64", "2x1x1", "off", "(98, 1, 1)", (256, 128, 1, "cooperative", 1, "static")),
        ("128x128x64", "1x1x1", "on", "(60, 2, 1)", (128, 128, 2, "pingpong", 1, "stream_k")),
    ],
)
def test_names_tell_tiles_and_how_warpgroups_share_them(tile, groups, shares, grid, expected):
    cells = conv_cells(NAME.format(tile, groups, shares), grid, "(384, 1, 1)")
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == expected


def test_ctas_beyond_the_tiles_are_no_parts_of_k():
    # 48 columns of a weight gradient of 2,304 x 48 are one tile of 64; clusters of four along them leave three
    # of four CTAs idle.
    cells = conv_cells(NAME.format("64x64x64", "1x1x1", "off"), "(52, 1, 1)", "(384, 1, 1)")
    assert (cells["split_k"], cells["scheduler"]) == (1, "static")


def test_small_kernels_of_segments_are_no_others():
    name = NAME.format("128x64x64", "1x1x1", "on")
    for names in (f"init_device_workspace_kernel + {name}", f"{name} + sm90_xmma_wgrad_split_k_kernel"):
        assert conv_cells(names, "(108, 1, 1)", "(384, 1, 1)")["scheduler"] == "stream_k"


def test_a_call_that_pads_its_images_has_no_tile():
    name = NAME.format("128x64x64", "1x1x1", "off")
    for names in (f"nhwcAddPaddingKernel + {name}", f"{name} + nhwcAddPaddingKernel", f"{name} + {name}"):
        assert conv_cells(names, "(108, 1, 1)", "(384, 1, 1)") == {}


def test_kernels_of_strided_data_gradients_leave_k_whole():
    name = (
        "sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
        "warpgroupsize1x1x1_g1_strided_execute_kernel__5x_cudnn"
    )
    cells = conv_cells(name, "(60, 2, 1)", "(384, 1, 1)")
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == (128, 128, 2, "pingpong", 1, "static")


def test_an_unknown_kernel_has_no_tile():
    assert conv_cells("conv2d_c1_k1_nhwc_specialized", "(8, 8, 8)", "(128, 1, 1)") == {}
