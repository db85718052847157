"""What the benchmark runs beyond one plain product, as table cells and as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.problem import GemmProblem

ALPHA = 0.5
BETA = 0.75
OUTPUT_SCALE = 0.25
"""Factors of an epilogue [1]; every benchmark row that has them; their value costs no time."""

EXTRA_COLUMNS = ("epilogue", "groups", "block_scaling", "conv")


def with_extras(problem: GemmProblem, cells: Mapping[str, Any]) -> GemmProblem:
    """The plain `problem` with what the cells of EXTRA_COLUMNS add; itself where they are all empty.

    The sizes of a convolution are its own. Raises InputError for cells that say no such thing.
    """
    texts = {name: str(cells[name]) for name in EXTRA_COLUMNS if cells.get(name) not in (None, "")}
    epilogue = Epilogue.parse(texts["epilogue"]) if "epilogue" in texts else None
    if "conv" in texts:
        types = (problem.a_dtype.name, problem.out_dtype.name)
        return GemmProblem.of_conv(texts["conv"], *types, epilogue=epilogue)
    groups = GroupedGemm.parse(texts["groups"]) if "groups" in texts else None
    scaling = BlockScaling.parse(texts["block_scaling"]) if "block_scaling" in texts else None
    return replace(problem, epilogue=epilogue, groups=groups, block_scaling=scaling) if texts else problem


def extras(problem: GemmProblem) -> dict[str, str]:
    """The cells of EXTRA_COLUMNS; none for a plain product."""
    if problem.plain:
        return {}
    parts = (getattr(problem, name) for name in EXTRA_COLUMNS)
    return {name: part.name if part else "" for name, part in zip(EXTRA_COLUMNS, parts, strict=True)}


def epilogue_words(problem: GemmProblem) -> tuple[str, ...]:
    """What is done to the product before it is stored, in order."""
    return problem.epilogue.words if problem.epilogue else ()


def output_columns(problem: GemmProblem) -> int:
    return problem.n // 2 if problem.epilogue and problem.epilogue.gated else problem.n


def group_rows(problem: GemmProblem) -> tuple[int, ...]:
    """Rows of each group; empty for one product."""
    return problem.groups.rows if problem.groups else ()


def group_bounds(problem: GemmProblem) -> tuple[int, ...]:
    """First row of each group, and the end of the last."""
    return tuple(accumulate(group_rows(problem), initial=0))


def beyond(problem: GemmProblem, *known: str) -> str:
    """A sentence where a provider that knows `known` of EXTRA_COLUMNS cannot run a problem; else empty."""
    for name, text in extras(problem).items():
        if text and name not in known:
            return f"this provider runs no {name} ({text[:60]})"
    groups = problem.groups
    if groups is not None and not (groups.alike and groups.layout == "contiguous"):
        return "grouped kernels are run with one n and k for all groups, whose rows follow one another"
    return ""
