"""Sweeps on stand-in cards: every row once, whatever dies on the way."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest

pytest.importorskip("distributed", reason="the extra gemm-model[fleet] is not installed")
pytest.importorskip("pyarrow", reason="the extra gemm-model[fleet] is not installed")

from gemm_model.bench.provider import load_provider
from gemm_model.bench.row_log import line_of
from gemm_model.bench.runner import CardReply, RunOptions, Sweep, cut
from gemm_model.bench.sweep import ConfigFilter, arranged, digest, rows_of_problems
from gemm_model.core.problem import GemmProblem
from gemm_model.dataset.storage import DataSet
from gemm_model.errors import InputError, PartialResultError
from gemm_model.fleet import cluster, journal
from gemm_model.fleet.sweep import Stream, cards_of, compile_kernel, crew_of
from tests.bench import fakes
from tests.cases import cases
from tests.conftest import ROOT

pytestmark = pytest.mark.xdist_group("fleet")
OPTIONS = RunOptions(
    device="tests.bench.fakes:FakeDevice", row_limit_s=20.0, sentinel_every_s=0.2, rest_after_check_s=0.0
)
PROVIDER = load_provider(fakes.FakeProvider.name)
CARDS = 3
LONGEST_WAIT_S = 300.0
"""A wait ends on its condition; this long only where that never comes."""


def sweep_of(shapes, *n_values):
    """Four rows of each shape, and of each further n."""
    sizes = [(64 * index, 256) for index in range(1, shapes + 1)] + [(64, n) for n in n_values]
    problems = [GemmProblem.of(m, n, 512) for m, n in sizes]
    rows = rows_of_problems(problems, PROVIDER, (9, 0), ConfigFilter(), regime="burst", l2="cold")
    return arranged(rows, seed=5)


@pytest.fixture(scope="module")
def environment():
    """What stand-in cards need, in this process and in those that it starts."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    patch.setenv("FAKE_ROW_SECONDS", "0.01")
    patch.setattr(cluster, "SILENT_WORKER_S", 6.0)
    patch.setattr("gemm_model.bench.runner.TASK_MS", 1.0)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def client(environment):
    with cluster.joined("local", cards=CARDS) as found:
        yield found


@pytest.fixture(scope="module")
def cards(client):
    return cards_of(client, OPTIONS, [PROVIDER.name])


def sweep_by(client, cards, rows, kept, options=OPTIONS):
    return Sweep(rows, kept, dict(cards), crew_of(client), options, lambda *_: None, by_shape=True)


def measure(client, cards, rows, folder):
    with journal.begun(DataSet.create(folder), {"sweep": digest(rows)}) as kept:
        sweep = sweep_by(client, cards, rows, kept)
        sweep.go({PROVIDER.name: PROVIDER})
    return sweep


def require_each_row_once(folder, rows, runs=1):
    """The table of `runs` whole sweeps: each row once a run, with the stand-in's own time for it."""
    table = DataSet(folder).read()
    assert sorted(table["order"]) == sorted(list(range(len(rows))) * runs)
    for cells in table.to_dict("records"):
        row = rows[cells["order"]]
        assert (cells["m"], cells["n"]) == (row.problem.m, row.problem.n)
        if cells["disposition"] == "ok":
            assert cells["min_us"] == pytest.approx(base_us(row))


@pytest.mark.slow
def test_a_sweep_fills_a_data_set_from_all_cards(client, cards, tmp_path):
    rows = sweep_of(12, fakes.COMPILE_FAILS, fakes.WRONG, fakes.LAUNCH_FAILS, fakes.CRASHES)
    sweep = measure(client, cards, rows, tmp_path)
    require_each_row_once(tmp_path, rows)
    assert sweep.dispositions == {
        "ok": 48, "compile_failed": 4, "incorrect": 4, "launch_failed": 4, "crashed": 4
    }  # fmt: skip
    table = DataSet(tmp_path).read()
    assert table.loc[table["disposition"] != "ok", "runtime_us"].isna().all()
    timed = table[table["disposition"] == "ok"]
    assert set(timed["gpu_uuid"]) == {f"{fakes.UUID}-{card}" for card in range(CARDS)}
    shapes = timed.groupby("m")["gpu_uuid"].nunique()
    assert (shapes == 1).all(), "a shape stays on one card"
    provenance = sweep.kept.provenance
    assert set(provenance["cards"]) == set(timed["gpu_uuid"])
    assert provenance["done"] == len(rows)


@pytest.mark.slow
def test_rows_survive_workers_that_are_killed_at_random_moments(client, cards, tmp_path):
    rows = sweep_of(60)
    draw, ended, killed = random.Random(11), threading.Event(), 0

    def kill_now_and_then():
        nonlocal killed
        while killed < 6 and not ended.wait(draw.uniform(0.2, 0.6)):
            pids = sorted(worker_pids(client).values())
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed += 1

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        sweep = measure(client, cards, rows, tmp_path)
    finally:
        ended.set()
        killer.join()
    assert killed >= 3
    assert sweep.dispositions == {"ok": 240}
    require_each_row_once(tmp_path, rows)


class OneWorker:
    """What a stream asks of a client whose cluster has one worker with one card."""

    status = "running"

    def nthreads(self):
        return {"tcp://a:1": 1}

    def scheduler_info(self, n_workers):
        return {"workers": {"tcp://a:1": {"resources": {"gpu": 1}}}}


class Future:
    """What such a client gives for a task; `deaths` of its workers are those that Dask allows."""

    def __init__(self, key, *, deaths=0, status="finished", value=None):
        self.key, self.deaths, self.status, self.value = key, deaths, status, value

    def add_done_callback(self, call):
        call(self)

    def exception(self):
        from distributed import KilledWorker

        return KilledWorker("task", None, self.deaths)

    def cancel(self):
        pass


def test_a_result_that_is_lost_again_and_again_is_asked_for_anew():
    class Client(OneWorker):
        """Loses the first result of task 2 between its end and its gathering, of task 4 before it is seen."""

        submitted = 0

        def __init__(self):
            self.seen = set()

        def submit(self, work, task, **options):
            self.submitted += 1
            future = Future(f"{task}-{self.submitted}", deaths=3, value=work(task))
            if task == 4 and 4 not in self.seen:
                self.seen.add(4)
                future.status = "lost"
            return future

        def gather(self, futures):
            lost = [future for future in futures if future.key == "2-2"]
            for future in lost:
                future.status = "error"
            if lost:
                raise lost[0].exception()
            return [future.value for future in futures]

    client = Client()
    found = dict(Stream(client, lambda task: 10 * task, "gpu").results([1, 2, 3, 4]))
    assert found == {1: 10, 2: 20, 3: 30, 4: 40}
    assert client.submitted == 6


@pytest.mark.parametrize(("allowed_failures", "submitted"), [(0, 5), (3, 2)])
def test_a_task_is_given_up_after_five_deaths_of_its_workers(allowed_failures, submitted):
    """Each KilledWorker of Dask tells of one death more than it allows: five in five, or eight in two."""
    keys: list[int] = []

    class Client(OneWorker):
        def submit(self, work, task, **options):
            keys.append(len(keys))
            return Future(keys[-1], deaths=allowed_failures, status="error")

        def gather(self, futures):
            return []

    assert list(Stream(Client(), str, "gpu").results([7])) == [(7, None)]
    assert len(keys) == submitted


def test_a_task_is_not_given_up_for_the_deaths_that_another_causes():
    """Dask blames a task for each death of a worker that held it, though another task ran there."""

    class Client(OneWorker):
        """Its worker dies whenever it holds task 7."""

        def __init__(self):
            self.held, self.keys = [], iter(range(100))

        def submit(self, work, task, **options):
            self.held.append(Future(next(self.keys), value=10 * task))
            if task == 7 or "error" in {future.status for future in self.held}:
                for future in self.held:
                    future.status = "error"
            return self.held[-1]

        def gather(self, futures):
            self.held = []
            return [future.value for future in futures]

    assert dict(Stream(Client(), str, "gpu").results([7, 1, 2])) == {7: None, 1: 10, 2: 20}


def test_the_cluster_is_looked_at_now_and_then(monkeypatch):
    """A second apart while there are workers, at once while there are none; ten minutes without are too long."""
    client = OneWorker()
    stream, now = Stream(client, str, "gpu"), [700.0]
    monkeypatch.setattr(time, "monotonic", now.pop)
    stream._look()
    now.append(700.9)
    client.status = "closed"
    stream._look()
    now.append(701.0)
    with pytest.raises(PartialResultError, match="the scheduler is lost"):
        stream._look()
    client.status, client.nthreads, client.scheduler_info = "running", dict, lambda n_workers: {"workers": {}}
    now += [1300.5, 1300.0, 1299.0]
    stream._look()
    stream._look()
    with pytest.raises(PartialResultError, match="no worker offers gpu any more"):
        stream._look()
    other, client.status = Stream(client, str, "gpu"), "closed"
    other._looked = 1300.0
    now.append(1300.1)
    with pytest.raises(PartialResultError, match="the scheduler is lost"):
        other._look()


def test_few_results_are_gathered_at_once(monkeypatch):
    monkeypatch.setattr("gemm_model.fleet.sweep.GATHERED", 2)
    stream = Stream(OneWorker(), str, "gpu")
    for key in "abc":
        stream._ended.put(Future(key))
    assert [future.key for future in stream._take_ended()] == ["a", "b"]


@pytest.mark.parametrize(*cases(__file__, "test_cards_are_those_of_the_workers_that_stay"))
def test_cards_are_those_of_the_workers_that_stay(monkeypatch, looks, described, expected):
    left = list(looks)

    class Client(OneWorker):
        """Its workers at each look; those without a description never end."""

        def scheduler_info(self, n_workers):
            workers = left.pop(0)
            return {"workers": {address: {"resources": {"gpu": 1}} for address in workers}}

        def run(self, *_, **__):
            return {}

        def submit(self, work, job, workers, **_):
            future = Future(workers[0])
            future.done = lambda: future.key in described
            return future

        def gather(self, futures):
            return [CardReply(card=dict(described[future.key])) for future in futures]

    monkeypatch.setattr("distributed.wait", lambda *_, **__: None)
    try:
        found = cards_of(Client(), OPTIONS, [PROVIDER.name])
        assert found == {card["gpu_uuid"]: card for card in (described[address] for address in expected)}
    except InputError as error:
        assert expected in str(error)


def test_the_crew_s_workers(monkeypatch):
    """Without workers that compile those with cards do; a thread that compiles keeps its compiler."""
    crew, started = crew_of(OneWorker()), []
    assert crew("compile", [1], lambda: True) == ()
    assert [*crew("time", [], lambda: True)] == [*crew("check", [1], lambda: False)] == []
    monkeypatch.setattr("gemm_model.bench.runner.compiler", lambda *words: started.append(words) or words)
    task = SimpleNamespace(compiled_by=lambda compiler: compiler, job=Mock(kernels=("k",)))
    assert compile_kernel(task) == compile_kernel(task) == (task.job.options.device, ("k",))
    assert len(started) == 1


def test_no_task_needs_no_worker():
    class Nobody(OneWorker):
        def nthreads(self):
            return {}

    assert list(Stream(Nobody(), str, "gpu").results([])) == []


class SlowCard(fakes.FakeDevice):
    """A card that takes a second to describe."""

    def describe(self):
        time.sleep(1.0)
        return super().describe()


@pytest.mark.slow
def test_a_worker_that_dies_before_its_card_is_known_holds_nothing_up(client):
    wait_for_cards(client)
    pid = min(worker_pids(client).values())
    timer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    found = cards_of(client, replace(OPTIONS, device="tests.fleet.test_sweep:SlowCard"), [PROVIDER.name])
    assert time.monotonic() - began < LONGEST_WAIT_S
    assert set(found) <= {f"{fakes.UUID}-{card}" for card in range(CARDS)}
    assert len(found) >= CARDS - 1


def test_a_local_cluster_whose_workers_do_not_start_is_a_sentence(monkeypatch):
    import distributed

    tried = []

    def refuse(*arguments, **options):
        tried.append(arguments)
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "SpecCluster", refuse)
    with (
        pytest.raises(PartialResultError, match=r"do not start \(Nanny failed to start\.\); try again"),
        cluster.joined("local", cards=1),
    ):
        pass
    assert len(tried) == 3


def worker_pids(client):
    """Of the workers beside cards."""
    found = client.run(os.getpid, on_error="ignore")
    return {
        address: pid for address, pid in found.items() if address in cluster.offered(client, cluster.CARD)
    }


@pytest.mark.slow
def test_tasks_of_a_worker_that_hangs_are_done_elsewhere(client, cards, tmp_path):
    wait_for_cards(client)
    rows = sweep_of(20)
    pid = min(worker_pids(client).values())
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGSTOP))
    timer.start()
    try:
        sweep = measure(client, cards, rows, tmp_path)
    finally:
        timer.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert sweep.dispositions == {"ok": 80}
    require_each_row_once(tmp_path, rows)


def wait_for_cards(client):
    deadline = time.monotonic() + LONGEST_WAIT_S
    while len(found := worker_pids(client)) < CARDS:
        assert time.monotonic() < deadline, f"workers after {LONGEST_WAIT_S:.0f} s: {found}"
        time.sleep(0.1)


@pytest.mark.slow
def test_two_sweeps_into_one_data_set(client, cards, tmp_path):
    rows = sweep_of(10)
    threads = [threading.Thread(target=measure, args=(client, cards, rows, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(DataSet(tmp_path).runs()) == 2
    require_each_row_once(tmp_path, rows, runs=2)


@pytest.mark.slow
def test_a_run_is_gone_on_with_on_other_cards(client, cards, tmp_path):
    rows = sweep_of(8)
    dataset = DataSet.create(tmp_path)
    uuid = f"{fakes.UUID}-0"
    with journal.begun(dataset, {"sweep": digest(rows)}) as first:
        sweep_by(client, cards, rows, first, RunOptions(time_budget_s=0.0)).go({})
        assert len(first.done) == 0
        for index in range(5):
            cells = {"gpu": "Fake GPU", "gpu_uuid": uuid, "disposition": "ok", "order": index}
            cells |= {**rows[index].columns(), "min_us": base_us(rows[index])}
            first.extend({index: line_of(first.columns, cells)})
    with pytest.raises(InputError, match="no run of sweep"), journal.taken_up(dataset, "another"):
        pass
    with journal.taken_up(dataset, digest(rows)) as second:
        assert set(second.done) == {0, 1, 2, 3, 4}
        with (
            pytest.raises(InputError, match="another run is writing"),
            journal.taken_up(dataset, digest(rows)),
        ):
            pass
        sweep = sweep_by(client, cards, rows, second)
        sweep.go({})
    assert sweep.dispositions == {"ok": 27}
    require_each_row_once(tmp_path, rows)


def base_us(row):
    return row.problem.m / 64 + row.config.cta_n / 128 + row.config.swizzle / 100


def test_rows_are_parts_of_their_run_once_there_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SEAL_ROWS", 3)
    dataset = DataSet.create(tmp_path)

    def line(order):
        cells = {"gpu": "Card", "kernel": "quack", "regime": "burst", "m": order, "order": order}
        return line_of(journal.JOURNAL_COLUMNS, cells)

    with suppress(KeyError), journal.begun(dataset, {"sweep": "a"}) as kept:
        kept.extend({0: line(0), 1: line(1)})
        folder = tmp_path / "runs" / kept.record.run
        text = (folder / "0.csv").read_text()
        assert (journal.unsealed(dataset), kept.record.parts) == ({folder.name: 2}, ())
        kept.extend({2: line(2)})
        assert (journal.unsealed(dataset), len(kept.record.parts)) == ({}, 1)
        kept.extend({3: line(3)})
        raise KeyError
    assert not folder.exists()
    # Logs of a killed writer: of a part that is there, torn in its second row, and without rows.
    folder.mkdir()
    header = text.splitlines(keepends=True)[0]
    for number, rows in enumerate((text, None, f"{header}{line(4)}torn", header)):
        if rows:
            (folder / f"{number}.csv").write_text(rows)
    assert journal.unsealed(dataset) == {folder.name: 3}
    with pytest.raises(InputError, match="no run of sweep b"), journal.taken_up(dataset, "b"):
        pass
    with journal.taken_up(dataset, "a") as kept:
        assert [part.number for part in kept.record.parts] == [0, 1, 2]
        assert set(kept.done) == {0, 1, 2, 3, 4}
        kept.extend({5: line(5)})
    assert ([part.number for part in dataset.runs()[0].parts], folder.exists()) == ([0, 1, 2, 3], False)
    assert dataset.read()["m"].tolist() == [*range(6)]


FULL_DISK = """
import sys
from pathlib import Path
from gemm_model.dataset.storage import DataSet
from gemm_model.bench.row_log import line_of
from gemm_model.fleet import journal
with journal.begun(DataSet.create(Path(sys.argv[1])), {"sweep": "full"}) as kept:
    for order in range(200):
        cells = {"gpu": "Card", "kernel": "quack", "regime": "burst", "m": order, "order": order}
        kept.extend({order: line_of(kept.columns, cells)})
        print(order, flush=True)
"""


@pytest.mark.slow
def test_a_full_disk_and_a_torn_row_lose_nothing_that_was_written(environment, tmp_path):
    """Files may grow to 8 KiB: the journal is full long before 200 rows."""
    limited = ["bash", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "bash", sys.executable, "-Bc", FULL_DISK]
    done = subprocess.run([*limited, str(tmp_path / "set")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "--resume goes on from there" in done.stderr
    written = len(done.stdout.split())
    assert 20 < written < 200
    torn = next(iter((tmp_path / "set" / "runs").glob("*/*.csv")), None)
    if torn is not None:
        with torn.open("a") as file:
            file.write("burst,torn ro")
    with journal.taken_up(DataSet(tmp_path / "set"), "full") as kept:
        assert set(kept.done) == set(range(written))
    table = DataSet(tmp_path / "set").read()
    assert table["m"].tolist() == list(range(written))


@pytest.mark.slow
def test_rows_of_a_killed_writer_are_there_again(environment, tmp_path):
    script = FULL_DISK.replace("range(200)", "range(10**9)")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "set")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(300)]
    process.kill()
    said += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    dataset = DataSet(tmp_path / "set")
    assert sum(journal.unsealed(dataset).values()) >= len(said)
    with journal.taken_up(dataset, "full") as kept:
        assert set(kept.done) >= set(said)
    assert journal.unsealed(dataset) == {}
    assert Counter(dataset.read()["order"]).most_common(1)[0][1] == 1


def started(*words, said):
    """A process of Dask's command, once its log says so."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if said in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process
    raise AssertionError(f"dask {words[0]} ended: {''.join(log)}")


def stop(*processes):
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_cluster(cards, port):
    where = f"tcp://127.0.0.1:{port}"
    processes = [started("scheduler", "--host", where, "--no-dashboard", "--no-show", said="Scheduler at")]
    for card in range(cards):
        words = [
            "worker",
            where,
            *("--nthreads", "1", "--resources", "gpu=1", "--no-dashboard", "--name"),
            str(card),
        ]
        os.environ["CUDA_VISIBLE_DEVICES"] = str(card)
        processes.append(started(*words, said="Registered to"))
    os.environ.pop("CUDA_VISIBLE_DEVICES")
    return processes


@pytest.mark.slow
def test_the_scheduler_is_killed_and_the_run_resumed_on_another_cluster(
    environment, tmp_path, gemm_model, monkeypatch
):
    monkeypatch.setenv("FAKE_ROW_SECONDS", "0.1")
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("\n".join(["m,n,k", *(f"{64 * index},256,512" for index in range(1, 9))]) + "\n")
    words = ("benchmark", "--input", sizes, "--output", tmp_path / "set", "--device", OPTIONS.device)
    words += ("--kernels", PROVIDER.name, "--swizzles", "1,8", "--compiled")
    port = 20000 + os.getpid() % 20000
    where = ("--cluster", f"tcp://127.0.0.1:{port}")
    first = start_cluster(1, port)
    monkeypatch.setattr("gemm_model.bench.runner.RunOptions", lambda **_: OPTIONS)

    def kill_once_there_are_rows():
        deadline = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < deadline and not any((tmp_path / "set").glob("runs/*/*.csv")):
            time.sleep(0.02)
        stop(*first)

    killer = threading.Thread(target=kill_once_there_are_rows)
    killer.start()
    lost = gemm_model(*words, *where)
    killer.join()
    assert lost.code == 4, lost.err
    assert "the scheduler is lost; go on with --resume" in lost.err
    kept = DataSet(tmp_path / "set").read()
    assert 1 <= len(kept) < 32
    second = start_cluster(2, port)
    try:
        done = gemm_model(*words, *where, "--resume", "--format", "json")
    finally:
        stop(*second)
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"]["done"] == 32
    table = DataSet(tmp_path / "set").read()
    assert sorted(table["order"]) == list(range(32))
    assert len(DataSet(tmp_path / "set").runs()) == 1
    assert set(kept["order"]) <= set(table["order"])


def test_rows_are_cut_by_family_and_whole_shapes():
    """By the rough estimate a row of 64x256x512 takes (40 + 1) x 0.405 + 3 = 19.6 ms, four of them 78 ms."""
    rows = list(enumerate(sweep_of(30)))
    tasks = cut(rows, OPTIONS, cards=1)
    assert sorted(index for task in tasks for index, _ in task) == list(range(120))
    shapes = [{row.problem.m for _, row in task} for task in tasks]
    assert sum(map(len, shapes)) == len(set().union(*shapes)) == 30
    assert all(index == sorted(index) for index in ([index for index, _ in task] for task in tasks))


def test_the_more_cards_the_longer_are_the_tasks():
    """60 cards: 60 x 20 ms, which are 15.3 shapes of 78 ms at most; 30 shapes make two tasks."""
    rows = list(enumerate(sweep_of(30)))
    first, second = cut(rows, OPTIONS, cards=60)
    assert 14 <= len({row.problem.m for _, row in first}) <= 16
    assert len(first) + len(second) == 120


def test_places_are_a_set():
    draw = random.Random(4)
    numbers = [draw.randrange(5000) for _ in range(800)]
    places = journal.Places()
    for number in numbers:
        places.add(number)
    assert len(places) == len(set(numbers))
    assert {place for place in range(6000) if place in places} == set(places) == set(numbers)


@pytest.mark.slow
def test_developers_logs_of_messages_are_not_kept(client):
    """1,000 messages for each worker would be most of what a long sweep holds."""
    wait_for_cards(client)
    logs = [client.scheduler_comm.recent_message_log]
    logs += [comm.recent_message_log for comm in client.cluster.scheduler.stream_comms.values()]
    assert len(logs) > CARDS
    assert [len(log) for log in logs] == [0] * len(logs)


@pytest.mark.parametrize(*cases(__file__, "test_a_cluster_that_is_not_there_is_said_in_a_sentence"))
def test_a_cluster_that_is_not_there_is_said_in_a_sentence(
    where, sentence, tmp_path, gemm_model, monkeypatch
):
    monkeypatch.setattr(cluster, "CONNECT_LIMIT_S", 0.5)
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("m,n,k\n64,64,64\n")
    found = gemm_model("benchmark", "--input", sizes, "--cluster", where, "--output", tmp_path / "set")
    assert found.code == 2
    assert sentence in found.err
    assert len(found.err.strip().splitlines()) == 1


@pytest.mark.parametrize(*cases(__file__, "test_batch_jobs_that_cannot_be_are_said_in_a_sentence"))
def test_batch_jobs_that_cannot_be_are_said_in_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence), cluster.joined(str(path)):
        pass


def test_a_batch_system_is_asked_for_its_jobs(tmp_path, monkeypatch):
    system, path = Mock(SLURMCluster=MagicMock()), tmp_path / "cluster.yaml"
    monkeypatch.setitem(sys.modules, "dask_jobqueue", system)
    path.write_text("system: slurm\noptions: {cores: 2}\n")
    with cluster._batch_jobs(path) as found:
        system.SLURMCluster.assert_called_once_with(cores=2)
        found.scale.assert_called_once_with(jobs=1)


def test_a_worker_of_another_version_is_refused_by_name():
    class Answers:
        def run(self, *_, **__):
            return {"tcp://good:1": cluster.__version__, "tcp://old:2": "0.0.1"}

    with pytest.raises(
        InputError,
        match=re.escape(f"worker tcp://old:2 has gemm-model 0.0.1, this is {cluster.__version__};"),
    ):
        cluster.refuse_other_versions(Answers())


def test_without_cards_the_exit_code_is_3(tmp_path, gemm_model, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("m,n,k\n64,64,64\n")
    found = gemm_model("benchmark", "--input", sizes, "--cluster", "local", "--output", tmp_path / "set")
    assert found.code == 3
    assert "no GPU is visible" in found.err
