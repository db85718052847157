import csv
import io
import itertools
import json
import os
import stat
import subprocess
import sys
import time
from contextlib import closing, redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemm_model import GemmProblem, KernelConfig
from gemm_model.bench import counters, runner
from gemm_model.bench.device import TimingSettings, timing_settings
from gemm_model.bench.provider import KernelError, Operands, Rotation, rotation_of
from gemm_model.bench.row_log import KeptTable
from gemm_model.bench.rows import Chain, Outcome, Row, row_from_columns
from gemm_model.bench.runner import Card, RunOptions, Sweep, crew_of
from gemm_model.bench.sweep import ChainOptions, chained
from gemm_model.bench.worker import Worker, _partner_gemms, serve
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.classic_scripts import benchmark_main
from gemm_model.commands import benchmark
from gemm_model.config import load_config
from gemm_model.errors import MissingExtraError
from tests.bench import fakes
from tests.cases import cases

ROOT = Path(__file__).parents[2]
GOOD = (256, 512)


def write_sizes(path, n_values, m_values=(64, 128)):
    lines = ["m,n,k", *(f"{m},{n},256" for m in m_values for n in n_values)]
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(sizes, output, *more):
    fixed = ["--device", "tests.bench.fakes:FakeDevice", "--kernels", fakes.FakeProvider.name]
    fixed += ["--swizzles", "1,8", "--jobs", "1"]
    return ["--input", str(sizes), "--output", str(output), *fixed, *more]


def command(words):
    """What `bench` does, in a process of its own."""
    script = "import sys; from tests.bench.test_runner import bench; done = bench(sys.argv[1:])"
    return [sys.executable, "-c", f"{script}; sys.exit(done.stderr if done.returncode else 0)", *words]


def environment(**more):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": paths, **more}


class OwnWorker:
    """A worker in this process, which does where no kernel crashes or hangs."""

    def __init__(self, device, *_, **__):
        self.worker = Worker(device)

    def ask(self, request, _limit_s):
        return Outcome(**json.loads(json.dumps(self.worker.answer(json.loads(json.dumps(request))))))

    def close(self):
        pass


def measured(words, **more):
    """The rows of a run that ends without an error, with its workers in this process."""
    done = bench(words, worker=OwnWorker, **more)
    assert done.returncode == 0, done.stderr
    return table(Path(words[words.index("--output") + 1]))


def bench(words, row_limit_s=30.0, worker=WorkerProcess, **more):
    """What the benchmark does, in this process; its workers are processes of their own by default."""
    quick = {"row_limit_s": row_limit_s, "sentinel_every_s": 0.05, "rest_after_check_s": 0}
    options, stderr = partial(runner.RunOptions, **quick), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(stderr):
        patch.setattr(runner, "RunOptions", options)
        for user in (runner, benchmark):
            patch.setattr(user, "WorkerProcess", worker)
        for name in (more := environment(**more)):
            patch.setenv(name, more[name])
        return SimpleNamespace(returncode=benchmark_main(words), stderr=stderr.getvalue())


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def key(row):
    return tuple(row[name] for name in ("m", "n", "cta_n", "swizzle"))


def test_each_row_is_timed_once_in_mixed_order_and_names_its_card(tmp_path):
    output = tmp_path / "out.csv"
    done = bench(arguments(write_sizes(tmp_path / "s.csv", GOOD), output, "--jobs", "2"))
    assert done.returncode == 0, done.stderr
    rows = table(output)
    assert len(rows) == 2 * 2 * 4
    sizes = [(row["m"], row["n"]) for row in rows]
    assert sum(first != second for first, second in itertools.pairwise(sizes)) > 3
    assert len({key(row) for row in rows}) == 16
    assert {row["disposition"] for row in rows} == {"ok"}
    assert {row["gpu_uuid"] for row in rows} == {fakes.UUID}
    assert [int(row["order"]) for row in rows] == list(range(16))
    last = TimingSettings().repeats - 1
    for row in rows:
        base = int(row["m"]) / 64 + int(row["cta_n"]) / 128 + int(row["swizzle"]) / 100
        assert float(row["min_us"]) == pytest.approx(base)
        assert float(row["runtime_us"]) == pytest.approx(base + 0.25 * 0.5 * last)
        assert float(row["p90_us"]) == pytest.approx(base + 0.25 * 0.9 * last)
        assert row["count"] == str(TimingSettings().repeats)
    described = json.loads((tmp_path / "out.json").read_text())
    assert described["gpu_uuid"] == fakes.UUID
    assert described["done"] == described["rows"] == 16
    assert described["sentinel"][0]["runtime_us"] > 0
    assert "torch" in described["packages"] or "python" in described["packages"]


def test_every_failure_is_a_row_and_the_run_goes_on(tmp_path):
    output = tmp_path / "out.csv"
    sizes = write_sizes(tmp_path / "s.csv", (256, *fakes.DISPOSITIONS), (64,))
    done = bench(arguments(sizes, output, "--swizzles", "8", "--tiles", "128x64"), row_limit_s=3.0)
    assert done.returncode == 0, done.stderr
    rows = table(output)
    expected = {256: "ok", **fakes.DISPOSITIONS}
    assert {int(row["n"]): row["disposition"] for row in rows} == expected
    for row in rows:
        assert (row["runtime_us"] != "") == (row["disposition"] == "ok")
        assert (row["detail"] != "") == (row["disposition"] != "ok")


def test_an_existing_output_is_left_alone(tmp_path):
    output = tmp_path / "out.csv"
    output.write_text("mine\n")
    done = bench(arguments(write_sizes(tmp_path / "s.csv", GOOD), output), worker=OwnWorker)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert output.read_text() == "mine\n"


@pytest.mark.slow
def test_kill_9_loses_at_most_the_row_in_flight(tmp_path):
    output, launches = tmp_path / "out.csv", tmp_path / "launches"
    sizes = write_sizes(tmp_path / "s.csv", (*GOOD, 768), (64, 128, 192))
    words = arguments(sizes, output)
    slow = environment(FAKE_ROW_SECONDS="0.05", FAKE_LAUNCH_LOG=str(launches))
    process = subprocess.Popen(command(words), env=slow, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not (output.exists() and output.read_bytes().count(b"\n") >= 8):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = table(output)
    assert 7 <= len(before) < 36
    with output.open("a") as file:
        file.write("Fake GPU,torn li")
    rows = measured([*words, "--resume"])
    assert rows[: len(before)] == before
    assert len(rows) == len({key(row) for row in rows}) == 36
    assert [int(row["order"]) for row in rows] == list(range(36))
    assert len(json.loads((tmp_path / "out.json").read_text())["commands"]) == 2


@pytest.mark.slow
def test_resume_refuses_another_card_or_sweep(tmp_path):
    output = tmp_path / "out.csv"
    sizes = write_sizes(tmp_path / "s.csv", GOOD)
    assert bench(arguments(sizes, output, "--time-budget", "0")).returncode == 4
    content = output.read_bytes()
    other_card = bench([*arguments(sizes, output), "--resume"], FAKE_GPU_UUID="GPU-other")
    assert other_card.returncode == 2
    assert "GPU-other" in other_card.stderr
    other_sweep = bench([*arguments(sizes, output), "--resume", "--seed", "3"])
    assert other_sweep.returncode == 2
    assert "sweep" in other_sweep.stderr
    assert output.read_bytes() == content
    assert len(measured([*arguments(sizes, output), "--resume"])) == 16


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_whole_rows(tmp_path):
    output = tmp_path / "out.csv"
    words = arguments(write_sizes(tmp_path / "s.csv", GOOD), output)
    limited = ["bash", "-c", 'ulimit -f 3; trap "" XFSZ; exec "$@"', "bash", *command(words)]
    # The limit would cut compiled modules short too, which later processes import.
    small = environment(PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(limited, env=small, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != 0
    assert "--resume" in done.stderr
    kept = output.read_bytes()
    assert kept.endswith(b"\n")
    rows = table(output)
    assert 1 <= len(rows) < 16
    assert len({key(row) for row in measured([*words, "--resume"])}) == 16


@pytest.mark.slow
def test_shards_are_disjoint_and_complete(tmp_path):
    sizes = write_sizes(tmp_path / "s.csv", GOOD)
    seen = []
    for index in range(3):
        words = arguments(sizes, tmp_path / f"{index}.csv", "--shard", f"{index}/3")
        seen += [key(row) for row in measured(words)]
    assert len(seen) == len(set(seen)) == 16


def test_rows_of_a_table_are_measured_again(tmp_path):
    first, second = str(tmp_path / "1.csv"), str(tmp_path / "2.csv")
    words = arguments(write_sizes(tmp_path / "s.csv", GOOD), first)
    before = {key(row): row["runtime_us"] for row in measured(words)}
    rows = measured(["--rows", first, "--output", second, *words[4:], "--sample", "5", "--seed", "4"])
    assert len(rows) == 5
    assert all(before[key(row)] == row["runtime_us"] for row in rows)


def test_a_drifting_sentinel_is_said(tmp_path):
    output = tmp_path / "out.csv"
    words = arguments(write_sizes(tmp_path / "s.csv", GOOD), output)
    done = bench(words, worker=OwnWorker, FAKE_DRIFT="0.5", FAKE_ROW_SECONDS="0.02")
    assert done.returncode == 0
    assert "sentinel drifted" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["sentinel_drift"] > 0.01


def test_sustained_rows_are_warm(tmp_path):
    sizes = write_sizes(tmp_path / "s.csv", GOOD)
    rows = measured(arguments(sizes, tmp_path / "out.csv", "--regime", "sustained"))
    assert {(row["regime"], row["l2"], row["sm_mhz"]) for row in rows} == {("sustained", "warm", "1410")}


def test_dry_run_needs_no_device_keeps_types_and_tells_what_is_left_out(tmp_path, capsys):
    sizes = tmp_path / "s.csv"
    sizes.write_text("m,n,k,dtype\n64,64,64,fp8\n64,64,64,fp32\n")
    words = arguments(sizes, tmp_path / "out.csv", "--dry-run", "--device", "no.such:Device")
    assert benchmark_main(words) == 0
    printed, notes = capsys.readouterr()
    assert "rows      4 (burst)" in printed
    assert printed.count("e4m3 64x64x64") == 4
    assert "1 of 2 problems are left out: tests.bench.fakes:FakeProvider: the fake has no fp32" in notes
    assert not (tmp_path / "out.csv").exists()
    assert benchmark_main([*words, "--dtype", "bf16"]) == 2


def test_without_a_gpu_the_exit_code_is_3(tmp_path):
    torch = pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    words = ["--input", str(write_sizes(tmp_path / "s.csv", GOOD)), "--output", str(tmp_path / "out.csv")]
    done = bench([*words, "--kernels", "cublas"])
    assert done.returncode == 3
    assert done.stderr.strip() == "benchmark_gemm.py: no CUDA GPU is visible; the benchmark needs one"
    assert not (tmp_path / "out.csv").exists()


def test_timing_is_configured_as_the_settings_default():
    assert timing_settings(load_config()["timing"]) == TimingSettings()
    assert timing_settings(load_config(["timing.repeats=5"])["timing"]).repeats == 5


L2_BYTES = 60e6


def test_the_rotation_holds_weights_of_four_times_l2():
    """A weight of 8192 x 4096 x 2 bytes is 67.1 MB: four of them are the first to exceed 240 MB."""
    rotation = rotation_of(GemmProblem.of(16, 8192, 4096, "bf16"), L2_BYTES)
    assert rotation == Rotation(weights=4, activations=4, outputs=4)
    footprint = 4 * (8192 * 4096 * 2 + 16 * 4096 * 2 + 16 * 8192 * 2)
    assert rotation.footprint_bytes(GemmProblem.of(16, 8192, 4096, "bf16")) == footprint


def test_a_rotation_that_is_asked_for_is_taken():
    problem = GemmProblem.of(16, 1024, 1024, "bf16")
    assert rotation_of(problem, L2_BYTES, 3) == Rotation(weights=3, activations=3, outputs=3)
    assert rotation_of(problem, L2_BYTES, 1) == Rotation(weights=1, activations=1, outputs=1)


@pytest.mark.parametrize("part", [(0, 1), (0, 2), (1, 2)])
def test_copies_of_a_rotation_lie_apart(part):
    tensors = pytest.importorskip("gemm_model.bench.tensors", reason="torch is not installed")
    problem = GemmProblem.of(40, 96, 256, "bf16")
    pool = tensors.OperandPool("cpu", seed=3, elements=2**20)
    operands = pool.rotating(problem, Rotation(weights=7, activations=3, outputs=2), part)
    assert len(operands) == 7
    spans = set()
    for name, copies, shape in (("a", 3, (40, 256)), ("b", 7, (96, 256)), ("out", 2, (40, 96))):
        views = [getattr(each, name) for each in operands]
        assert {tuple(view.shape) for view in views} == {shape}
        assert all(view.data_ptr() % 16 == 0 for view in views)
        starts = [view.data_ptr() for view in views]
        assert len(set(starts)) == copies
        assert starts[0] == starts[copies % 7]
        spans |= {(start, start + 2 * shape[0] * shape[1]) for start in starts}
    ordered = sorted(spans)
    assert len(ordered) == 12
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ordered))


def test_halves_of_the_pool_share_nothing():
    tensors = pytest.importorskip("gemm_model.bench.tensors", reason="torch is not installed")
    pool = tensors.OperandPool("cpu", seed=3, elements=2**20)
    problem, rotation = GemmProblem.of(40, 96, 256, "bf16"), Rotation(weights=4, activations=4, outputs=4)
    first, second = (pool.rotating(problem, rotation, (index, 2)) for index in range(2))
    last = max(view.data_ptr() + 2 * view.numel() for each in first for view in (each.a, each.b))
    assert last <= min(view.data_ptr() for each in second for view in (each.a, each.b))
    assert max(each.out.data_ptr() for each in first) < min(each.out.data_ptr() for each in second)


def row(**chain):
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", pdl=False)
    problem, own = GemmProblem.of(64, 256, 512, "bf16"), Chain(**chain)  # type: ignore[arg-type]
    return Row(kernel="quack", problem=problem, config=config, regime="graph", l2="rotated", chain=own)


@pytest.mark.parametrize(*cases(__file__, "test_a_row_is_read_back_as_it_was_written"))
def test_a_row_is_read_back_as_it_was_written(chain):
    cells = {name: str(value) for name, value in row(**chain).columns().items()}
    assert row_from_columns(cells) == row(**chain)
    assert cells["pdl"] == "0"


@pytest.mark.parametrize(("kernel", "pdl"), [("quack", True), ("triton", False)])
def test_a_librarys_own_way_of_launching_is_recorded(kernel, pdl):
    config = KernelConfig(cta_m=128, cta_n=128, kernel=kernel)
    known = replace(row(), kernel=kernel, config=config)
    assert known.columns()["pdl"] == ""
    (found,) = chained([known], ChainOptions())
    assert found.config == replace(config, pdl=pdl)


def test_rows_of_other_regimes_know_no_chain():
    burst = Row(kernel="cublas", problem=GemmProblem.of(8, 8, 8), config=None)
    assert not {"pdl", "rotation", "partner", "settled"} & set(burst.columns())


def test_options_multiply_rows_and_never_repeat_one():
    library = Row(kernel="cublas", problem=GemmProblem.of(8, 16, 32), config=None, regime="graph")
    found = chained([row(), library, library], ChainOptions(pdl=(False, True), partner="swapped", rotation=2))
    assert [(each.kernel, each.chain.partner, each.chain.rotation) for each in found] == [
        ("quack", "64x512x256", 2),
        ("quack", "64x512x256", 2),
        ("cublas", "8x32x16", 2),
    ]
    assert [each.config.pdl for each in found if each.config] == [False, True]


def graph(sizes, output, *more):
    return arguments(sizes, output, "--regime", "graph", "--tiles", "128x64", "--swizzles", "8", *more)


def test_each_row_tells_its_rotation_and_its_warm_share(tmp_path):
    """Weights of 256 x 256 x 2 bytes: the fake L2 of 1 MiB makes 32 copies of 128 KiB."""
    words = graph(write_sizes(tmp_path / "s.csv", (256,), (64,)), tmp_path / "out.csv", "--pdl", "0,1")
    rows = {cells["pdl"]: cells for cells in measured(words)}
    assert {pdl: cells["runtime_us"] for pdl, cells in rows.items()} == {"0": "32.0", "1": "31.5"}
    cells = rows["1"]
    of_the_chain = [cells[name] for name in ("regime", "l2", "rotation", "settled")]
    assert of_the_chain == ["graph", "rotated", "0", "0"]
    footprint = 32 * 2 * (256 * 256 + 64 * 256 + 64 * 256)
    assert (cells["weight_copies"], cells["footprint_bytes"]) == ("32", str(footprint))
    assert float(cells["warm_share"]) == pytest.approx(2**20 / footprint, abs=5e-5)
    assert (cells["graph_launches"], cells["partner_us"]) == ("64", "")


def test_a_fixed_rotation_a_partner_and_a_settled_run_are_recorded(tmp_path):
    """The fake takes a microsecond a launch of the turn, less a half with PDL, plus a quarter settled."""
    output = tmp_path / "out.csv"
    sizes = write_sizes(tmp_path / "s.csv", (256,), (64,))
    words = graph(sizes, output, "--rotation", "2", "--partner", "swapped", "--settled", "--pdl", "1")
    (cells,) = measured(words)
    assert (cells["rotation"], cells["weight_copies"], cells["partner"]) == ("2", "2", "64x256x256")
    assert (cells["settled"], cells["partner_us"], cells["runtime_us"]) == ("1", "1.75", "2.25")
    one_kernel = 2 * 2 * (256 * 256 + 64 * 256 + 64 * 256)
    assert cells["footprint_bytes"] == str(2 * one_kernel)
    assert cells["warm_share"] == "1.0"
    again = ["--rows", str(output), "--output", str(tmp_path / "again.csv"), "--regime", "graph", *words[4:8]]
    assert [cells["partner"] for cells in measured(again)] == ["64x256x256"]


def test_a_paired_row_tells_both_times_and_what_lies_between(tmp_path):
    """The fake gains half a microsecond, and its drift of 0.1 us leaves gains of 0.6 and 0.4 us in turn.

    Their standard error: sqrt(4 x 0.01 / 3) / sqrt(4) = 0.0577.
    """
    output = tmp_path / "out.csv"
    words = graph(write_sizes(tmp_path / "s.csv", (256, fakes.LAUNCH_FAILS), (64,)), output)
    rows = {cells["n"]: cells for cells in measured([*words, "--pdl", "paired"])}
    cells = rows["256"]
    assert (cells["paired"], cells["pdl"], cells["pdl_gain_us"]) == ("1", "1", "0.5")
    assert cells["pdl_gain_error_us"] == "0.0577"
    assert float(cells["without_pdl_us"]) - float(cells["runtime_us"]) == pytest.approx(0.5)
    assert rows[str(fakes.LAUNCH_FAILS)]["disposition"] == "launch_failed"
    again = ["--rows", str(output), "--regime", "graph", "--output", str(tmp_path / "again.csv"), *words[4:8]]
    assert {cells["paired"] for cells in measured(again)} == {"1"}


def test_a_rotation_that_does_not_fit_is_one_row_and_the_run_goes_on(tmp_path):
    sizes = write_sizes(tmp_path / "s.csv", (256, 65536, fakes.LAUNCH_FAILS), (64,))
    rows = measured(graph(sizes, tmp_path / "out.csv"))
    found = {cells["n"]: (cells["disposition"], cells["detail"]) for cells in rows}
    assert found["256"] == ("ok", "")
    assert found["65536"] == ("out_of_memory", "a rotation of 2 copies does not fit")
    assert found[str(fakes.LAUNCH_FAILS)][0] == "launch_failed"


def test_the_norm_between_gemms_compiles_for_hopper():
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from gemm_model.bench.rms_norm import _rms_norm

    types = {"source": "*bf16", "target": "*bf16", "width": "i32", "epsilon": "fp32", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(_rms_norm, types, {(4,): 1024})
    assert "rsqrt" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


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


def test_a_compiler_that_sees_no_gpu_goes_on_after_a_kernel_that_cannot_run(monkeypatch):
    def refuses(*_):
        raise KernelError("no such kernel")

    monkeypatch.setattr(fakes.FakeProvider, "compile", refuses)
    (row,) = profiled_rows(256)
    request = {"operation": "compile", "row": row.columns(), "compute_capability": [9, 0]}
    replies = io.StringIO()
    assert serve(Worker("tests.bench.fakes:NoDevice"), [json.dumps(request)] * 2, replies) == 0
    assert [json.loads(line)["detail"] for line in replies.getvalue().splitlines()] == ["no such kernel"] * 2


def profiled_rows(*sizes):
    kernel = {"kernel": fakes.FakeProvider.name, "config": KernelConfig(cta_m=128, cta_n=64)}
    return [Row(problem=GemmProblem.of(64, n, 256), regime="counters", **kernel) for n in sizes]


@pytest.mark.parametrize(("n", "read"), [(256, "the row's"), (512, "its own")])
def test_a_partner_reads_the_row_s_outputs_where_they_are_its_a(n, read):
    partner = GemmProblem.of(64, 512, 256)
    chain = SimpleNamespace(partner_problem=lambda _: partner)
    row = SimpleNamespace(problem=GemmProblem.of(64, n, 128), config=None, chain=chain)
    own = Operands(a="its own", b=None, out=None)
    device = SimpleNamespace(l2_bytes=1e6, rotating_operands=lambda *_: [own])
    provider = SimpleNamespace(prepare=lambda _problem, _config, each: each.a)
    launches, moved_bytes = _partner_gemms(row, device, provider, [SimpleNamespace(out="the row's")])
    # A and B once, C once, of 16 bits.
    assert (launches, moved_bytes) == ([read], 2 * (64 * 256 + 512 * 256 + 64 * 512))
