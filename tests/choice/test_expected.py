"""Expected times over routings: means of single predictions, and the choice that is best by them."""

from dataclasses import replace

import numpy as np
import pytest

import gemm_model as gm
from gemm_model import InputError, Routing
from gemm_model.choice.expected import expected_time, rank_routing, routed

ROUTING = Routing.parse("zipf:0.8", experts=16, tokens=256, top_k=4)
PROBLEM = gm.GemmProblem.of(1024, 2048, 1024)
CONFIG = gm.KernelConfig(cta_m=128, cta_n=128, schedule="pingpong")
RANKER = gm.Ranker("h200")


def test_the_expected_time_is_the_mean_of_those_of_the_routings():
    found = expected_time(PROBLEM, ROUTING, CONFIG, "h200", count=9, seed=4)
    times_us = [
        gm.predict(replace(PROBLEM, groups=groups), CONFIG, "h200").runtime_us
        for groups in ROUTING.groups(9, seed=4)
    ]
    assert found.mean_us == pytest.approx(np.mean(times_us))
    assert found.prediction.runtime_us == pytest.approx(sorted(times_us)[4])
    assert sorted(times_us)[7] <= found.p95_us <= max(times_us)
    assert found.middle.groups.rows in [groups.rows for groups in ROUTING.groups(9, seed=4)]
    assert found.routings == 9


def test_a_balanced_routing_is_one_problem():
    balanced = Routing(experts=16, tokens=256, top_k=4, distribution="balanced")
    found = expected_time(PROBLEM, balanced, CONFIG, "h200")
    one = gm.predict(gm.GemmProblem.of(1024, 2048, 1024, groups=",".join(["64"] * 16)), CONFIG, "h200")
    assert (found.routings, found.mean_us) == (1, pytest.approx(one.runtime_us))
    assert found.p95_us == found.mean_us


def test_equal_times_are_their_own_mean_and_percentile():
    # One token in a group of its own: all routings take the same time; 20 of it over 20 may round to more.
    routing = Routing.parse("zipf:2", experts=16, tokens=1)
    problem = gm.GemmProblem.of(1, 4096, 7168)
    for choice in rank_routing(RANKER, problem, routing, 8, count=20).choices:
        found = choice.expected
        assert found.mean_us == found.p95_us == found.longest_us


def test_the_longest_routing_is_told_beside_the_percentile():
    routing = Routing.parse("zipf:2", experts=16, tokens=1024, top_k=8)
    problem = gm.GemmProblem.of(routing.rows, 4096, 7168)
    config = gm.KernelConfig(cta_m=128, cta_n=128)
    times_us = [gm.predict(each, config, "h200").runtime_us for each in routed(problem, routing)]
    found = expected_time(problem, routing, config, "h200")
    assert found.longest_us == pytest.approx(max(times_us))
    assert found.mean_us == pytest.approx(sum(times_us) / len(times_us))
    assert sorted(times_us)[-3] <= found.p95_us < found.longest_us
    assert found.prediction.runtime_us <= found.p95_us


def test_one_expert_is_a_plain_product():
    found = expected_time(PROBLEM, Routing(experts=1, tokens=1024), CONFIG, "h200", count=3)
    assert found.mean_us == pytest.approx(gm.predict(PROBLEM, CONFIG, "h200").runtime_us)


def test_the_choice_is_the_best_in_the_mean():
    ranking = rank_routing(RANKER, PROBLEM, ROUTING, 5, count=8, seed=1)
    found = ranking.choices
    assert ranking.kernels >= ranking.tied_with_best >= 1
    assert ranking.candidates == ranking.kernels * 5  # each in five swizzles
    best_us, *others_us = [choice.expected.mean_us for choice in found]
    other_us = next(time_us for time_us in others_us if time_us > best_us)
    assert (
        f" takes {other_us:.2f} us in the mean, {100 * (other_us / best_us - 1):.1f}% more" in ranking.reason
    )
    assert [choice.rank for choice in found] == [1, 2, 3, 4, 5]
    mean_us = [choice.expected.mean_us for choice in found]
    assert mean_us == sorted(mean_us)
    best = found[0]
    again = expected_time(PROBLEM, ROUTING, best.candidate.config, "h200", count=8, seed=1)
    assert again.mean_us == pytest.approx(best.expected.mean_us)
    assert again.p95_us == pytest.approx(best.expected.p95_us)
    assert again.prediction.runtime_us == pytest.approx(best.expected.prediction.runtime_us)
    # No winner of a single routing is better over all of them.
    for problem in routed(PROBLEM, ROUTING, 8, seed=1):
        other = RANKER.rank(problem, 1).best.candidate.config
        other_us = expected_time(PROBLEM, ROUTING, other, "h200", count=8, seed=1).mean_us
        assert other_us >= best.expected.mean_us * (1 - 1e-9)


def test_rows_have_to_be_those_of_the_tokens():
    with pytest.raises(InputError, match="groups have 1024 rows in all; expected the 1000 of m"):
        expected_time(gm.GemmProblem.of(1000, 2048, 1024), ROUTING, CONFIG, "h200")
    with pytest.raises(InputError, match="cublas kernels on sm90 do no groups; kernels of quack and"):
        rank_routing(gm.Ranker("h200", family="cublas"), PROBLEM, ROUTING)
