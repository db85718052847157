"""Tables with columns of their own, which a description checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.core.batch import BoolArray, FloatArray
from gemm_model.tables.table import checked, read_table, require_columns

LARGEST = 1e15
"""Largest number [any]; all tables; far beyond what any column means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """Valid range of a column's numbers; `optional` allows an absent column and empty cells (NaN)."""

    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    optional: bool = False

    @property
    def expected(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def holds(self, values: FloatArray) -> BoolArray:
        """Which of some numbers are such."""
        inside: BoolArray = (values >= self.low) & (values <= self.high)
        return inside & (values == np.floor(values)) if self.whole else inside


SIZE = NumberColumn(low=1, high=2**40, whole=True)
COUNT = NumberColumn(low=0, high=2**40, whole=True)
TIME = NumberColumn(low=1e-6, high=1e12)
"""Range of a time in microseconds."""


def read_columns(
    path: Path, numbers: Mapping[str, NumberColumn], texts: tuple[str, ...] = ()
) -> pd.DataFrame:
    """A CSV table (also .gz) whose named columns hold numbers or texts; further ones travel as texts.

    Raises InputError naming the file, line and column of what is missing or is not such a number.
    """
    frame = read_table(path)
    require_columns(frame, [*(name for name, column in numbers.items() if not column.optional), *texts])
    typed = {name: _numbers(frame, name, column) for name, column in numbers.items() if name in frame}
    result = frame.assign(**typed)
    result.attrs = dict(frame.attrs)
    return result


def _numbers(frame: pd.DataFrame, name: str, column: NumberColumn) -> np.ndarray:
    blank = np.nan if column.optional else None
    values = checked(frame, name, column.holds, column.expected, blank)
    return values.astype(np.int64) if column.whole and not column.optional else values
