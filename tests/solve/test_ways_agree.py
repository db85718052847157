"""The cross-validation of `benchmarks/pipeline_cross_validation.py`, on a sample of its problems."""

from dataclasses import replace
from itertools import product

import pytest

from benchmarks import pipeline_cross_validation as ways
from gemm_model.pipeline.machine import load_machine, machine_names

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
