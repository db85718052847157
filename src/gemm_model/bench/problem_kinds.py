"""Kinds of problem in the benchmark, as table cells and as numbers."""

from __future__ import annotations

from itertools import accumulate, pairwise

from gemm_model.core.epilogue import ACTIVATIONS, GATED_ACTIVATIONS
from gemm_model.core.fields import problem_fields
from gemm_model.core.problem import GemmProblem

ALPHA = 0.5
BETA = 0.75
OUTPUT_SCALE = 0.25
"""Factor of an epilogue [1]; every benchmark row with one; chosen: its value costs no time."""

EXTRA_COLUMNS = ("epilogue", "groups", "block_scaling", "conv")
BATCH_COLUMNS = ("batch", "broadcast", "batch_strides")
MASK_COLUMNS = ("group_layout", "capacity")
MASKED = "masked"


def extras(problem: GemmProblem) -> dict[str, str]:
    """The cells of these columns; empty for a plain GEMM."""
    if problem.plain and problem.batch == 1:
        return {}
    columns = (*EXTRA_COLUMNS, *(BATCH_COLUMNS if problem.conv is None and problem.batch > 1 else ()))
    columns += MASK_COLUMNS if masked(problem) else ()
    cells = problem_fields(problem)
    return {name: str(cells.get(name, "")) for name in columns}


def masked(problem: GemmProblem) -> bool:
    """Whether each group has room for more rows than are computed."""
    return problem.groups is not None and problem.groups.layout == MASKED


def epilogue_words(problem: GemmProblem) -> tuple[str, ...]:
    """The words of the epilogue, in order."""
    return problem.epilogue.words if problem.epilogue else ()


def activation_of(problem: GemmProblem) -> str:
    """The epilogue's activation, gated or not; empty without one."""
    return next((word for word in epilogue_words(problem) if word in (*ACTIVATIONS, *GATED_ACTIVATIONS)), "")


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
