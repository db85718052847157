"""What functions of data sets return, worked out by hand."""

from tests.cases import calls

test_calls = calls(__file__)
