"""Comparison of two measurements of the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.config import read_toml
from gemm_model.errors import InputError

SAME_ROW = tuple(read_toml("columns")["measurement"])
"""Columns that identify the same measurement in two tables, as far as both tables have them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences for all pairs of cards together, then for each pair, and the number of rows left out."""

    differences: list[dict[str, Any]]
    """Cards, rows, the median of the ratios of their times (second over first), and median, p95 and worst of
    |ratio - 1|."""
    only_first: int
    only_second: int
    other_disposition: int


def compare(first: pd.DataFrame, second: pd.DataFrame) -> Comparison:
    """Compare tables of texts or typed rows by their common rows; repeated rows count by their median.

    Raises InputError if they have no row in common.
    """
    keys = [name for name in SAME_ROW if name in first and name in second]
    if not keys:
        raise InputError("the tables have no columns in common; expected tables of measurements")
    sides = [_by_row(frame, keys) for frame in (first, second)]
    both = sides[0].merge(sides[1], on=keys, how="outer", suffixes=("_1", "_2"), indicator=True)
    met = both[both["_merge"] == "both"]
    timed = met[np.isfinite(met["runtime_us_1"]) & np.isfinite(met["runtime_us_2"])]
    if len(timed) == 0:
        raise InputError("the tables have no timed row in common; expected two runs of the same rows")
    found = [_difference("all", "all", timed)]
    pairs = timed.groupby(["gpu_uuid_1", "gpu_uuid_2"], sort=True)
    found += [_difference(str(cards[0]), str(cards[1]), rows) for cards, rows in pairs]
    return Comparison(
        differences=found,
        only_first=int((both["_merge"] == "left_only").sum()),
        only_second=int((both["_merge"] == "right_only").sum()),
        other_disposition=len(met) - len(timed),
    )


def _by_row(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    table = frame[keys].astype("string").fillna("")
    table["runtime_us"] = pd.to_numeric(frame["runtime_us"], errors="coerce").to_numpy(dtype=np.float64)
    card = frame["gpu_uuid"] if "gpu_uuid" in frame else pd.Series("", index=frame.index)
    table["gpu_uuid"] = card.astype("string").fillna("")
    return table.groupby(keys, sort=False, as_index=False).agg({"runtime_us": "median", "gpu_uuid": "first"})


def _difference(first_card: str, second_card: str, rows: pd.DataFrame) -> dict[str, Any]:
    ratio = rows["runtime_us_2"].to_numpy() / rows["runtime_us_1"].to_numpy()
    off = np.abs(ratio - 1.0)
    return {
        "first_card": first_card,
        "second_card": second_card,
        "rows": len(rows),
        "median_ratio": float(np.median(ratio)),
        "median": float(np.median(off)),
        "p95": float(np.percentile(off, 95)),
        "worst": float(off.max()),
    }
