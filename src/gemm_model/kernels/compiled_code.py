"""Counts of compiled code (SASS) that no library's source shows, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.errors import InputError

COMPILED_CODE = CONFIG_DIR / "calibration" / "compiled_code.yaml"
OTHERS = "others"
"""Entry for families, or tiles, without one of their own."""
UNITS = {"working_registers": "registers", "moved_registers": "registers", "waits": "loads"}
SPLIT_UNITS = {"split_waits": "waits", "beside_drain_clk": "clk"}
"""Units of counts for families whose split-K kernels are compiled in another way."""
ENTRY_KEYS = ("value", "unit", "meaning", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCode:
    """Counts of one family's code; a tile is `accumulators of a thread x columns of an MMA instruction`."""

    working_registers: float
    """Registers of an MMA thread beside its accumulators."""
    moved_registers: Mapping[str, float]
    """Registers that spill and return at each k tile, by tile, for tiles that no rule covers."""
    waits: Mapping[str, float]
    """Loads of spilled registers that a thread waits for one by one at each k tile; OTHERS covers other
    tiles."""
    split_waits: float | None = None
    """Additional waits for MMAs at each k tile of split-K kernels with slow accumulation; None if there are
    none."""
    beside_drain_clk: float | None = None
    """Clocks of other instructions between draining the MMAs and the next ones, with slow accumulation."""

    def tiles(self) -> list[tuple[float, float, float, float]]:
        """Accumulators, columns, moved registers and waits of each tile with counts of its own."""
        return [
            (*map(float, tile.split("x")), moved, self.waits[tile])  # type: ignore[misc]
            for tile, moved in self.moved_registers.items()
        ]

    def values(self) -> dict[str, Any]:
        """Plain values for a fingerprint, without the counts that a family lacks."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@cache
def compiled_code(family: str) -> CompiledCode:
    """The counts of a family's compiled code."""
    found = load_compiled_code(COMPILED_CODE)
    return found.get(family, found[OTHERS])


def load_compiled_code(path: Path) -> dict[str, CompiledCode]:
    """The counts in a file, by family.

    Raises InputError for a missing or unknown key, another unit, or a value that is no count.
    """
    found = read_yaml_mapping(path, "what is known of compiled code").get("compiled_code")
    if not isinstance(found, Mapping) or OTHERS not in found:
        raise InputError(f"{path.name}: compiled_code has no {OTHERS}; expected a mapping by family with it")
    return {str(family): _of_family(entries, f"{path.name}, {family}") for family, entries in found.items()}


def _of_family(entries: object, place: str) -> CompiledCode:
    units = UNITS | SPLIT_UNITS
    if not isinstance(entries, Mapping) or set(entries) not in (set(UNITS), set(units)):
        raise InputError(f"{place} is {entries!r}; expected a mapping of {', '.join(UNITS)}")
    values = {name: _value(entry, units[name], f"{place}.{name}") for name, entry in entries.items()}
    moved, waits = values["moved_registers"], values["waits"]
    if not isinstance(moved, Mapping) or not isinstance(waits, Mapping) or {*moved, OTHERS} != set(waits):
        raise InputError(
            f"{place}: waits of {waits!r}; expected one for each tile of moved_registers and {OTHERS}"
        )
    return CompiledCode(
        working_registers=_count(values["working_registers"], f"{place}.working_registers"),
        moved_registers={_tile(tile, place): _count(moved[tile], f"{place}, {tile}") for tile in moved},
        waits={str(tile): _count(waits[tile], f"{place}, {tile}") for tile in waits},
        **{name: _count(values[name], f"{place}.{name}") for name in SPLIT_UNITS if name in values},
    )


def _value(entry: object, unit: str, place: str) -> object:
    if not isinstance(entry, Mapping) or set(entry) != set(ENTRY_KEYS):
        raise InputError(f"{place} is {entry!r}; expected a mapping of {', '.join(ENTRY_KEYS)}")
    if entry["unit"] != unit:
        raise InputError(f"{place}: unit {entry['unit']!r}; expected {unit!r}")
    return entry["value"]


def _tile(name: object, place: str) -> str:
    extents = str(name).split("x")
    if len(extents) != 2 or not all(extent.isdecimal() for extent in extents):
        raise InputError(f"{place}: tile {name!r}; expected accumulators x columns, such as 256x256")
    return str(name)


def _count(value: object, place: str) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0:  # type: ignore[operator]
        raise InputError(f"{place} is {value!r}; expected a number of 0 or more")
    return float(value)  # type: ignore[arg-type]
