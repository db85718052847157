"""A docstring of a constant says its quantity with the unit, when it applies, and where it comes from."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
IN_ORDER = re.compile(r"[^;]*\[[^\]]+\][^;]*;[^;]+;.+", re.DOTALL)


def out_of_order(source: str) -> Iterator[str]:
    """Numbers of a module whose docstring has another order than `quantity [unit]; when; source`."""
    body = ast.parse(source).body
    for node, after in pairwise(body):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        told = ast.get_docstring(ast.Module([after], []))
        if told is not None and _is_number(node.value) and IN_ORDER.fullmatch(told) is None:
            yield node.targets[0].id


def _is_number(value: ast.expr) -> bool:
    """Whether a constant is a number, or worked out from numbers alone."""
    numbers = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(
        isinstance(each, numbers) and not isinstance(getattr(each, "value", 0), str | bool)
        for each in ast.walk(value)
    )


def test_docstrings_of_numbers_have_one_order():
    found = {
        str(path.relative_to(SOURCES)): names
        for path in sorted(SOURCES.rglob("*.py"))
        if (names := list(out_of_order(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_what_counts_as_out_of_order():
    right = 'A = 2 * 3.0\n"""Length of a row [B]; all kernels; PTX ISA."""\n'
    assert list(out_of_order(right)) == []
    assert list(out_of_order(right.replace("; all kernels", ""))) == ["A"]
    assert list(out_of_order(right.replace(" [B]", ""))) == ["A"]
    assert list(out_of_order(right.replace("2 * 3.0", "'text'"))) == []
    assert list(out_of_order("A = 1\nB = 2\n")) == []
