import numpy as np
import pytest

from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.core.batch import numbers_of
from gemm_model.kernel_model.model import KernelModel
from gemm_model.timeline.kernel_timeline import cluster_coordinates


def walked(m, n, swizzle, kernel="quack", split_k=1):
    """The cluster tiles of 128 x 128 in the order of the family."""
    config = KernelConfig(cta_m=128, cta_n=128, swizzle=swizzle, kernel=kernel, split_k=split_k)
    model = KernelModel(load_gpu("h200"))
    geometry = model.evaluate_row(numbers_of(GemmProblem.of(m, n, 512), config)).geometry
    places = np.arange(int(geometry.schedule.tiles))
    rows, columns = cluster_coordinates(places, geometry.batch, geometry.schedule, geometry.family.tile_order)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def test_groups_of_two_rows_in_serpentines():
    # 3 x 6 tiles: rows are the shorter extent; the second group is one row, walked backwards.
    assert walked(384, 768, 2) == [
        *[(row, column) for column in range(6) for row in (0, 1)],
        *[(2, column) for column in (5, 4, 3, 2, 1, 0)],
    ]


def test_splits_of_a_tile_follow_each_other():
    order = walked(256, 256, 1, split_k=2)
    assert order[::2] == order[1::2]
    assert sorted(order[::2]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("kernel", ["quack", "cutlass", "triton"])
@pytest.mark.parametrize(("m", "n"), [(1024, 1024), (640, 1920), (1920, 384), (128, 128)])
@pytest.mark.parametrize("swizzle", [1, 4, 8])
def test_each_tile_is_walked_once(kernel, m, n, swizzle):
    order = walked(m, n, swizzle, kernel)
    assert len(set(order)) == len(order)
    assert {(row, column) for row in range(m // 128) for column in range(n // 128)} <= set(order)
