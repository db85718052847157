from gemm_model.core.gpu import load_gpu
from gemm_model.hierarchy.blocking import footprint
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import match, resident_grid
from gemm_model.hierarchy.solve import solve

H200 = load_gpu("h200")
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
