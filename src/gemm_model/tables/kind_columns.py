"""Columns of the kinds of problem in tables: epilogue, groups, block_scaling, conv.

An empty cell, or a table without the column, means a plain GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.batch import BoolArray
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.dtypes import BlockScale, element_type
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.errors import InputError
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.kind_columns import KindColumns, assembled, kind_columns, refuse_apart
from gemm_model.core.problem import GemmProblem

KIND_COLUMNS = (
    *("epilogue", "groups", "group_layout", "capacity", "block_scaling", "conv"),
    *("broadcast", "batch_strides"),
)
"""Words as `parse` of `Epilogue`, `GroupedGemm`, `BlockScaling`, `ConvProblem` and `BatchStrides` takes them;
of broadcast the operand that a batch shares."""
_NOTHING = ("", "none", "None", "nan")
TYPE_COLUMNS = (
    *("in_dtype", "a_dtype", "b_dtype", "out_dtype", "acc_dtype", "sf_dtype", "sf_vec_size"),
    *("a_major", "b_major", "c_major"),
)
"""Types and layouts of a product."""


def asks_for_more(frame: pd.DataFrame) -> BoolArray:
    """Mask of the rows that are no plain GEMM."""
    found: BoolArray = np.zeros(len(frame), dtype=bool)
    for name in KIND_COLUMNS:
        if name in frame:
            found |= is_asked(frame[name])
    return found


def is_asked(column: pd.Series) -> BoolArray:
    """Which cells of one of KIND_COLUMNS ask for something."""
    result: BoolArray = ~(column.isna() | column.isin(_NOTHING)).to_numpy(dtype=bool)
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
    plain = kind_columns(GemmProblem.of(1, 1, 1), 1.0, 1.0)
    parts: list[tuple[Any, KindColumns]] = [(np.flatnonzero(~more), plain)]
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


def problem_of_row(cells: Mapping[str, Any]) -> GemmProblem:
    """The problem of a row's cells: sizes, names of types, and texts of KIND_COLUMNS if any."""
    texts = {name: str(cells.get(name, "")) for name in (*KIND_COLUMNS, *TYPE_COLUMNS)}
    texts = {name: "" if text in _NOTHING else text for name, text in texts.items()}
    layouts: dict[str, Any] = {name: texts[name] for name in ("a_major", "b_major", "c_major") if texts[name]}
    refuse_apart(texts)
    m, n, k, batch = (int(cells[name]) for name in ("m", "n", "k", "batch"))
    a_type, out_type = texts["a_dtype"] or texts["in_dtype"], texts["out_dtype"] or None
    epilogue = Epilogue.parse(texts["epilogue"])
    if texts["conv"]:
        problem = GemmProblem.of_conv(texts["conv"], a_type, out_type, epilogue=epilogue)
        if (problem.m, problem.n, problem.k) != (m, n, k):
            expected = f"{problem.m} x {problem.n} x {problem.k}"
            raise InputError(f"m, n, k are {m}, {n}, {k}; expected the implicit GEMM of conv, {expected}")
        return problem
    groups = None
    if texts["groups"]:
        capacity = int(float(texts["capacity"])) if texts["capacity"] else None
        groups = GroupedGemm.parse(texts["groups"], texts["group_layout"] or "contiguous", capacity)
    problem = GemmProblem.of(
        m,
        n,
        k,
        a_type,
        out_type,
        b_dtype=texts["b_dtype"] or texts["in_dtype"] or None,
        batch=batch,
        epilogue=epilogue,
        groups=groups,
        block_scaling=texts["block_scaling"] or None,
    )
    strides = BatchStrides.parse(texts["batch_strides"]) if texts["batch_strides"] else None
    scales: dict[str, Any] = {}
    if texts["sf_dtype"]:
        scale = BlockScale(
            dtype=element_type(texts["sf_dtype"]), vec_size=int(float(texts["sf_vec_size"] or 0))
        )
        scales = {"a_scale": scale, "b_scale": scale}
    if texts["acc_dtype"]:
        scales["acc_dtype"] = element_type(texts["acc_dtype"])
    return replace(problem, broadcast=texts["broadcast"], batch_strides=strides, **layouts, **scales)
