import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.core.errors import InputError
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


@pytest.mark.parametrize(("start", "length"), [(-1.0, 1.0), (0.0, -1.0), (float("nan"), 1.0)])
def test_bad_times_are_refused(start, length):
    with pytest.raises(InputError, match="expected a number of at least 0"):
        TraceEvent(track="t", name="x", start_us=start, duration_us=length)


def test_bad_counter_is_refused():
    with pytest.raises(InputError, match="expected finite numbers"):
        TraceCounter(track="t", time_us=1.0, value=float("inf"))


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_chrome_trace(tmp_path / "file" / "trace.json", [])
