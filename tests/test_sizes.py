"""What `make sizes` counts."""

import importlib.util
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "scripts" / "sizes.py"
MODULE = '''"""Of several
lines."""

# A comment.
A = 1  # beside code
"""What A is."""


def f():
    """What f does."""
    text = """no docstring,
    two lines"""
    return text
'''


def load():
    spec = importlib.util.spec_from_file_location("sizes", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path):
    path = tmp_path / "src" / "a.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    # A = 1, def f, the text of two lines, return.
    assert load().code_lines(path) == 5
    assert load().sizes(tmp_path) == {"src": 5} | dict.fromkeys(
        ("scripts and benchmarks", "tests", "docs", "tables"), 0
    )


def test_a_size_above_its_budget_is_said(capsys):
    sizes = load()
    within = dict(sizes.BUDGET)
    assert sizes.report(within)
    assert not sizes.report(within | {"tables": within["tables"] + 1})
    assert capsys.readouterr().out.count("above it") == 1
