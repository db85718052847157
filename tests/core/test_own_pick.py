"""What a library loses that chooses for itself, by hand."""

import numpy as np
import pytest

from gemm_model.core.prediction import OwnPick


def test_half_of_the_share_is_left_at_its_time():
    # 8 % of next to nothing, 4 % of 50 us, 2 % of 150 us.
    times_us = OwnPick(share=0.08, half_us=50.0).time_us(np.array([1e-9, 50.0, 150.0]), "TENSOR")
    assert times_us == pytest.approx([1.08e-9, 52.0, 153.0])


def test_it_fades_only_where_the_tensor_cores_bound_the_kernel():
    limiters = np.array(["TENSOR", "DRAM", "L2"], dtype=object)
    times_us = OwnPick(share=0.08, half_us=50.0).time_us(np.array([50.0, 50.0, 150.0]), limiters)
    assert times_us == pytest.approx([52.0, 54.0, 162.0])
    assert OwnPick(share=0.08, half_us=50.0).time_us(50.0, "DRAM") == pytest.approx(54.0)


def test_without_such_a_time_it_is_the_same_share_everywhere_and_nothing_by_default():
    assert OwnPick(share=0.07).time_us(np.array([10.0, 1000.0]), "TENSOR") == pytest.approx([10.7, 1070.0])
    assert OwnPick().time_us(1000.0, "TENSOR") == 1000.0


def test_an_own_pick_may_go_by_the_sort_of_problem():
    pick = OwnPick(share=0.06, half_us=100.0, shares={"padded": 0.5})
    # Of a sort that is told the share stays; of others a half of it is left at 100 us.
    assert pick.of("padded").time_us(100.0, "TENSOR") == 150.0
    assert pick.of("another").time_us(100.0, "TENSOR") == pytest.approx(103.0)
