"""What the tests share: a small measured table, and running the command in this process."""

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gemm_model.cli import main
from gemm_model.errors import MissingExtraError

ROOT = Path(__file__).parent.parent


# Properties are tried on the same cases everywhere; `--hypothesis-profile default` draws others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# What collecting imports stays: looking through it again and again takes a third of the tests' time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def gemm_model(capsys):
    """Run `gemm-model WORDS`; returns exit code, stdout and stderr."""

    def run(*words: object) -> Outcome:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def with_what_it_needs(found: Outcome) -> Outcome:
    """An outcome; skips the test where an optional package is missing."""
    if found.code == MissingExtraError.exit_code:
        pytest.skip(found.err)
    return found


@pytest.fixture
def answer(gemm_model):
    """Run `gemm-model WORDS --format json` without fault; returns its document, notes and files' names in `err`."""

    def asked(*words: object) -> dict[str, Any]:
        found = with_what_it_needs(gemm_model(*words, "--format", "json"))
        assert found.code == 0, found.err
        return {**json.loads(found.out), "err": found.err}

    return asked


CLASSIC_HEADER = (
    "in_dtype,acc_dtype,out_dtype,sf_dtype,sf_vec_size,a_major,b_major,c_major,"
    "mma_m,mma_n,cta_m,cta_n,cluster_m,cluster_n,m,n,k,runtime_us"
)
CLASSIC_ROWS = (
    "e2m1,fp32,fp32,e8m0,16,k,k,n,256,64,128,64,2,1,4096,4096,16384,225.27999877929688",
    "fp8,fp32,fp8,,0,k,k,n,128,256,64,256,2,1,4096,7168,257,35.63520014286041",
    "fp8,fp32,fp8,,0,k,k,n,256,256,128,256,2,1,4096,7168,257,33.5",
)


@pytest.fixture
def classic_table(tmp_path):
    path = tmp_path / "classic.csv"
    path.write_text("\n".join([CLASSIC_HEADER, *CLASSIC_ROWS]) + "\n")
    return path
