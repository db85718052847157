import csv
import io
import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemm_model.bench import runner
from gemm_model.bench.device import TimingSettings, timing_settings
from gemm_model.bench.rows import Outcome
from gemm_model.bench.worker import Worker
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.classic_scripts import benchmark_main
from gemm_model.commands import benchmark
from gemm_model.config import load_config
from tests.bench import fakes

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
    printed, told = capsys.readouterr()
    assert "rows      4 (burst)" in printed
    assert printed.count("e4m3 64x64x64") == 4
    assert "1 of 2 problems are left out: tests.bench.fakes:FakeProvider: the fake has no fp32" in told
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
