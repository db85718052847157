from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import InputError, load_gpu
from gemm_model.hierarchy.blocking import blocking_of, parse_tiles
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import Grid, match, resident_grid
from gemm_model.hierarchy.roofline import roofs

H200 = load_gpu("h200")
CUDA_CORES = machine_of(H200, datapath_of(H200, "cuda_cores", "fp32"))
TENSOR_CORES = machine_of(H200, datapath_of(H200, "tensor_cores", "bf16"))
GRID = Grid(rows=8, columns=16, k=4096)


def blocking(machine, *tiles, stages=2):
    return blocking_of(parse_tiles(tiles), H200, machine.datapath, stages)


def stage(matching, name):
    return next(stage for stage in matching.stages if stage.name == name)


def test_hopper_demands_twice_the_text_s_machine():
    assert CUDA_CORES.datapath.demand_bytes_per_clk == 128 * 8
    assert CUDA_CORES.level("smem").bytes_per_clk == 128


def test_wide_shared_loads_count_as_multicast():
    matched = match(CUDA_CORES, blocking(CUDA_CORES, "thread:8x8"), GRID)
    smem = stage(matched, "smem -> registers")
    # A warp takes 32 lanes x 16 words x 4 bytes in 4 loads of 2 clocks with 128 bytes each.
    assert smem.multicast == pytest.approx(32 * 16 * 4 / (4 * 2 * 128))
    assert smem.amplification == pytest.approx(16)


def test_the_wave_s_tile_amplifies_dram():
    matched = match(CUDA_CORES, blocking(CUDA_CORES), GRID)
    # 8 x 16 tiles of 128 x 128: 1024 rows and 2048 columns.
    assert stage(matched, "dram -> l2").amplification == pytest.approx(2 * 1024 * 2048 / (1024 + 2048))


def test_instruction_slots_limit_the_register_tile():
    matched = match(CUDA_CORES, blocking(CUDA_CORES, "thread:8x8"), GRID)
    assert matched.limiting.name == "instruction slots"
    # A warp's 64 FMAs and 4 loads a step of k leave at most 64 / 68, before copies and loop.
    assert 0.85 < matched.fraction_of_peak < 64 / 68


def test_multicast_of_a_cluster_widens_l2_but_not_the_port():
    alone = match(TENSOR_CORES, blocking(TENSOR_CORES, "cta:128x128"), GRID)
    pair = match(TENSOR_CORES, blocking(TENSOR_CORES, "cta:128x128", "cluster:2x1"), GRID)
    # Two CTAs share B's columns: 2 (128 + 128) bytes become 2 x 128 + 128.
    assert stage(pair, "l2 -> all SMs").multicast == pytest.approx(4 / 3)
    assert stage(pair, "l2 -> one SM") == stage(alone, "l2 -> one SM")


def test_wgmma_below_64_columns_is_bound_by_shared_memory():
    # m64nNk16 reads (64 + N) x 32 bytes at 128 B/clk while it takes N / 2 clocks: equal at N = 64.
    for columns, fraction in ((32, 16 / 24), (64, 1.0), (128, 64 / 48)):
        matched = match(TENSOR_CORES, blocking(TENSOR_CORES, f"cta:128x{columns}"), GRID)
        assert stage(matched, "smem -> mma").fraction == pytest.approx(fraction)


def test_counting_outputs_costs_little_and_giving_up_stationarity_much():
    tile = blocking(CUDA_CORES)
    ignored, once, each = (
        match(CUDA_CORES, tile, GRID, output=mode).stages[1].amplification
        for mode in ("ignored", "once", "each_slice")
    )
    # Inputs: 8 / 128 bytes an FMA. C once: 4 / 4096 more. Partial sums every 16 steps: 2 x 4 / 16 more.
    assert ignored == pytest.approx(8 / (8 / 128))
    assert once == pytest.approx(8 / (8 / 128 + 4 / 4096))
    assert each == pytest.approx(8 / (8 / 128 + 8 / 16))
    with pytest.raises(InputError, match="output is 'twice'"):
        match(CUDA_CORES, tile, GRID, output="twice")


def test_an_unknown_l2_rate_is_said():
    gpu = replace(load_gpu("a100_sxm_80gb"), l2_read_bytes_per_clk_per_sm=None)
    machine = machine_of(gpu, datapath_of(gpu, "cuda_cores", "fp32"))
    matched = match(machine, blocking_of({}, gpu, machine.datapath, 2), GRID)
    assert len(matched.caveats) == 1
    assert "the rate of l2 -> one SM is not known" in matched.caveats[0]


@given(m=st.integers(1, 40000), n=st.integers(1, 40000), ctas=st.integers(1, 8))
def test_resident_grids_hold_what_fits(m, n, ctas):
    tile = blocking(CUDA_CORES)
    grid = resident_grid(CUDA_CORES, tile, ctas, (m, n, 64))
    assert 1 <= grid.rows * grid.columns <= ctas * H200.sm_count
    assert grid.rows <= -(-m // tile.cta_m)
    assert grid.columns <= -(-n // tile.cta_n)


def test_each_roof_bounds_the_kernel_as_its_stage_does():
    matched = match(CUDA_CORES, blocking(CUDA_CORES, "thread:4x4"), GRID)
    for roof, one in zip(roofs(CUDA_CORES, matched), matched.stages, strict=False):
        assert roof.level == one.name
        assert roof.bound_tflops == pytest.approx(min(1, one.fraction) * CUDA_CORES.peak_tflops)
        assert (roof.flop_per_byte < roof.ridge_flop_per_byte) == (one.fraction < 1)
