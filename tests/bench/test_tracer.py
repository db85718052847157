import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.bench import tracer
from gemm_model.bench.provider import Operands
from gemm_model.bench.rows import Row, write_plan
from gemm_model.core.files import sole_writer
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.timeline.trace import read_trace_table
from tests.bench.fakes import LAUNCH_FAILS, NO_MEMORY, FakeDevice, FakeProvider
from tests.timeline.iket_sample import sample, write_sample

ROOT = Path(__file__).parents[2]
FAKE = "tests.bench.fakes:FakeProvider"
DEVICE = "tests.bench.fakes:FakeDevice"
H200 = load_gpu("h200")
KERNEL = ["trace", "--m", "256", "--n", "128", "--k", "128", "--cta", "128x128"]
OPTIONS = tracer.TraceOptions(device=DEVICE)


def row(m=256, n=128, k=128, kernel="quack", **config):
    problem = GemmProblem.of(m, n, k, "bf16")
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", **config)
    return Row(kernel=kernel, problem=problem, config=config)


class FakeTracer:
    """Stands for the commands that `tracer` runs: the timed worker, the tracer for lifetimes, for ranges."""

    def __init__(self, launches, words="", untraced_us=1.25, lifetimes=40):
        self.commands, self.environments = {}, {}
        self.launches, self.words, self.untraced_us = launches, words, untraced_us
        self.lifetimes = lifetimes

    def __call__(self, command, place, environment):
        part = command[command.index("--part") + 1]
        self.commands[part], self.environments[part] = command, environment
        rows = json.loads((place / "rows.json").read_text())
        if part == "untraced":
            replies = [{"disposition": "ok", "kernel_us": self.untraced_us} for _ in rows]
            (place / "untraced.json").write_text(json.dumps(replies))
            return ""
        out = place.__class__(command[command.index("--output-dir") + 1])
        out.mkdir(parents=True, exist_ok=True)
        document = sample(self.lifetimes if part == "lifetimes" else self.launches)
        if part == "lifetimes":
            # The last 36 launches live 1.36, 1.35, ..., 1.01 us.
            document["launches"] = [
                {
                    **launch,
                    "ranges": [],
                    "warpLifetimes": [{"locIdx": 0, "startTs": 0, "endTs": 1000 + 10 * before_the_end}],
                }
                for launch, before_the_end in zip(
                    document["launches"], range(len(document["launches"]), 0, -1), strict=True
                )
            ]
        write_sample(out / "iket_pid_7.trace.json", document)
        return self.words


def test_a_row_is_timed_without_the_tracer_and_traced_with_it(monkeypatch):
    fake = FakeTracer(launches=20)
    monkeypatch.setattr(tracer, "_run", fake)
    (trace,) = tracer.trace_rows([row()], lambda: H200, OPTIONS)
    assert trace.info.untraced_us == 1.25
    # The median of the last 36 lifetimes less the first of every four (1.36, 1.32, ..., 1.04 us), and 1.6 us
    # over it.
    assert trace.info.unranged_us == pytest.approx(1.18)
    assert trace.info.overhead == pytest.approx(1.6 / 1.18 - 1.0)
    # One launch with ranges counts in each of nine rounds.
    assert trace.info.launches == 9
    assert trace.info.median_phases["runtime"] == pytest.approx(1.6)
    assert trace.info.kernel["m"] == 256
    # 128 elements of K are two k tiles of 64.
    assert trace.info.k_tiles == 2
    traced = fake.commands["ranges"]
    assert not {"--waits", "--warp-trace"} & {*fake.commands["untraced"]}
    assert "--waits" not in fake.commands["lifetimes"]
    assert "--warp-trace" in fake.commands["lifetimes"]
    assert traced[traced.index("--postprocess") + 1] == "json"
    assert "--warp-trace" not in traced
    assert traced[-2:] == ["--waits", "--no-stores"]
    # Kernels with ranges have a cache of their own.
    own = {part: "QUACK_CACHE_DIR" in environment for part, environment in fake.environments.items()}
    assert own == {"ranges": True, "untraced": False, "lifetimes": False}


def test_parts_of_epilogues_are_traced_where_they_are_asked_for(monkeypatch):
    fake = FakeTracer(launches=18)
    monkeypatch.setattr(tracer, "_run", fake)
    tracer.trace_rows([row()], lambda: H200, tracer.TraceOptions(device=DEVICE, stores=True, waits=False))
    assert not {"--waits", "--no-stores"} & set(fake.commands["ranges"])


class LoggingProvider(FakeProvider):
    """Notes what is prepared, by which process."""

    def prepare(self, problem, config, operands):
        with (Path(os.environ["LAUNCH_LOG"]) / "prepared").open("a") as file:
            scratch = f", {operands.scratch}" if operands.scratch else ""
            file.write(f"{sys.argv[sys.argv.index('--part') + 1]}: {operands.a}{scratch}\n")
        return super().prepare(problem, config, operands)


class LoggingDevice(FakeDevice):
    """Notes what is launched, and how often."""

    def kernel_times_us(self, launch, count):
        self._note(f"untraced {count}", launch)
        return [2.0, *(count - 2) * [2.5], 9.0]

    def rested_launches(self, launch, count):
        self._note(f"traced {count}", launch)

    def operands(self, problem, placement):
        part = sys.argv[sys.argv.index("--part") + 1]
        # The process without a tracer takes its time.
        time.sleep(0.02)
        self._write("placed", f"{part}{placement}")
        super().operands(problem, placement)
        return Operands(a=f"{problem.m}, place {placement}", b=None, out=None)

    def displace(self, turn):
        self._turn = turn

    def _note(self, what, launch):
        self._write("log", f"{launch()[0].m} {what} in turn {self._turn}")

    def _write(self, name, line):
        with (Path(os.environ["LAUNCH_LOG"]) / name).open("a") as file:
            file.write(f"{line}\n")


def in_turn(monkeypatch, tmp_path, rows, device="LoggingDevice"):
    """What the three workers launched, as processes of their own: the tracer runs that with ranges twice."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.setenv("LAUNCH_LOG", str(tmp_path))
    twice = ["sh", "-c", '"$@" && "$@"', "sh"]
    monkeypatch.setattr(tracer, "_tracer", lambda out, words: ["env"] if words else twice)
    monkeypatch.setattr(tracer, "_ranges", lambda options: [])
    (tmp_path / "rows.json").write_text(json.dumps([row.columns() for row in rows]))
    options = tracer.TraceOptions(device=f"tests.bench.test_tracer:{device}")
    tracer._in_turn(rows, tmp_path, options, tmp_path / "out", tmp_path / "lived")
    return (tmp_path / "log").read_text().splitlines()


@pytest.mark.slow
def test_kernels_with_and_without_ranges_take_turns_on_the_card(monkeypatch, tmp_path):
    logging = "tests.bench.test_tracer:LoggingProvider"
    rows = [row(m=256, kernel=logging), row(m=512, kernel=logging, split_k=2)]
    launched = in_turn(monkeypatch, tmp_path, rows)
    counted = [f"{m} traced 1 in turn {turn}" for m in (256, 512) for turn in range(9)]
    # The tracer's first run counts events, beside no other.
    assert launched[:18] == counted
    assert launched[18:] == [
        f"{m} {each} in turn {turn}"
        for m in (256, 512)
        for turn in range(9)
        for each in ("traced 1", "traced 3", "untraced 3")
    ]
    # Each round has the operands of both kernels elsewhere, and all processes have them where one does.
    places = [f"256, place {place}" for place in range(9)]
    places += [f"512, place {place}, 67108864 bytes" for place in range(9)]
    assert (tmp_path / "placed").read_text().split() == 2 * [f"untraced{place}" for place in range(9)]
    prepared = (tmp_path / "prepared").read_text().splitlines()
    of_ranges = [each for each in prepared if each.startswith("ranges: ")]
    assert of_ranges == 2 * [f"ranges: {place}" for place in places]
    # The tracer's compiler leaves ranges in: kernels without them are compiled by the other process.
    of_both = [each for each in prepared if not each.startswith("ranges: ")]
    assert of_both == [f"{part}: {place}" for part in ("untraced", "lifetimes") for place in places]
    replies = json.loads((tmp_path / "untraced.json").read_text())
    assert replies == 2 * [{"disposition": "ok", "kernel_us": 2.5}]


class FailingDevice(LoggingDevice):
    def kernel_times_us(self, launch, count):
        raise RuntimeError("the card fell off")


@pytest.mark.slow
def test_nobody_waits_for_the_turn_of_one_that_ended(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="ended with code 1.*RuntimeError: the card fell off"):
        in_turn(monkeypatch, tmp_path, [row(kernel=FAKE)], "FailingDevice")
    for name, n, why in (
        ("again", LAUNCH_FAILS, "launch_failed (the fake launch fails)"),
        ("third", NO_MEMORY, "out_of_memory (the fake GPU is full)"),
    ):
        (tmp_path / name).mkdir()
        refused = [row(kernel=FAKE), row(n=n, kernel=FAKE)]
        with pytest.raises(InputError, match=re.escape(f"256 x {n} x 128: {why}")):
            in_turn(monkeypatch, tmp_path / name, refused)


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeTracer(launches=17), "saw 17 launches of instrumented kernels; expected at least 18"),
        (
            FakeTracer(launches=18, lifetimes=35),
            "shows other launches; expected 36 of each of the traced kernels",
        ),
        (
            FakeTracer(launches=19, words="Trace incomplete: 5 warp record(s) dropped"),
            "lost the events of 5 warps at its own count events a warp; expected more by --events-per-warp",
        ),
    ],
)
def test_what_is_missing_is_told(monkeypatch, fake, message):
    monkeypatch.setattr(tracer, "_run", fake)
    with pytest.raises(InputError, match="expected") as refused:
        tracer.trace_rows([row()], lambda: H200, OPTIONS)
    assert message in str(refused.value)


def test_a_process_that_fails_is_told_by_its_last_line(tmp_path):
    with pytest.raises(InputError, match="ended with code 3: no room"):
        tracer._run([sys.executable, "-c", "print('no room'); raise SystemExit(3)"], tmp_path, {})


def test_batches_are_alike_in_size_and_bounded():
    rows = [row(m=8192, n=8192, k=4096), row(), row(m=4096, n=4096, k=1024), row(m=512)]
    # 19 launches of t tiles of 128 x 128 and k tiles of 64: 8 warps compute k tiles, with 4 more a tile;
    # one loads the k tiles, with 3 more a tile. With their stores: 4 blocks of 32 columns in 4 ranges each.
    sizes = [
        19 * 4096 * (8 * (64 + 4) + 64 + 3),
        19 * 2 * (8 * (2 + 4) + 2 + 3),
        19 * 1024 * (8 * (16 + 4) + 16 + 3),
        19 * 4 * (8 * (2 + 4) + 2 + 3),
    ]
    assert [tracer.expected_ranges(each, H200) for each in rows] == sizes
    with_stores = tracer.expected_ranges(rows[1], H200, stores=True)
    assert with_stores == 19 * 2 * (8 * (2 + 4 + 4 * 4) + 2 + 3)
    found = tracer.batches(rows, H200)
    assert sorted(index for batch in found for index in batch) == [0, 1, 2, 3]
    assert found[0][:2] == [1, 3]
    for batch in found:
        assert len(batch) == 1 or sum(sizes[index] for index in batch) <= 8_000_000


COMPILES_WITH_WAITS = """
from gemm_model.bench.traced_worker import add_wait_ranges, drop_store_ranges
add_wait_ranges()
drop_store_ranges()
from gemm_model.bench.quack import QuackProvider
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
config = KernelConfig(cta_m=128, cta_n=128, schedule="pingpong", kernel="quack")
QuackProvider().compile(GemmProblem.of(1024, 1024, 1024, "bf16"), config, (9, 0))
"""


@pytest.mark.slow
def test_kernels_with_a_range_for_each_wait_are_other_kernels(tmp_path):
    pytest.importorskip("quack")
    plain = COMPILES_WITH_WAITS.replace("add_wait_ranges()\ndrop_store_ranges()", "")
    all_ranges = COMPILES_WITH_WAITS.replace("\ndrop_store_ranges()", "")
    sizes, stores = [], []
    for name, program in (("plain", plain), ("all", all_ranges), ("waits", COMPILES_WITH_WAITS)):
        # What the tracer sets, so that ranges are left in.
        env = {"QUACK_CACHE_DIR": str(tmp_path / name), "CUTE_DSL_COMPILER_OPT": "iket"}
        subprocess.run([sys.executable, "-c", program], env={**os.environ, **env}, check=True)
        (kernel,) = (tmp_path / name).rglob("*.o")
        sizes.append(kernel.stat().st_size)
        stores.append(b"epi_store_issue" in kernel.read_bytes())
    assert sizes[0] < sizes[1]
    assert sizes[2] < sizes[1]
    assert stores == [True, True, False]


def test_without_the_tracer_or_a_gpu_it_is_exit_code_3(monkeypatch, tmp_path, gemm_model):
    words = [*KERNEL, "--output", tmp_path / "t.csv"]
    monkeypatch.setattr(tracer, "TRACER", "no_such_tracer")
    with pytest.raises(MissingExtraError, match="no in-kernel tracer"):
        tracer.require_tracer()
    assert gemm_model(*words).code == 3
    monkeypatch.setattr(tracer, "TRACER", "json")
    found = gemm_model(*words, "--device", "tests.bench.test_tracer:NoGpu")
    assert (found.code, "no CUDA GPU is visible" in found.err) == (3, True)
    assert not (tmp_path / "t.csv").exists()


class NoGpu:
    def __init__(self):
        raise MissingExtraError("no CUDA GPU is visible; the benchmark needs one")


def test_a_trace_that_was_written_before_is_converted(tmp_path, answer):
    source, table = write_sample(tmp_path / "iket.json"), tmp_path / "t.csv.gz"
    report = answer(*KERNEL, "--iket", source, "--output", table, "--trace", tmp_path / "t.json")
    assert report["result"]["traced_us"] == pytest.approx(1.6)
    assert {row["phase"]: row["measured"] for row in report["rows"]}["k tile"] == pytest.approx(0.16)
    assert read_trace_table(table).info.source == "measured"
    answer("simulate", *KERNEL[1:], "--measured", table, "--kernel", "quack", "--plot", tmp_path / "o.png")


def test_a_table_of_kernels_becomes_a_folder(monkeypatch, tmp_path, answer):
    pytest.importorskip("cutlass", reason="the tracer comes with the CuTe DSL")
    plan = tmp_path / "plan.csv"
    write_plan([row(), row(m=512)], plan)
    monkeypatch.setattr(tracer, "_run", FakeTracer(launches=36, lifetimes=80))
    monkeypatch.setattr("gemm_model.commands.trace.describe_card", lambda worker: {"gpu_name": "NVIDIA H200"})
    out = tmp_path / "traces"
    answer("trace", "--rows", plan, "--output", out, "--device", DEVICE)
    assert sorted(path.name for path in out.iterdir()) == ["000.csv.gz", "001.csv.gz", "phases.csv"]
    assert read_trace_table(out / "001.csv.gz").info.kernel["m"] == 512
    head, first, _ = (out / "phases.csv").read_text().splitlines()
    phases = dict(zip(head.split(","), first.split(","), strict=True))
    assert float(phases["k_tile_us"]) == pytest.approx(0.16)
    assert {"runtime_us", "waves", "wave_skew_us"} <= set(phases)


def test_files_of_others_are_neither_mixed_with_nor_replaced(monkeypatch, tmp_path, gemm_model):
    plan, out = tmp_path / "plan.csv", tmp_path / "traces"
    write_plan([row()], plan)
    monkeypatch.setattr(tracer, "_run", None)
    with sole_writer(out):
        found = gemm_model("trace", "--rows", plan, "--output", out, "--device", DEVICE)
    assert (found.code, "another run is writing into" in found.err) == (2, True)
    found = gemm_model(*KERNEL, "--output", tmp_path / "t.csv", "--keep", tmp_path, "--device", DEVICE)
    assert (found.code, "already holds files; expected a new folder" in found.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.csv"]


def test_a_split_launch_is_timed_by_the_kernel_that_computes():
    torch_device = pytest.importorskip("gemm_model.bench.torch_device", reason="needs torch")

    class Seen(torch_device.TorchDevice):
        def __init__(self):
            split = [("clear", 0.8), ("gemm", 22.0)]
            rested = [("flush", 50.0), ("clear", 0.8), ("gemm", 23.0)]
            self.runs = iter([split, rested + rested + [("flush", 50.0), ("clear", 0.7), ("gemm", 22.5)]])

        def _kernels(self, run):
            return next(self.runs)

    assert Seen().kernel_times_us(lambda: None, 3) == [23.0, 23.0, 22.5]
