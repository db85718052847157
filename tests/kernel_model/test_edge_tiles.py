"""What loads bring beyond a plain tile, by hand: out-of-bounds fill, rows off boundaries, what arrives by multicast."""

from dataclasses import replace

import pytest

from gemm_model.kernel_model.alignment import further_pieces, row_alignment
from gemm_model.kernel_model.edge_tiles import crowding, drifted_apart, edge_fill
from tests.cases import cases
from tests.kernel_model.kernels import B200, found_of, kernel_of, pair_of_ctas, row, times_of
from tests.typed_numbers import numbers


def fill_of(sizes, **kernel):
    return edge_fill(kernel_of(row(sizes, **kernel)))


def test_a_tile_over_both_edges_is_filled_for_one_operand_after_the_other():
    # One tile of 128 x 128: 96 rows of A and 64 of B lie outside.
    assert fill_of((32, 64, 4096), cta_m=128, cta_n=128).bytes_per_wave == pytest.approx((96 + 64) * 4096 * 2)
    # 40 matrices of five rows of tiles: all tiles have 16 columns outside, a fifth 32 rows as well. CTAs of 26.4
    # matrices, or of both parts of 13.2, fill other boxes: of at most a half, half is gone with 12 beyond the first.
    for splits in (1.0, 2.0):
        batch = replace(row((288, 48, 4096), cta_m=64, cta_n=64), batch=40.0, split_k=splits)
        found, left = edge_fill(kernel_of(batch)), 1 - 0.5 * 25.4 / 37.4
        assert found.bytes_per_wave == pytest.approx(132 * (16 + 1 / 5 * 32) * 4096 * 2 / splits * left)


def test_the_readers_of_a_box_are_ctas_of_one_matrix():
    # Of 33 matrices four CTAs read each box of A; of one matrix 132 do; 96 rows of A outweigh 32 of B.
    batch = replace(row((32, 4 * 128, 4096), cta_m=128, cta_n=128), batch=33.0)
    assert edge_fill(kernel_of(batch)).readers == 4
    for m, n, readers in ((32, 132 * 128, 132), (32, 132 * 128 - 32, 132), (3 * 128, 132 * 128 - 32, 3)):
        assert fill_of((m, n, 4096), cta_m=128, cta_n=128).readers == readers


@pytest.mark.parametrize(*cases(__file__, "test_fill_arrives_in_boxes_by_multicast"))
def test_fill_arrives_in_boxes_by_multicast(m, cluster, ctas, rows):
    found = fill_of((m, ctas * 64, 4096), cta_m=64, cta_n=64, cluster_m=cluster[0], cluster_n=cluster[1])
    assert found.bytes_per_wave == pytest.approx(ctas * rows * 4096 * 2)
    assert found.hidden == (0.6 if cluster == (2, 2) else 0)


def test_each_cta_of_a_pair_is_filled_for_its_own_half_of_b():
    # 65 of 192 columns inside, so of the second of two columns of tiles 127 of 192 lie outside: in each CTA
    # 63.5 of 96 rows on average, of one byte, and none of them by multicast; every other tile has them.
    batch = pair_of_ctas(192, (74 * 128, 257, 4096))
    found = edge_fill(kernel_of(batch, gpu=B200))
    assert found.bytes_per_wave == pytest.approx(148 * 63.5 / 2 * 4096)
    assert found.hidden == 0
    # Of two pairs beside each other, A comes by multicast and B still does not.
    wide = replace(pair_of_ctas(192, (74 * 128, 257, 4096)), cluster_n=2.0)
    assert edge_fill(kernel_of(wide, gpu=B200)).hidden == 0


@pytest.mark.parametrize(("cluster", "further"), [((1, 1), 0.2), ((2, 1), 0.4), ((1, 2), 0.4)])
def test_beyond_half_of_the_sms_fill_takes_little_more_time(cluster, further):
    """Time of the device: of 33 SMs half of that of 66, which is 1 / (1 + further) of that of all 132."""
    kernel = kernel_of(row(cta_m=64, cta_n=64, cluster_m=cluster[0], cluster_n=cluster[1]))

    def device_time(ctas):
        return crowding(kernel)(ctas / kernel.cluster_size) * ctas / 132

    assert device_time(132.0) == pytest.approx(1)
    assert device_time(66.0) == pytest.approx(1 / (1 + further))
    assert device_time(33.0) == pytest.approx(0.5 / (1 + further))
    assert device_time(99.0) == pytest.approx((1 + further / 2) / (1 + further))


def test_the_sms_of_a_tpc_that_stay_in_step_wait_for_each_other():
    # Of a TPC's second SM 0.2 where producers drift apart, 0.8 in step; pairs of CTAs are pairs either way.
    kernel = kernel_of(row(cta_m=64, cta_n=64))
    apart, in_step = (crowding(kernel, share) for share in (0.0, 1.0))
    assert in_step(66.0) == pytest.approx(apart(66.0))
    assert in_step(132.0) == pytest.approx(1.8 / 1.2 * apart(132.0))
    pairs = kernel_of(row(cta_m=64, cta_n=64, cluster_n=2))
    assert crowding(pairs, 1.0)(66.0) == pytest.approx(1)


@pytest.mark.parametrize(("k", "waves", "left"), [(6400, 1, 0.9), (19200, 1, 0.85), (6400, 3, 0.85)])
def test_fill_gets_faster_as_producers_drift_apart(k, waves, left):
    # At most a fifth goes, half of that after 100 k tiles, of one tile or of several in turn.
    batch = row((32, waves * 132 * 64, k), cta_m=64, cta_n=64)
    resources = (replace(found_of(batch), in_step=share) for share in (0.0, 1.0))
    assert [drifted_apart(kernel_of(batch, resources=each)) for each in resources] == pytest.approx(
        [left, 1.0]
    )


def test_fill_in_clusters_that_share_both_operands_takes_longer():
    both = kernel_of(row(cta_m=64, cta_n=64, cluster_m=2, cluster_n=2))
    assert crowding(both)(30.0) == pytest.approx(1.5)


@pytest.mark.parametrize(("pitch", "pieces"), [(128, 0), (192, 0), (96, 1), (1040, 3), (1036, 3), (2080, 1)])
def test_rows_off_64_byte_boundaries_fall_into_further_pieces(pitch, pieces):
    assert further_pieces(float(pitch)) == pieces


@pytest.mark.parametrize(("pitch", "alignment"), [(8192, 128), (8256, 64), (8224, 32), (8208, 16), (9, 16)])
def test_rows_start_at_multiples_of_what_divides_their_pitch(pitch, alignment):
    assert row_alignment(float(pitch)) == alignment


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
