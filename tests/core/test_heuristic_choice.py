"""What a library loses that chooses for itself, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from gemm_model.core.heuristic_choice import Copies, Copying, EarlierKernel, EarlierWork, HeuristicChoice, Way


def test_half_of_the_share_is_left_at_its_time_where_the_tensor_cores_bound_the_kernel():
    # 8 % of next to nothing, 4 % of 50 us, 2 % of 150 us; 8 % of what others bound.
    limiters = np.array(["TENSOR", "TENSOR", "TENSOR", "DRAM", "L2"], dtype=object)
    fastest_us = np.array([1e-9, 50.0, 150.0, 50.0, 150.0])
    times_us = HeuristicChoice(share=0.08, half_us=50.0).time_us(fastest_us, limiters)
    assert times_us == pytest.approx([1.08e-9, 52.0, 153.0, 54.0, 162.0])


def test_without_such_a_time_it_is_the_same_share_everywhere_and_nothing_by_default():
    times_us = HeuristicChoice(share=0.07).time_us(np.array([10.0, 1000.0]), "TENSOR")
    assert times_us == pytest.approx([10.7, 1070.0])
    assert HeuristicChoice().time_us(1000.0, "TENSOR") == 1000.0


def test_a_choice_adds_its_band_to_the_kernels_in_squares_or_has_one_of_its_own():
    assert HeuristicChoice(choice_band=0.08).band(np.array([0.06, 0.15])) == pytest.approx([0.1, 0.17])
    assert HeuristicChoice(choice_band=0.08, error_band=0.2).of("").band(0.06) == 0.2


def test_an_heuristic_choice_may_go_by_the_sort_of_problem():
    pick = HeuristicChoice(share=0.06, half_us=100.0, shares={"padded": 0.5})
    # Of a sort that is given the share stays; of others a half of it is left at 100 us.
    assert pick.of("padded").time_us(100.0, "TENSOR") == 150.0
    assert pick.of("another").time_us(100.0, "TENSOR") == pytest.approx(103.0)


def test_copies_beside_take_their_kernels_and_their_bytes():
    copying = Copying(share=0.5, kernel_us=2.0, gb_per_s=500.0)
    # 1.5 times 40 us, 3 kernels of 2 us, 10 MB in 20 us.
    assert copying.time_us(40.0, Copies(kernels=3, moved_bytes=10e6)) == pytest.approx(86.0)


def test_of_the_ways_to_copy_the_fastest_counts():
    pick = HeuristicChoice(
        share=0.06,
        copying={
            "sliced": Copying(share=0.0, kernel_us=1.0, gb_per_s=1000.0),
            "transposed": Copying(share=0.0, kernel_us=10.0, gb_per_s=1000.0),
        },
    )
    few, many = Copies(kernels=3, moved_bytes=0.0), Copies(kernels=100, moved_bytes=0.0)
    sliced = {"few": Way(copies=few, copying="sliced"), "many": Way(copies=many, copying="sliced")}
    transposed = Way(copies=few, copying="transposed")
    # 3 of 1 us; 100 of 1 us against 3 of 10 us; a way without numbers is none.
    assert pick.of("grouped", {"a": sliced["few"], "b": transposed}).time_us(20.0, "L2") == pytest.approx(
        23.0
    )
    found = pick.of("grouped", {"a": sliced["many"], "b": transposed}).time_us(np.array([20.0, 40.0]), "L2")
    assert found == pytest.approx([50.0, 70.0])
    unknown = Way(copies=few, copying="padded")
    assert pick.of("padded", {"padded": unknown}).time_us(100.0, "L2") == pytest.approx(106.0)


def test_the_way_is_told_and_copies_that_take_longer_than_the_product_bound_the_call():
    pick = HeuristicChoice(copying={"padded": Copying(share=0.5, kernel_us=5.0, gb_per_s=1000.0)})
    copies = Copies(kernels=3, moved_bytes=15e6)
    three = pick.of("padded", {"padded": Way(copies=copies, copying="padded")})
    # 15 us of kernels and as many of bytes: longer than 1.5 times 10 us, not than 1.5 times 40.
    assert three.way(10.0) == "padded"
    assert three.limiter(10.0, "L2") == "COPIES"
    assert three.limiter(40.0, "L2") == "L2"
    assert pick.of("").way(10.0) == ""
    assert pick.of("").limiter(10.0, "DRAM") == "DRAM"


def test_an_earlier_kernel_starts_counts_waits_and_moves_its_bytes():
    kernel = EarlierKernel(counts="LOADS", start_us=5.0, peak_share=0.05, load_us=0.1)
    # 8 million loads at 5 % of 8,000 a ns take 20 us, 30 in a row 3 us.
    parts_us = kernel.parts_us(EarlierWork(operations=8e6, peak_per_ns=8000, chain=30, dram_us=7.0))
    assert parts_us == pytest.approx({"LAUNCH": 5.0, "DRAM": 7.0, "LOADS": 20.0, "LATENCY": 3.0})


def test_an_earlier_kernel_takes_the_place_of_the_fastest_one_and_bounds_the_call():
    pick = HeuristicChoice(
        copying={"padded": Copying(share=0.5, kernel_us=2.0, gb_per_s=1000.0)},
        earlier={
            "implicit": EarlierKernel(counts="TENSOR", start_us=10.0, peak_share=0.4),
            "direct": EarlierKernel(counts="CUDA_CORES", start_us=5.0, peak_share=0.25),
        },
    )

    def found(flop):
        on_mma = EarlierWork(operations=flop, peak_per_ns=1000e3, dram_us=1.0)
        on_cuda_cores = replace(on_mma, peak_per_ns=80e3)
        copies = Copies(kernels=2, moved_bytes=1e6)
        return pick.of(
            "few",
            {
                "padded": Way(copies=copies, copying="padded", kernel="implicit", work=on_mma),
                "direct": Way(kernel="direct", work=on_cuda_cores),
            },
        )

    # 0.1 GFLOP: 11.25 us, 4 us of kernels and 1 of bytes; 5 + 5 + 1 us, whatever the fastest kernel takes.
    assert found(1e8).time_us(1000.0, "L2") == pytest.approx(11.0)
    assert (found(1e8).way(1.0), found(1e8).limiter(1.0, "L2")) == ("direct", "LAUNCH")
    # 2 GFLOP: 16 + 5 us against 106; 80 GFLOP: 211 + 5.
    assert found(2e9).time_us(1.0, "L2") == pytest.approx(21.0)
    assert found(8e10).time_us(1.0, "L2") == pytest.approx(216.0)
    assert (found(8e10).way(1.0), found(8e10).limiter(1.0, "L2")) == ("padded", "TENSOR")
