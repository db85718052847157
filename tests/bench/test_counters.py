import csv
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gemm_model import GemmProblem, KernelConfig
from gemm_model.bench import counters
from gemm_model.bench.row_log import KeptTable
from gemm_model.bench.rows import Outcome, Row
from gemm_model.bench.runner import Card, RunOptions, Sweep, crew_of
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.core.errors import MissingExtraError
from tests.bench import fakes

HEADER = ["ID", "Kernel Name", "Push/Pop", "Block Size", "Grid Size", *counters.METRICS]
UNITS = [
    "",
    "",
    "",
    "",
    "",
    *("ns", "cycle", "byte", "byte", "byte", "sector", "sector", "%", "register", "byte"),
]


def csv_text(*rows):
    quoted = [",".join(f'"{cell}"' for cell in row) for row in (HEADER, UNITS, *rows)]
    return ["==PROF== Connected to process 1", *quoted, "==PROF== Disconnected"]


def profiled(row_label, duration_ns, cycles):
    name = ["0", "kernel", f"thread <default domain>:{row_label}:none", "(384, 1, 1)", "(2, 1, 66)"]
    return [*name, duration_ns, cycles, "1,024", "0", "4,096.0", "128", "64", "87.5", "168", "230,400"]


def test_counters_are_found_by_label_and_converted():
    lines = csv_text(
        profiled("gemm-row-1", "20,000", "35,000"), profiled("gemm-row-0", "1,234,500", "2,000,000")
    )
    found = counters.parse_profiler_csv(lines)
    assert sorted(found) == [0, 1]
    assert found[0]["duration_us"] == pytest.approx(1234.5)
    assert found[1]["duration_us"] == found[1]["runtime_us"] == pytest.approx(20.0)
    assert found[1]["sm_mhz"] == pytest.approx(35000 / 20.0)
    assert found[1]["dram_read_bytes"] == 1024
    assert found[1]["l2_bytes"] == 4096
    assert found[1]["l2_hit_pct"] == 87.5
    assert found[1]["grid"] == "(2 1 66)"


def test_several_kernels_of_a_row_are_added():
    short, long = profiled("gemm-row-3", "2,000", "3,000"), profiled("gemm-row-3", "10,000", "15,000")
    lines = csv_text([*short[:4], "(9, 1, 1)", *short[5:]], long)
    found = counters.parse_profiler_csv(lines)
    assert found[3]["duration_us"] == pytest.approx(12.0)
    assert found[3]["sm_cycles"] == 18000
    assert found[3]["registers_per_thread"] == 168
    assert found[3]["grid"] == "(2 1 66)"  # of the longest
    assert found[3]["l2_read_sectors"] == 2 * 128


@pytest.mark.parametrize("lines", [[], ["==ERROR== no GPU"], ['"ID","Kernel Name"']])
def test_no_table_gives_no_counters(lines):
    assert counters.parse_profiler_csv(lines) == {}


def test_rows_behind_a_crash_are_left_for_the_next_group():
    replies = [
        {"disposition": "ok", "values": {"power_w": 90.0}},
        {"disposition": "incorrect", "detail": "x"},
    ]
    merged = counters.merge_outcomes(5, replies, {0: {"duration_us": 1.0}}, ("crashed", "ncu ended"))
    assert merged == [
        Outcome(disposition="ok", values={"power_w": 90.0, "duration_us": 1.0}),
        Outcome(disposition="incorrect", detail="x"),
        Outcome(disposition="crashed", detail="ncu ended"),
    ]


def test_a_kernel_that_the_profiler_missed_is_no_result():
    merged = counters.merge_outcomes(1, [{"disposition": "ok"}], {}, ("crashed", ""))
    assert merged[0].disposition == "launch_failed"


def test_without_the_profiler_the_extra_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="ncu"):
        counters.profiler_path()


FAKE_NCU = """#!/bin/bash
# Runs the command behind ncu's options and prints a table as ncu does, one kernel for each reply.
while [ "$1" != "-m" ]; do last="$1"; shift; done
"$last" "$@"
replies="${@: -1}"
echo '"ID","Kernel Name","gpu__time_duration.sum","sm__cycles_elapsed.max","Grid Size","Block Size"'
echo '"","","ns","cycle","",""'
index=0
while read -r reply; do
  line="'0','gemm-row-$index','2,000','3,000','(1, 1, 1)','(32, 1, 1)'"
  case "$reply" in *'"ok"'*) echo "${line//\\'/\\"}";; esac
  index=$((index + 1))
done < "$replies"
"""


@pytest.fixture
def fake_profiler(monkeypatch, tmp_path):
    ncu = tmp_path / "ncu"
    ncu.write_text(FAKE_NCU)
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'src'}")


@pytest.mark.slow
@pytest.mark.usefixtures("fake_profiler")
def test_a_crash_under_the_profiler_costs_one_row(tmp_path):
    rows = profiled_rows(256, 512, fakes.CRASHES, 768, 1280)
    options = RunOptions(device="tests.bench.fakes:FakeDevice", rows_per_profiler=4)
    kept = KeptTable(tmp_path / "out.csv", rows, {"gpu_uuid": fakes.UUID})
    with closing(WorkerProcess(options.device)) as worker, kept.begun({}):
        card = Card(worker)
        sweep = Sweep(rows, kept, {fakes.UUID: card.description}, crew_of(card), options, lambda *_: None)
        # The check finds the crash first; told that the row is fine, the profiled worker meets it.
        sweep._time({place: {} for place in range(len(rows))}, {})
    assert len(kept.done) == len(rows)
    assert sweep.dispositions == {"ok": 4, "crashed": 1}
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["disposition"] for row in written] == ["ok", "ok", "crashed", "ok", "ok"]
    assert [row["n"] for row in written] == ["256", "512", str(fakes.CRASHES), "768", "1280"]
    assert written[0]["sm_mhz"] == "1500.0"


@pytest.mark.usefixtures("fake_profiler")
def test_a_group_runs_under_the_profiler():
    rows = profiled_rows(256, fakes.NO_MEMORY, 512, fakes.CRASHES, 768)
    outcomes = counters.profile_rows(rows, "tests.bench.fakes:FakeDevice", 30.0)
    assert [outcome.disposition for outcome in outcomes] == ["ok", "out_of_memory", "ok", "crashed"]
    assert outcomes[2].values["sm_mhz"] == 1500.0
    assert outcomes[2].values["power_w"] == 90.0


def profiled_rows(*sizes):
    kernel = {"kernel": fakes.FakeProvider.name, "config": KernelConfig(cta_m=128, cta_n=64)}
    return [Row(problem=GemmProblem.of(64, n, 256), regime="counters", **kernel) for n in sizes]
