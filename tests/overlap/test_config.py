"""Builds, settings and the plan: what is accepted, and what shared memory it takes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model.errors import InputError
from gemm_model.overlap.config import (
    SMEM_PER_CTA,
    TILE_M,
    KernelBuild,
    OverlapSetting,
    check_problem,
    plan_build,
)

BUILD = KernelBuild(a_type="e4m3", b_type="e5m2", tile_n=16, split_k=2, stages=10, clusters=128)


def test_shared_memory_by_hand():
    # 10 stages of (64 + 16) x 128 bytes, 16 x 64 bf16 outputs, and for each of two CTAs one group of eight
    # columns with 128 threads x 16 bytes from either CTA.
    assert BUILD.smem_bytes == 10 * 10240 + 2048 + 2 * 128 * 16 + 1024
    assert BUILD.ctas_per_sm == 2
    assert replace(BUILD, stages=20).ctas_per_sm == 1
    assert BUILD.ctas == 256


def test_weights_under_way_by_hand():
    # 256 CTAs with 8 KiB tiles: 6 MiB are three tiles each; 2 MiB at 2500 bytes per clock are 839 clocks.
    assert BUILD.fill_window == 3
    assert BUILD.prefetch_interval_clocks == 839
    assert replace(BUILD, clusters=1, stages=4).fill_window == 4


@pytest.mark.parametrize("value", [-0.5, 1.01, 2, float("nan")])
def test_ratio_outside_the_range(value):
    with pytest.raises(InputError, match="overlap_ratio must be -1 or lie between 0 and 1"):
        OverlapSetting(overlap_ratio=value, prefetch_ratio=0)
    with pytest.raises(InputError, match="prefetch_ratio must be -1 or lie between 0 and 1"):
        OverlapSetting(overlap_ratio=0, prefetch_ratio=value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a_type": "fp4"}, "a_type must be one of e4m3, e5m2, bf16"),
        ({"a_type": "bf16"}, "must both be fp8 or both be bf16"),
        ({"tile_n": 12}, "tile_n must be a multiple of 8"),
        ({"tile_n": 136}, "tile_n must be a multiple of 8"),
        ({"split_k": 3}, "split_k must be one of"),
        ({"stages": 1}, "stages must be at least 2"),
        ({"stages": 23}, "of shared memory"),
        ({"clusters": 0}, "clusters must be at least 1"),
        ({"fill_delay_clocks": -1}, "fill_delay_clocks must be at least 0"),
    ],
)
def test_bad_build(changes, words):
    with pytest.raises(InputError, match=words):
        replace(BUILD, **changes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 16, 64), "m must be at least 1"),
        ((64, 129, 64), "n must be at most 128"),
        ((64, 17, 64), "more than the 16 columns"),
        ((60, 16, 64), "m must be a multiple of 8"),
        ((64, 16, 72), "k must be a multiple of 16"),
        ((8200, 16, 64), "needs 129 clusters"),
    ],
)
def test_bad_problem(sizes, words):
    with pytest.raises(InputError, match=words):
        check_problem(*sizes, BUILD)


@given(
    m=st.integers(1, 8000).map(lambda x: 8 * x),
    n=st.integers(1, 128),
    k=st.integers(1, 2000).map(lambda x: 16 * x),
    types=st.sampled_from([("e4m3", "e5m2"), ("bf16", "bf16")]),
)
def test_every_plan_takes_its_problem(m, n, k, types):
    build = plan_build(m, n, k, *types)
    check_problem(m, n, k, build)
    assert build.smem_bytes <= SMEM_PER_CTA
    # All CTAs of a plan run at once, unless a split forces one cluster per tile.
    assert build.ctas <= 132 * max(build.ctas_per_sm, 1) * 2 or build.clusters == math.ceil(m / TILE_M)


def test_measured_shapes_get_their_measured_builds():
    found = {
        (m, k): (b.split_k, b.stages, b.clusters, b.fill_delay_clocks)
        for m, k in ((8192, 8192), (4096, 14336), (28672, 4096), (2048, 7168), (10240, 8192), (24576, 1536))
        for b in [plan_build(m, 16, k, "e4m3", "e5m2")]
    }
    assert found == {
        (8192, 8192): (2, 10, 128, 0),
        (4096, 14336): (2, 20, 64, 0),
        (28672, 4096): (1, 10, 256, 0),
        (2048, 7168): (4, 10, 32, 800),
        (10240, 8192): (2, 6, 160, 0),
        (24576, 1536): (1, 7, 384, 0),
    }
