"""The plan of a layer: every problem gets a kernel that takes it, and all its clusters run at once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.overlap.config import check_problem
from gemm_model.overlap.plan import plan_build
from tests.cases import cases

H200 = load_gpu("h200")


@given(
    m=st.integers(1, 8000).map(lambda x: 8 * x),
    n=st.integers(1, 128),
    k=st.integers(1, 2000).map(lambda x: 16 * x),
    types=st.sampled_from([("e4m3", "e5m2"), ("bf16", "bf16")]),
)
def test_every_plan_takes_its_problem(m, n, k, types):
    build = plan_build(m, n, k, *types, H200)
    check_problem(m, n, k, build)
    assert build.smem_bytes <= 227 * 1024
    if n <= 64:
        assert build.clusters <= H200.clusters_at_once(build.split_k) * build.ctas_per_sm
    assert build.clusters == math.ceil(m / 64) or build.split_k == 1


def plan(m, k, n=16, types=("e4m3", "e5m2")):
    build = plan_build(m, n, k, *types, H200)
    return build.split_k, build.clusters, build.ctas_per_sm, build.fill_delay_clocks


@pytest.mark.parametrize(*cases(__file__, "test_plans"))
def test_plans(m, k, expected):
    assert plan(m, k) == expected


def test_more_tokens_leave_room_for_fewer_ctas():
    assert plan(5120, 5120, n=64) == (2, 80, 2, 0)
    assert plan(8192, 8192, n=128)[2] == 1


def test_sizes_of_a_plan_must_be_positive():
    with pytest.raises(InputError, match="m, n and k must be at least 1, not 0, 16 and 64"):
        plan_build(0, 16, 64, "e4m3", "e4m3", H200)
