"""Rows that are chosen to tell numbers apart."""

import math
from itertools import combinations

import numpy as np
import pytest

from gemm_model.calibration.planning import d_optimal, left_unknown, log_jacobian, planned, spread_out
from gemm_model.core.errors import InputError


def test_derivatives_are_in_units_of_a_step():
    # log(a b^2): one step of 0.01 in a = 2 is 0.005, of 0.02 in b = 4 twice 0.005.
    found = log_jacobian(
        lambda v: np.array([math.log(v[0] * v[1] ** 2)]), np.array([2.0, 4.0]), np.array([0.01, 0.02])
    )
    assert found == pytest.approx(np.array([[0.005, 0.01]]), rel=1e-4)


def test_the_first_row_is_the_longest_and_the_second_points_elsewhere():
    rows = np.array([[1.0, 0.0], [0.99, 0.0], [0.0, 0.5], [0.4, 0.4]])
    assert d_optimal(rows, 3, noise=0.1).tolist()[:2] == [0, 2]


def test_the_design_is_close_to_the_best_of_all_sets():
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(9, 3))

    def information(chosen):
        part = rows[list(chosen)]
        return math.log(np.linalg.det(np.eye(3) + part.T @ part / 0.25))

    best = max(information(chosen) for chosen in combinations(range(9), 4))
    found = information(d_optimal(rows, 4, noise=0.5))
    assert best * (1 - 1 / math.e) <= found <= best
    assert found > np.mean([information(chosen) for chosen in combinations(range(9), 4)])


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_rows_are_refused(count):
    with pytest.raises(InputError, match=f"a design of {count} rows from 2; expected 1 to 2"):
        d_optimal(np.eye(2), count)


def test_rows_that_the_model_does_not_predict_are_refused():
    with pytest.raises(InputError, match="not finite"):
        d_optimal(np.array([[math.nan]]), 1)


def test_spread_out_rows_stand_for_groups_of_equal_size():
    """Eight rows on a line in four pairs, far apart: one of each pair is taken."""
    line = np.array([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1], [30.0], [30.1]])
    jacobian = np.hstack([line, np.zeros((8, 1))])
    assert sorted(position // 2 for position in spread_out(jacobian, 4)) == [0, 1, 2, 3]
    assert sorted(spread_out(jacobian, 8)) == list(range(8))
    with pytest.raises(InputError, match="a design of 9 rows from 8"):
        spread_out(jacobian, 9)


def test_a_plan_is_mostly_spread_out_and_takes_no_row_twice():
    """Of 40 rows a quarter, 10, tell most: the last rows, whose derivatives are a hundred times larger."""
    random = np.random.default_rng(1)
    jacobian = random.normal(size=(400, 3))
    jacobian[-20:] *= 100.0
    chosen = planned(jacobian, 40)
    assert len(set(chosen.tolist())) == 40
    assert set(spread_out(jacobian, 30)) <= set(chosen)
    assert all(position >= 380 for position in chosen[30:])


def test_rows_that_are_twice_as_telling_leave_half_unknown():
    """One number, a derivative of 0.09 at a noise of 0.03: variance 1 / (1 + 9)."""
    assert left_unknown(np.array([[0.09], [0.0]])) == pytest.approx([10**-0.5])
