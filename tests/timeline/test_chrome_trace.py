import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.errors import InputError
from gemm_model.timeline.chrome_trace import TraceCounter, TraceEvent, chrome_trace_json, write_chrome_trace
from tests.timeline.trace_rules import broken_rules

times = st.floats(0, 1e5, allow_nan=False)
events = st.lists(
    st.builds(
        TraceEvent, process=st.sampled_from(("SM 0", "SM 1")), track=st.sampled_from(("DMA", "consumer")),
        name=st.just("work"), start_us=times, duration_us=st.one_of(st.just(0.0), st.floats(0, 50)),
    ),
    max_size=40,
)  # fmt: skip


def slices(text):
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]


@settings(max_examples=100)
@given(events=events)
def test_any_events_make_a_trace_by_the_rules(events):
    text = chrome_trace_json(events)
    assert broken_rules(text) == []
    written = sorted((event["ts"], event["dur"]) for event in slices(text))
    assert len(written) == len(events)
    for (ts, dur), event in zip(written, sorted(events, key=lambda e: round(e.start_us * 1000)), strict=True):
        assert ts == pytest.approx(event.start_us, abs=1e-3)
        assert dur >= 0


def test_overlapping_slices_get_a_track_of_their_own():
    overlapping = [
        TraceEvent(track="DMA", name="a", start_us=0, duration_us=10),
        TraceEvent(track="DMA", name="b", start_us=5, duration_us=10),
        TraceEvent(track="DMA", name="inner", start_us=2, duration_us=3),
        TraceEvent(track="DMA", name="next", start_us=10, duration_us=3),
    ]
    text = chrome_trace_json(overlapping)
    events = json.loads(text)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["name"]: names[event["tid"]] for event in slices(text)} == {
        "a": "DMA", "inner": "DMA", "next": "DMA", "b": "DMA (2)",
    }  # fmt: skip


def test_the_rules_catch_a_partial_overlap():
    event = {"ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 0, "dur": 2}
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}}
    trace = {"displayTimeUnit": "ns", "traceEvents": [name, event, {**event, "ts": 1}]}
    assert "overlap" in " ".join(broken_rules(json.dumps(trace)))


def test_bad_counter_is_refused():
    with pytest.raises(InputError, match="expected finite numbers"):
        TraceCounter(track="t", time_us=1.0, value=float("inf"))


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_chrome_trace(tmp_path / "file" / "trace.json", [])


KERNEL = ["--m", "1024", "--n", "1024", "--k", "500"]
ON_MACHINE = ["simulate", *KERNEL, "--machine", "shared_rate", "--cta", "128x64x64", "--stages", "3"]


PINGPONG = [*KERNEL, "--cta", "128x128", "--schedule", "pingpong", "--gpu", "h200"]
PAPER = ["--model", "PipelineModel"]


def test_trace_table_and_plot_of_the_papers_machine_on_a_gpu(tmp_path, answer):
    trace, plot = tmp_path / "trace.json", tmp_path / "plot.png"
    report = answer("simulate", *PINGPONG, *PAPER, "--trace-sms", 2, "--trace", trace, "--plot", plot)
    assert report["result"]["k_tiles"] == 8
    assert {row["warp"] for row in report["rows"]} == {"launch", "DMA", "consumer 1"}
    assert broken_rules(trace.read_text()) == []
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_event_of_a_machine(gemm_model):
    rows = list(csv.DictReader(io.StringIO(gemm_model(*ON_MACHINE, "--events", "--format", "csv").out)))
    # 128 tiles on 60 SMs: three waves of eight k tiles on SM 0, tiles 0, 60 and 120.
    math = [row for row in rows if row["event"] == "math"]
    assert len(math) == 3 * 8
    stores = [float(row["duration_us"]) for row in rows if row["event"] == "epilogue"]
    assert stores == pytest.approx([0.8] * 3)
    assert {row["cta"] for row in math} == {"0", "60", "120"}
    assert {row["reason"] for row in rows if row["event"] == "wait"} == {"loaded data", "a free stage"}


def test_sms_without_a_tile_in_the_last_wave_end_earlier(tmp_path, answer):
    trace = tmp_path / "trace.json"
    answer(*ON_MACHINE, "--trace-sms", 60, "--trace", trace)
    ctas = {event["args"]["cta"] for event in slices(trace.read_text()) if event["name"] == "math"}
    assert ctas == set(range(128))


def test_the_default_timeline_ends_where_predict_does(tmp_path, answer):
    trace, plot = tmp_path / "trace.json", tmp_path / "plot.svg"
    files = ["--trace", trace, "--plot", plot, "--html", tmp_path / "p.html"]
    report = answer("simulate", *PINGPONG, *files)
    predicted_us = answer("predict", *PINGPONG)["rows"][0]["predicted_us"]
    assert report["result"]["predicted_us"] == predicted_us
    assert {row["phase"]: row["predicted"] for row in report["rows"]}["runtime"] == predicted_us
    assert sum(report["result"]["phases_us"].values()) == pytest.approx(predicted_us)
    assert broken_rules(trace.read_text()) == []
    last = max(event["ts"] + event["dur"] for event in slices(trace.read_text()))
    assert last == pytest.approx(predicted_us, rel=0.01)
    assert "<svg" in plot.read_text()


def test_fewer_sms_in_the_trace(tmp_path, answer):
    trace = tmp_path / "trace.json"
    answer("simulate", *PINGPONG, "--trace", trace, "--trace-sms", 2)
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    assert {name for name in names if name.endswith("producer")} == {"SM 0 producer", "SM 1 producer"}
    # 64 tiles: one row for each SM that has one.
    assert {f"SM {sm}" for sm in range(64)} <= names


def test_a_measured_trace_lies_over_the_predicted_one(tmp_path, answer):
    table, trace, plot = tmp_path / "t.csv.gz", tmp_path / "o.json", tmp_path / "o.png"
    answer("simulate", *PINGPONG, "--regime", "counters", "--residual", "off", "--table", table)
    report = answer("simulate", *PINGPONG, "--measured", table, "--trace", trace, "--plot", plot)
    rows = {row["phase"]: row for row in report["rows"]}
    assert rows["waves"]["measured"] == 1
    assert rows["runtime"]["ratio"] == rows["runtime"]["predicted"] / rows["runtime"]["measured"]
    assert rows["runtime"]["ratio"] > 1.05
    assert rows["epilogue"]["ratio"] == pytest.approx(1.0, abs=0.1)
    assert min(event["ts"] for event in slices(trace.read_text())) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_where_models_disagree_it_says_which_to_trust(answer):
    report = answer("simulate", "--m", 64, "--n", 24576, "--k", 1536, "--cta", "64x128")
    off = report["result"]["pipeline_model_us"] / report["result"]["predicted_us"] - 1
    assert any(f"{off:+.0%}; trust KernelModel" in note for note in report["notes"])


@pytest.mark.slow
def test_the_papers_trace_is_thinned_out(tmp_path, answer):
    trace = tmp_path / "trace.json"
    words = ["--m", 16384, "--n", 8192, "--k", 2048, "--cta", "128x256", *PAPER, "--trace-sms", 132]
    error = answer("simulate", *words, "--trace", trace)["err"]
    assert trace.stat().st_size < 20e6
    assert "waves repeat" in error or "they run alike" in error
