"""Several families in one ranking, and what a choice gains over one of them."""

from dataclasses import replace

import pandas as pd
import pytest

from gemm_model import GemmProblem, Ranker, load_gpu, rank
from gemm_model.choice.portfolio import choose_portfolio
from gemm_model.choice.table_ranking import Against, against, best_of_each, rank_table, rank_table_against
from gemm_model.kernels.registry import families, family_of
from tests.cases import cases
from tests.choice import test_ties as ties

H200 = load_gpu("h200")
ANY = Ranker(H200, family="any")
PLAIN = [name for name in families(H200) if family_of(name, H200).plain_products]
ALONE = {name: Ranker(H200, family=name) for name in PLAIN}
SHAPES = [(16, 4096, 4096), (1000, 1000, 4096), (4096, 4096, 4096)]


@pytest.mark.parametrize("sizes", SHAPES)
def test_the_ranking_of_all_is_that_of_each_merged(sizes):
    problem = GemmProblem.of(*sizes)
    merged = ANY.rank(problem, 12)
    rankings = [ranker.rank(problem, 12) for ranker in ALONE.values()]
    times = sorted(choice.prediction.runtime_us for ranking in rankings for choice in ranking.choices)
    assert [choice.prediction.runtime_us for choice in merged.choices] == times[:12]
    assert merged.kernels == sum(ranking.kernels for ranking in rankings)
    assert merged.candidates == sum(ranking.candidates for ranking in rankings)
    best = next(r for r in rankings if r.best.prediction.runtime_us == times[0]).best
    assert merged.best.prediction == best.prediction
    assert merged.best.candidate == best.candidate


def test_each_choice_says_its_family():
    ranking = ANY.rank(GemmProblem.of(512, 512, 512), 400)
    names = {choice.candidate.config.kernel for choice in ranking}
    assert len(names) > 1
    assert names <= {"quack", "cublas", "cutlass", "triton"}


def test_why_not_finds_a_kernel_of_a_named_family():
    problem = GemmProblem.of(4096, 4096, 4096)
    alone_us = ALONE["triton"].why_not(problem, "128x128,swizzle=8").partition(": ")[2].partition(" us")[0]
    found = ANY.why_not(problem, "128x128,swizzle=8,kernel=triton")
    assert f": {alone_us} us" in found
    assert "kernel=triton" in found
    # Where no family is named, the fastest of such kernels is compared.
    alone = [ranker.why_not(problem, "128x128").partition(": ")[2] for ranker in ALONE.values()]
    fastest_us = min(float(text.partition(" us")[0]) for text in alone)
    assert f": {fastest_us:.2f} us" in ANY.why_not(problem, "128x128")
    reason = ALONE["triton"].why_not(problem, "128x128,kernel=quack")
    assert reason.endswith("no quack kernels are ranked; expected one of triton")


def test_families_without_a_kernel_for_the_types_are_said():
    """Triton's operands are of equal widths; tcgen05.mma multiplies fp8 by fp4 (kind::f8f6f4)."""
    mixed = GemmProblem.of(4096, 4096, 4096, "e4m3", b_dtype="e2m1")
    ranking = rank(mixed, "b200_1300mhz", 1, family="any")
    (reason,) = ranking.left_out
    assert reason.startswith("no legal triton configuration on b200_1300mhz: operands of 8 and 4 bits")
    assert ranking.best.candidate.config.kernel != "triton"
    best = {
        each.candidate.config.kernel for each in best_of_each(Ranker("b200_1300mhz", family="any"), mixed)
    }
    assert best == {"quack", "cublas", "cutlass"}
    assert ANY.rank(GemmProblem.of(512, 512, 512), 1).left_out == ()


def test_a_table_takes_the_fastest_family_of_each_row():
    frame = pd.DataFrame(SHAPES, columns=["m", "n", "k"])
    merged = rank_table(frame, ANY, (done := []).append)
    assert done == [1] * len(frame)
    alone = {name: rank_table(frame, ranker)["predicted_us"] for name, ranker in ALONE.items()}
    for row, best in merged.iterrows():
        assert best["predicted_us"] == min(times[row] for times in alone.values())
        assert best["predicted_us"] == alone[best["kernel"]][row]


def test_a_table_against_a_family():
    frame = pd.DataFrame(SHAPES, columns=["m", "n", "k"])
    result = rank_table_against(frame, ANY, ALONE["triton"])
    assert (result["against_us"] == rank_table(frame, ALONE["triton"])["predicted_us"]).all()
    assert (result["gain"] >= 0).all()
    assert result["gain"].tolist() == pytest.approx(
        [other / own - 1 for own, other in zip(result["predicted_us"], result["against_us"], strict=True)]
    )


def test_a_portfolio_takes_kernels_of_several_families():
    problems = [GemmProblem.of(*sizes) for sizes in SHAPES]
    found = choose_portfolio(problems, ANY, len(problems))
    best = [ANY.predictions(problem) for problem in problems]
    fastest = [min(float(answer.runtime_us.min()) for _, _, answer in of_problem) for of_problem in best]
    assert found.time_us.tolist() == pytest.approx(fastest)
    assert found.mean_loss == pytest.approx(0.0)


def choice_of(time_and_band):
    return replace(
        ANY.rank(GemmProblem.of(512, 512, 512), 1).best, prediction=ties.prediction(*time_and_band)
    )


@pytest.mark.parametrize(*cases(__file__, "test_a_gain_is_the_time_saved_over_the_time_taken"))
def test_a_gain_is_the_time_saved_over_the_time_taken(own, other, gain, tied):
    ranking = replace(ANY.rank(GemmProblem.of(512, 512, 512), 1), choices=(choice_of(own),))
    held = Against(ranking=ranking, reference=choice_of(other), heuristic_choice_us=1.0)
    assert held.gain(ranking.best) == pytest.approx(gain)
    assert held.tied is tied


def test_nothing_is_gained_over_oneself():
    ranking = ALONE["cublas"].rank(GemmProblem.of(512, 512, 512), 2)
    assert against(ranking, ALONE["cublas"]).gain(ranking.best) == 0.0


def test_the_best_of_each_family_is_what_it_ranks_first_alone():
    problem = GemmProblem.of(64, 7168, 2048)
    found = best_of_each(ANY, problem)
    assert {choice.candidate.config.kernel for choice in found} == set(ALONE)
    times = [choice.prediction.runtime_us for choice in found]
    assert times == sorted(times)
    assert times[0] == ANY.rank(problem, 1).best.prediction.runtime_us
    for choice in found:
        assert choice == ALONE[choice.candidate.config.kernel].rank(problem, 1).best


def test_the_gain_over_what_a_library_picks_by_itself():
    ranking = ANY.rank(GemmProblem.of(64, 14336, 8192), 1)
    held = against(ranking, ALONE["cublas"])
    # It loses 5 % of what DRAM bounds (heuristic_choices.yaml).
    assert held.reference.prediction.limiter == "DRAM"
    assert held.heuristic_choice_us == pytest.approx(1.05 * held.reference.prediction.runtime_us)
    best_us = ranking.best.prediction.runtime_us
    assert held.heuristic_choice_gain == pytest.approx(held.heuristic_choice_us / best_us - 1.0)
