"""What functions of solvers return, worked out by hand."""

from tests.cases import calls

test_calls = calls(__file__)
