"""Bytes that a kernel moves, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from gemm_model.kernel_model.kernel import geometry_of, kernel_on
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.traffic import merged_share, traffic
from gemm_model.kernels.registry import family_of
from tests.cases import cases
from tests.kernel_model.kernels import B200, H200, pair_of_ctas, row, schedule_of
from tests.typed_numbers import numbers

ALONE = numbers().without(["coalescing"])
EVERY = numbers({"coalescing.share": 1.0, "coalescing.loss_per_ms": 0.0})
CUBE_OUTPUT = 4096 * 4096 * 2


def moved(batch, known=None, gpu=H200, *, family="quack", regime="burst", l2="cold"):
    shape = geometry_of(batch, 4096.0, gpu, family_of(family, gpu))
    return traffic(kernel_on(shape, gpu, known or numbers(), regime=regime, l2=l2))


def test_one_wave_reads_each_operand_once_from_dram():
    found = moved(row((1024, 1024, 1024), cta_m=128, cta_n=128))
    assert found.dram_read_bytes == pytest.approx(2 * 1024 * 1024 * 2)
    assert found.dram_write_bytes == 1024 * 1024 * 2
    assert found.dram_bytes == pytest.approx(3 * 1024 * 1024 * 2)


def test_what_the_kernel_before_wrote_of_a_is_found_in_l2():
    gpu = replace(H200, l2_unwritten_share=0.4)  # 24 of 60 MiB
    # A of 24 MiB: half of it is there. B is not, so that first loads wait as ever.
    large = row((12288, 512, 1024), cta_m=128, cta_n=256)
    cold, written = (moved(large, gpu=gpu, regime="graph", l2=state) for state in ("cold", "written"))
    assert cold.dram_read_bytes - written.dram_read_bytes == pytest.approx(12 * 2**20)
    assert written.from_dram == cold.from_dram == 1.0
    # Of 8 MiB all but 1/82.
    small = row((4096, 512, 1024), cta_m=128, cta_n=256)
    cold, written = (moved(small, gpu=gpu, regime="graph", l2=state) for state in ("cold", "written"))
    assert cold.dram_read_bytes - written.dram_read_bytes == pytest.approx(8 * 2**20 * 81 / 82)
    # Where no counter gave what L2 holds back, nothing is counted on.
    cold, written = (moved(small, regime="graph", l2=state) for state in ("cold", "written"))
    assert written.dram_read_bytes == cold.dram_read_bytes


def test_l2_holds_back_outputs_until_later_bytes_drive_them_out():
    gpu = replace(H200, l2_unwritten_share=0.4)  # 24 of 60 MiB
    # 8192 x 4096 sums of two bytes: 64 MiB, beside 12 MiB of operands, 1.5 of them again. The last 24 MiB stay.
    # Outputs come with the ends of 2,048 tiles, 132 at once: half of 132 are under way while 75 of 77.5 MiB pass.
    large = row((8192, 4096, 512), cta_m=128, cta_n=128)
    assert moved(large, gpu=gpu).dram_write_bytes == pytest.approx(64 * 2**20 * (1 - 24 / 75), rel=1e-3)
    assert moved(large, gpu=gpu, regime="graph").dram_write_bytes == 64 * 2**20
    # A profiler's own bytes go like panels, of which L2 keeps 45 MiB.
    left = moved(large, gpu=gpu, regime="counters").dram_write_bytes - moved(large, gpu=gpu).dram_write_bytes
    assert left == pytest.approx(2.65e6 * (1 - 1 / (1 + (77.5 / 45) ** 8)), rel=1e-3)
    assert moved(row((1024, 1024, 1024), cta_m=128, cta_n=128), gpu=gpu).dram_write_bytes < 1.0


def test_a_warm_l2_holds_what_fits_half_of_it():
    # 6 MiB of 30 MiB: each half of 60 keeps a copy.
    found = moved(row((1024, 1024, 1024), cta_m=128, cta_n=128), l2="warm")
    assert found.dram_read_bytes == pytest.approx(2 * 1024 * 1024 * 2 * (1 - 1 / (1 + 0.2**4)))


@pytest.mark.parametrize(*cases(__file__, "test_an_l2_lets_go_as_steeply_as_its_card_says"))
def test_an_l2_lets_go_as_steeply_as_its_card_says(mebibytes, missed):
    steep = replace(H200, l2_kept_share=1.0, l2_kept_order=20.0)  # 60 MiB
    batch = row((1024, 1024, 1024), cta_m=128, cta_n=128)
    found = moved(replace(batch, footprint_bytes=mebibytes * 2.0**20), gpu=steep)
    assert found.dram_read_bytes == pytest.approx(2 * 1024 * 1024 * 2 * missed, rel=1e-4)


def test_panels_of_a_group_larger_than_a_wave_come_from_dram_again():
    # 500 rows of tiles, walked first: 74 of them make a wave, and until one is wanted again the other 426
    # have come by, 524 MB of A. So A is read for each of the 28 columns of tiles; B is small.
    reads = moved(pair_of_ctas(256, (128000, 7168, 4096)), gpu=B200).dram_read_bytes
    assert reads == pytest.approx(28 * 128000 * 4096, rel=0.03)
    # Thin enough to stay, A is read once: 65 MB in an L2 of 132 MB, three quarters of it usable.
    reads = moved(pair_of_ctas(256, (128000, 71680, 512)), gpu=B200).dram_read_bytes
    assert reads < 0.3 * 280 * 128000 * 512


def test_a_group_that_turns_back_finds_what_passed_last():
    # 32 rows of tiles walk 56 MiB of B to and fro, each with 1 MiB of A. L2 keeps 45 of 60 MiB: of the panels just
    # turned at those of a wave have passed, 112 of 224 and two of A, of the farthest all 56 MiB and four of A.
    thin = {"cta_m": 64, "cta_n": 16, "swizzle": 1, "raster": "along_m"}
    reads = moved(row((2048, 3584, 8192), **thin), ALONE).dram_read_bytes
    gone = np.mean(1 - 1 / (1 + (np.linspace(30, 60, 1000) / 45) ** 8))
    assert reads == pytest.approx((32 + 56 + 31 * 56 * gone * (1 - 0.25 * 132 / 224)) * 2**20, rel=0.025)


def test_outputs_drive_operands_out_of_l2():
    wide, once = (7104, 7560, 96), (7104 + 7560) * 96 * 2
    ways = {"cta_m": 128, "cta_n": 128, "swizzle": 16, "raster": "along_m"}
    assert moved(row(wide, **ways), ALONE).dram_read_bytes > 1.2 * once
    assert moved(row(wide, out_dtype="e4m3", **ways), ALONE).dram_read_bytes < 1.1 * once


def test_tiles_that_l2_delays_fall_behind_and_find_panels_gone():
    # Unmerged, 1,024 CTAs ask for 256 rows of 4,096 x 2 bytes; L2 keeps 0.75 of 60 MiB, operands are 64.
    batch, drifting = row(cta_m=128, cta_n=128), {"coalescing.share": 0.0, "coalescing.drift": 0.01}
    in_step, late = moved(batch, numbers({"coalescing.share": 0.0})), moved(batch, numbers(drifting))
    fits, streamed = 1 / (1 + (64 / 45) ** 8), in_step.dram_read_bytes
    # A k tile of 256 x 128 bytes lasts 512 clocks of MMAs, in which L2 gives an SM 512 x 47 of them.
    delayed = 1 / (1 + (512 * 47 / (256 * 128)) ** 4)
    # A wave holds tiles of 8.5 rows: one of them asks for each column's panel first. The root of 64 k tiles of 100.
    gone = 0.01 * 0.8 * streamed / (45 * 2**20) * delayed * (1 - 1 / schedule_of(batch).minor_panels)
    more = (1 - fits) * (1024 * 256 * 4096 * 2 - streamed) * gone / (1 + gone)
    assert late.dram_read_bytes - in_step.dram_read_bytes == pytest.approx(more, rel=1e-3)
    # Operands that fit stay, however far apart the tiles are.
    small = row((2048, 2048, 1024), cta_m=128, cta_n=128)
    apart = moved(small, numbers({"coalescing.drift": 0.05})).dram_read_bytes
    assert apart == pytest.approx(moved(small).dram_read_bytes, rel=0.02)


@pytest.mark.parametrize(("m", "k"), [(4096, 32768), (32768, 4096)])
def test_clusters_over_an_edge_fall_behind_until_l2_has_lost_what_the_others_read(m, k):
    """Of the second cluster of each row one CTA is outside: in one wave, and in all of them, since 2 divides 66."""
    batch = row((m, 512, k), cta_m=128, cta_n=192, cluster_n=2)
    streamed = moved(batch, ALONE.without(["edge_tiles"])).dram_read_bytes
    # Its 192 rows take 6 / (1 + 0.2) clocks each and 64 of A 2; MMAs take 768.
    behind = (1 - 768 / (64 * 2 + 192 * 5)) * streamed
    again = moved(batch, ALONE).dram_read_bytes - streamed
    assert again == pytest.approx((1 - 45 * 2**20 / behind) * m * k * 2)


@pytest.mark.parametrize(("cluster", "rows"), [((1, 1), 256), ((2, 1), 192), ((2, 2), 128), ((1, 4), 160)])
def test_multicast_divides_the_requests(cluster, rows):
    """1024 CTAs ask for so many rows of 2 bytes for each of 4096 k."""
    batch = row(cta_m=128, cta_n=128, cluster_m=cluster[0], cluster_n=cluster[1])
    assert moved(batch, ALONE).l2_request_bytes - CUBE_OUTPUT == pytest.approx(rows * 2 * 4096 * 1024)


def test_merging_only_saves_requests():
    batch = row((8192, 8192, 8192), cta_m=128, cta_n=128)
    merging, alone = moved(batch), moved(batch, ALONE)
    assert alone.merged_bytes == 0
    assert merging.merged_bytes > 0
    assert alone.l2_request_bytes - merging.l2_request_bytes == pytest.approx(merging.merged_bytes)


@pytest.mark.parametrize(*cases(__file__, "test_neither_multicast_requests_nor_rows_off_sectors_merge"))
def test_neither_multicast_requests_nor_rows_off_sectors_merge(k, cluster, merge):
    """Rows of 4104 elements start at odd multiples of 16 bytes: they share sectors with their neighbours. Of rows
    of 4112, at odd multiples of 32 bytes, half the requests merge.
    """
    found = moved(row((4096, 4096, k), cta_m=128, cta_n=128, cluster_m=cluster, cluster_n=cluster), EVERY)
    one = moved(row((4096, 4096, 4096), cta_m=128, cta_n=128), EVERY).merged_bytes
    assert found.merged_bytes == pytest.approx(merge * one, rel=0.02)


def test_requests_of_pairs_for_their_halves_of_b_merge():
    """37 pairs by rows of one B: of the pairs of a GPC, those that want its only column of tiles ask once."""
    batch = pair_of_ctas(256, (74 * 128, 256, 4096))
    alone, merging = (moved(batch, known, gpu=B200) for known in (ALONE, numbers()))
    # 74 CTAs of 128 rows of A and half of 256 rows of B, one byte each.
    assert alone.l2_request_bytes - batch.output_bytes == pytest.approx(74 * (128 + 128) * 4096)
    share = merged_share(1.0, 2.0, B200)
    assert share > 0.5
    # Of requests that want the same 0.8 merge; of A 37 panels are wanted by 37 pairs.
    merged = 0.8 * 74 * 128 * 4096 * (share + merged_share(37.0, 2.0, B200))
    assert merging.merged_bytes == pytest.approx(merged, rel=0.02)


@pytest.mark.parametrize(*cases(__file__, "test_requests_for_few_panels_meet"))
def test_requests_for_few_panels_meet(panels, cluster_size, asked):
    assert merged_share(float(panels), float(cluster_size), H200) == pytest.approx(1 - asked)


def test_requests_stop_merging_the_longer_l2_works():
    """CTAs are 0.25 latencies of DRAM apart, of whose requests 0.8 merge; 2 more for each millisecond of L2."""
    gpu = replace(H200, dram_latency_ns=None)
    for k in (4096, 65536):
        batch = row((4096, 4096, k), cta_m=128, cta_n=128)
        found, every = (moved(batch, known, gpu=gpu) for known in (numbers(), EVERY))
        in_step = found.l2_load_bytes + found.merged_bytes - every.merged_bytes * 0.8
        milliseconds = in_step / l2_bytes_per_us(gpu, numbers()) * 1e-3
        assert found.merged_bytes == pytest.approx(every.merged_bytes / (1.25 + 2.0 * milliseconds))
        less = every.merged_bytes - found.merged_bytes
        assert found.l2_load_bytes - every.l2_load_bytes == pytest.approx(less)
    assert milliseconds > 0.5


def test_fewer_requests_meet_while_the_first_waits_for_l2_alone():
    """Of panels read before: CTAs are apart by 2.4 times as many of L2's latencies as of DRAM's."""
    gpu = replace(H200, dram_latency_ns=400.0, sm_clk_mhz=1500.0, l2_latency_clk=250.0)
    in_step = numbers({"coalescing.loss_per_ms": 0.0})
    for m, least, most in ((1024, 1.0, 1.0), (65536, 1.25 / (1 + 2.4 * 0.25), 0.9)):
        batch = row((m, 1024, 1024), cta_m=128, cta_n=128)
        every, some = (moved(batch, each, gpu=gpu).merged_bytes for each in (EVERY, in_step))
        assert least * (1 - 1e-9) <= some / every * 1.25 <= most * (1 + 1e-9)
        # What L2 holds from before the launch, or evicts, changes nothing: more L2 never costs bytes.
        assert moved(batch, in_step, gpu=gpu, l2="warm").merged_bytes == some


@pytest.mark.parametrize(*cases(__file__, "test_the_first_load_of_a_k_tile_merges_less"))
def test_the_first_load_of_a_k_tile_merges_less(family, clusters, factor):
    """Multicast leaves requests for one operand alone: A is loaded first, but by kernels of D^T."""
    known = numbers({"coalescing.loss_per_ms": 0.0, "coalescing.first_load": 3.0})
    batch = row((4096, 4096, 4096), cta_m=128, cta_n=128, cluster_m=clusters[0], cluster_n=clusters[1])
    gpu = replace(H200, dram_latency_ns=None)
    found, every = (moved(batch, each, gpu=gpu, family=family) for each in (known, EVERY))
    assert found.merged_bytes == pytest.approx(every.merged_bytes / (1 + 0.25 * factor))


def test_requests_meet_by_the_launch_order_where_it_is_known():
    """By chance eight of a GPC's SMs want some of the panels of a wave."""
    batch = row((8192, 8192, 8192), cta_m=128, cta_n=128)
    unknown = replace(H200, tpc_rounds=())
    by_chance = moved(batch, gpu=unknown)
    asked = by_chance.l2_request_bytes - by_chance.output_bytes + by_chance.merged_bytes
    wave = schedule_of(batch)
    met = [merged_share(panels, 1.0, H200) for panels in (wave.minor_panels, wave.major_panels)]
    equal = moved(batch, EVERY, gpu=unknown).merged_bytes
    assert equal / asked == pytest.approx(sum(met) / 2)
    assert moved(batch).merged_bytes != pytest.approx(by_chance.merged_bytes, rel=0.01)
    # Clusters of four go to eight GPCs in turn, in groups of eight rows: most of a GPC want the same row.
    four = row((8192, 8192, 8192), cta_m=128, cta_n=128, cluster_m=4)
    assert moved(four).merged_bytes > 4.0 * moved(four, gpu=unknown).merged_bytes


@pytest.mark.parametrize(*cases(__file__, "test_misaligned_writes_cost_by_the_piece"))
def test_misaligned_writes_cost_by_the_piece(n, cta_n, extra):
    """Half for each further piece; 208 columns are stored 16 at a time, in pieces half as large; half crosses."""
    found = moved(row((64, n, 64), cta_m=64, cta_n=cta_n, schedule="pingpong"))
    assert found.l2_store_bytes == pytest.approx(1.5 * 64 * n * 2 * (1 + extra))
    # Counters show a third of it as bytes.
    assert found.l2_uncounted_bytes == pytest.approx(1.5 * 64 * n * 2 * extra * 2 / 3, rel=0.01)
    # An output that is contiguous along m: rows of 64 elements are aligned.
    along_m = row((64, n, 64), cta_m=64, cta_n=cta_n, schedule="pingpong", c_major="m")
    assert moved(along_m).l2_store_bytes == pytest.approx(1.5 * 64 * n * 2)


def test_a_counter_shows_the_launch_beside_the_matrices():
    found = moved(row((64, 4096, 64), cta_m=64, cta_n=128), gpu=replace(H200, l2_launch_bytes=1e6))
    assert found.l2_counted_bytes - found.l2_load_bytes == pytest.approx(1e6 + 32 * 2500)


def test_lines_that_several_want_cross_from_one_half_of_l2_to_the_other():
    """One panel of A that all 64 clusters want, and 64 of B that one wants each: half of these cross."""
    found = moved(row((128, 64 * 128, 4096), cta_m=128, cta_n=128))
    a_bytes, b_bytes = 128 * 4096 * 2, 64 * 128 * 4096 * 2
    assert found.dram_read_bytes == pytest.approx(a_bytes + b_bytes, rel=0.01)
    assert found.crossing_bytes == pytest.approx(a_bytes + b_bytes / 2, rel=0.01)


def test_lines_that_one_gpc_alone_wants_cross_once_in_two():
    """Eight panels of B, each for the eight clusters of a GPC; eight of A, each for one cluster of every GPC."""
    gpu = replace(H200, tpc_rounds=(tuple(range(8)),) * 8, sm_count=128, resident_clusters={2: 64})
    batch = row((8 * 128, 8 * 256, 4096), cta_m=128, cta_n=128, cluster_n=2, swizzle=8, raster="along_n")
    found = moved(batch, gpu=gpu)
    a_bytes, b_bytes = 8 * 128 * 4096 * 2, 8 * 256 * 4096 * 2
    assert found.crossing_bytes == pytest.approx(a_bytes + b_bytes / 2, rel=0.01)


def test_lines_that_the_splits_of_a_tile_want_are_not_the_same():
    """16 panels of B in 4 splits: each line of B is still wanted by one cluster, each line of A by 16."""
    found = moved(row((128, 16 * 128, 4096), cta_m=128, cta_n=128, split_k=4))
    assert found.crossing_bytes == pytest.approx((128 + 16 * 128 / 2) * 4096 * 2, rel=0.01)


@pytest.mark.parametrize(("cluster_n", "share"), [(1, 0.25), (2, 1.0)])
def test_l2_reads_a_sector_of_rows_outside_the_matrix_or_all_of_it_by_multicast(cluster_n, share):
    """64 of 128 rows of A are outside, in each of 64 tiles of B."""
    kernel = {"cta_m": 128, "cta_n": 128, "cluster_n": cluster_n}
    found = moved(row((64, 64 * 128, 4096), **kernel), ALONE)
    within = found.l2_request_bytes + found.crossing_bytes + 0.5 * found.output_bytes
    outside = 64 * 64 * 4096 * 2 / cluster_n
    assert found.l2_load_bytes - within == pytest.approx(share * outside)


@pytest.mark.parametrize(("cta_n", "tiles", "registers"), [(128, 16 * 32, 64), (256, 32 * 16, 137)])
def test_spilled_registers_are_work_of_l2(cta_n, tiles, registers):
    """A whole instruction's registers, and what compiled code of the wide ones moves; two warpgroups."""
    batch = row(dtype="fp8", cta_m=32768 // cta_n, cta_n=cta_n)
    gpu, l2_bytes = replace(H200, l2_unwritten_share=0.46), 62914560
    found, once = moved(batch, ALONE, gpu), 4 * 128 * 2 * registers
    more = found.l2_load_bytes - moved(batch, ALONE.without(["spilling"])).l2_load_bytes
    assert more == pytest.approx(2 * once * tiles * 32)
    # Of 132 CTAs; half of 0.75 of L2 would reach DRAM. All but a CTA's last tile rest while outputs of a wave pass.
    lost = 1 - 1 / (1 + (132 * once / (0.75 * l2_bytes)) ** 3)
    rest = 1 - 1 / (1 + (132 * (once + CUBE_OUTPUT / tiles) / (0.46 * l2_bytes)) ** 3)
    # Outputs, which come at the ends of tiles, are held back in what spills leave.
    passed, held = (CUBE_OUTPUT + found.dram_read_bytes) * (1 - 66 / tiles), 0.46 * l2_bytes - 132 * once
    outputs = 1 - held / (passed**8 + held**8) ** (1 / 8)
    written = once * (tiles * 32 * lost + (tiles - 132) * rest) + CUBE_OUTPUT * outputs
    assert found.dram_write_bytes == pytest.approx(written)


def test_split_k_writes_and_reads_partial_sums():
    whole, split = (moved(row((512, 512, 4096), cta_m=128, cta_n=128, split_k=n), ALONE) for n in (1, 4))
    # Three further sums of 4 bytes, and the total read once.
    assert split.l2_request_bytes - whole.l2_request_bytes == pytest.approx(512 * 512 * 4 * (3 + 1))
