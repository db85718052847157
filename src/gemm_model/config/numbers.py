"""Empirical numbers that belong to no calibration of a GPU and a family: `config/numbers/<room>.yaml`.

A file says of each number its value, unit, range, status, meaning and source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.config.quantity import Quantity
from gemm_model.errors import InputError, require_one_of

NUMBERS_DIR = CONFIG_DIR / "numbers"
ENTRY_KEYS = ("value", "unit", "range", "status", "meaning", "source")
STATUSES = ("measured", "counted", "documented", "chosen")
"""What a number rests on: a clock or counter, code that was read, a text's or library's word, a choice."""


class Numbers:
    """The numbers of a room, by their names."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    def having(self, **others: float) -> Self:
        """The same numbers but for some."""
        return type(self)(**{**vars(self), **others})


@cache
def room_numbers(room: str) -> Numbers:
    """The numbers of a room of the package."""
    return load_numbers(NUMBERS_DIR / f"{room}.yaml")


def load_numbers(path: Path) -> Numbers:
    """The numbers of such a file; those between whole numbers are whole.

    Raises InputError for an entry without one of ENTRY_KEYS, and for a number outside its range.
    """
    found = read_yaml_mapping(path, "numbers of a room").get("numbers")
    if not isinstance(found, Mapping):
        raise InputError(f"{path.name}: numbers is {found!r}; expected a mapping of numbers")
    return Numbers(**{str(name): _value(entry, path.name, str(name)) for name, entry in found.items()})


def _value(entry: object, where: str, name: str) -> float:
    if not isinstance(entry, Mapping) or set(entry) != set(ENTRY_KEYS):
        raise InputError(f"{where}: {name} is {entry!r}; expected a mapping of {', '.join(ENTRY_KEYS)}")
    require_one_of(f"{where}: {name} is {entry['status']!r}", entry["status"], STATUSES)
    ends = entry["range"]
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        raise InputError(f"{where}: {name} has range {ends!r}; expected its least and most")
    low, high = ends
    whole = isinstance(low, int)
    Quantity(unit=str(entry["unit"]), low=low, high=high, whole=whole).require(where, name, entry["value"])
    return int(entry["value"]) if whole else float(entry["value"])
