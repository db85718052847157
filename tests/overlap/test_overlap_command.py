"""`gemm-model overlap`: output, files, and one sentence for bad input."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_model.overlap.config import KernelBuild
from gemm_model.overlap.views import PREVIOUS_KERNEL, trace_of_events
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.trace import read_trace_table, write_trace_table

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


BUILD = KernelBuild(a_type="e4m3", b_type="e4m3", tile_n=16, split_k=2, stages=4, clusters=1)
EVENTS = np.array(
    [
        # start, previous kernel done, loaded, end [ns], SM, prefetched k tiles.
        [5_000, 6_500, 8_000, 9_000, 7, 0],
        [5_400, 6_600, 8_200, 9_600, 3, 2],
    ]
)


def test_the_overlapping_kernel_writes_the_one_format(tmp_path):
    trace = trace_of_events(EVENTS, (128, 16, 2048), BUILD, "h200")
    # 2048 elements of 1 byte in k tiles of 128, shared by two CTAs.
    assert trace.info.k_tiles == 8
    assert trace.info.runtime_us == pytest.approx(4.6)
    write_trace_table(trace, tmp_path / "t.csv.gz")
    rows = read_trace_table(tmp_path / "t.csv.gz").rows
    resident = rows[rows["activity"] == "resident"]
    assert resident["sm"].tolist() == [7, 3]
    assert resident["end_us"].tolist() == pytest.approx([4.0, 4.6])
    waits = rows[rows["detail"] == PREVIOUS_KERNEL]
    assert (waits["end_us"] - waits["start_us"]).tolist() == pytest.approx([1.5, 1.2])
    loads = rows[rows["activity"] == "load"]
    assert loads["end_us"].tolist() == pytest.approx([3.0, 3.2])
    assert phases_of(trace)["start skew"] == pytest.approx(0.4)
