"""The figures of the text 'Throughput matching', derived by hand."""

import pytest

from gemm_model.core.gpu import load_gpu
from gemm_model.hierarchy.blocking import Blocking
from gemm_model.hierarchy.ladder_report import text_predictions
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import Grid, match
from gemm_model.hierarchy.model import runtime_parameters
from gemm_model.hierarchy.roofline import byte_intensity, elements_intensity, ridge_fma_per_byte
from gemm_model.hierarchy.solve import solve


@pytest.fixture
def a100():
    gpu = load_gpu("a100_sxm_80gb")
    return machine_of(gpu, datapath_of(gpu, "cuda_cores", "fp32"))


def test_dram_share_of_one_a100_sm(a100):
    # 2039 GB/s over 108 SMs at 1.41 GHz; the text cuts 13.39 to 13.3.
    assert a100.level("dram").bytes_per_clk == pytest.approx(2039e9 / (108 * 1.41e9), rel=1e-3)


def test_cuda_cores_demand_512_bytes_a_clock_4_times_shared_memory_s_and_38_times_dram_s(a100):
    assert a100.datapath.demand_bytes_per_clk == 64 * 2 * 4 == 4 * a100.level("smem").bytes_per_clk
    assert round(512 / a100.level("dram").bytes_per_clk) == 38


def test_ridge_of_4_8_fma_per_byte(a100):
    assert ridge_fma_per_byte(a100) == pytest.approx(64 / 13.39, rel=1e-3)


def test_intensity_of_4096_cubed_per_element_and_per_byte():
    # 4096^3 FMAs over 3 x 4096^2 elements is 4096 / 3; each element is 4 bytes.
    assert elements_intensity(4096, 4096, 4096) == pytest.approx(4096 / 3)
    assert byte_intensity(4096, 4096, 4096, 4, 4, 4) == pytest.approx(4096 / 12)


def blocking(side, thread):
    return Blocking(
        cta_m=side, cta_n=side, cta_k=8, warp_m=4 * thread, warp_n=8 * thread, thread_m=thread,
        thread_n=thread, vector=1,
    )  # fmt: skip


def test_a_4x4_thread_tile_matches_shared_memory_and_a_64x64_cta_tile_matches_dram(a100):
    grid = Grid(rows=1, columns=1, k=4096)
    matched = match(a100, blocking(64, 4), grid, reuse_in_l2=False)
    dram, smem = matched.stages[0], matched.stages[1]
    assert (dram.name, smem.name) == ("dram -> smem", "smem -> registers")
    assert smem.amplification == 4
    assert smem.fraction == 1
    assert dram.amplification == 64
    assert dram.fraction == pytest.approx(64 * 13.39 / 512, rel=1e-3)


def test_without_amplification_dram_gives_2_6_percent_and_shared_memory_a_quarter(a100):
    # 13.39 / 512 and 128 / 512.
    unstaged = Blocking(
        cta_m=1, cta_n=32, cta_k=1, warp_m=1, warp_n=32, thread_m=1, thread_n=1, stages=0, vector=1,
        b_major="n",
    )  # fmt: skip
    naive = match(a100, unstaged, Grid(rows=1, columns=1, k=4096), reuse_in_l2=False)
    assert naive.stages[0].fraction == pytest.approx(13.39 / 512, rel=1e-3)
    shared = match(a100, blocking(32, 1), Grid(rows=1, columns=1, k=4096), reuse_in_l2=False)
    assert shared.stages[1].fraction == 0.25


def test_the_inverse_finds_tiles_that_amplify_enough(a100):
    found = solve(a100, (4096, 4096, 4096), stages=2, target=1.0, reuse_in_l2=False)
    assert found.smallest is not None
    tile = found.smallest.blocking
    assert 2 * tile.cta_m * tile.cta_n / (tile.cta_m + tile.cta_n) >= 512 / 13.39
    assert (tile.thread_m, tile.thread_n) == (4, 4)


def test_the_three_v100_kernels():
    gpu = load_gpu("v100_sxm2")
    rows = text_predictions(machine_of(gpu, datapath_of(gpu, "cuda_cores", "fp32")), runtime_parameters())
    naive, shared, registers = rows
    assert [round(100 * row["measured_of_cublas"]) for row in rows] == [16, 31, 88]
    # One line of A and one of B for 32 FMAs, or two loads from shared memory: 16 of 64 FMA/clk.
    assert naive["bound_tflops"] == shared["bound_tflops"] == pytest.approx(0.25 * 15.6672)
    # 4 x 4 outputs a thread match 128 B/clk to 512.
    assert registers["bound_tflops"] == pytest.approx(15.6672)
    # The parameters are the H200's. The naive kernel is predicted twice too fast: the text does not say which
    # threads it uses, so only its bound is asserted.
    assert shared["predicted_tflops"] == pytest.approx(3.7, rel=0.15)
    assert registers["predicted_tflops"] == pytest.approx(10.7, rel=0.15)
    assert naive["measured_tflops"] < naive["bound_tflops"]
