"""Words and files that a verb refuses (`refusals.yaml`, `refused_files.yaml`): one sentence and exit code 2."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, with_what_it_needs

VERBS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
SHORT = {name: words.format(ROOT=ROOT) for name, words in VERBS.pop("words").items()}
FILES = yaml.safe_load(Path(__file__).with_name("refused_files.yaml").read_text())
STEP = re.compile(r"\[ *\d+\.\d\d s\] |[a-z ]+: \d+ of \d+")


def refusal_of(gemm_model, verb, words):
    """The last line on stderr, alone but for steps of progress."""
    outcome = with_what_it_needs(gemm_model(verb, *words))
    assert (outcome.code, outcome.out) == (2, "")
    *steps, sentence = outcome.err.splitlines()
    assert all(STEP.match(line) for line in steps)
    assert sentence.startswith(f"gemm-model {verb}: ")
    assert len(sentence) < 500
    return sentence


@pytest.mark.parametrize(
    ("verb", "words", "sentence"),
    [(verb, words, sentence) for verb, cases in VERBS.items() for words, sentence in cases.items()],
)
def test_bad_words_get_one_sentence_and_exit_code_2(gemm_model, monkeypatch, tmp_path, verb, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal_of(gemm_model, verb, shlex.split(words.format(ROOT=ROOT, **SHORT)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("case", "text", "sentence"),
    [(case, text, sentence) for case in FILES for text, sentence in case["refuses"].items()],
)
def test_bad_files_get_one_sentence_and_exit_code_2(gemm_model, monkeypatch, tmp_path, case, text, sentence):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / case.get("file", "table.csv")
    file.write_bytes((case.get("head", "") + text).encode("latin-1"))
    verb, *words = shlex.split(case["words"].replace("FILE", file.name).replace("{ROOT}", str(ROOT)))
    assert sentence in refusal_of(gemm_model, verb, words)
    assert list(tmp_path.iterdir()) == [file]
