"""A few of the fuzzed cases; `make fuzz` runs many."""

import pytest

from tests.fuzz import failures

pytestmark = pytest.mark.slow
CASES = 1500


def test_hostile_words_files_and_calls_get_sentences():
    assert failures(first=20_000, cases=CASES) == []
