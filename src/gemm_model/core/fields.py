"""Problems and configurations as the fields of results, by the names that columns of tables have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.dtypes import BlockScale, element_type
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.kind_columns import refuse_apart
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError

KIND_COLUMNS = (
    *("epilogue", "groups", "group_layout", "capacity", "block_scaling", "conv"),
    *("broadcast", "batch_strides"),
)
"""Words as `parse` of `Epilogue`, `GroupedGemm`, `BlockScaling`, `ConvProblem` and `BatchStrides` takes them;
of broadcast the operand that a batch shares."""
OK, ATTENTION, SERVED = "ok", "attention", "served"
"""Of a table's rows (column `disposition`): a GEMM, and what readers of GEMMs leave aside."""
NO_KIND = ("", "none", "None", "nan")
TYPE_COLUMNS = (
    *("in_dtype", "a_dtype", "b_dtype", "out_dtype", "acc_dtype", "sf_dtype", "sf_vec_size"),
    *("a_major", "b_major", "c_major"),
)
"""Types and layouts of a product."""
LARGEST_IN_FULL = 1e12


def problem_fields(problem: GemmProblem) -> dict[str, Any]:
    """A problem as fields of a result, named like columns of tables."""
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k", "batch")}
    types = {f"{name}_dtype": getattr(problem, f"{name}_dtype").name for name in ("a", "b", "out", "acc")}
    kinds = {name: getattr(problem, name) for name in ("epilogue", "groups", "block_scaling", "conv")}
    fields: dict[str, Any] = {name: found.name for name, found in kinds.items() if found is not None}
    if problem.a_scale is not None and problem.a_scale == problem.b_scale:
        fields |= {"sf_dtype": problem.a_scale.dtype.name, "sf_vec_size": problem.a_scale.vec_size}
    for name, usual in (("a_major", "k"), ("b_major", "k"), ("c_major", "n")):
        if getattr(problem, name) != usual and problem.conv is None:
            fields[name] = getattr(problem, name)
    if problem.broadcast:
        fields |= {"broadcast": problem.broadcast}
    if problem.batch_strides is not None:
        fields |= {"batch_strides": problem.batch_strides.name}
    if problem.groups is not None and problem.groups.capacity is not None:
        fields |= {"group_layout": problem.groups.layout, "capacity": problem.groups.capacity}
    return {**sizes, **types, **fields}


def problem_of_row(cells: Mapping[str, Any]) -> GemmProblem:
    """The problem of a row's cells: sizes, names of types, and texts of KIND_COLUMNS if any."""
    texts = {name: str(cells.get(name, "")) for name in (*KIND_COLUMNS, *TYPE_COLUMNS)}
    texts = {name: "" if text in NO_KIND else text for name, text in texts.items()}
    layouts: dict[str, Any] = {name: texts[name] for name in ("a_major", "b_major", "c_major") if texts[name]}
    refuse_apart(texts)
    m, n, k, batch = (whole_number(cells, name) for name in ("m", "n", "k", "batch"))
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
        capacity = whole_number(texts, "capacity") if texts["capacity"] else None
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
        scale = BlockScale(dtype=element_type(texts["sf_dtype"]), vec_size=whole_number(texts, "sf_vec_size"))
        scales = {"a_scale": scale, "b_scale": scale}
    if texts["acc_dtype"]:
        scales["acc_dtype"] = element_type(texts["acc_dtype"])
    return replace(problem, broadcast=texts["broadcast"], batch_strides=strides, **layouts, **scales)


def whole_number(cells: Mapping[str, Any], name: str) -> int:
    """A cell as a whole number; other programs write 128 as 128.0 in a column with gaps."""
    try:
        value = float(cells[name])
    except ValueError:
        value = float("nan")
    if not value.is_integer():
        raise InputError(f"column {name} is {cells[name]!r}; expected a whole number")
    return int(value)


def kernel_fields(config: KernelConfig) -> dict[str, Any]:
    """A configuration as fields of a result, named like columns of tables."""
    return {**asdict(config), "fast_accum": int(config.fast_accum)}


def number_text(value: float, digits: int = 4) -> str:
    """A number with so many digits, without an exponent unless it is tiny or beyond 1e12."""
    if abs(value) < LARGEST_IN_FULL and abs(value) >= 10.0 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def counted(count: int, noun: str) -> str:
    """A number of things [1], such as 1 row or 2 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def signed_text(value: float, digits: int = 4) -> str:
    """The same with its sign."""
    return f"{'+' if value >= 0 else ''}{number_text(value, digits)}"
