import sys
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import pipeline_cross_validation as ways
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import (
    PipelineKernel,
    PipelineMachine,
    TileSpace,
    load_machine,
    machine_names,
    workload,
)
from gemm_model.solve.exact import OBJECTIVES, legal_candidates, solve_exact
from gemm_model.solve.smt import solve_smt


def work_of(problem, machine, choice):
    m, n, k = problem
    chosen = {name: getattr(choice, name) for name in ("tile_m", "tile_n", "tile_k", "stages")}
    return workload(machine, PipelineKernel(m=m, n=n, k=k, **chosen))


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
    exact = solve_exact((m, n, k), machine, objective)
    smt = solve_smt((m, n, k), machine, objective)
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
    assert solve_exact((m, n, k), machine).best.time_ps == min(times)


def test_the_runner_up_is_another_tile():
    found = solve_exact((1024, 1024, 1024), load_machine("balanced"))
    tile = (found.best.tile_m, found.best.tile_n, found.best.tile_k)
    assert (found.runner_up.tile_m, found.runner_up.tile_n, found.runner_up.tile_k) != tile
    assert found.runner_up.time_ps >= found.best.time_ps


def test_an_early_end_is_not_called_a_proof(monkeypatch):
    """The clock tells at the first query that the time is over."""
    clock = SimpleNamespace(monotonic=iter([0.0, 100.0]).__next__)
    monkeypatch.setattr("gemm_model.solve.smt.time", clock)
    with pytest.raises(InputError, match="no tile found within 60 s"):
        solve_smt((1024, 1024, 1024), load_machine("shared_rate"), timeout_s=60.0)


def test_without_z3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingExtraError, match=r"gemm-model\[smt\]"):
        solve_smt((64, 64, 64), load_machine("balanced"))


CORNERS = set(product((32, 1024), repeat=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", machine_names())
def test_all_ways_agree_on_a_sample_with_the_corners(name):
    found = ways.cross_validate(
        load_machine(name), ways.sample_problems(120, seed=5), [(1024, 1024, 1024), (96, 800, 352)]
    )
    assert found.mismatches == ()
    assert found.problems == 120
    assert found.smt_problems == 2


def test_the_sample_holds_the_corners_and_is_seeded():
    problems = ways.sample_problems(40, seed=1)
    assert set(problems) >= CORNERS
    assert problems == ways.sample_problems(40, seed=1) != ways.sample_problems(40, seed=2)
    assert len(ways.all_problems()) == 32**3


def test_a_wrong_time_is_reported(monkeypatch):
    def one_picosecond_off(*problem):
        right = cross_validation_solve(*problem)
        return replace(right, best=replace(right.best, time_ps=right.best.time_ps + 1))

    cross_validation_solve = ways.solve_exact
    monkeypatch.setattr(ways, "solve_exact", one_picosecond_off)
    found = ways.cross_validate(load_machine("balanced"), [(64, 64, 64)])
    assert len(found.mismatches) == 1


PROBLEM = ["solve", "--m", 512, "--n", 512, "--k", 512, "--machine"]
LARGE = ["solve", "--m", 4096, "--n", 4096, "--k", 4096, "--gpu"]


def test_both_methods_with_the_reason(answer):
    found = answer(*PROBLEM, "balanced", "--method", "both")
    best, runner_up = found["rows"]
    assert best["tile"] == "64x64x128"
    assert runner_up["predicted_us"] >= best["predicted_us"]
    assert "proven optimal" in found["err"]
    assert "bound by" in found["err"]


def test_waiting_as_the_goal(gemm_model):
    assert "64x64x32" in gemm_model(*PROBLEM, "math_bound", "--objective", "wait", "--method", "smt").out


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_a_gpus_own_kernels(schedule, answer):
    best = answer(*LARGE, "h200", "--schedule", schedule)["rows"][0]
    tile_m, tile_n, _ = map(int, best["tile"].split("x"))
    # A tile that the Hopper kernels offer for the schedule, and that their registers hold.
    assert tile_m in ((64, 128, 192) if schedule == "pingpong" else (64, 128, 192, 256))
    assert tile_m * tile_n <= (128 * 208 if schedule == "pingpong" else 256 * 208)


def test_pairs_of_ctas(answer):
    best = answer(*LARGE, "b200_sxm", "--schedule", "2cta", "--dtype", "fp8")["rows"][0]
    assert best["tile"].startswith(("64x", "128x"))


def test_a_time_out_reports_the_best_so_far_with_exit_code_4(monkeypatch, gemm_model):
    from gemm_model.commands import solve
    from gemm_model.solve.smt import solve_smt

    def cut_short(*sizes, **options):
        from dataclasses import replace

        return replace(solve_smt(*sizes, **options), proven=False)

    monkeypatch.setattr(solve, "solve_smt", cut_short)
    found = gemm_model(*PROBLEM, "balanced", "--method", "smt")
    assert found.code == 4
    assert "64x64x128" in found.out
    assert "no proof within" in found.err
