"""Words that a verb refuses (`refusals.yaml`): one sentence that says what is wrong, exit code 2, no file."""

import shlex
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

VERBS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
SHORT = {name: words.format(ROOT=ROOT) for name, words in VERBS.pop("words").items()}


@pytest.mark.parametrize(
    ("verb", "words", "sentence"),
    [(verb, words, sentence) for verb, cases in VERBS.items() for words, sentence in cases.items()],
)
def test_bad_words_get_one_sentence_and_exit_code_2(gemm_model, monkeypatch, tmp_path, verb, words, sentence):
    monkeypatch.chdir(tmp_path)
    outcome = gemm_model(verb, *shlex.split(words.format(ROOT=ROOT, **SHORT)))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"gemm-model {verb}: ")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert len(outcome.err) < 500
    assert list(tmp_path.iterdir()) == []
