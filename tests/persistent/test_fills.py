"""What arrives in shared memory bounds Blackwell's loads, however it is multicast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemm_model import GemmProblem, KernelConfig, predict
from gemm_model.core.gpu import load_gpu

B200 = load_gpu("b200")
PROBLEM = GemmProblem.of(16384, 16384, 8192, "fp8")
# 64 x 64 outputs a CTA, in pairs: 65,536 CTA tiles take 64 rows of A and 32 of B each, of 8,192 bytes.
ARRIVING_BYTES = 65536 * (64 + 32) * 8192


def l2_us(gpu, cluster_n=1):
    config = KernelConfig(cta_m=64, cta_n=64, cluster_m=2, cluster_n=cluster_n, schedule="2cta")
    return predict(PROBLEM, config, gpu).details["l2_us"]


def fills_at(bytes_per_clk):
    return replace(B200, smem_fill_bytes_per_clk_per_sm=bytes_per_clk)


def test_loads_take_at_least_their_bytes_at_the_fill_rate():
    # 88 bytes a clock into each of 148 SMs at 1.3 GHz.
    alone_us = ARRIVING_BYTES / (88 * 148 * 1300)
    assert alone_us < l2_us(B200) < 1.5 * alone_us
    assert l2_us(fills_at(11.0)) - l2_us(fills_at(22.0)) == pytest.approx(4 * alone_us, rel=1e-6)
    # Beside them L2 writes half a GiB of outputs, 1 % of what arrives; what it takes from DRAM passes no SM.
    assert 8 * alone_us < l2_us(fills_at(11.0)) < 8.03 * alone_us


def test_multicast_saves_nothing_where_fills_bound():
    # Clusters of four leave 16 of the 148 SMs without work, and outputs are written by all.
    alone, shared = (l2_us(fills_at(11.0), cluster_n=cluster_n) for cluster_n in (1, 2))
    assert shared == pytest.approx(alone * 148 / 132, rel=0.005)
    unbound = fills_at(None)
    assert l2_us(unbound, cluster_n=2) < 0.8 * l2_us(unbound)
