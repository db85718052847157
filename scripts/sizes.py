"""How large the project is, beside its budget; exits with 1 above it.

python scripts/sizes.py

A line of code holds a token that is no comment and no docstring. Words are those of the Markdown pages of
docs/. A table of measurements is a CSV file in data/measurements.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = {"src": 35_275, "scripts and benchmarks": 3_500, "tests": 18_630, "docs": 30_000, "tables": 45}
"""Lines of code, but words of docs and the number of tables: what the project may come to."""
TARGET = {"src": 23_000, "scripts and benchmarks": 3_500, "tests": 13_000, "docs": 30_000, "tables": 45}
"""What it shall come to: a budget is lowered with each size, and never raised for want of care."""
BLANK = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(path: Path) -> int:
    """Lines of a module that hold code."""
    lines: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in BLANK:
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text and isinstance(node.value.value, str):  # type: ignore[attr-defined]
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def code_of(*folders: str, root: Path = ROOT) -> int:
    return sum(code_lines(path) for folder in folders for path in (root / folder).rglob("*.py"))


def sizes(root: Path = ROOT) -> dict[str, int]:
    """What BUDGET limits, as it is."""
    return {
        "src": code_of("src", root=root),
        "scripts and benchmarks": code_of("scripts", "benchmarks", root=root),
        "tests": code_of("tests", root=root),
        "docs": sum(len(page.read_text().split()) for page in (root / "docs").rglob("*.md")),
        "tables": len(list((root / "data" / "measurements").rglob("*.csv*"))),
    }


def report(found: Mapping[str, int]) -> bool:
    """Print each size beside its budget; whether all are within it."""
    for name, size in found.items():
        over = "  above it" if size > BUDGET[name] else ""
        print(f"{name:24}{size:>8,} of {BUDGET[name]:>7,}, target {TARGET[name]:,}{over}")
    return all(size <= BUDGET[name] for name, size in found.items())


if __name__ == "__main__":
    sys.exit(0 if report(sizes()) else 1)
