"""What `tests.gate.logic` changes."""

import ast

import pytest

from tests.cases import cases
from tests.gate.logic import changed, changes

SOURCE = '''def f(a: int | None, b: float) -> bool | None:
    """x < y"""
    return min(a, b) <= a + b and not a
'''


@pytest.mark.parametrize(*cases(__file__, "test_one_operator_or_condition_is_changed"))
def test_one_operator_or_condition_is_changed(source, new):
    assert changed(ast.parse(source, mode="eval").body) == new


def test_annotations_and_texts_stay(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = {change.old: change.applied().splitlines()[2].strip() for change in changes(path)}
    assert found == {
        "min(a, b) <= a + b and (not a)": "return ((min(a, b) <= a + b) or (not a))",
        "min(a, b) <= a + b": "return ((min(a, b)) < (a + b)) and not a",
        "not a": "return min(a, b) <= a + b and (a)",
        "min(a, b)": "return max(a, b) <= a + b and not a",
        "a + b": "return min(a, b) <= ((a) - (b)) and not a",
    }
