"""`gemm-model overlap`: output, files, and one sentence for bad input."""

import json
from pathlib import Path

import pandas as pd
import pytest

SURFACES = Path(__file__).parents[2] / "data/measurements/h200/overlap.csv.gz"
LAYER = ["overlap", "--m", "8192", "--k", "8192", "--b-type", "e5m2"]


def test_layer_as_json_with_trace(answer, tmp_path):
    trace = tmp_path / "trace.json"
    document = answer(*LAYER, "--tune", "--trace", trace)
    result = document["result"]
    assert result["predicted_us"] < result["predicted_no_overlap_us"]
    assert result["build"]["clusters"] == 128
    assert len(document["rows"]) == 7 * 8
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"wait", "norm", "stream weights", "tail"} <= {event["name"] for event in events}
    ends_us = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends_us) == pytest.approx(16 * result["predicted_us"], rel=1e-3)


def test_surfaces_with_plot(gemm_model, tmp_path):
    table, plot = tmp_path / "surfaces.csv", tmp_path / "surfaces.png"
    pd.read_csv(SURFACES).head(114).to_csv(table, index=False)
    words = ["--input", table, "--campaigns", "overlap_surfaces", "--plot", plot]
    found = gemm_model("overlap", *words, "--format", "csv")
    assert found.out.count("\n") == 3
    assert "of 2 surfaces" in found.err
    assert plot.stat().st_size > 10_000


def test_measuring_needs_a_gpu(gemm_model):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = gemm_model(*LAYER, "--measure")
    assert (found.code, "--measure needs" in found.err) == (3, True)
