"""Elementwise functions for formulas that take numbers and arrays alike.

On Python numbers they stay in Python, which is an order of magnitude faster than numpy on one element; on
arrays they are numpy's. So a formula is written once, and one prediction costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.straight import Symbol

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Values: TypeAlias = float | NDArray[np.float64]
"""A float or an array: what the formulas take and return. Numbers are never ints."""
Flags: TypeAlias = bool | NDArray[np.bool_]
"""A condition or an array of conditions."""
Codes: TypeAlias = int | NDArray[np.int64]
"""A position in a tuple of names, or an array of positions."""
SQUARES_OF_SQUARES = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Orders for which a power is a few squarings and a root a few square roots."""


def is_number(value: object) -> TypeIs[float]:
    """Whether a value is a number and not an array. Formulas inline this test: a call costs as much as an
    addition.
    """
    return type(value) is float


def is_one(value: Values) -> bool:
    """Whether a value is the number 1 for all rows."""
    return type(value) is float and value == 1.0


def scaled(values: Values, factor: Values) -> Values:
    """`values * factor`; a factor of 1 for all rows leaves them as they are."""
    return values if type(factor) is float and factor == 1.0 else values * factor


def maximum(a: Values, b: Values) -> Values:
    if type(a) is float and type(b) is float:
        return a if a >= b else b  # noqa: FURB136 - a call would double the time
    return np.maximum(a, b)


def minimum(a: Values, b: Values) -> Values:
    if type(a) is float and type(b) is float:
        return a if a <= b else b  # noqa: FURB136 - a call would double the time
    return np.minimum(a, b)


@overload
def where(condition: Flags, yes: Flags, no: Flags) -> Flags: ...


@overload
def where(condition: Flags, yes: Values, no: Values) -> Values: ...


def where(condition: Flags, yes: Values | Flags, no: Values | Flags) -> Values | Flags:
    """`yes` where the condition holds, else `no`. Both are computed beforehand, so neither may divide by
    zero.
    """
    if condition is True or condition is False:
        return yes if condition else no
    return np.where(condition, yes, no)


def in_order(condition: Flags, a: Values, b: Values) -> tuple[Values, Values]:
    """(a, b) where the condition holds, (b, a) elsewhere."""
    if condition is True or condition is False:
        return (a, b) if condition else (b, a)
    return np.where(condition, a, b), np.where(condition, b, a)


def any_of(flags: Flags) -> bool:
    return flags if flags is True or flags is False else bool(flags.any())


def floor(value: Values) -> Values:
    return value // 1.0 if type(value) is float else np.floor(value)


def ceil(value: Values) -> Values:
    return -(-value // 1.0) if type(value) is float else np.ceil(value)


def remainder(whole: Values, divisor: Values) -> Values:
    """Remainder of whole numbers held as floats; numpy's own `%` takes as long as eight divisions."""
    return whole - floor(whole / divisor) * divisor


def is_multiple(value: Values, step: Values) -> Flags:
    """Whether whole numbers held as floats are multiples of a step; see `remainder`."""
    steps = value / step
    return steps == floor(steps)


def one_of(value: Values | Codes, options: Sequence[float]) -> Flags:
    """Whether a value is among some; False where there are none."""
    if is_number(value) or isinstance(value, int):
        return value in options
    found: Flags = False
    for option in options:
        found = found | (value == option)
    return found


def taken(table: NDArray[np.float64], places: Values) -> Values:
    """Entries of a table at positions held as floats; a two-dimensional table is read row by row."""
    if is_number(places):
        return float(table.item(int(places)))
    if isinstance(places, Symbol):
        return places.trace.made("take", table, places.astype(np.int64))
    return table.take(places.astype(np.int64))


def scattered(rows: Sequence[Any], parts: Sequence[Any], total: int) -> NDArray[Any]:
    """A column of `total` rows from those of disjoint rows; a number serves all rows of its part."""
    column = np.empty(total, dtype=np.result_type(*map(np.asarray, parts)))
    for places, part in zip(rows, parts, strict=True):
        column[places] = part
    return column


def sqrt(value: Values) -> Values:
    return math.sqrt(value) if type(value) is float else np.sqrt(value)


def exp(value: Values) -> Values:
    # Python's own rounds the last bit otherwise than numpy's of 1.26: a number gets what a column gets.
    return float(np.exp(value)) if type(value) is float else np.exp(value)


def negated(condition: Flags) -> Flags:
    return not condition if isinstance(condition, bool) else np.logical_not(condition)


def power_of_two_divisor(value: Values) -> Values:
    """The largest power of two that divides a positive whole number held as a float."""
    if is_number(value):
        whole = int(value)
        return float(whole & -whole)
    wholes = value.astype(np.int64)
    return (wholes & -wholes).astype(np.float64)


def smooth_maximum(a: Values, b: Values, order: float) -> Values:
    """The norm (a^order + b^order)^(1/order) of two non-negative values.

    Phases that overlap hide each other imperfectly when they take about the same time. With equal times order
    8 adds 9 %; order 2, for queues in a row, adds 41 %.
    """
    return root(power(a, order) + power(b, order), order)


def power(value: Values, order: float) -> Values:
    """By squaring where the order is a power of two: ten times faster on arrays than a general power."""
    if order not in SQUARES_OF_SQUARES:
        try:
            return value**order
        except OverflowError:  # of a number; an array's is infinite by itself
            return math.inf
    while order > 1.0:
        value, order = value * value, order / 2.0
    return value


def root(value: Values, order: float) -> Values:
    """The inverse of `power`."""
    if order not in SQUARES_OF_SQUARES:
        return value ** (1.0 / order)
    while order > 1.0:
        value, order = sqrt(value), order / 2.0
    return value


def repeated(
    step: Callable[..., tuple[tuple[Values, ...], Flags]], state: tuple[Values, ...], steps: int
) -> tuple[Values, ...]:
    """The state after so many steps, each of which takes it and returns the next one, and where all is done.

    The step that finds all rows done leaves the state as it is.
    """
    if isinstance(state[-1], Symbol):
        looped: tuple[Values, ...] = state[-1].trace.loop(step, state, steps)
        return looped
    for _ in range(steps):
        following, done = step(*state)
        if not any_of(negated(done)):
            break
        state = following
    return state
