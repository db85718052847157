"""What functions of the kernel model return, worked out by hand."""

from tests.cases import calls

test_calls = calls(__file__)
