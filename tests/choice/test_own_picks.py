"""What a convolution is to cuDNN, and what it offers for it."""

import pytest

import gemm_model as gm
from gemm_model.choice.own_picks import sort_of
from gemm_model.choice.selection import Ranker, describe, parse_description
from gemm_model.core.conv import ConvProblem


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("fprop n=8 c=96 h=28 w=28 k=256 r=3 s=3 pad=1", ""),
        ("wgrad n=8 c=96 h=28 w=28 k=256 r=3 s=3 pad=1", "narrow_wgrad"),
        ("wgrad n=8 c=64 h=28 w=28 k=48 r=3 s=3 pad=1", ""),
        ("fprop n=8 c=52 h=28 w=28 k=64 r=3 s=3 pad=1", "padded"),
        ("fprop n=8 c=256 h=28 w=28 k=256 r=3 s=3 pad=4 dilation=4", ""),
        ("fprop n=8 c=256 h=28 w=28 k=256 r=3 s=3 pad=12 dilation=12", "dilated"),
        # 48 channels a group; 8, of which a tile of 64 holds eight groups.
        ("dgrad n=8 c=192 h=28 w=28 k=192 r=3 s=3 pad=1 groups=4", "grouped"),
        ("dgrad n=8 c=256 h=28 w=28 k=256 r=3 s=3 pad=1 groups=32", "packed"),
    ],
)
def test_sorts_go_by_channels_groups_and_dilation(text, sort):
    assert sort_of(ConvProblem.parse(text)) == sort


def test_what_it_picks_goes_by_the_sort():
    ranker = Ranker("h200", family="cudnn")
    wide, narrow, grouped = (
        ranker.own_pick_of(gm.GemmProblem.of_conv(text)).share
        for text in (
            "wgrad n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1",
            "wgrad n=8 c=96 h=28 w=28 k=96 r=3 s=3 pad=1",
            "fprop n=8 c=192 h=28 w=28 k=192 r=3 s=3 pad=1 groups=4",
        )
    )
    assert 0.0 < wide < narrow < grouped
    assert ranker.own_pick_of(gm.GemmProblem.of(512, 512, 512)) == ranker.own_pick


def test_k_tiles_of_32_are_offered_to_32_channels():
    """A k tile of 64 would be half outside each tap."""
    best = Ranker("h200", family="cudnn").rank(
        gm.GemmProblem.of_conv("fprop n=16 c=32 h=112 w=112 k=32 r=3 s=3 pad=1"), 1
    )
    assert best.best.candidate.config.cta_k == 32
    name = describe(best.best.candidate)
    assert "cta_k=32" in name
    assert parse_description(name)["cta_k"] == 32
