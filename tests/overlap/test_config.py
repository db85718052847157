"""Builds, settings and the plan: what is accepted, and what shared memory it takes."""

from dataclasses import replace

import pytest

from gemm_model import InputError, load_gpu
from gemm_model.overlap.config import KernelBuild, OverlapSetting
from gemm_model.overlap.plan import plan_build

BUILD = KernelBuild(a_type="e4m3", b_type="e5m2", tile_n=16, split_k=2, stages=10, clusters=128)


@pytest.mark.parametrize("value", [-0.5, 1.01, 2, float("nan")])
def test_ratio_outside_the_range(value):
    with pytest.raises(InputError, match="overlap_ratio must be -1 or lie between 0 and 1"):
        OverlapSetting(overlap_ratio=value, prefetch_ratio=0)
    with pytest.raises(InputError, match="prefetch_ratio must be -1 or lie between 0 and 1"):
        OverlapSetting(overlap_ratio=0, prefetch_ratio=value)


@pytest.mark.parametrize(("sm_count", "clusters"), [(7, 14), (48, 80), (114, 224), (132, 256)])
def test_many_tiles_keep_nearly_all_sms_of_any_card_busy(sm_count, clusters):
    """Two CTAs on each SM of the largest multiple of 8 below all: none below 64 SMs, 64 of 114 before."""
    gpu = replace(load_gpu("h200"), sm_count=sm_count, resident_clusters={})
    assert plan_build(2**16, 72, 4096, "e4m3", "e5m2", gpu).clusters == clusters
