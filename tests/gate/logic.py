"""Which damage to the logic of a folder its own tests do not notice.

    python -m tests.gate.logic choice [--count 30] [--seed 0]

Operators and conditions of `src/gemm_model/FOLDER` are drawn; each is changed alone in a copy of the package,
and `tests/FOLDER` runs on it until a test fails. Prints a line for each change that none noticed, and exits
with 1 where fewer than LEAST_NOTICED were. A run of the tests for each change: minutes.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
LEAST_NOTICED = 0.9
"""Share of the changes that a folder's own tests have to notice."""
DEVICE_CODE = (
    "overlap/chain.py",
    "overlap/kernel.py",
    "overlap/previous_kernel.py",
    "bench/triton_kernels.py",
)
"""What only a GPU runs: no test on this machine can notice a change of it."""
LIMIT_S = 600.0
"""Longest run of a folder's tests [s]; a change that makes them endless is noticed."""
COMPARISONS = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"},
    **{ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.BitAnd: "|", ast.BitOr: "&"}
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Change:
    """A place of a module and what is put there."""

    path: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.old}  ->  {self.new}"

    def applied(self) -> str:
        """The module's source with the change."""
        text = self.path.read_text(encoding="utf-8")
        return text[: self.start] + self.new + text[self.end :]


def changed(node: ast.AST) -> str | None:
    """The source of a node with its operator or condition changed; None where there is none."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        return f"(({left}) {COMPARISONS[type(node.ops[0])]} ({right}))"
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return f"({word.join(f'({ast.unparse(value)})' for value in node.values)})"
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return f"(({ast.unparse(node.left)}) {OPERATORS[type(node.op)]} ({ast.unparse(node.right)}))"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        arguments = ast.unparse(node)[len(node.func.id) :]
        return f"{CALLS[node.func.id]}{arguments}"
    return None


def changes(path: Path) -> Iterator[Change]:
    """All changes of a module; annotations and texts stay."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(text)
    kept = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        new = None if id(node) in kept else changed(node)
        if new is None:
            continue
        # Columns count bytes of UTF-8; the sources' code is ASCII but for texts.
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        if ast.unparse(node) == ast.unparse(ast.parse(f"({text[start:end]})", mode="eval").body):
            yield Change(path, node.lineno, start, end, ast.unparse(node), new)  # type: ignore[attr-defined]


def noticed(change: Change, folder: str) -> bool:
    """Whether the folder's tests fail on a copy of the package with the change."""
    with TemporaryDirectory() as place:
        package = Path(place) / "gemm_model"
        shutil.copytree(ROOT / "src/gemm_model", package, ignore=shutil.ignore_patterns("__pycache__"))
        inside = change.path.relative_to(ROOT / "src/gemm_model")
        (package / inside).write_text(change.applied(), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{folder}"]
        environment = os.environ | {"PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*command, "-m", "not slow"], cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    modules = sorted((ROOT / "src/gemm_model" / args.folder).rglob("*.py"))
    found = [change for path in modules if not str(path).endswith(DEVICE_CODE) for change in changes(path)]
    drawn = random.Random(args.seed).sample(found, min(args.count, len(found)))
    missed = 0
    for change in drawn:
        if not noticed(change, args.folder):
            missed += 1
            print(change, flush=True)
    print(f"{args.folder}: {len(drawn) - missed} of {len(drawn)} changes noticed, {len(found)} possible")
    return int(missed > (1.0 - LEAST_NOTICED) * len(drawn))


if __name__ == "__main__":
    sys.exit(main())
