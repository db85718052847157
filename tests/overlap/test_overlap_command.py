"""`gemm-model overlap`: output, files, and one sentence for bad input."""

import json
from pathlib import Path

import pandas as pd
import pytest

from gemm_model.cli import main

SURFACES = Path(__file__).parents[2] / "data/measurements/h200/overlap.csv.gz"
LAYER = ["--m", "8192", "--k", "8192", "--b-type", "e5m2"]


def run(*words):
    return main(["overlap", *words])


def test_layer_as_json_with_trace(capsys, tmp_path):
    trace = tmp_path / "trace.json"
    assert run(*LAYER, "--tune", "--format", "json", "--trace", str(trace)) == 0
    document = json.loads(capsys.readouterr().out)
    result = document["result"]
    assert result["predicted_us"] < result["predicted_no_overlap_us"]
    assert result["build"]["clusters"] == 128
    assert len(document["rows"]) == 7 * 8
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"wait", "norm", "stream weights", "tail"} <= names


def test_surfaces_with_plot(capsys, tmp_path):
    table, plot = tmp_path / "surfaces.csv", tmp_path / "surfaces.png"
    pd.read_csv(SURFACES).head(114).to_csv(table, index=False)
    words = ["--input", str(table), "--campaigns", "overlap_surfaces", "--plot", str(plot)]
    assert run(*words, "--format", "csv") == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3
    assert "of 2 surfaces" in captured.err
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*LAYER, "--overlap-ratio", "1.5"], "overlap_ratio must be -1 or lie between 0 and 1, not 1.5"),
        ([*LAYER, "--prefetch-ratio", "-0.1"], "prefetch_ratio must be -1 or lie between 0 and 1"),
        (["--m", "64"], "--k is missing"),
        (["--m", "64", "--k", "64", "--n", "129"], "tile_n must be a multiple of 8"),
        (["--m", "64", "--k", "64", "--a-type", "int4"], "a_type must be one of"),
        ([*LAYER, "--stages", "40"], "of shared memory"),
        ([*LAYER, "--gpu", "a100_sxm_80gb"], "Hopper"),
        ([*LAYER, "--tune", "--overlap-ratio", "0.5"], "--tune is given with"),
        ([*LAYER, "--plot", "x.png"], "--plot is given without --input"),
        (["--surfaces", "missing.csv"], "no such file"),
        ([*LAYER, "--campaigns", "a"], "--campaigns is given without --input"),
        (["--input", str(SURFACES), "--campaigns", "a"], "no row of campaign 'a'"),
        ([*LAYER, "--previous-extra-us", "inf"], "--previous-extra-us is inf"),
        (["--m", "9" * 4400, "--k", "64"], "--m: 999999999999... has 4400 characters"),
    ],
)
def test_bad_input(words, sentence, capsys):
    assert run(*words) == 2
    assert sentence in capsys.readouterr().err


def test_measuring_needs_a_gpu(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run(*LAYER, "--measure") == 3
    assert "--measure needs" in capsys.readouterr().err
