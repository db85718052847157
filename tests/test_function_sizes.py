"""No function is longer than 50 lines; ruff limits its parameters, statements and complexity."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = 50
DEVICE_CODE = {"src/gemm_model/overlap/kernel.py": {"__call__", "kernel", "multiply_and_store"}}
"""What a GPU runs, and the entry that compiles it."""


def functions(source):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return (each for each in ast.walk(ast.parse(source)) if isinstance(each, kinds))


def too_long(source):
    """Functions of a source with more than LINES lines."""
    return [node.name for node in functions(source) if node.end_lineno - node.lineno >= LINES]


def beyond_a_formula(source, parameters=5, lines=40):
    """Functions with more parameters or more lines than a formula of the model has."""
    for node in functions(source):
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = sum(each.arg not in ("self", "cls") for each in named)
        if own > parameters or node.end_lineno - node.lineno >= lines:
            yield node.name


@pytest.mark.slow
def test_a_function_fits_on_a_page():
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for folder in ("src", "benchmarks", "scripts", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in too_long(path.read_text(encoding="utf-8"))
    }
    known = {f"{file} {name}" for file, names in DEVICE_CODE.items() for name in names}
    assert sorted(found - known) == []


def test_what_counts_as_too_long():
    body = "    pass\n" * LINES
    assert list(too_long("def f():\n" + body)) == ["f"]
    assert list(too_long("def f():\n" + body[:-9])) == []


def test_formulas_of_the_model_take_few_parameters():
    found = [
        f"{path.parent.name}/{path.name} {name}"
        for folder in ("kernel_model", "kernels")
        for path in sorted((ROOT / "src" / "gemm_model" / folder).glob("*.py"))
        for name in beyond_a_formula(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert list(beyond_a_formula("def f(a, b, c, d, e):\n" + "    pass\n" * 39)) == []
    assert list(beyond_a_formula("def f(a, b, c, d, *, e, g):\n    pass")) == ["f"]
    assert list(beyond_a_formula("def f():\n    'Words.'\n" + "    pass\n" * 39)) == ["f"]
