"""Sizes of problems and kernels: positive whole numbers."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from gemm_model.errors import InputError

MAX_SIZE = 2**40
"""Largest size [elements]; every problem; far beyond any real GEMM, and products of sizes stay finite."""


MAX_DIGITS = 13
"""Longest size or stride [digits]; words of a command; chosen: no memory has 10^13 elements."""


def is_whole(text: str) -> bool:
    """Whether a command's word is a whole number, 0 or more, that may be a size."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def size_of(name: str, value: SupportsIndex) -> int:
    """A size as Python's int, numpy's too; raises InputError unless it lies between 1 and MAX_SIZE."""
    try:
        whole = value if type(value) is int else operator.index(value)
    except TypeError:
        whole = 0
    if isinstance(value, bool) or not 1 <= whole <= MAX_SIZE:
        raise InputError(f"{name} is {value!r}; expected a positive whole number of at most 2^40")
    return whole


def require_size(record: object, name: str) -> None:
    """Make a frozen record's field a size in Python's own int; raises InputError where it is none."""
    value = getattr(record, name)
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        object.__setattr__(record, name, size_of(name, value))
