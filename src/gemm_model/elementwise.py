"""Elementwise functions for formulas that take numbers and arrays alike.

On Python numbers they stay in Python, which is an order of magnitude faster than numpy on one element; on
arrays they are numpy's. So a formula is written once, and one prediction costs microseconds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Values = Any
"""A float, a bool, or an array of either: what the formulas take and return."""


def is_number(value: Values) -> bool:
    return isinstance(value, float | int)


def maximum(a: Values, b: Values) -> Values:
    if is_number(a) and is_number(b):
        return max(a, b)
    return np.maximum(a, b)


def minimum(a: Values, b: Values) -> Values:
    if is_number(a) and is_number(b):
        return min(a, b)
    return np.minimum(a, b)


def where(condition: Values, yes: Values, no: Values) -> Values:
    """Both branches are computed: neither may divide by zero."""
    if isinstance(condition, bool):
        return yes if condition else no
    return np.where(condition, yes, no)


def floor(value: Values) -> Values:
    return float(math.floor(value)) if is_number(value) else np.floor(value)


def ceil(value: Values) -> Values:
    return float(math.ceil(value)) if is_number(value) else np.ceil(value)


def sqrt(value: Values) -> Values:
    return math.sqrt(value) if is_number(value) else np.sqrt(value)


def exp(value: Values) -> Values:
    return math.exp(value) if is_number(value) else np.exp(value)


def negated(condition: Values) -> Values:
    return not condition if isinstance(condition, bool) else np.logical_not(condition)


def greatest_common_divisor(a: Values, b: int) -> Values:
    """Of whole numbers held as floats."""
    if is_number(a):
        return float(math.gcd(int(a), b))
    return np.gcd(a.astype(np.int64), b).astype(np.float64)
