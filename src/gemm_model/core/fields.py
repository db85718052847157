"""Problems and configurations as the fields of results, by the names that columns of tables have."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

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


def kernel_fields(config: KernelConfig) -> dict[str, Any]:
    """A configuration as fields of a result, named like columns of tables."""
    return {**asdict(config), "fast_accum": int(config.fast_accum)}


def number_text(value: float, digits: int = 4) -> str:
    """A number with so many digits, without an exponent unless it is tiny or beyond 1e12."""
    if abs(value) < LARGEST_IN_FULL and abs(value) >= 10.0 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"
