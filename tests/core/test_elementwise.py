"""Elementwise functions on numbers and on arrays."""

import math

import numpy as np
import pytest

from gemm_model.core.elementwise import in_order, power_of_two_divisor, remainder, smooth_maximum, where


def test_smooth_maximum_is_a_norm():
    assert smooth_maximum(0.1, 3.0, 8.0) == pytest.approx(3.0, rel=1e-6)
    assert smooth_maximum(0.0, 0.0, 8.0) == 0
    assert smooth_maximum(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_maximum(2.0, 2.0, 8.0) == pytest.approx(2.181015)
    # An order that is no power of two takes the general power.
    assert smooth_maximum(3.0, 4.0, 3.0) == pytest.approx(91 ** (1 / 3))
    assert smooth_maximum(np.array([3.0, 1.0]), np.array([4.0, 0.0]), 2.0).tolist() == pytest.approx(
        [5.0, 1.0]
    )


@pytest.mark.parametrize(("value", "divisor"), [(1, 1), (96, 32), (1040, 16), (4096, 4096), (7, 1)])
def test_power_of_two_divisor(value, divisor):
    assert power_of_two_divisor(float(value)) == divisor == math.gcd(value, 2**40)
    assert power_of_two_divisor(np.array([float(value)]))[0] == divisor


def test_remainder_of_whole_numbers():
    assert remainder(4104.0, 64.0) == 8
    assert remainder(np.array([4104.0, 128.0]), 64.0).tolist() == [8, 0]


def test_choices_take_each_row_from_its_side():
    first, second = in_order(np.arange(4) % 3 == 0, np.arange(4.0), 7.0)
    assert (first.tolist(), second.tolist()) == ([0.0, 7.0, 7.0, 3.0], [7.0, 1.0, 2.0, 7.0])
    assert where(np.arange(3) > 1, np.arange(3.0), math.inf).tolist() == [math.inf, math.inf, 2.0]


def test_choices_of_numbers():
    assert where(True, 1.0, 2.0) == 1.0
    assert in_order(False, 1.0, 2.0) == (2.0, 1.0)
