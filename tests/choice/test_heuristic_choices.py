"""What a convolution is to cuDNN, and what it offers for it."""

import pytest

import gemm_model as gm
from gemm_model import ConvProblem, load_gpu
from gemm_model.choice.heuristic_choices import sort_of, ways_of
from gemm_model.choice.selection import Ranker, describe, parse_description
from tests.cases import cases

H200 = load_gpu("h200")


def _ways(text, dtype="bf16"):
    return ways_of(gm.GemmProblem.of_conv(text, dtype), H200)


@pytest.mark.parametrize(*cases(__file__, "test_sorts_go_by_channels_groups_and_dilation"))
def test_sorts_go_by_channels_groups_and_dilation(text, sort):
    assert sort_of(ConvProblem.parse(text)) == sort


def test_what_it_picks_goes_by_the_sort():
    ranker = Ranker("h200", family="cudnn", options={"residual": "off"})
    wide, narrow, grouped = (
        ranker.heuristic_choice_of(gm.GemmProblem.of_conv(text)).time_us(20.0, "TENSOR")
        for text in (
            "wgrad n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1",
            "wgrad n=8 c=96 h=28 w=28 k=96 r=3 s=3 pad=1",
            "fprop n=8 c=192 h=28 w=28 k=192 r=3 s=3 pad=1 groups=4",
        )
    )
    assert 20.0 < wide < narrow < grouped
    assert ranker.heuristic_choice_of(gm.GemmProblem.of(512, 512, 512)) == ranker.heuristic_choice


def test_channels_that_fill_no_row_are_padded_in_every_matrix_that_has_them():
    # 3 of 8 channels, 16 filters: the image (2 x 16 pixels) and the weights (9 taps), not the output.
    padded = _ways("dgrad n=2 c=3 h=4 w=4 k=16 r=3 s=3 pad=1")["padded"].copies
    assert padded.kernels == 2
    assert padded.moved_bytes == pytest.approx(2 * (32 * (3 + 8) + 9 * 16 * (3 + 8)))
    # 16 channels, 12 of 16 filters: the weights and the output.
    padded = _ways("fprop n=2 c=16 h=4 w=4 k=12 r=3 s=3 pad=1")["padded"].copies
    assert padded.kernels == 2
    assert padded.moved_bytes == pytest.approx(2 * (32 * (12 + 16) + 9 * 16 * (12 + 16)))
    assert not _ways("fprop n=2 c=16 h=4 w=4 k=16 r=3 s=3 pad=1")


def test_few_channels_forward_go_padded_or_as_they_are_by_the_type():
    text = "fprop n=2 c=3 h=16 w=16 k=40 r=3 s=3 pad=1"
    ways = _ways(text)
    assert set(ways) == {"padded", "direct"}
    # 512 pixels are 4 tiles of 128 rows, 40 filters half of one of 128 columns; a k tile of 32 for each of 9
    # taps; one wave of 132 SMs. As it is: 40 filters in tiles of 32, 27 channels of all taps in tiles of 8.
    assert ways["padded"].work.operations == 2 * 128 * 64 * 9 * 32 * 132
    assert ways["direct"].work.operations == 2 * 512 * 64 * 32
    # 512 pixels of 3 and 40 channels, 27 x 40 weights of two bytes at 4.58 TB/s.
    assert ways["direct"].work.dram_us == pytest.approx(2 * (512 * 43 + 1080) / 4.58e6, rel=0.01)
    half = _ways(text, "fp16")
    assert set(half) == {"padded", "gathered"}
    # A thread loads one of 27 elements after the other, for 32 of the filters at a time.
    assert (half["gathered"].work.chain, half["gathered"].work.operations) == (27, 512 * 2 * 27)
    # Four channels come in one load.
    assert _ways(text.replace("c=3", "c=4"), "fp16")["gathered"].work.chain == 9


def test_few_channels_into_weights_lie_beside_each_other():
    (way,) = _ways("wgrad n=2 c=3 h=16 w=16 k=40 r=3 s=3 pad=1").values()
    # 40 filters in 64 rows, 9 taps of 8 channels in 128 columns, 512 pixels.
    assert (way.kernel, way.work.operations) == ("gradient", 2 * 64 * 128 * 512)
    # No copy where 8 channels fill a row.
    (way,) = _ways("wgrad n=2 c=8 h=16 w=16 k=40 r=3 s=3 pad=1").values()
    assert way.copies.kernels == 0


def test_patches_that_tile_an_image_are_folded_back():
    ways = _ways("dgrad n=2 c=3 h=32 w=32 k=64 r=8 s=8 stride=8")
    # 32 patches of 192 values: 2 x 32 x 8 x 8 x 3 values in all, 64 sums each, 192 x 64 weights.
    assert ways["folded"].copies.kernels == 3
    assert ways["folded"].copies.moved_bytes == 4 * (2 * 32 * 32 * 3 + 32 * 64 + 192 * 64)
    assert ways["folded"].work.operations == 2 * 128 * 128 * 64 * 132
    # Patches of 7 x 7 hold 147 values, which fill no row; others overlap.
    assert set(_ways("dgrad n=2 c=3 h=28 w=28 k=64 r=7 s=7 stride=7")) == {"padded"}
    assert set(_ways("dgrad n=2 c=3 h=32 w=32 k=64 r=8 s=8 stride=4")) == {"padded"}


def test_short_strided_gradients_may_go_to_an_earlier_kernel():
    # 4 places of 2 x 8 x 8 / 4 = 32 pixels: a tile of 64 for each 64 of 96 channels, 8 tiles in one wave of
    # 132 SMs; 48 filters fill 64 of a k tile's, 9 / 4 taps are met.
    text = "dgrad n=2 c=96 h=8 w=8 k=48 r=3 s=3 stride=2 pad=1"
    ways = _ways(text)
    assert list(ways) == ["plain", "strided"]
    assert ways["strided"].work.operations == 2 * 64 * 64 * 132 * 64 * 9 / 4
    ranker = Ranker("h200", family="cudnn", options={"residual": "off"})
    pick = ranker.heuristic_choice_of(gm.GemmProblem.of_conv(text))
    # 8.9 us and next to nothing, or 5 % more than Hopper's kernel.
    assert pick.way(7.0) == "plain"
    assert pick.time_us(7.0, "L2") == pytest.approx(1.05 * 7.0)
    assert pick.way(14.0) == "strided"
    assert 8.9 < pick.time_us(14.0, "L2") < 10.0
    assert not _ways("dgrad n=2 c=96 h=8 w=8 k=48 r=3 s=3 pad=1")


def test_kernels_of_sm80_are_no_earlier_ones_on_sm80():
    a100 = gm.load_gpu("a100_sxm_80gb")
    taps, strided = map(
        gm.GemmProblem.of_conv,
        ("fprop n=8 c=64 h=28 w=28 k=64 r=7 s=7 pad=3", "dgrad n=2 c=96 h=8 w=8 k=48 r=3 s=3 stride=2 pad=1"),
    )
    assert (dict(ways_of(taps, a100)), dict(ways_of(strided, a100))) == ({}, {})
    assert ways_of(taps, gm.load_gpu("gb300"))


def test_earlier_kernels_go_by_the_types_rate_and_bytes():
    text = "fprop n=2 c=64 h=8 w=8 k=96 r=7 s=7 pad=3"
    half, tf32 = (_ways(text, dtype)["earlier"].work for dtype in ("bf16", "tf32"))
    # 4096 and 2048 FLOP a clock of each of 132 SMs at 1.98 GHz; 2 and 4 bytes an element.
    assert half.peak_per_ns == pytest.approx(4096 * 132 * 1.98)
    assert tf32.peak_per_ns == pytest.approx(2048 * 132 * 1.98)
    assert tf32.dram_us == pytest.approx(2 * half.dram_us)
    padded = "fprop n=8 c=30 h=56 w=56 k=30 r=3 s=3 pad=1"
    # CUDA cores of 132 SMs start 128 FMAs a clock each at 1.98 GHz.
    depthwise = _ways("fprop n=2 c=40 h=16 w=16 k=40 r=5 s=5 pad=2 groups=40")["depthwise"].work
    assert depthwise.peak_per_ns == pytest.approx(2 * 128 * 132 * 1.98)
    moved = [_ways(padded, dtype)["padded"].copies.moved_bytes for dtype in ("bf16", "tf32")]
    assert moved[1] == pytest.approx(2 * moved[0])


def test_nothing_is_known_of_picks_of_a_library_that_is_told_its_kernel():
    strided = gm.GemmProblem.of_conv("dgrad n=4 c=64 h=32 w=32 k=64 r=2 s=2 stride=4")
    pick = Ranker("h200", family="cutlass").heuristic_choice_of(strided)
    assert pick.way(12.0) == ""
    assert pick.time_us(12.0, "L2") == 12.0


def test_depthwise_filters_take_a_tap_after_the_other():
    forward, image, weights = (
        _ways(f"{kind} n=2 c=40 h=16 w=16 k=40 r=5 s=5 stride=2 pad=2 groups=40")["depthwise"]
        for kind in ("fprop", "dgrad", "wgrad")
    )
    assert (forward.kernel, image.kernel) == ("depthwise_fprop", "depthwise_dgrad")
    # 25 taps of 2 x 8 x 8 pixels out of 2 x 16 x 16, 40 channels.
    assert forward.work.operations == weights.work.operations == 2 * 25 * 128 * 40
    assert (image.work.operations, image.work.chain) == (2 * 25 * 512 * 40, 25)
    assert forward.work.dram_us == pytest.approx(2 * 40 * (512 + 128 + 25) / 4.58e6, rel=0.01)


def test_k_tiles_of_32_are_offered_to_32_channels():
    """A k tile of 64 would be half outside each tap."""
    best = Ranker("h200", family="cudnn").rank(
        gm.GemmProblem.of_conv("fprop n=16 c=32 h=112 w=112 k=32 r=3 s=3 pad=1"), 1
    )
    assert best.best.candidate.config.cta_k == 32
    name = describe(best.best.candidate)
    assert "cta_k=32" in name
    assert parse_description(name)["cta_k"] == 32
