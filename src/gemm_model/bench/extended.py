"""Kinds of problem in the benchmark, as table cells and as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.kind_columns import refuse_apart
from gemm_model.core.problem import GemmProblem

ALPHA = 0.5
BETA = 0.75
OUTPUT_SCALE = 0.25
"""Factor of an epilogue [1]; every benchmark row with one; chosen: its value costs no time."""

EXTRA_COLUMNS = ("epilogue", "groups", "block_scaling", "conv")
BATCH_COLUMNS = ("batch", "broadcast", "batch_strides")
MASK_COLUMNS = ("group_layout", "capacity")
MASKED = "masked"


def with_extras(problem: GemmProblem, cells: Mapping[str, Any]) -> GemmProblem:
    """The plain `problem` with the kind of problem in these cells; the plain problem if they are empty.

    A convolution brings its own sizes. Raises InputError for cells that do not parse.
    """
    columns = (*EXTRA_COLUMNS, *BATCH_COLUMNS, *MASK_COLUMNS)
    texts = {name: str(cells[name]) for name in columns if cells.get(name) not in (None, "")}
    refuse_apart(texts)
    epilogue = Epilogue.parse(texts["epilogue"]) if "epilogue" in texts else None
    if "conv" in texts:
        types = (problem.a_dtype.name, problem.out_dtype.name)
        return GemmProblem.of_conv(texts["conv"], *types, epilogue=epilogue)
    groups = _groups(texts) if "groups" in texts else None
    scaling = BlockScaling.parse(texts["block_scaling"]) if "block_scaling" in texts else None
    strides = BatchStrides.parse(texts["batch_strides"]) if "batch_strides" in texts else None
    if not texts:
        return problem
    return replace(
        problem,
        epilogue=epilogue,
        groups=groups,
        block_scaling=scaling,
        batch=int(float(texts.get("batch", "1"))),
        broadcast=texts.get("broadcast", ""),
        batch_strides=strides,
    )


def _groups(texts: Mapping[str, str]) -> GroupedGemm:
    capacity = int(float(texts["capacity"])) if "capacity" in texts else None
    return GroupedGemm.parse(texts["groups"], texts.get("group_layout", "contiguous"), capacity)


def extras(problem: GemmProblem) -> dict[str, str]:
    """The cells of these columns; empty for a plain GEMM."""
    if problem.plain and problem.batch == 1:
        return {}
    parts = (getattr(problem, name) for name in EXTRA_COLUMNS)
    cells = {name: part.name if part else "" for name, part in zip(EXTRA_COLUMNS, parts, strict=True)}
    if problem.conv is None and problem.batch > 1:
        strides = problem.batch_strides
        cells |= {"batch": str(problem.batch), "broadcast": problem.broadcast}
        cells["batch_strides"] = strides.name if strides else ""
    if masked(problem):
        assert problem.groups is not None
        cells |= {"group_layout": MASKED, "capacity": str(problem.groups.capacity)}
    return cells


def masked(problem: GemmProblem) -> bool:
    """Whether each group has room for more rows than are computed."""
    return problem.groups is not None and problem.groups.layout == MASKED


def epilogue_words(problem: GemmProblem) -> tuple[str, ...]:
    """The words of the epilogue, in order."""
    return problem.epilogue.words if problem.epilogue else ()


def output_columns(problem: GemmProblem) -> int:
    return problem.n // 2 if problem.epilogue and problem.epilogue.gated else problem.n


def group_rows(problem: GemmProblem) -> tuple[int, ...]:
    """Rows of each group; empty without groups."""
    return problem.groups.rows if problem.groups else ()


def rows_in_memory(problem: GemmProblem) -> int:
    """Rows of A and of the output in memory, including the unused room of masked groups."""
    capacity = problem.groups.capacity if problem.groups else None
    return problem.m if capacity is None else len(group_rows(problem)) * capacity


def group_spans(problem: GemmProblem) -> tuple[tuple[int, int], ...]:
    """First row of each group and the end of its rows, in memory."""
    rows = group_rows(problem)
    if masked(problem):
        starts = range(0, rows_in_memory(problem), rows_in_memory(problem) // len(rows))
        return tuple((start, start + count) for start, count in zip(starts, rows, strict=True))
    return tuple(pairwise(accumulate(rows, initial=0)))


def beyond(problem: GemmProblem, *known: str) -> str:
    """Why a provider that supports only the columns `known` cannot run a problem; empty if it can."""
    for name, text in extras(problem).items():
        if text and name not in known:
            return f"this provider runs no {name} ({text[:60]})"
    groups = problem.groups
    if groups is not None and not groups.alike:
        return "grouped kernels are run with one n and k for all groups"
    return ""
