"""Empirical numbers that belong to no calibration of a GPU and a family: `config/numbers/<room>.yaml`.

A room declares them as fields of a frozen dataclass, each with its unit and range (`empirical`); the file
holds the values, what each means and where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.core.errors import InputError
from gemm_model.core.quantity import Quantity

NUMBERS_DIR = CONFIG_DIR / "numbers"
ENTRY_KEYS = ("value", "unit", "status", "meaning", "source")
STATUSES = ("measured", "counted", "documented", "chosen")
"""What a number rests on: a clock or counter, code that was read, a text's or library's word, a choice."""

Record = TypeVar("Record")


def empirical(unit: str, low: float, high: float, *, whole: bool = False) -> Any:
    """A field of a room's record of numbers; one of `whole` numbers is annotated as `int`."""
    return field(metadata={"quantity": Quantity(unit=unit, low=low, high=high, whole=whole)})


def room_numbers(room: str, record: type[Record]) -> Record:
    """The numbers of a room of the package, read anew: a room keeps what it got."""
    return load_room_numbers(NUMBERS_DIR / f"{room}.yaml", record)


def load_room_numbers(path: Path, record: type[Record]) -> Record:
    """A record of numbers from such a file.

    Raises InputError for a number that is missing, unknown, of another unit or outside its range.
    """
    found = read_yaml_mapping(path, "numbers of a room").get("numbers")
    quantities = {spec.name: spec.metadata["quantity"] for spec in fields(record)}  # type: ignore[arg-type]
    if not isinstance(found, Mapping) or set(found) != set(quantities):
        odd = sorted(map(str, {*found} ^ {*quantities})) if isinstance(found, Mapping) else [repr(found)]
        raise InputError(
            f"{path.name}: numbers {', '.join(odd)} are missing or unknown; expected {', '.join(quantities)}"
        )
    return record(**{name: _value(entry, quantities[name], path.name, name) for name, entry in found.items()})


def _value(entry: object, quantity: Quantity, where: str, name: str) -> Any:
    if not isinstance(entry, Mapping) or set(entry) != set(ENTRY_KEYS):
        raise InputError(f"{where}: {name} is {entry!r}; expected a mapping of {', '.join(ENTRY_KEYS)}")
    if str(entry["unit"]) != quantity.unit:
        raise InputError(f"{where}: {name} has unit {entry['unit']!r}; expected {quantity.unit!r}")
    if entry["status"] not in STATUSES:
        raise InputError(f"{where}: {name} is {entry['status']!r}; expected one of {', '.join(STATUSES)}")
    quantity.require(where, name, entry["value"])
    return entry["value"] if quantity.whole else float(entry["value"])
