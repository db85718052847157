"""Which damage the gate does not notice: each empirical number times 1.3 and times 0.7, alone.

`make mutants` prints a line for each number that neither the golden table nor the accuracy figures notice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from gemm_model.kernels.mechanisms import NUMBERS
from gemm_model.persistent.calibration_file import Calibration, load_calibration
from tests.gate.accuracy import accuracy, accuracy_differences
from tests.gate.golden import golden_differences, golden_table

FACTORS = (1.3, 0.7)
LEAST_NOTICED = 0.95
"""Share of the mutants that the gate has to notice."""
REASONS = {}
"""Why a number may go unnoticed, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What noticed a mutant: places of the golden table and accuracy figures that moved."""

    number: str
    factor: float
    kernels: int
    figures: int

    @property
    def noticed(self) -> bool:
        return self.kernels + self.figures > 0


def mutant(shipped: Calibration, name: str, factor: float) -> Calibration:
    """The calibration with one number multiplied in every class; its bounds do not matter, nor a residual."""
    numbers = {
        kind: found.having({name: factor * found.values()[name]}) for kind, found in shipped.numbers.items()
    }
    return replace(shipped, numbers=numbers, path=None)


def verdicts(shipped: Calibration) -> list[Verdict]:
    """Of every number and factor."""
    # The same calibration for all rows, those of other families too: only the mutated number differs.
    whole = replace(shipped, path=None)
    golden, figures = golden_table(whole), accuracy(whole)
    found = []
    for name in NUMBERS:
        for factor in FACTORS:
            changed = mutant(shipped, name, factor)
            found.append(
                Verdict(
                    number=name,
                    factor=factor,
                    kernels=len(golden_differences(golden, golden_table(changed))),
                    figures=len(accuracy_differences(figures, accuracy(changed))),
                )
            )
            print(".", end="", file=sys.stderr, flush=True)
    return found


def main() -> int:
    found = verdicts(load_calibration("h200:quack"))
    for each in found:
        if not each.noticed or not each.figures:
            told = "not noticed" if not each.noticed else f"{each.kernels} values of the golden table alone"
            print(f"{each.number} x {each.factor}: {told}  {REASONS.get(each.number, '')}".rstrip())
    noticed = sum(each.noticed for each in found)
    print(f"{noticed} of {len(found)} mutants noticed ({noticed / len(found):.1%})")
    unexplained = {each.number for each in found if not each.noticed} - REASONS.keys()
    return 0 if noticed >= LEAST_NOTICED * len(found) and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
