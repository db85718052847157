import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.core.errors import InputError, MissingExtraError
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import (
    PipelineKernel,
    PipelineMachine,
    TileSpace,
    load_machine,
    workload,
)
from gemm_model.solve.exact import OBJECTIVES, legal_candidates, solve_exact
from gemm_model.solve.smt import solve_smt

# Problem and optimal tile of the paper's Table 1, as printed.
TABLE_1 = {
    (1024, 1024, 1024): (128, 128, 128),
    (1024, 512, 1024): (128, 64, 128),
    (1024, 1024, 512): (128, 128, 128),
    (1024, 512, 512): (128, 64, 128),
    (512, 512, 512): (64, 64, 128),
}


def work_of(problem, machine, choice):
    m, n, k = problem
    chosen = {name: getattr(choice, name) for name in ("tile_m", "tile_n", "tile_k", "stages")}
    return workload(machine, PipelineKernel(m=m, n=n, k=k, **chosen))


@pytest.mark.parametrize(("problem", "tile"), TABLE_1.items())
def test_table_1(problem, tile):
    # The paper does not print the machine of Table 1; on this one its tiles are optimal.
    best = solve_exact(*problem, load_machine("balanced")).best
    assert (best.tile_m, best.tile_n, best.tile_k) == tile


random_machines = st.builds(
    PipelineMachine, sm_count=st.integers(1, 8), mac_per_us=st.floats(1e4, 1e8),
    math_startup_us=st.floats(0, 0.5), load_bytes_per_us=st.floats(1e3, 1e6),
    load_startup_us=st.floats(0, 0.5), load_latency_us=st.floats(0, 2),
    device_load_bytes_per_us=st.floats(1e4, 1e6), epilogue_us=st.floats(0, 3), init_us=st.floats(0, 5),
    dma_warps=st.sampled_from((1, 2)), counts_last_math=st.booleans(), pads_k=st.booleans(),
    tiles=st.builds(
        TileSpace, tile_m=st.just((32, 64)), tile_n=st.just((32, 96)), tile_k=st.just((32, 64)),
        smem_bytes=st.integers(8192, 100_000), max_stages=st.integers(1, 5),
        max_accumulators=st.integers(1024, 6144),
    ),
)  # fmt: skip
sizes = st.integers(1, 300)


@settings(max_examples=25)
@given(m=sizes, n=sizes, k=sizes, machine=random_machines, objective=st.sampled_from(OBJECTIVES))
def test_solvers_agree_on_random_machines(m, n, k, machine, objective):
    exact = solve_exact(m, n, k, machine, objective)
    smt = solve_smt(m, n, k, machine, objective)
    assert smt.proven
    assert smt.best == exact.best


@settings(max_examples=40)
@given(
    m=sizes,
    n=sizes,
    k=sizes,
    machine=random_machines,
    consumers=st.sampled_from(("single", "cooperative", "pingpong")),
)
def test_exact_search_misses_nothing(m, n, k, machine, consumers):
    from dataclasses import replace

    machine = replace(machine, consumers=consumers)
    candidates = legal_candidates(machine)
    times = []
    for row in range(len(candidates)):
        tile_m, tile_n, tile_k, stages, _ = (
            float(getattr(candidates, name)[row]) for name in candidates.__slots__
        )
        work = workload(
            machine, PipelineKernel(m=m, n=n, k=k, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, stages=stages)
        )
        times.append(recurrence.run(work, machine).end)
    assert solve_exact(m, n, k, machine).best.time_ps == min(times)


def test_the_runner_up_is_another_tile():
    found = solve_exact(1024, 1024, 1024, load_machine("balanced"))
    tile = (found.best.tile_m, found.best.tile_n, found.best.tile_k)
    assert (found.runner_up.tile_m, found.runner_up.tile_n, found.runner_up.tile_k) != tile
    assert found.runner_up.time_ps >= found.best.time_ps


@pytest.mark.parametrize(("spare_bytes", "stages"), [(0, 3), (-1, 2)])
def test_a_ring_may_fill_shared_memory_to_the_last_byte(spare_bytes, stages):
    # A stage is (32 + 32) x 32 elements of two bytes.
    space = TileSpace(tile_m=(32,), tile_n=(32,), tile_k=(32,), smem_bytes=3 * 4096 + spare_bytes)
    assert legal_candidates(PipelineMachine(tiles=space)).stages.tolist() == [*range(1, stages + 1)]


def test_an_empty_space_is_refused_by_both():
    machine = PipelineMachine(tiles=TileSpace(smem_bytes=1000))
    with pytest.raises(InputError, match="no legal tile; the smallest ring of one stage takes 4096 bytes"):
        solve_exact(64, 64, 64, machine)
    with pytest.raises(InputError, match="unsatisfiable"):
        solve_smt(64, 64, 64, machine)
    with pytest.raises(InputError, match="unsatisfiable"):
        solve_smt(64, 64, 64, PipelineMachine(tiles=TileSpace(max_accumulators=10)))


def test_bad_questions_are_refused():
    machine = load_machine("balanced")
    with pytest.raises(InputError, match="k is 0; expected at least 1"):
        solve_exact(64, 64, 0, machine)
    with pytest.raises(InputError, match="objective is 'speed'"):
        solve_exact(64, 64, 64, machine, "speed")
    with pytest.raises(InputError, match="expected a positive number of seconds"):
        solve_smt(64, 64, 64, machine, timeout_s=0)
    with pytest.raises(InputError, match="consumers single"):
        solve_smt(64, 64, 64, PipelineMachine(consumers="pingpong"))


def test_an_early_end_is_not_called_a_proof():
    try:
        found = solve_smt(1024, 1024, 1024, load_machine("shared_rate"), timeout_s=0.35)
    except InputError as error:
        assert "no tile found within" in str(error)
    else:
        best = solve_exact(1024, 1024, 1024, load_machine("shared_rate")).best
        assert found.best == best or not found.proven


def test_without_z3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingExtraError, match=r"gemm-model\[smt\]"):
        solve_smt(64, 64, 64, load_machine("balanced"))
