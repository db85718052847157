"""Which damage the gate does not notice: empirical numbers times 1.3 and 0.7, each alone.

`make mutants` prints a line for each number that neither the golden table nor the accuracy figures notice.
"""

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import yaml

from gemm_model.config import read_yaml_mapping
from gemm_model.config.mechanisms import NUMBERS
from gemm_model.config.numbers import NUMBERS_DIR, room_numbers
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import Calibration, load_calibration
from gemm_model.kernels.compiled_code import COMPILED_CODE, compiled_code
from tests.gate.accuracy import accuracy, accuracy_differences
from tests.gate.golden import golden_differences, golden_table
from tests.gate.spaces import space_differences, spaces

FACTORS = (1.3, 0.7)
LEAST_NOTICED = 0.97
"""Share of the mutants that the gate has to notice."""
TOLD_BY_TRITON = ("software_scales", "scaled_outputs", "pointer_stores")
"""Mechanisms that QuACK's kernels do without: their numbers are damaged in Triton's calibration."""
ROOMS = ("kernel_model", "kernels")
"""Rooms whose numbers the kernel model reads, in `config/numbers`."""
REASONS = {
    "grouped.start_us": "0 in QuACK's calibration, and so is any multiple of it",
    "scaled_outputs.scale_clk": "one multiplication an output: no figure moves beyond the gate's tolerance",
}
"""Why a number may go unnoticed, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What noticed a mutant: places of the golden table, counts of kernels and accuracy figures."""

    number: str
    factor: float
    kernels: int
    figures: int
    refused: bool = False
    """Whether such a value is out of its range."""

    @property
    def noticed(self) -> bool:
        return self.refused or self.kernels + self.figures > 0


def mutant(shipped: Calibration, name: str, factor: float) -> Calibration:
    """The calibration with one number multiplied in every class; its bounds do not matter, nor a residual."""
    numbers = {
        kind: found.having({name: factor * found.values()[name]}) for kind, found in shipped.numbers.items()
    }
    return replace(shipped, numbers=numbers, path=None)


def verdicts() -> list[Verdict]:
    """Of every number and factor."""
    of_triton = [name for name in NUMBERS if name.partition(".")[0] in TOLD_BY_TRITON]
    of_quack = [name for name in NUMBERS if name not in of_triton]
    of_numbers = [*_verdicts("h200:quack", of_quack), *_verdicts("h200:triton", of_triton)]
    return [*of_numbers, *_verdicts_of_code(), *_verdicts_of_rooms()]


def _verdicts(calibration: str, names: Sequence[str]) -> Iterator[Verdict]:
    # The same calibration for all rows, those of other families too: only the mutated number differs.
    whole = replace(load_calibration(calibration), path=None)
    golden, figures = golden_table(whole), accuracy(whole)
    for name, factor in product(names, FACTORS):
        changed = mutant(whole, name, factor)
        yield Verdict(
            number=name,
            factor=factor,
            kernels=len(golden_differences(golden, golden_table(changed))),
            figures=len(accuracy_differences(figures, accuracy(changed))),
        )
        print(".", end="", file=sys.stderr, flush=True)


def _verdicts_of_code() -> Iterator[Verdict]:
    """The same of counts of compiled code."""
    whole = replace(load_calibration("h200:quack"), path=None)
    golden, figures = golden_table(whole), accuracy(whole)
    shipped = read_yaml_mapping(COMPILED_CODE, "counts")
    for place, factor in product(_counts(shipped), FACTORS):
        family, name, tile = place
        changed: Any = deepcopy(shipped)
        entry = changed["compiled_code"][family][name]
        holder, key = (entry["value"], tile) if tile else (entry, "value")
        holder[key] *= factor
        with TemporaryDirectory() as folder:
            path = Path(folder) / COMPILED_CODE.name
            path.write_text(yaml.safe_dump(changed))
            compiled_code.cache_clear()
            with patch("gemm_model.kernels.compiled_code.COMPILED_CODE", path):
                yield Verdict(
                    number="compiled_code." + ".".join(filter(None, place)),
                    factor=factor,
                    kernels=len(golden_differences(golden, golden_table(whole))),
                    figures=len(accuracy_differences(figures, accuracy(whole))),
                )
            compiled_code.cache_clear()
        print(".", end="", file=sys.stderr, flush=True)


def _verdicts_of_rooms() -> Iterator[Verdict]:
    """The same of the numbers that hold for all calibrations."""
    whole = replace(load_calibration("h200:quack"), path=None)
    golden, figures, kernels_there = golden_table(whole), accuracy(whole), spaces()
    for room, factor in product(ROOMS, FACTORS):
        shipped = read_yaml_mapping(NUMBERS_DIR / f"{room}.yaml", "numbers")
        for name in shipped["numbers"]:
            changed = deepcopy(shipped)
            changed["numbers"][name]["value"] *= factor
            with TemporaryDirectory() as folder, patch("gemm_model.config.numbers.NUMBERS_DIR", Path(folder)):
                for other in ROOMS:
                    text = yaml.safe_dump(changed) if other == room else _text_of(other)
                    (Path(folder) / f"{other}.yaml").write_text(text)
                _forget_rooms()
                try:
                    kernels = len(golden_differences(golden, golden_table(whole)))
                    kernels += len(space_differences(kernels_there, spaces()))
                    of_tables, refused = len(accuracy_differences(figures, accuracy(whole))), False
                except InputError:
                    kernels, of_tables, refused = 0, 0, True
            _forget_rooms()
            yield Verdict(
                number=f"{room}.{name}", factor=factor, kernels=kernels, figures=of_tables, refused=refused
            )
            print(".", end="", file=sys.stderr, flush=True)


def _text_of(room: str) -> str:
    return (NUMBERS_DIR / f"{room}.yaml").read_text()


def _forget_rooms() -> None:
    room_numbers.cache_clear()


def _counts(shipped: Any) -> Iterator[tuple[str, str, str]]:
    """Family, name and tile of each count; no tile where it is that of all."""
    for family, entries in shipped["compiled_code"].items():
        for name, entry in entries.items():
            tiles = entry["value"] if isinstance(entry["value"], dict) else ("",)
            yield from ((family, name, tile) for tile in tiles)


def main() -> int:
    found = verdicts()
    for each in found:
        if not each.refused and not each.figures:
            answer = "not noticed" if not each.noticed else f"{each.kernels} values of the golden table alone"
            print(f"{each.number} x {each.factor}: {answer}  {REASONS.get(each.number, '')}".rstrip())
    noticed = sum(each.noticed for each in found)
    print(f"{noticed} of {len(found)} mutants noticed ({noticed / len(found):.1%})")
    unexplained = {each.number for each in found if not each.noticed} - REASONS.keys()
    return 0 if noticed >= LEAST_NOTICED * len(found) and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
