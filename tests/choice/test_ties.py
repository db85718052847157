"""Which kernels are tied, and which choices as one: by hand, without a model."""

from dataclasses import dataclass

import numpy as np
import pytest

from gemm_model import GemmProblem, Prediction, Ranker
from gemm_model.choice import fastest as search
from gemm_model.choice.fastest import _fastest_of
from gemm_model.config.numbers import room_numbers
from gemm_model.core.prediction import LeastTimes
from tests.kernel_model.test_least_time import problems

BAND = 0.05


def prediction(time_us, band=BAND):
    return Prediction(
        runtime_us=time_us, limiter="DRAM", phases_us={}, details={}, bytes_by_level={}, error_band=band
    )


@dataclass
class Kernels:
    """Stands for `KernelTimes` of one problem: kernel i is candidate 10 i."""

    us: list[float]

    @property
    def times_us(self):
        return np.array(self.us)

    @property
    def kernels(self):
        return np.arange(len(self.us))

    def predictions(self, kernels):
        return [(10 * kernel, prediction(self.us[kernel])) for kernel in kernels]


def test_kernels_within_the_band_of_the_fastest_are_tied():
    found = _fastest_of([Kernels([10.6, 10.3]), Kernels([10.0, 10.5, 12.0])], 3)
    # In the order of both lists: 10.0, 10.3 and 10.5 us; 10.5 is the last within 5 % of the first.
    assert [place for place, _ in found.chosen] == [0, 10, 10, 10]
    assert [prediction.runtime_us for _, prediction in found.chosen] == [10.0, 10.3, 10.5, 10.3]
    assert found.tied_us == pytest.approx(10.5)
    assert (found.kernel_us <= found.tied_us).sum() == 3
    assert found.ties.tolist() == [1, 1, 1]
    assert found.second_us == 10.3
    assert found.needed_us == pytest.approx(10.5000000105, rel=1e-12)


def test_what_must_be_known_reaches_to_the_last_choice_the_ties_and_the_runner_up():
    """The farthest of the three decides: the runner-up of 12 us, the third choice of 13, the band of 10.5."""
    assert _fastest_of([Kernels([10.0, 12.0])], 1).needed_us == pytest.approx(12.0)
    assert _fastest_of([Kernels([10.0, 12.0, 13.0])], 3).needed_us == pytest.approx(13.0)
    assert _fastest_of([Kernels([10.0, 10.2, 13.0])], 1).needed_us == pytest.approx(10.5)


def test_equal_times_are_no_runner_up():
    found = _fastest_of([Kernels([10.0, 10.0, 10.0])], 2)
    assert found.second_us == np.inf
    assert found.ties.tolist() == [1, 1]


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
