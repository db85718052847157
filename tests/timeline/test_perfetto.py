"""Traces in Perfetto's own engine: it reports no error, and has every slice where it was written."""

import json
from pathlib import Path

import pytest

from gemm_model.pipeline.machine import PipelineKernel, load_machine, with_parameters, workload
from gemm_model.timeline.chrome_trace import write_chrome_trace
from gemm_model.timeline.simulator import simulate
from gemm_model.timeline.trace import read_trace_table
from gemm_model.timeline.trace import trace_events as kernel_events
from gemm_model.timeline.views import trace_events
from tests.timeline.iket_sample import write_sample
from tests.timeline.perfetto_engine import answers

pytestmark = pytest.mark.slow
TRACES = Path(__file__).parents[2] / "data/measurements/h200/traces"
SLICES = """
    select process.name as process, thread.name as track, slice.name as name, ts, dur
    from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid)
"""
COUNTERS = """
    select counter_track.name as track, ts, value
    from counter join counter_track on track_id = counter_track.id
"""
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
PINGPONG = [
    *("--m", "2048", "--n", "4096", "--k", "1024", "--cta", "128x128", "--cluster", "4x1"),
    *("--schedule", "pingpong", "--kernel", "quack", "--regime", "counters"),
    *("--measured", str(TRACES / "pingpong_2048x4096x1024.csv.gz")),
]
SIMULATED = {
    "4096^3": ["--m", "4096", "--n", "4096", "--k", "4096", "--cta", "128x256", "--cluster", "2x1"],
    "20,480 tiles": ["--m", "16384", "--n", "40960", "--k", "4096", "--cta", "128x256"],
    "overlay": PINGPONG,
}


def written(path):
    """Slices and counters of a trace file, with the names that its metadata give; times in ns."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if "name" in e.get("args", {})
    }
    slices = [
        (
            names["process_name", event["pid"], 0],
            names["thread_name", event["pid"], event["tid"]],
            event["name"],
            round(event["ts"] * 1000),
            round((event["ts"] + event["dur"]) * 1000) - round(event["ts"] * 1000),
        )
        for event in events
        if event["ph"] == "X"
    ]
    counters = [
        (event["name"], round(event["ts"] * 1000), event["args"]["value"])
        for event in events
        if event["ph"] == "C"
    ]
    return sorted(slices), sorted(counters)


def opened(path):
    """What the engine has of the file, after it said that nothing is wrong with it."""
    slices, counters, problems = answers(path.read_bytes(), SLICES, COUNTERS, PROBLEMS)
    assert problems == []
    return tuple(sorted(tuple(row.values()) for row in rows) for rows in (slices, counters))


@pytest.mark.parametrize("words", SIMULATED.values(), ids=SIMULATED.keys())
def test_simulated_timelines_open_with_every_slice(tmp_path, words, answer):
    answer("simulate", *words, "--trace", tmp_path / "t.json")
    slices, counters = written(tmp_path / "t.json")
    assert len(slices) > 4500
    assert opened(tmp_path / "t.json") == (slices, counters)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.csv.gz")), ids=lambda path: path.name)
def test_shipped_traces_open_with_every_slice(tmp_path, path):
    write_chrome_trace(tmp_path / "t.json", kernel_events(read_trace_table(path)))
    slices, _ = written(tmp_path / "t.json")
    assert len(slices) > 1000
    assert opened(tmp_path / "t.json") == (slices, [])


def test_the_file_that_trace_writes_opens(tmp_path, answer):
    kernel = ["--m", "256", "--n", "128", "--k", "128", "--cta", "128x128"]
    places = ["--output", tmp_path / "t.csv", "--trace", tmp_path / "t.json"]
    answer("trace", *kernel, "--iket", write_sample(tmp_path / "iket.json"), *places)
    slices, _ = opened(tmp_path / "t.json")
    assert slices == written(tmp_path / "t.json")[0]
    # The sample's first tile: MMAs from 0.512 to 0.8 us on SM 7.
    assert ("measured", "SM 7 consumer 1, warp 0", "mma", 512, 288) in slices


def test_the_timeline_of_a_chain_opens(tmp_path, answer):
    kernel = ["--m", "8192", "--k", "8192", "--previous-extra-us", "8.6", "--tune"]
    answer("overlap", *kernel, "--trace", tmp_path / "t.json")
    slices, counters = written(tmp_path / "t.json")
    assert len(slices) > 20
    assert opened(tmp_path / "t.json") == (slices, counters)


@pytest.mark.parametrize("consumers", ["cooperative", "pingpong"])
def test_traces_of_the_pipeline_machine_open_as_they_were_meant(tmp_path, consumers):
    machine = with_parameters(load_machine("shared_rate"), {"consumers": consumers, "dma_warps": 2})
    kernel = PipelineKernel(m=1024, n=1024, k=1000, tile_m=128, tile_n=64, tile_k=64, stages=3)
    work = workload(machine, kernel)
    events, levels = trace_events(simulate(work, machine), work, sms=2)
    write_chrome_trace(tmp_path / "t.json", events, levels)
    slices, counters = opened(tmp_path / "t.json")
    assert slices == sorted(
        (
            event.process, event.track, event.name, round(event.start_us * 1000),
            round((event.start_us + event.duration_us) * 1000) - round(event.start_us * 1000),
        )
        for event in events
    )  # fmt: skip
    assert len(counters) == len(levels)


@pytest.mark.parametrize(
    "damage", [lambda text: text[: len(text) // 2], lambda text: text.replace('"ph":', "")]
)
def test_the_engine_tells_of_a_damaged_file(tmp_path, damage):
    write_chrome_trace(tmp_path / "t.json", kernel_events(read_trace_table(min(TRACES.glob("*.csv.gz")))))
    (tmp_path / "t.json").write_text(damage((tmp_path / "t.json").read_text()))
    with pytest.raises((AssertionError, RuntimeError)):
        opened(tmp_path / "t.json")
