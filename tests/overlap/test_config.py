"""Builds, settings and the plan: what is accepted, and what shared memory it takes."""

from dataclasses import replace

import pytest

from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.overlap.config import KernelBuild, OverlapSetting, check_problem
from gemm_model.overlap.plan import plan_build
from tests.cases import cases

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


@pytest.mark.parametrize(*cases(__file__, "test_bad_build"))
def test_bad_build(changes, words):
    with pytest.raises(InputError, match=words):
        replace(BUILD, **changes)


@pytest.mark.parametrize(("sm_count", "clusters"), [(7, 14), (48, 80), (114, 224), (132, 256)])
def test_many_tiles_keep_nearly_all_sms_of_any_card_busy(sm_count, clusters):
    """Two CTAs on each SM of the largest multiple of 8 below all: none below 64 SMs, 64 of 114 before."""
    gpu = replace(load_gpu("h200"), sm_count=sm_count, resident_clusters={})
    assert plan_build(2**16, 72, 4096, "e4m3", "e5m2", gpu).clusters == clusters


@pytest.mark.parametrize(*cases(__file__, "test_bad_problem"))
def test_bad_problem(sizes, words):
    with pytest.raises(InputError, match=words):
        check_problem(*sizes, BUILD)
