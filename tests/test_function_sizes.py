"""No function is longer than 50 lines; ruff limits its parameters, statements and complexity."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = 50
DEVICE_CODE = {"src/gemm_model/overlap/kernel.py": {"__call__", "kernel", "multiply_and_store"}}
"""What a GPU runs, and the entry that compiles it."""
TO_BE_SPLIT = {
    "src/gemm_model/kernels/feasibility.py": {"resources_of"},
}
"""Longer ones of today: none may be added."""


def too_long(source):
    """Functions of a source with more than LINES lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES:
                yield node.name


@pytest.mark.slow
def test_a_function_fits_on_a_page():
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for folder in ("src", "benchmarks", "scripts", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in too_long(path.read_text(encoding="utf-8"))
    }
    known = {
        f"{file} {name}" for of in (DEVICE_CODE, TO_BE_SPLIT) for file, names in of.items() for name in names
    }
    assert sorted(found - known) == []


def test_what_counts_as_too_long():
    body = "    pass\n" * LINES
    assert list(too_long("def f():\n" + body)) == ["f"]
    assert list(too_long("def f():\n" + body[:-9])) == []
