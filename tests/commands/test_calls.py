"""What functions of verbs return, worked out by hand, and what verbs answer."""

from pathlib import Path

import pytest

from tests.cases import calls, cases, compare
from tests.conftest import with_what_it_needs

test_calls = calls(__file__)


@pytest.mark.parametrize(*cases(__file__, "test_a_verb_s_answer"))
def test_a_verb_s_answer(answer, gemm_model, monkeypatch, tmp_path, files, words, expected):
    """Of words about files of these texts, after others': parts of the document, of stdout (a list) or of stderr."""
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    *before, words = words if isinstance(words[0], tuple) else [words]
    assert [found.err for each in before if (found := with_what_it_needs(gemm_model(*each))).code] == []
    if isinstance(expected, dict):
        compare(answer(*words), expected)
        return
    found = with_what_it_needs(gemm_model(*words))
    for part in expected if isinstance(expected, tuple) else ():
        assert part in found.out
    assert isinstance(expected, tuple) or expected in found.err
