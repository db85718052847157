from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import InputError, load_gpu
from gemm_model.hierarchy.blocking import Blocking, blocking_of, footprint, parse_tiles
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import Grid, match, multicast, resident_grid, tiling
from gemm_model.hierarchy.roofline import roofs
from gemm_model.hierarchy.solve import solve
from tests.cases import calls, cases

test_calls = calls(__file__)

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


FP32_DATAPATH = datapath_of(H200, "cuda_cores", "fp32")


def tile(**changes):
    values = {
        "cta_m": 128, "cta_n": 128, "cta_k": 16, "warp_m": 32, "warp_n": 64, "thread_m": 8, "thread_n": 8,
    }  # fmt: skip
    return Blocking(**{**values, **changes})


def test_footprint_counts_registers_and_shared_memory():
    taken = footprint(tile(), H200, FP32_DATAPATH)
    assert taken.threads == 256
    # 64 accumulators, 2 x 16 operands, 32 for addresses.
    assert taken.registers_per_thread == 128
    assert taken.smem_bytes == 2 * (128 + 128) * 16 * 4
    assert taken.ctas_per_sm == 65536 // (128 * 256) == 2


def test_sums_of_tensor_cores_take_the_registers_of_warpgroups():
    tensor_cores = datapath_of(H200, "tensor_cores", "bf16")
    taken = footprint(blocking_of(parse_tiles(["cta:128x256"]), H200, tensor_cores, 3), H200, tensor_cores)
    # Two warpgroups of 64 rows: 128 sums in each of their threads, and 24 registers.
    assert (taken.threads, taken.registers_per_thread) == (256, 128 + 24)
    assert taken.smem_bytes == 3 * (128 + 256) * 128


@pytest.mark.parametrize(*cases(__file__, "test_tiles_that_do_not_nest_are_refused"))
def test_tiles_that_do_not_nest_are_refused(changes, part):
    with pytest.raises(InputError, match=part):
        tile(**changes)


EXTENTS = st.integers(1, 512)
WIDTHS = st.sampled_from([0.5, 1.0, 2.0, 4.0])


def counted_amplification(m, n, k, a_bytes, b_bytes):
    """Bytes taken over bytes loaded, by walking through every product of a tile."""
    taken = sum(a_bytes + b_bytes for _ in range(m) for _ in range(n) for _ in range(k))
    return taken / (sum(a_bytes for _ in range(m * k)) + sum(b_bytes for _ in range(n * k)))


@pytest.mark.parametrize(("m", "n", "a", "b"), [(1, 1, 4, 4), (4, 4, 4, 4), (8, 3, 2, 2), (5, 7, 1, 2)])
def test_tiling_counts_uses_of_each_byte(m, n, a, b):
    assert tiling(m, n, a, b) == pytest.approx(counted_amplification(m, n, 3, a, b))


@given(side=EXTENTS, a=WIDTHS, b=WIDTHS)
def test_a_square_tile_amplifies_by_its_side(side, a, b):
    assert tiling(side, side, a, b) == pytest.approx(side)


@given(m=EXTENTS, n=EXTENTS, a=WIDTHS, b=WIDTHS)
def test_a_longer_tile_amplifies_more_and_never_beyond_its_sides(m, n, a, b):
    assert tiling(m + 1, n, a, b) > tiling(m, n, a, b)
    assert min(m, n) - 1e-9 <= tiling(m, n, a, b) <= max(m, n) + 1e-9


@given(m=EXTENTS, n=EXTENTS, rows=st.integers(1, 8), columns=st.integers(1, 8), a=WIDTHS, b=WIDTHS)
def test_multicast_is_the_bytes_saved_by_sharing(m, n, rows, columns, a, b):
    alone = rows * columns * (m * a + n * b)
    together = rows * m * a + columns * n * b
    assert multicast(m, n, rows, columns, a, b) == pytest.approx(alone / together)


SHAPE = (4096, 4096, 4096)


def machine(datapath="cuda_cores", dtype="fp32", gpu=H200):
    return machine_of(gpu, datapath_of(gpu, datapath, dtype))


def test_every_tile_of_the_frontier_fits_and_delivers_what_it_says():
    one = machine()
    found = solve(one, SHAPE, stages=2, target=0.9)
    for candidate in found.frontier:
        taken = footprint(candidate.blocking, H200, one.datapath)
        grid = resident_grid(one, candidate.blocking, taken.ctas_per_sm, SHAPE)
        assert match(one, candidate.blocking, grid).fraction_of_peak == candidate.fraction_of_peak
    sizes = [candidate.tile_size for candidate in found.frontier]
    fractions = [candidate.fraction_of_peak for candidate in found.frontier]
    assert sizes == sorted(sizes)
    assert fractions == sorted(fractions)


def test_the_smallest_tile_reaches_the_target_and_nothing_smaller_does():
    found = solve(machine(), SHAPE, stages=2, target=0.85)
    assert found.smallest.fraction_of_peak >= 0.85
    smaller = [c for c in found.frontier if c.tile_size < found.smallest.tile_size]
    assert all(candidate.fraction_of_peak < 0.85 for candidate in smaller)
    assert found.advice == ()


def test_hopper_wants_wide_thread_tiles():
    # 128 FMA/clk take every instruction slot, so the tile with the fewest loads per FMA is best: 8 x 16 is
    # the largest whose accumulators leave room among 255 registers.
    best = solve(machine(), SHAPE, stages=2, target=0.9).frontier[-1].blocking
    assert sorted((best.thread_m, best.thread_n)) == [8, 16]


def test_volta_is_content_with_smaller_ones():
    # Half the FMA rate for the same slots: 4 x 4 suffices where Hopper needs 8 x 16.
    volta = load_gpu("v100_sxm2")
    found = solve(machine(gpu=volta), SHAPE, stages=2, target=1.0)
    assert (found.smallest.blocking.thread_m, found.smallest.blocking.thread_n) == (4, 4)


def test_what_to_change_where_no_tile_reaches_the_target():
    found = solve(machine(), SHAPE, stages=2, target=1.0)
    assert found.smallest is None
    assert "limited by instruction slots" in found.advice[0]
    assert "larger thread tile" in found.advice[1]


def test_tensor_cores_need_wide_instructions_and_reach_the_peak():
    found = solve(machine("tensor_cores", "bf16"), SHAPE, stages=3, target=1.0)
    assert found.smallest is not None
    assert found.smallest.blocking.mma_n >= 64
    assert set(found.smallest_by_stage) >= {"dram -> l2", "l2 -> all SMs", "l2 -> one SM", "smem -> mma"}
