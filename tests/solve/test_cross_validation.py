from itertools import product

import pytest

from gemm_model.pipeline.machine import load_machine, machine_names
from gemm_model.solve.cross_validation import all_problems, cross_validate, sample_problems
from gemm_model.solve.exact import Choice, Solution

CORNERS = set(product((32, 1024), repeat=3))


@pytest.mark.parametrize("name", machine_names())
def test_all_ways_agree_on_a_sample_with_the_corners(name):
    found = cross_validate(
        load_machine(name), sample_problems(120, seed=5), [(1024, 1024, 1024), (96, 800, 352)]
    )
    assert found.mismatches == ()
    assert found.problems == 120
    assert found.smt_problems == 2


def test_the_sample_holds_the_corners_and_is_seeded():
    problems = sample_problems(40, seed=1)
    assert set(problems) >= CORNERS
    assert problems == sample_problems(40, seed=1) != sample_problems(40, seed=2)
    assert len(all_problems()) == 32**3


def test_a_wrong_time_is_reported(monkeypatch):
    from gemm_model.solve import cross_validation

    def one_picosecond_off(*problem):
        right = cross_validation_solve(*problem)
        best = right.best
        return Solution(
            best=Choice(
                tile_m=best.tile_m,
                tile_n=best.tile_n,
                tile_k=best.tile_k,
                stages=best.stages,
                time_ps=best.time_ps + 1,
                wait_ps=best.wait_ps,
            ),
            runner_up=None,
            candidates=1,
        )

    cross_validation_solve = cross_validation.solve_exact
    monkeypatch.setattr(cross_validation, "solve_exact", one_picosecond_off)
    found = cross_validate(load_machine("balanced"), [(64, 64, 64)])
    assert len(found.mismatches) == 1
