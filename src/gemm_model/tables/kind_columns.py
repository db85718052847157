"""Columns of the kinds of problem in tables: epilogue, groups, block_scaling, conv.

An empty cell, or a table without the column, means a plain GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.batch import BoolArray
from gemm_model.core.fields import KIND_COLUMNS, NO_KIND, TYPE_COLUMNS, problem_of_row
from gemm_model.core.kind_columns import PLAIN, KindColumns, assembled, kind_columns
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError


def asks_for_more(frame: pd.DataFrame) -> BoolArray:
    """Mask of the rows that are no plain GEMM."""
    found: BoolArray = np.zeros(len(frame), dtype=bool)
    for name in KIND_COLUMNS:
        if name in frame:
            found |= is_asked(frame[name])
    return found


def is_asked(column: pd.Series) -> BoolArray:
    """Which cells of one of KIND_COLUMNS ask for something."""
    result: BoolArray = ~(column.isna() | column.isin(NO_KIND)).to_numpy(dtype=bool)
    return result


def with_kind_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a batch, including the kind of problem of each row.

    `columns` are those of plain GEMMs of the same sizes. Raises InputError that names the row of a bad cell.
    """
    more = asks_for_more(frame)
    if not more.any():
        return dict(columns)
    result = {name: np.array(values) for name, values in columns.items()}
    cluster_rows, cluster_columns = (
        result["cta_m"] * result["cluster_m"],
        result["cta_n"] * result["cluster_n"],
    )
    present = [name for name in (*KIND_COLUMNS, *TYPE_COLUMNS) if name in frame]
    keys = frame[present].astype(object).fillna("").astype(str)
    for name in ("m", "n", "k", "batch"):
        keys[name] = result[name]
    parts: list[tuple[Any, KindColumns]] = [(np.flatnonzero(~more), PLAIN)]
    asked, all_places = keys[more], np.flatnonzero(more)
    cells = {str(name): asked[name].to_numpy() for name in asked}
    alike = asked.groupby(list(asked), sort=False).ngroup().to_numpy()
    for rows in np.split(np.argsort(alike, kind="stable"), np.cumsum(np.bincount(alike))[:-1]):
        places, first = all_places[rows], rows[0]
        try:
            problem = problem_of_row({name: values[first] for name, values in cells.items()})
        except InputError as error:
            line = f"line {asked.index[first]}" if frame.index.name == "line" else f"row {places[0]}"
            raise InputError(f"{frame.attrs.get('path', 'table')}: {line}: {error}") from None
        for name, value in _replacing(problem, frame).items():
            result[name][places] = value
        parts.append((places, kind_columns(problem, cluster_rows[places], cluster_columns[places])))
    return {**result, "kinds": assembled(parts, len(frame))}


def _replacing(problem: GemmProblem, frame: pd.DataFrame) -> dict[str, Any]:
    """Values of a batch's columns for one problem; the table's layouts replace the problem's if it has
    them.
    """
    m, n, k, batch = problem.sizes
    values: dict[str, Any] = {"m": m, "n": n, "k": k, "batch": batch, "out_bits": problem.out_dtype.bits}
    values |= {"a_scale_bits": problem.a_scale_bits, "b_scale_bits": problem.b_scale_bits}
    for operand in ("a", "b"):
        if f"{operand}_major" not in frame:
            values[f"{operand}_k_major"] = getattr(problem, f"{operand}_major") == "k"
    return values
