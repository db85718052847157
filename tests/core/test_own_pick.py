"""What a library loses that chooses for itself, by hand."""

import numpy as np
import pytest

from gemm_model.core.prediction import Copies, Copying, OwnPick


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


def test_copies_beside_take_their_kernels_and_their_bytes():
    copying = Copying(share=0.5, kernel_us=2.0, gb_per_s=500.0)
    # 1.5 times 40 us, 3 kernels of 2 us, 10 MB in 20 us.
    assert copying.time_us(40.0, Copies(kernels=3, moved_bytes=10e6)) == pytest.approx(86.0)


def test_of_the_ways_to_copy_the_fastest_counts():
    pick = OwnPick(
        share=0.06,
        copying={
            "sliced": Copying(share=0.0, kernel_us=1.0, gb_per_s=1000.0),
            "transposed": Copying(share=0.0, kernel_us=10.0, gb_per_s=1000.0),
        },
    )
    few, many = Copies(kernels=3, moved_bytes=0.0), Copies(kernels=100, moved_bytes=0.0)
    # 3 of 1 us; 100 of 1 us against 3 of 10 us; a way without numbers is none.
    assert pick.of("grouped", {"sliced": few, "transposed": few}).time_us(20.0, "L2") == pytest.approx(23.0)
    found = pick.of("grouped", {"sliced": many, "transposed": few}).time_us(np.array([20.0, 40.0]), "L2")
    assert found == pytest.approx([50.0, 70.0])
    assert pick.of("padded", {"padded": few}).time_us(100.0, "L2") == pytest.approx(106.0)


def test_the_way_is_told_and_copies_that_take_longer_than_the_product_bound_the_call():
    pick = OwnPick(copying={"padded": Copying(share=0.5, kernel_us=5.0, gb_per_s=1000.0)})
    three = pick.of("padded", {"padded": Copies(kernels=3, moved_bytes=15e6)})
    # 15 us of kernels and as many of bytes: longer than 1.5 times 10 us, not than 1.5 times 40.
    assert three.way(10.0) == "padded"
    assert three.limiter(10.0, "L2") == "COPIES"
    assert three.limiter(40.0, "L2") == "L2"
    assert pick.of("").way(10.0) == ""
    assert pick.of("").limiter(10.0, "DRAM") == "DRAM"
