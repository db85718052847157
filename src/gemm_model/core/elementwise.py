"""Elementwise functions for formulas that take numbers and arrays alike.

On Python numbers they stay in Python, which is an order of magnitude faster than numpy on one element; on
arrays they are numpy's. So a formula is written once, and one prediction costs microseconds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Values = Any
"""A float, a bool, or an array of either: what the formulas take and return. Numbers are never ints."""


def is_number(value: Values) -> bool:
    return type(value) is float


def maximum(a: Values, b: Values) -> Values:
    if type(a) is float and type(b) is float:
        return a if a >= b else b  # noqa: FURB136 - a call would double the time
    return np.maximum(a, b)


def minimum(a: Values, b: Values) -> Values:
    if type(a) is float and type(b) is float:
        return a if a <= b else b  # noqa: FURB136 - a call would double the time
    return np.minimum(a, b)


def where(condition: Values, yes: Values, no: Values) -> Values:
    """Both branches are computed: neither may divide by zero."""
    if condition is True or condition is False:
        return yes if condition else no
    return np.where(condition, yes, no)


def floor(value: Values) -> Values:
    return float(math.floor(value)) if type(value) is float else np.floor(value)


def ceil(value: Values) -> Values:
    return float(math.ceil(value)) if type(value) is float else np.ceil(value)


def remainder(whole: Values, divisor: Values) -> Values:
    """Of whole numbers held as floats; numpy's own `%` takes as long as eight divisions."""
    return whole - floor(whole / divisor) * divisor


def sqrt(value: Values) -> Values:
    return math.sqrt(value) if type(value) is float else np.sqrt(value)


def exp(value: Values) -> Values:
    return math.exp(value) if type(value) is float else np.exp(value)


def three_quarter_power(value: Values) -> Values:
    """By square roots, which are ten times faster on arrays than a general power."""
    if type(value) is float:
        return value**0.75
    root = np.sqrt(value)
    return root * np.sqrt(root)


def three_eighth_power(value: Values) -> Values:
    return three_quarter_power(sqrt(value))


def eighth_power(value: Values) -> Values:
    return value**0.125 if type(value) is float else np.sqrt(np.sqrt(np.sqrt(value)))


def negated(condition: Values) -> Values:
    return not condition if isinstance(condition, bool) else np.logical_not(condition)


def power_of_two_divisor(value: Values) -> Values:
    """The largest power of two that divides a positive whole number held as a float."""
    if is_number(value):
        whole = int(value)
        return float(whole & -whole)
    wholes = np.asarray(value).astype(np.int64)
    return (wholes & -wholes).astype(np.float64)


def smooth_maximum(a: Values, b: Values) -> Values:
    """The norm of order 8 of two non-negative values: their maximum, up to 9 % more where they are equal.

    Overlapped phases do not hide each other perfectly where they take about the same time.
    """
    larger = maximum(a, b)
    share = minimum(a, b) / maximum(larger, 1e-30)
    share = share * share
    share = share * share
    return larger * eighth_power(1.0 + share * share)
