import csv
import io
import json

import pytest

from gemm_model.cli import main
from tests.timeline.trace_rules import broken_rules

KERNEL = ["--m", "1024", "--n", "1024", "--k", "500"]
ON_MACHINE = [*KERNEL, "--machine", "shared_rate", "--cta", "128x64x64", "--stages", "3"]


def test_trace_table_and_plot_on_a_gpu(tmp_path, capsys):
    trace, plot = tmp_path / "trace.json", tmp_path / "plot.png"
    words = [
        "simulate",
        *KERNEL,
        "--cta",
        "128x128",
        "--schedule",
        "pingpong",
        "--gpu",
        "h200",
        "--trace-sms",
        "2",
    ]
    assert main([*words, "--trace", str(trace), "--plot", str(plot), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["result"]["k_tiles"] == 8
    assert {row["warp"] for row in report["rows"]} == {"launch", "DMA", "consumer 1"}
    assert broken_rules(trace.read_text()) == []
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_event_of_a_machine(capsys):
    assert main(["simulate", *ON_MACHINE, "--events", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    # 128 tiles on 60 SMs: three waves of eight k tiles on SM 0, tiles 0, 60 and 120.
    math = [row for row in rows if row["event"] == "math"]
    assert len(math) == 3 * 8
    assert {row["cta"] for row in math} == {"0", "60", "120"}
    assert {row["reason"] for row in rows if row["event"] == "wait"} == {"loaded data", "a free stage"}


def test_sms_without_a_tile_in_the_last_wave_end_earlier(tmp_path):
    trace = tmp_path / "trace.json"
    assert main(["simulate", *ON_MACHINE, "--trace-sms", "60", "--trace", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    ctas = {event["args"]["cta"] for event in events if event["ph"] == "X" and event["name"] == "math"}
    assert ctas == set(range(128))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*ON_MACHINE, "warp_count=3"], "unknown parameter 'warp_count'"),
        ([*ON_MACHINE, "load_latency_us=fast"], "load_latency_us is 'fast'"),
        ([*ON_MACHINE, "--gpu", "h200"], "--machine comes with --gpu"),
        ([*ON_MACHINE, "--stages", "99"], "do not hold 99"),
        ([*ON_MACHINE, "--stages", "-1"], "--stages is -1"),
        ([*ON_MACHINE, "--stages", "0"], "--stages is 0"),
        ([*ON_MACHINE, "--plot", "plot.xyz"], "expected a name that ends in one of .png"),
        ([*ON_MACHINE, "--cta", "128x64"], "--cta has no K"),
        ([*ON_MACHINE, "--trace-sms", "0"], "--trace-sms is 0"),
        ([*ON_MACHINE, "tiles=3"], "unknown parameter tiles"),
        ([*KERNEL, "--cta", "256x256"], "spill"),
        ([*KERNEL, "--cta", "128x128", "--k", "0"], "k is 0"),
        ([*KERNEL, "--machine", "nope", "--cta", "64x64x64"], "unknown machine 'nope'"),
        (
            [*KERNEL, "--machine", "balanced", "--cta", "1024x1024x128"],
            "bytes a stage; 232448 bytes on balanced",
        ),
        ([*KERNEL, "--k", "1000000000", "--cta", "128x128"], "expected at most"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, message, capsys):
    assert main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
