"""The plan of a layer: every problem gets a kernel that takes it, and all its clusters run at once."""

import math

from hypothesis import given
from hypothesis import strategies as st

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
