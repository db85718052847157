"""Tables of cases that tests go through, kept as data: `cases.yaml` beside them, one table a test."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_model.errors import InputError


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


OTHERS = ("builtins", "pandas", "pathlib", "types", "unittest.mock")
"""Modules that are no part of the package, for arguments; so are helpers of tests, as `tests.kernel_model.kernels`."""


def calls(test_file: str) -> Any:
    """The test of a folder's table `calls`: function (module:name), arguments, and what it returns or refuses.

    Arguments are data: a list of numbers is an array, `frame` a table, `file` a file of that `text`, `items` a
    tuple, and `of` a call of its own. An expected mapping names parts of a result: keys, columns, fields or
    methods without arguments; `holds` what is in it.
    """
    rows = _with_tuples(_tables(Path(test_file).with_name("cases.yaml"))["calls"])

    @pytest.mark.parametrize(("function", "arguments", "expected"), rows)
    def check(function: str, arguments: Any, expected: Any, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.chdir(tmp_path)
        if isinstance(expected, dict) and "refused" in expected:
            with pytest.raises(InputError, match=re.escape(expected["refused"])):
                _called(function, arguments)
        else:
            compare(_called(function, arguments), expected)

    return check


def _module(name: str) -> Any:
    """The module; a test is skipped where a package that it needs is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("gemm_model", "tests")):
            raise
        pytest.skip(f"{error.name} is not installed")


def _called(function: str, arguments: Any) -> Any:
    module, _, path = function.partition(":")
    elsewhere = module in OTHERS or module.startswith("tests.")
    found: Any = _module(module if elsewhere else f"gemm_model.{module}")
    for name in path.split("."):
        found = getattr(found, name)
    if isinstance(arguments, dict):
        return found(**{name: made(value) for name, value in arguments.items()})
    return found(*map(made, arguments))


def made(value: Any) -> Any:
    """The argument that data stand for, as `calls` says."""
    if isinstance(value, list | tuple):
        return np.array(value) if _is_array(value) else [*map(made, value)]
    if not isinstance(value, dict):
        return value
    if "of" in value:
        return _called(value["of"], value.get("args", {name: value[name] for name in value if name != "of"}))
    if "frame" in value:
        return pd.DataFrame(value["frame"], value.get("index"))
    if "file" in value:
        Path(value["file"]).write_text(value["text"])
        return Path(value["file"])
    return (
        _with_tuples(value["items"])
        if "items" in value
        else {name: made(each) for name, each in value.items()}
    )


def _is_array(value: Any) -> bool:
    some = isinstance(value, list | tuple) and bool(value)
    even = some and len({len(each) for each in value if isinstance(each, list | tuple)}) < 2
    return even and all(isinstance(each, int | float) or _is_array(each) for each in value)


def compare(found: Any, expected: Any) -> None:
    """Assert what data, as `calls` says, expect of a result."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            if name == "holds":
                assert [each for each in value if each not in found] == [], found
                continue
            inside = isinstance(name, int) or name in getattr(found, "keys", tuple)()
            part = found[name] if inside else getattr(found, name)
            compare(part() if callable(part) else part, value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), found
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, nan_ok=True), found
    else:
        assert found == expected, found
