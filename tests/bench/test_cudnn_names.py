"""What names and grids of cuDNN's kernels say of their tiles."""

import pytest

from gemm_model.bench.cudnn_names import conv_cells
from gemm_model.core.problem import GemmProblem

NAME = (
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}_warpgroupsize{}_g1_"
    "execute_segment_k_{}_kernel__5x_cudnn"
)
PROBLEM = GemmProblem.of_conv("fprop n=32 c=128 h=28 w=28 k=128 r=3 s=3 pad=1")


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
    cells = conv_cells(PROBLEM, NAME.format(tile, groups, shares), grid, "(384, 1, 1)")
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == expected


def test_several_ctas_for_a_tile_are_parts_of_k():
    gradient = GemmProblem.of_conv("wgrad n=32 c=128 h=28 w=28 k=128 r=3 s=3 pad=1")
    # 128 x 1152 outputs are 18 tiles of 128 x 64: 108 CTAs are six for each.
    name = NAME.format("128x64x64", "1x1x1", "off")
    cells = conv_cells(gradient, f"init_device_workspace_kernel + {name}", "(108, 1, 1)", "(384, 1, 1)")
    assert cells["split_k"] == 6
    # The last kernel adds up parts: its grid says nothing of the tiles.
    assert conv_cells(gradient, f"{name} + reduce", "(108, 1, 1)", "(128, 1, 1)")["split_k"] == 1


def test_kernels_of_strided_data_gradients_leave_k_whole():
    gradient = GemmProblem.of_conv("dgrad n=4 c=512 h=14 w=14 k=1024 r=1 s=1 stride=2")
    name = (
        "sm90_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_"
        "warpgroupsize1x1x1_g1_strided_execute_kernel__5x_cudnn"
    )
    # 196 pixels at each of four places are 32 tiles; 120 CTAs are no parts of K.
    cells = conv_cells(gradient, name, "(60, 2, 1)", "(384, 1, 1)")
    names = ("cta_m", "cta_n", "cluster_m", "schedule", "split_k", "scheduler")
    assert tuple(cells[name] for name in names) == (128, 128, 2, "pingpong", 1, "static")


def test_an_unknown_kernel_has_no_tile():
    assert conv_cells(PROBLEM, "conv2d_c1_k1_nhwc_specialized", "(8, 8, 8)", "(128, 1, 1)") == {}
