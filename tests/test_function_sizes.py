"""No function is longer than 80 lines or takes more than ten parameters, but for code of the device."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVICE_CODE = {
    "src/gemm_model/bench/triton.py": {"matmul_persistent"},
    "src/gemm_model/bench/triton_fused.py": {
        *("_finished", "_product", "matmul_batched", "matmul_fused", "matmul_grouped"),
    },
    "src/gemm_model/overlap/kernel.py": {"__call__", "kernel", "multiply_and_store"},
}
"""What a GPU runs, and the entry that compiles it: its arguments are tensors and registers, and no struct
holds them."""


def too_large(source: str) -> Iterator[str]:
    """Functions of a source that break the rule, each with what it has."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        args = node.args
        parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        own = [each for each in parameters if each.arg not in ("self", "cls")]
        if lines > 80 or len(own) > 10:
            yield node.name


def test_a_function_fits_on_a_page():
    found = {
        str(path.relative_to(ROOT)): set(names)
        for folder in ("src", "benchmarks", "scripts", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := list(too_large(path.read_text(encoding="utf-8"))))
    }
    assert found == DEVICE_CODE


def test_what_counts_as_too_large():
    body = "    pass\n" * 80
    assert list(too_large("def f():\n" + body)) == ["f"]
    assert list(too_large("def f():\n" + body[:-9])) == []
    assert list(too_large("def f(a, b, c, d, e, *, g, h, i, j, k, l): ...")) == ["f"]
    assert list(too_large("def f(self, a, b, c, d, e, *, g, h, i, j, k): ...")) == []
