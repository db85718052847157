"""The classic scripts' command lines, in front of the code that the command `gemm-model` runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemm_model.cli import run_and_report, run_command
from gemm_model.commands.common import show
from gemm_model.commands.predict import predict_table_file
from gemm_model.core.settings import load_settings
from gemm_model.errors import InputError

CLASSIC_DEFAULTS = {"gpu": "b200_1300mhz", "model": "WSPersistentGEMMModel"}

PREDICT_USAGE = (
    "python predict_gemm.py +input_csv=TABLE +output_dir=DIR [model=NAME] [gpu=NAME] [key=value ...]"
)


def predict_main(words: Sequence[str]) -> int:
    """`predict_gemm.py`: Hydra-style words only; returns the exit code."""
    if any(word in ("-h", "--help") for word in words):
        print(f"usage: {PREDICT_USAGE}")
        return 0
    return run_and_report("predict_gemm.py", lambda: _predict(words))


def _predict(words: Sequence[str]) -> int:
    from argparse import Namespace

    paths: dict[str, Path] = {}
    overrides = []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if key in ("input_csv", "output_dir") and value:
            paths[key] = Path(value)
        else:  # the scripts' b200 is the locked card
            overrides.append(f"gpu={CLASSIC_DEFAULTS['gpu']}" if word == "gpu=b200" else word)
    for key in ("input_csv", "output_dir"):
        if key not in paths:
            raise InputError(f"+{key}= is missing; expected {PREDICT_USAGE}")
    chosen = load_settings(overrides, CLASSIC_DEFAULTS)
    document = predict_table_file(paths["input_csv"], paths["output_dir"], chosen, classic=True)
    show(Namespace(verb="predict", format="table"), document)
    return 0


def benchmark_main(words: Sequence[str]) -> int:
    """`benchmark_gemm.py`: the options of `gemm-model benchmark`; returns the exit code."""
    return run_and_report("benchmark_gemm.py", lambda: run_command(["benchmark", *words]))
