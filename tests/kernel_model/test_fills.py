"""What arrives in shared memory bounds Blackwell's loads, however it is multicast."""

from dataclasses import replace

import pytest

from tests.kernel_model.kernels import B200, row, times_of
from tests.typed_numbers import numbers

SIZES = (16384, 16384, 8192)
TILE_CLK = 400
"""Fixed clocks of a tile, of the numbers that are typed for tests."""


def loads_clk(fills_at, sizes=SIZES, dtype="fp8", out_dtype="fp8", cta_m=64, cta_n=64, cluster_n=1):
    """Clocks of all waves, which so slow a way into shared memory bounds."""
    gpu = replace(B200, smem_fill_bytes_per_clk_per_sm=fills_at)
    batch = row(
        sizes,
        dtype,
        out_dtype=out_dtype,
        cta_m=cta_m,
        cta_n=cta_n,
        cluster_m=2,
        cluster_n=cluster_n,
        schedule="2cta",
    )
    times = times_of(batch, numbers(), rate=16384.0, gpu=gpu)
    return times.waves_us * times.sm_clk_mhz


def test_loads_take_their_bytes_at_the_fill_rate():
    # 32,768 tiles of pairs, 74 at once: 443 waves. Each of 64 k tiles brings a CTA 64 rows of A and 32 of B,
    # of 128 bytes; 64 x 64 outputs of a byte leave at 32 a clock before the loads of all tiles but the first.
    expected_clk = 443 * 64 * 96 * 128 / 11 + 442 * (64 * 64 / 32 + TILE_CLK)
    assert loads_clk(11.0) == pytest.approx(expected_clk, rel=1e-3)


def test_multicast_saves_nothing_where_fills_bound():
    # 33 clusters of four at once: 16,384 of them come in 497 waves, 32,768 pairs in 443.
    alone, shared = (loads_clk(11.0, cluster_n=cluster_n) for cluster_n in (1, 2))
    assert shared / alone == pytest.approx(497 / 443, rel=1e-3)


def test_what_arrives_bounds_nothing_where_it_is_not_known():
    assert loads_clk(None) == pytest.approx(loads_clk(1024.0))


def test_rows_outside_the_matrix_arrive_as_those_inside():
    # 257 columns take as many tiles of 64 as 320 do.
    inside, outside = (loads_clk(11.0, (16384, n, 8192)) for n in (320, 257))
    assert outside == pytest.approx(inside, rel=1e-3)


def test_a_row_of_scale_factors_takes_what_its_number_says():
    # 8,192 tiles of pairs in 111 waves. Each of 32 k tiles brings a CTA 128 rows of A and 64 of B, of 128
    # bytes, and scale factors of 128 and 128 rows, which take 64 bytes each by the numbers of tests.
    found_clk = loads_clk(11.0, dtype="nvfp4", out_dtype="bf16", cta_m=128, cta_n=128)
    expected_clk = 111 * 32 * (192 * 128 + 256 * 64) / 11 + 110 * (128 * 128 * 2 / 32 + TILE_CLK)
    assert found_clk == pytest.approx(expected_clk, rel=1e-3)
