"""Where the CTAs of a wave land, against waves counted by hand."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig
from gemm_model.config import load_gpu_mapping
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import gpu_from_mapping
from gemm_model.kernel_model.kernel import geometry_of, kernel_on
from gemm_model.kernel_model.placement import (
    ctas_of_fullest_gpc,
    gpc_of_clusters,
    requests_in_order,
)
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.registry import family_of
from tests.cases import cases
from tests.kernel_model.kernels import H200
from tests.typed_numbers import numbers

TWO_GPCS = replace(H200, tpc_rounds=((0, 1), (0, 1)), resident_clusters={1: 8, 2: 4}, sm_count=8)


SERPENTINE = TileOrder(name="back and forth", serpentine=True)
STRAIGHT = TileOrder(name="each group from its start")
PLAIN = replace(STRAIGHT, plain_launch=True)


def asked(gpu, m, n, order=SERPENTINE, *, matrices=1, shared=(False, False), **kernel):
    problem = GemmProblem.of(m, n, 4096, batch=matrices)
    batch = batch_of([(problem, KernelConfig(cta_m=128, cta_n=128, **kernel))])
    gpu = replace(gpu, l2_merging_sms=4.0)
    ordered = replace(family_of("quack", gpu), tile_order=order)
    shape = geometry_of(batch, 4096.0, gpu, ordered)
    return requests_in_order(kernel_on(shape, gpu, numbers()), shared)


def fullest(ctas, cluster_size, gpu, order, spread=False):
    family = SimpleNamespace(tile_order=order)
    kernel = SimpleNamespace(ctas=ctas, cluster_size=cluster_size, gpu=gpu, family=family)
    return ctas_of_fullest_gpc(kernel, spread)


def test_ctas_fill_one_sm_of_each_tpc_of_a_round_then_the_other():
    assert gpc_of_clusters(((0, 1), (2,)), 1) == [0, 1, 0, 1, 2, 2]
    assert gpc_of_clusters(((0, 1), (2,)), 2) == [0, 1, 2]
    assert len(gpc_of_clusters(H200.tpc_rounds, 1)) == H200.sm_count


def test_a_plain_launch_fills_gpc_after_gpc_with_as_many_ctas_as_each_takes():
    # Four CTAs go to GPCs 0 0 1 1, eight to 0 0 0 0 1 1 1 1, one behind the other; all of them want one column.
    for ctas, requests in ((2, 2 / 2), (4, 2 / 4), (8, 2 / 8)):
        column, rows = asked(TWO_GPCS, ctas * 128, 128, PLAIN, swizzle=1, raster="along_n")
        assert (column[0], rows[0]) == (pytest.approx(requests), pytest.approx(1.0))
    # Two columns of two rows, column after column: a GPC gets one column, twice, and both rows.
    column, rows = asked(TWO_GPCS, 2 * 128, 2 * 128, PLAIN, swizzle=1, raster="along_n")
    assert (column[0], rows[0]) == (pytest.approx(2 / 4), pytest.approx(4 / 4))
    # Of 8 CTAs on one GPC four make one request, and each further one a quarter.
    one_gpc = replace(TWO_GPCS, tpc_rounds=((0, 0), (0, 0)))
    column, _ = asked(one_gpc, 8 * 128, 128, PLAIN, swizzle=1, raster="along_n")
    assert column[0] == pytest.approx((1 + 4 / 4) / 8)


def test_pairs_that_fill_gpcs_lie_side_by_side_on_as_many_as_the_launch_reaches():
    # Two rows of pairs, along a column, on one GPC each; four on GPCs 0 0 1 1, where two of a GPC want one column.
    filled = replace(STRAIGHT, fills_gpcs=True)
    for pairs, requests in ((2, 2 / 2), (4, 2 / 4)):
        column, rows = asked(TWO_GPCS, pairs * 256, 128, filled, cluster_m=2, swizzle=1, raster="along_n")
        assert (column[0], rows[0]) == (pytest.approx(requests), pytest.approx(1.0))


def test_clusters_of_four_take_two_tpcs_of_each_gpc_in_turn():
    # SMs of 2x2 and 4x1 launches on three H200s: eight GPCs twice, then the seven with more TPCs twice.
    found = gpc_of_clusters(H200.tpc_rounds, 4)
    assert found == [*range(8), *range(8), *range(1, 8), *range(1, 8)]
    assert len(found) == H200.resident_clusters[4]


def test_a_group_that_ends_within_the_wave_begins_again_at_its_first_row():
    # Two rows, four columns of tiles, column after column: rows 0 1 0 1 0 1 0 1, columns 0 0 1 1 2 2 3 3.
    kernel = {"swizzle": 1, "raster": "along_n"}
    # GPCs in turn, 0 1 0 1 0 1 0 1: each has one row, four times, which makes one request, and every column.
    columns, rows = asked(TWO_GPCS, 2 * 128, 4 * 128, STRAIGHT, **kernel)
    assert (rows[0], columns[0]) == (pytest.approx(2 / 8), pytest.approx(8 / 8))
    # GPC after GPC, 0 0 0 0 1 1 1 1: each has both rows and two of the columns, each twice.
    columns, rows = asked(TWO_GPCS, 2 * 128, 4 * 128, PLAIN, **kernel)
    assert (rows[0], columns[0]) == (pytest.approx(4 / 8), pytest.approx(4 / 8))
    # Back and forth the rows are 0 1 1 0 0 1 1 0: GPCs in turn have both of them, twice.
    columns, rows = asked(TWO_GPCS, 2 * 128, 4 * 128, SERPENTINE, **kernel)
    assert (rows[0], columns[0]) == (pytest.approx(4 / 8), pytest.approx(8 / 8))


def test_rows_of_different_matrices_are_not_the_same():
    # Four matrices of two rows and one column: each of the eight CTAs has a row of its own.
    _, rows = asked(TWO_GPCS, 2 * 128, 128, PLAIN, matrices=4, swizzle=1, raster="along_n")
    assert rows[0] == pytest.approx(8 / 8)
    # Two of two rows and two columns: a GPC has one matrix, each row of it twice.
    _, rows = asked(TWO_GPCS, 2 * 128, 2 * 128, PLAIN, matrices=2, swizzle=1, raster="along_n")
    assert rows[0] == pytest.approx(4 / 8)


def test_requests_of_one_gpc_for_the_same_panel_merge():
    # Eight SMs, clusters on GPCs 0 1 0 1 0 1 0 1, two columns of tiles walked first: GPC 0 gets column 0,
    # alone, four times, and rows 0 to 3 once each. Four requests make one.
    fast, slow = asked(TWO_GPCS, 4 * 128, 2 * 128, swizzle=2, raster="along_n")
    assert (fast[0], slow[0]) == pytest.approx((2 / 8, 8 / 8))
    # Four columns: each GPC gets two of them, twice, and each of the two rows twice.
    fast, slow = asked(TWO_GPCS, 2 * 128, 4 * 128, swizzle=4, raster="along_n")
    assert (fast[0], slow[0]) == pytest.approx((4 / 8, 4 / 8))
    # Clusters of two fill a TPC each: clusters on 0 1 0 1.
    fast, slow = asked(TWO_GPCS, 4 * 128, 2 * 128, swizzle=2, raster="along_n", cluster_m=2)
    assert (fast[0], slow[0]) == pytest.approx((2 / 4, 4 / 4))


def test_no_more_than_four_requests_merge():
    # One column, eight rows: four SMs of each GPC want the column, and sixteen would make four requests.
    fast, _ = asked(TWO_GPCS, 8 * 128, 128, swizzle=1, raster="along_n")
    assert fast[0] == pytest.approx(2 / 8)
    one_gpc = replace(TWO_GPCS, tpc_rounds=((0, 0), (0, 0)))
    fast, _ = asked(one_gpc, 8 * 128, 128, swizzle=1, raster="along_n")
    # Five of the eight would be two requests: the first for four, then a quarter for each further one.
    assert fast[0] == pytest.approx((1 + 4 / 4) / 8)


def test_matrices_of_a_batch_have_panels_of_their_own():
    # Four matrices of two rows and a column of tiles, one behind the other: GPC 0 gets the first row of each,
    # GPC 1 the second, and no two of them want the same.
    minor, major = asked(TWO_GPCS, 2 * 128, 128, matrices=4, raster="along_n")
    assert (minor[0], major[0]) == (8 / 8, 8 / 8)
    # Where they share B, all want its column: four requests of a GPC make one.
    minor, major = asked(TWO_GPCS, 2 * 128, 128, matrices=4, shared=(False, True), raster="along_n")
    assert sorted((minor[0], major[0])) == pytest.approx([2 / 8, 8 / 8])
    # Where they share A, each GPC wants one of its rows.
    minor, major = asked(TWO_GPCS, 2 * 128, 128, matrices=4, shared=(True, False), raster="along_n")
    assert sorted((minor[0], major[0])) == pytest.approx([2 / 8, 8 / 8])


def test_threads_that_ask_for_new_waves_at_once_get_what_one_gets():
    # A launcher of its own, so that nothing is counted yet.
    gpu = replace(H200, tpc_rounds=((0, 1, 2), (2, 0, 1)) * 11)
    sizes = [(128 * m, 128 * n) for m in range(1, 9) for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda size: asked(gpu, *size), sizes * 4))
    for size, both in zip(sizes * 4, found, strict=True):
        for column, again in zip(both, asked(gpu, *size), strict=True):
            assert column[0] == again[0]
    alone = replace(gpu, tpc_rounds=((1, 2, 0), (0, 1, 2)) * 11)
    assert [asked(alone, *size)[0][0] for size in sizes] == [each[0][0] for each in found[: len(sizes)]]


def test_a_gpu_whose_order_is_not_known_has_none():
    assert asked(replace(H200, tpc_rounds=()), 4096, 4096) is None


@pytest.mark.parametrize(*cases(__file__, "test_a_bad_order_is_one_sentence"))
def test_a_bad_order_is_one_sentence(rounds, words):
    values = {**load_gpu_mapping("h200"), "name": "mine", "tpc_rounds": rounds}
    with pytest.raises(InputError, match=f"GPU mine: .*{words}"):
        gpu_from_mapping(values)


IN_TURN = TileOrder(name="any")
THREE_TO_ONE = replace(H200, tpc_rounds=((0, 0, 1), (0,)), resident_clusters={1: 8, 2: 4, 4: 2}, sm_count=8)


@pytest.mark.parametrize(*cases(__file__, "test_how_many_ctas_lie_on_the_fullest_gpc"))
def test_how_many_ctas_lie_on_the_fullest_gpc(ctas_per_cluster, ctas, expected):
    assert tuple(fullest(float(each), ctas_per_cluster, THREE_TO_ONE, IN_TURN) for each in ctas) == expected
    sizes = np.full(len(ctas), ctas_per_cluster)
    assert tuple(fullest(np.array(ctas, float), sizes, THREE_TO_ONE, IN_TURN)) == expected


def test_ctas_all_over_the_card_and_on_one_whose_order_is_not_known():
    assert fullest(6.0, 1.0, THREE_TO_ONE, IN_TURN, True) == 3.0
    unknown = replace(THREE_TO_ONE, tpc_rounds=())
    assert fullest(6.0, 1.0, unknown, IN_TURN) == 0.0


def test_a_plain_launch_takes_one_sm_of_each_tpc_before_the_other():
    plain = TileOrder(name="plain", plain_launch=True)
    counted = [fullest(float(each), 1.0, THREE_TO_ONE, plain) for each in range(9)]
    # Both SMs of the TPC that GPC 0 has more in the first round; then GPCs 0 1 0, the other SMs 0 1 0.
    assert counted == [0, 1, 2, 3, 3, 4, 5, 5, 6]
    # Clusters of two are launched as clusters.
    assert fullest(4.0, 2.0, THREE_TO_ONE, plain) == 4


def test_plain_launches_of_an_h200_lie_as_they_were_seen_to():
    # SMs of plain launches on two H200s and an H100, of which 124 to 131, 0, 1, 16, 17, 32, 33, 48
    # and 49 are of one GPC, which holds most until all GPCs are full.
    plain = TileOrder(name="plain", plain_launch=True)
    seen = {8: 8, 16: 9, 24: 10, 32: 11, 48: 12, 64: 12, 112: 16, 132: 18}
    assert {ctas: fullest(float(ctas), 1.0, H200, plain) for ctas in seen} == seen
