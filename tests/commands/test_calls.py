"""What functions of verbs return, worked out by hand, and what verbs answer."""

from pathlib import Path

import pytest

from tests.cases import calls, cases, compare

test_calls = calls(__file__)


@pytest.mark.parametrize(*cases(__file__, "test_a_verb_s_answer"))
def test_a_verb_s_answer(answer, gemm_model, monkeypatch, tmp_path, files, words, expected):
    """Of words about files of these texts: parts of the document, or of what is said on stderr."""
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    if isinstance(expected, str):
        assert expected in gemm_model(*words).err
    else:
        compare(answer(*words), expected)
