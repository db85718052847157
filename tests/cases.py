"""Tables of cases that tests go through, kept as data: `cases.yaml` beside them, one table a test."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml


def cases(test_file: str, test: str) -> tuple[list[str], list[Any]]:
    """Names and rows of a test's table, the arguments of `pytest.mark.parametrize`; lists in it are tuples."""
    table = _tables(Path(test_file).with_name("cases.yaml"))[test]
    return table["names"], [_with_tuples(row) for row in table["rows"]]


@cache
def _tables(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
