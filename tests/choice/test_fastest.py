"""What is left out of a look changes nothing: not the choices, their ties, the runner-up or its place."""

import numpy as np
import pytest

from gemm_model import GemmProblem, Ranker
from gemm_model.choice import fastest as search
from gemm_model.config.numbers import room_numbers
from gemm_model.core.prediction import LeastTimes
from tests.kernel_model.test_least_time import problems

CASES = [
    ("h200", "auto", {"residual": "off"}, 0.5),
    ("h200", "auto", {}, 0.7),
    ("h200", "any", {}, 0.7),
    ("h100_sxm", "cublas", {"regime": "graph"}, 0.7),
    ("b200_1300mhz", "auto", {"regime": "sustained"}, 1.0),
]
"""With the share of the kernels that is looked at, at most; a capped clock tells little beforehand."""


def looks(ranker, problem, top_k, monkeypatch, *, least=None):
    """The ranking of a problem, and how many kernels were looked at; `least` replaces `least_times`."""
    looked_at = []

    def evaluate(grid, model_evaluates=ranker.model.evaluate):
        looked_at.append(len(grid.batch))
        return model_evaluates(grid)

    with monkeypatch.context() as patch:
        patch.setattr(ranker.model, "evaluate", evaluate)
        if least is not None:
            patch.setattr(ranker.model, "least_times", least)
        return ranker._rank(problem, top_k), sum(looked_at)


def nothing_known(grid):
    return LeastTimes(np.zeros(len(grid.batch)))


@pytest.mark.parametrize(("gpu", "family", "options", "most"), CASES)
def test_the_ranking_is_that_of_a_look_at_every_kernel(gpu, family, options, most, monkeypatch):
    ranker = Ranker(gpu, family=family, options=options)
    looked_at = in_all = 0
    for place, problem in enumerate(problems(9, "bf16", 10)):
        top_k = (8, 1, 40)[place % 3]
        found, some = looks(ranker, problem, top_k, monkeypatch)
        expected, every = looks(ranker, problem, top_k, monkeypatch, least=nothing_known)
        assert every >= expected.kernels
        assert found == expected
        looked_at, in_all = looked_at + some, in_all + every
    assert looked_at < most * in_all


def test_a_first_look_that_is_too_near_is_followed_by_a_further_one(monkeypatch):
    ranker = Ranker("h200", options={"residual": "off"})
    problem = GemmProblem.of(2048, 4096, 1024)
    expected, some = looks(ranker, problem, 8, monkeypatch)
    near = room_numbers("choice").having(first_look=1.0)
    monkeypatch.setattr(search, "room_numbers", lambda _: near)
    found, twice = looks(ranker, problem, 8, monkeypatch)
    assert found == expected
    assert twice > 0
    assert some < expected.kernels


def test_a_longer_list_begins_with_the_shorter_one():
    ranker = Ranker("h200")
    problem = GemmProblem.of(256, 256, 256)
    assert ranker.rank(problem, 30).choices[:12] == ranker.rank(problem, 12).choices
