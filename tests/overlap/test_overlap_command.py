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
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"wait", "norm", "stream weights", "tail"} <= {event["name"] for event in events}
    ends_us = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends_us) == pytest.approx(16 * result["predicted_us"], rel=1e-3)


def test_surfaces_with_plot(capsys, tmp_path):
    table, plot = tmp_path / "surfaces.csv", tmp_path / "surfaces.png"
    pd.read_csv(SURFACES).head(114).to_csv(table, index=False)
    words = ["--input", str(table), "--campaigns", "overlap_surfaces", "--plot", str(plot)]
    assert run(*words, "--format", "csv") == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3
    assert "of 2 surfaces" in captured.err
    assert plot.stat().st_size > 10_000


def test_measuring_needs_a_gpu(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run(*LAYER, "--measure") == 3
    assert "--measure needs" in capsys.readouterr().err
