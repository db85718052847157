from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gemm_model import GemmProblem, InputError, Ranker
from gemm_model.choice.portfolio import _lagrangian_bound, choose_portfolio, select_columns
from tests.choice.test_selection import whole_kernels

RANKER = Ranker("h200", model="WSPersistentGEMMModel")
SHAPES = [(16, 4096, 7168), (128, 4096, 4096), (4096, 4096, 4096), (8192, 1024, 2048), (2048, 512, 16384)]
PROBLEMS = [GemmProblem.of(*shape) for shape in SHAPES]


def optimum(cost, count):
    columns = range(cost.shape[1])
    return min(cost[:, list(chosen)].min(axis=1).sum() for chosen in combinations(columns, count))


@settings(max_examples=40)
@given(cost=arrays(float, (7, 8), elements=st.floats(1.0, 3.0)), count=st.integers(1, 4))
def test_the_choice_is_the_optimum_of_all_choices(cost, count):
    found = select_columns(cost, count)
    best = optimum(cost, count)
    assert found.cost == pytest.approx(best, rel=1e-6)
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.gap <= 1e-6
    assert len(found.chosen) <= count


@settings(max_examples=40)
@given(cost=arrays(float, (6, 7), elements=st.floats(1.0, 9.0)), count=st.integers(1, 3))
def test_the_relaxation_never_exceeds_the_optimum(cost, count):
    best = optimum(cost, count)
    bound, penalties = _lagrangian_bound(cost, count, best)
    assert bound <= best * (1 + 1e-9)
    for column, penalty in enumerate(penalties):
        with_column = [c for c in combinations(range(cost.shape[1]), count) if column in c]
        cheapest = min(cost[:, list(chosen)].min(axis=1).sum() for chosen in with_column)
        assert bound + penalty <= cheapest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_a_choice_that_is_called_the_best_is_the_best(seed, monkeypatch):
    """Some relaxations leave a gap, which the search over the columns that can matter has to close."""
    monkeypatch.setattr("gemm_model.choice.portfolio.EXACT_SEARCH_CELLS", 10 * 12)
    draw = np.random.default_rng(seed)
    cost, count = 1.0 + 2.0 * draw.random((10, 12)), int(draw.integers(2, 5))
    found = select_columns(cost, count)
    assert found.gap <= 1e-6
    assert found.cost == pytest.approx(optimum(cost, count), rel=1e-6)


def test_columns_that_cannot_serve_a_row_are_infinite():
    cost = np.array([[1.0, np.inf], [np.inf, 1.0]])
    assert select_columns(cost, 2).chosen == (0, 1)
    with pytest.raises(InputError, match="no 1 kernels serve every problem"):
        select_columns(cost, 1)
    assert select_columns(np.zeros((2, 2)), 1).gap == 0.0


def test_one_kernel_is_the_best_of_all_single_kernels():
    found = choose_portfolio(PROBLEMS, RANKER, 1)
    space = whole_kernels(RANKER, PROBLEMS[0])[0]
    times = np.array([whole_kernels(RANKER, problem)[2] for problem in PROBLEMS])
    by_kernel = times.reshape(len(PROBLEMS), space.kernels, -1).min(axis=2)
    ratios = (by_kernel / by_kernel.min(axis=1, keepdims=True)).mean(axis=0)
    assert found.mean_loss == pytest.approx(ratios.min() - 1)
    assert found.gap <= 1e-6


def test_more_kernels_lose_less_and_enough_lose_nothing():
    losses = [choose_portfolio(PROBLEMS, RANKER, count).mean_loss for count in (1, 2, 3, len(PROBLEMS))]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


def test_each_shape_runs_its_own_kernel_with_its_own_order():
    found = choose_portfolio(PROBLEMS, RANKER, 2)
    assert found.best_us == pytest.approx(
        [RANKER.rank(problem, 1).best.prediction.runtime_us for problem in PROBLEMS]
    )
    for position, order in zip(found.served_by, found.orders, strict=True):
        kernel = found.kernels[position]
        assert (order.config.cta_m, order.config.cta_n) == (kernel.config.cta_m, kernel.config.cta_n)
        assert order.swap_ab == kernel.swap_ab


def test_weights_move_the_choice():
    heavy = [1e6, 1.0, 1.0, 1.0, 1.0]
    assert choose_portfolio(PROBLEMS, RANKER, 1, heavy).loss[0] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("problems", "count", "weights", "words"),
    [
        ([], 1, None, "no problems"),
        (PROBLEMS, 0, None, "max_kernels is 0"),
        (PROBLEMS, 1, [1.0], "one positive number for each problem"),
        (PROBLEMS, 1, [0.0] * 5, "one positive number for each problem"),
        ([*PROBLEMS, GemmProblem.of(1, 1, 1, "fp8")], 1, None, "different types"),
    ],
)
def test_bad_input_is_refused(problems, count, weights, words):
    with pytest.raises(InputError, match=words):
        choose_portfolio(problems, RANKER, count, weights)
