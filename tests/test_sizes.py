"""What `make sizes` counts."""

from scripts import sizes

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


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path):
    path = tmp_path / "src" / "a.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    # A = 1, def f, the text of two lines, return.
    assert sizes.code_lines(path) == 5
    assert sizes.sizes(tmp_path) == {"src": 5} | dict.fromkeys(
        ("scripts and benchmarks", "tests", "docs", "tables"), 0
    )


def test_a_size_above_its_budget_is_said(capsys):
    within = dict(sizes.BUDGET)
    assert sizes.report(within)
    assert not sizes.report(within | {"tables": within["tables"] + 1})
    assert capsys.readouterr().out.count("above it") == 1
