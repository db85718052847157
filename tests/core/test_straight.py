"""Traced formulas give what the formulas give, of numbers and of columns."""

import math
import shutil

import numpy as np
import pytest

from gemm_model.core.compiled import COMPILER, compiled
from gemm_model.core.elementwise import (
    any_of,
    floor,
    in_order,
    maximum,
    minimum,
    power_of_two_divisor,
    repeated,
    root,
    smooth_maximum,
    taken,
    where,
)
from gemm_model.core.straight import Extent, called, straight

TABLE = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
OPERANDS = np.array([[2.5, 7.0, 1.0, 3.0], [3.5, 0.5, 4.0, 3.25]])


def formula(a, b, c):
    """Operations of each kind, and a root by Newton, which stops where all are found."""
    start = maximum(a, b) + root(a * b, 4.0) * c
    half, least = called(lambda one, other: (one / 2.0, minimum(one, other)), start, b)
    third = where((a > 2.0) & (b >= 1.0), taken(TABLE, floor(minimum(a, 4.0))), 0.5**b)

    def step(before, found):
        beyond = found * found - start
        return (found, found - beyond / (2.0 * found)), beyond * beyond < 1e-20

    before, found = repeated(step, (1.0, start), 30)
    extra = least - third if any_of(b > 3.0) else 1.0
    return {"root": found, "beside": (before, half, extra, start * 1.0 + c * 0.0)}


@pytest.fixture(params=["Python", "C"])
def way(request, monkeypatch, tmp_path):
    """`straight`, and `compiled` by this machine's compiler."""
    if request.param == "Python":
        return straight
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler: cc is not on the path")
    monkeypatch.setenv(COMPILER, compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return compiled


@pytest.mark.parametrize("c", [1.0, 1.5])
def test_numbers_and_columns_take_the_same_way(c, way):
    a, b = OPERANDS.copy()
    of_columns, of_numbers = (way(formula, [Extent(axes), Extent(axes), c]) for axes in (1, 0))
    for _ in range(2):  # which would differ if inputs were written into
        found, expected = of_columns(a, b), formula(*OPERANDS, c)
        if way is compiled:  # which stops each root where it is found
            each = [formula(*map(float, pair), c) for pair in OPERANDS.T]
            befores = np.array([of["beside"][0] for of in each])
            expected["beside"] = befores, *expected["beside"][1:]
            expected["root"] = np.array([of["root"] for of in each])
        assert found["root"] == pytest.approx(expected["root"], rel=1e-14)
        assert np.stack(found["beside"]) == pytest.approx(np.stack(expected["beside"]), rel=1e-14)
    assert of_numbers(2.5, 3.5) == formula(2.5, 3.5, c)
    of_grid = way(formula, [Extent(1), Extent(2), c])(a, b[:, None])
    near = 1e-9 if way is compiled else 1e-14
    assert of_grid["root"] == pytest.approx(formula(a, b[:, None], c)["root"], rel=near)


def test_a_formula_that_asks_a_symbol_is_refused():
    with pytest.raises(TypeError, match="asks whether a symbol is true"):
        straight(lambda a: 1.0 if a > 2.0 else a, [Extent(0)])


def test_a_compiler_that_fails_leaves_formulas_in_python(monkeypatch, tmp_path):
    monkeypatch.setenv(COMPILER, "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match="no-such-compiler makes no library"):
        assert compiled(formula, [Extent(0), Extent(0), 1.0]) is None
    assert not list(tmp_path.rglob("*.so"))


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


def test_choices_take_each_row_from_its_side():
    first, second = in_order(np.arange(4) % 3 == 0, np.arange(4.0), 7.0)
    assert (first.tolist(), second.tolist()) == ([0.0, 7.0, 7.0, 3.0], [7.0, 1.0, 2.0, 7.0])
    assert where(np.arange(3) > 1, np.arange(3.0), math.inf).tolist() == [math.inf, math.inf, 2.0]
