"""The plan of a layer: every problem gets a kernel that takes it, and all its clusters run at once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.overlap.config import check_problem
from gemm_model.overlap.plan import plan_build

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


@pytest.mark.parametrize(
    ("m", "k", "expected"),
    [
        # More tiles than SMs: 448 over 256 CTAs, 288 and 344 over 3 x 132 of them, 160 in halves.
        (28672, 4096, (1, 256, 2, 0)),
        (18432, 7168, (1, 396, 3, 0)),
        (22016, 4096, (1, 396, 3, 0)),
        (10240, 8192, (2, 160, 3, 0)),
        # Tiles for the SMs twice: halves; 80 and 64 of them leave room for quarters, three on an SM.
        (8192, 8192, (2, 128, 2, 0)),
        (6144, 4096, (2, 96, 2, 0)),
        (5120, 5120, (4, 80, 3, 0)),
        (4096, 4096, (4, 64, 3, 0)),
        # Long K on most SMs: one CTA each, with the whole ring.
        (4096, 14336, (2, 64, 1, 0)),
        # 48 clusters of four on 60 places; K of four tiles a CTA is enough, of three is not.
        (3072, 3072, (4, 48, 2, 0)),
        (2304, 2048, (4, 36, 2, 0)),
        (2304, 1536, (2, 36, 2, 800)),
        # Few tiles: 33 quarters need two CTAs on an SM; 24 are eighths where K is long, else lie alone.
        (2112, 7168, (4, 33, 2, 800)),
        (2112, 28672, (8, 33, 3, 0)),
        (1536, 7168, (8, 24, 2, 0)),
        (2560, 9728, (8, 40, 3, 0)),
        (2048, 7168, (4, 32, 2, 800)),
        (1536, 2048, (4, 24, 1, 0)),
        (512, 7168, (8, 8, 1, 0)),
    ],
)
def test_plans(m, k, expected):
    assert plan(m, k) == expected


def test_more_tokens_leave_room_for_fewer_ctas():
    assert plan(5120, 5120, n=64) == (2, 80, 2, 0)
    assert plan(8192, 8192, n=128)[2] == 1


def test_sizes_of_a_plan_must_be_positive():
    with pytest.raises(InputError, match="m, n and k must be at least 1, not 0, 16 and 64"):
        plan_build(0, 16, 64, "e4m3", "e4m3", H200)
