"""A sweep: compile in parallel, check every result, time in mixed order, and keep every row.

The card of this machine and the cards of a cluster run the same sweep: a `Crew` works on its tasks, and `Kept`
is where its rows go.
"""

from __future__ import annotations

import math
import os
import queue
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gemm_model import __version__
from gemm_model.bench import counters
from gemm_model.bench.device import TimingSettings
from gemm_model.bench.provider import Provider
from gemm_model.bench.row_log import line_of, timestamp
from gemm_model.bench.rows import Outcome, Row
from gemm_model.bench.sweep import estimated_kernel_us, estimated_row_ms, kernel_key, problem_key, shape_key
from gemm_model.bench.worker import check_request, time_request
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.config.numbers import room_numbers
from gemm_model.errors import InputError

TORCH_DEVICE = "gemm_model.bench.torch_device:TorchDevice"
DEATHS = 5
"""Deaths of its workers after which a task is given up [1]; sweeps; chosen. Dask blames each task that a dead
worker held, so the last one has to happen while the task is alone."""
SENTINEL_DRIFT_LIMIT = 0.01
"""Change of the sentinel that is reported as drift [1]; sweeps; chosen."""
FIRST_CALL_LIMIT_S = 300.0
"""Most time of a first answer [s]; a new worker, which imports and compiles; chosen."""
COMPILE_LIMIT_S = 300.0
"""Most time to compile a kernel [s]; `--compile-workers`; chosen."""
PROFILED_ROW_LIMIT_S = 5.0
"""Most time of a row, beside a first answer [s]; runs under the profiler; chosen."""
TASK_MS = 1000.0
"""Shortest task by the rough estimate [ms]; sweeps, which join short shapes up to it; chosen."""
TASK_MS_PER_CARD = 20.0
"""Shortest task for each card of the cluster [ms]; sweeps of many cards; chosen: the scheduler then handles
at most 50 tasks a second (docs/fleet.md)."""
NOTE_EVERY_S = 10.0
"""Shortest time between two records of the sentinels [s]; sweeps; chosen, because each rewrites the
record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run that do not change what is measured."""

    settings: TimingSettings = field(default_factory=TimingSettings)
    device: str = TORCH_DEVICE
    compile_jobs: int = 1
    time_budget_s: float = math.inf
    row_limit_s: float = 60.0
    sentinel_every_s: float = 60.0
    rows_per_profiler: int = 400
    rest_after_check_s: float = 2.0
    """Checking heats the card; without a rest the first rows are timed under the power cap."""


Progress = Callable[[str, int, int], None]
"""Called with the phase, the number done and the total."""


Places = tuple[tuple[int, Row], ...]
"""Rows by their positions in the sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Data that all tasks of a sweep share."""

    options: RunOptions
    kernels: tuple[str, ...]
    compute_capability: tuple[int, int]
    columns: tuple[str, ...] = ()
    """Of the table in which rows are kept."""
    sentinel: Row | None = None
    version: str = __version__

    def require_own_version(self) -> None:
        """Raise InputError if this worker's version differs from the one that planned the sweep."""
        if self.version != __version__:
            raise InputError(
                f"a worker has gemm-model {__version__}, this is {self.version}; expected one version"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTask:
    """One kernel to compile, for all rows that share it."""

    job: Job
    rows: Places

    def compiled_by(self, worker: WorkerProcess) -> Outcome:
        return compile_row(worker, self.rows[0][1], self.job.compute_capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask:
    """Rows to check or to time."""

    job: Job
    rows: Places
    checked: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReply:
    """Reply of a card: outcomes by the rows' places, of timed rows without their values, which `lines` hold."""

    card: Mapping[str, Any]
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    lines: Mapping[int, str] = field(default_factory=dict)
    sentinel: Sequence[Mapping[str, Any]] = ()


Crew = Callable[[str, Sequence[Any], Callable[[], bool]], Iterable[tuple[Any, Any]]]
"""Works on the tasks of a step (compile, check or time), and gives each back with its outcome or reply: None
where the workers were lost with it, again and again. Before each task it asks whether one is still wanted."""


class Kept(Protocol):
    """Where the rows of a sweep are, and what is known of their run. A row is on disk when `extend` returns."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def done(self) -> Collection[int]:
        """Positions of the rows in the sweep."""

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    def extend(self, lines: Mapping[int, str]) -> None:
        """Add lines of `line_of` by their positions, all or none. Raises InputError if the disk is full."""

    def note(self, provenance: Mapping[str, Any], card_remarks: Mapping[str, str]) -> None: ...


def describe_card(worker: WorkerProcess) -> dict[str, Any]:
    """The card's description; MissingExtraError without a GPU."""
    outcome = worker.ask({"operation": "describe"}, FIRST_CALL_LIMIT_S)
    if outcome.disposition != "ok":
        raise InputError(f"the GPU does not answer ({outcome.disposition}: {outcome.detail})")
    return dict(outcome.values)


def compiler(device: str, kernels: Sequence[str]) -> WorkerProcess:
    """A process that compiles kernels of these providers, and sees no GPU."""
    return WorkerProcess(device, kernels, needs_device=False, environment={"CUDA_VISIBLE_DEVICES": ""})


def compile_row(worker: WorkerProcess, row: Row, compute_capability: tuple[int, int]) -> Outcome:
    """The outcome of compiling the row's kernel: ok or compile_failed."""
    request = {"operation": "compile", "row": row.columns(), "compute_capability": list(compute_capability)}
    outcome = worker.ask(request, COMPILE_LIMIT_S)
    if outcome.disposition == "ok":
        return outcome
    reason = f"{outcome.disposition}: {outcome.detail}".removeprefix("compile_failed: ")
    return Outcome(disposition="compile_failed", detail=reason)


def sentinel_of(rows: Sequence[Row]) -> Row | None:
    """The row of median length, timed repeatedly to show drift; None without rows."""
    ordered = sorted(rows, key=lambda row: estimated_kernel_us(row.problem))
    return ordered[len(ordered) // 2] if ordered else None


def sentinel_drift(readings: Sequence[Mapping[str, Any]]) -> float:
    """Drift of the sentinel: largest over smallest time, less one."""
    times = [reading["runtime_us"] for reading in readings]
    return max(times) / min(times) - 1 if times else 0.0


def read_sentinel(
    worker: WorkerProcess, sentinel: Row, order: int, options: RunOptions
) -> dict[str, Any] | None:
    """A reading taken before row `order`; None where the row fails."""
    outcome = worker.ask(time_request(sentinel, options.settings), options.row_limit_s)
    if outcome.disposition != "ok":
        return None
    return {"time": timestamp(), "order": order, **outcome.values}


def outcomes(worker: WorkerProcess, rows: Sequence[Row], options: RunOptions) -> Iterator[Outcome]:
    """The outcomes of rows of one regime: timed one by one, or profiled in groups, one process each."""
    done, counts = 0, bool(rows) and rows[0].regime == "counters"
    if counts:
        worker.stop()
    while done < len(rows):
        if not counts:
            found = [worker.ask(time_request(rows[done], options.settings), options.row_limit_s)]
        else:
            # A crash of the profiler ends its group; the rows left undone join the next group.
            group = rows[done : done + options.rows_per_profiler]
            limit_s = FIRST_CALL_LIMIT_S + PROFILED_ROW_LIMIT_S * len(group)
            found = counters.profile_rows(group, options.device, limit_s)
        yield from found
        done += len(found)


def table_cells(
    row: Row, outcome: Outcome, checked: Mapping[str, Any], card: Mapping[str, Any], order: int
) -> dict[str, Any]:
    """The cells of a row in the table; `checked` holds the cells from its check."""
    ok = outcome.disposition == "ok"
    return {
        **row.columns(),
        **checked,
        **(outcome.values if ok else {}),
        "gpu": card["gpu_name"],
        "gpu_uuid": card["gpu_uuid"],
        "empty_kernel_us": card["empty_kernel_us"],
        "disposition": outcome.disposition,
        "detail": outcome.detail or checked.get("detail", ""),
        "order": order,
        "time": timestamp(),
    }


def cut(rows: Sequence[tuple[int, Row]], options: RunOptions, cards: int) -> list[Places]:
    """The rows by kernel family and shape, in their order; short shapes share a task of at least TASK_MS."""
    least_ms = max(TASK_MS, TASK_MS_PER_CARD * cards)
    shapes: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
    for index, row in rows:
        shapes.setdefault((row.kernel, shape_key(row)), []).append((index, row))
    tasks: list[Places] = []
    under_way: dict[str, tuple[list[tuple[int, Row]], float]] = {}
    for (kernel, _), members in shapes.items():
        together, length_ms = under_way.pop(kernel, ([], 0.0))
        together += members
        length_ms += sum(estimated_row_ms(row, options.settings) for _, row in members)
        if length_ms >= least_ms:
            tasks.append(tuple(sorted(together)))
        else:
            under_way[kernel] = (together, length_ms)
    tasks.extend(tuple(sorted(together)) for together, _ in under_way.values())
    return tasks


class Card:
    """A card and its worker process."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self.description = describe_card(worker)
        self._next_sentinel = 0.0
        self._checked_at = -math.inf

    def check(self, task: RowsTask) -> CardReply:
        """Compare the results of a task's rows with the reference, problem by problem."""
        limit_s = task.job.options.row_limit_s
        by_problem = sorted(task.rows, key=lambda each: (problem_key(each[1]), each[0]))
        found = {index: self._worker.ask(check_request(row), limit_s) for index, row in by_problem}
        self._checked_at = time.monotonic()
        return CardReply(card=self.description, outcomes=found)

    def measure(self, task: RowsTask) -> CardReply:
        """Time a task's rows, and the sentinel before them where it is due."""
        job, readings = task.job, []
        # Checking heats the card.
        time.sleep(max(0.0, self._checked_at + job.options.rest_after_check_s - time.monotonic()))
        if job.sentinel is not None and time.monotonic() >= self._next_sentinel:
            reading = read_sentinel(self._worker, job.sentinel, task.rows[0][0], job.options)
            readings += [] if reading is None else [reading]
            self._next_sentinel = time.monotonic() + job.options.sentinel_every_s
        found = outcomes(self._worker, [row for _, row in task.rows], job.options)
        timed: dict[int, Outcome] = {}
        lines: dict[int, str] = {}
        for (index, row), outcome in zip(task.rows, found, strict=True):
            cells = table_cells(row, outcome, task.checked[index], self.description, index)
            # Lines are formatted here: on a cluster in parallel, by the workers.
            lines[index] = line_of(job.columns, cells)
            timed[index] = Outcome(disposition=outcome.disposition, detail=cells["detail"])
        return CardReply(card=self.description, outcomes=timed, lines=lines, sentinel=readings)


def compiled_here(tasks: Sequence[KernelTask]) -> Iterator[tuple[KernelTask, Outcome]]:
    """Compile in processes of this machine, several at a time."""
    free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()

    def compiled(task: KernelTask) -> Outcome:
        worker = free.get()
        try:
            return task.compiled_by(worker)
        finally:
            free.put(worker)

    with ExitStack() as stack:
        for task in tasks[: tasks[0].job.options.compile_jobs] if tasks else ():
            free.put(stack.enter_context(closing(compiler(task.job.options.device, task.job.kernels))))
        pool = stack.enter_context(ThreadPoolExecutor(max(free.qsize(), 1)))
        yield from zip(tasks, pool.map(compiled, tasks), strict=True)


def crew_of(card: Card) -> Crew:
    """The card of this machine, and processes that compile."""
    work = {"check": card.check, "time": card.measure}

    def crew(
        step: str, tasks: Sequence[Any], wanted: Callable[[], bool]
    ) -> Iterable[tuple[Any, Outcome | CardReply]]:
        if step == "compile":
            return compiled_here(tasks)
        return ((task, work[step](task)) for task in tasks if wanted())

    return crew


@dataclass(slots=True)
class Sweep:
    """One sweep by one crew into one run."""

    rows: Sequence[Row]
    kept: Kept
    cards: dict[str, dict[str, Any]]
    """UUID -> description of each card."""
    crew: Crew
    options: RunOptions
    progress: Progress
    by_shape: bool = False
    """Whether whole shapes are timed together, as on several cards, and not row by row in mixed order."""
    dispositions: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    """Remarks on good rows, such as an unknown kernel name, with the number of rows."""
    readings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _job: Job = field(init=False)
    _deadline: float = field(init=False)
    _next_note: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._job = job_of(self.rows, next(iter(self.cards.values())), self.options, self.kept.columns)
        self._deadline = time.monotonic() + self.options.time_budget_s
        self.readings.update(self.kept.provenance.get("sentinel", {}))

    def go(self, providers: Mapping[str, Provider]) -> None:
        """Measure the remaining rows; without `providers` nothing is compiled in advance."""
        try:
            failed: dict[int, Outcome] = {}
            if providers:
                failed = compile_all(self.left, providers, self._job, self.crew, self.progress)
            for index, outcome in sorted(failed.items()):
                self._record(index, outcome, None)
            checked = self._check(failed)
            self._time(checked, failed)
        finally:
            self.kept.note(self._provenance(), remarks_on(self.readings))

    @property
    def left(self) -> list[tuple[int, Row]]:
        return [(index, row) for index, row in enumerate(self.rows) if index not in self.kept.done]

    @property
    def drift(self) -> float:
        """The largest drift of a card's sentinel."""
        return max(map(sentinel_drift, self.readings.values()), default=0.0)

    def _check(self, failed: dict[int, Outcome]) -> dict[int, Mapping[str, Any]]:
        """Check all results; returns the checks' cells by the rows' positions, and records wrong rows."""
        checked: dict[int, Mapping[str, Any]] = {}
        left = self.left
        tasks = [RowsTask(job=self._job, rows=rows) for rows in cut(left, self.options, len(self.cards))]
        for task, reply in self.crew("check", tasks, self._in_time):
            for index, _ in task.rows:
                outcome = reply.outcomes[index] if reply else lost("crashed")
                if outcome.disposition == "ok":
                    checked[index] = outcome.values
                else:
                    failed[index] = outcome
                    self._record(index, outcome, reply)
            self.progress("check", len(checked), len(left))
        return checked

    def _time(self, checked: Mapping[int, Mapping[str, Any]], failed: Mapping[int, Outcome]) -> None:
        left = [(index, row) for index, row in self.left if index in checked]
        counts = self.rows[0].regime == "counters"
        if not counts:
            watched = [row for index, row in enumerate(self.rows) if index not in failed]
            self._job = replace(self._job, sentinel=sentinel_of(watched))
        tasks = [
            RowsTask(job=self._job, rows=rows, checked={index: checked[index] for index, _ in rows})
            for rows in self._parts(left, self.options.rows_per_profiler if counts else 1)
        ]
        phase = "profile" if counts else "time"
        self.progress(phase, len(self.kept.done), len(self.rows))
        for task, reply in self.crew("time", tasks, self._in_time):
            if reply is None:
                for index, _ in task.rows:
                    self._record(index, lost("crashed"), None)
            else:
                new = {place: line for place, line in reply.lines.items() if place not in self.kept.done}
                self.kept.extend(new)
                self._count(reply.outcomes[place] for place in new)
                self._watch(reply)
            self.progress(phase, len(self.kept.done), len(self.rows))

    def _parts(self, left: Sequence[tuple[int, Row]], rows: int) -> list[Places]:
        """What is timed at once: so many `rows`, or whole shapes."""
        if self.by_shape:
            return cut(left, self.options, len(self.cards))
        return [tuple(left[first : first + rows]) for first in range(0, len(left), rows)]

    def _watch(self, reply: CardReply) -> None:
        """Keep a card's sentinel; a card that has come later is noted with it."""
        if not reply.sentinel:
            return
        uuid = str(reply.card["gpu_uuid"])
        self.cards.setdefault(uuid, dict(reply.card))
        self.readings.setdefault(uuid, []).extend(dict(reading) for reading in reply.sentinel)
        if time.monotonic() >= self._next_note:
            self.kept.note(self._provenance(), remarks_on(self.readings))
            self._next_note = time.monotonic() + NOTE_EVERY_S

    def _record(self, index: int, outcome: Outcome, reply: CardReply | None) -> None:
        if index in self.kept.done:
            return
        card = reply.card if reply else next(iter(self.cards.values()))
        cells = table_cells(self.rows[index], outcome, {}, card, index)
        self.kept.extend({index: line_of(self.kept.columns, cells)})
        self._count([outcome])

    def _count(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.dispositions[outcome.disposition] += 1
            if outcome.disposition == "ok" and outcome.detail:
                self.remarks[outcome.detail] += 1

    def _provenance(self) -> dict[str, Any]:
        known = dict(self.kept.provenance)
        known["cards"] = {**known.get("cards", {}), **self.cards}
        if self._job.sentinel is not None:
            known["sentinel_row"] = self._job.sentinel.columns()
        known |= {"sentinel": self.readings, "sentinel_drift": round(self.drift, 5)}
        return known | {"done": len(self.kept.done), "last": timestamp()}

    def _in_time(self) -> bool:
        return time.monotonic() < self._deadline


def job_of(
    rows: Sequence[Row], card: Mapping[str, Any], options: RunOptions, columns: tuple[str, ...] = ()
) -> Job:
    """What tasks of some rows share on cards of one kind."""
    major, minor = card["compute_capability"]
    kernels = tuple(sorted({row.kernel for row in rows}))
    return Job(options=options, kernels=kernels, compute_capability=(int(major), int(minor)), columns=columns)


def compile_all(
    rows: Sequence[tuple[int, Row]],
    providers: Mapping[str, Provider],
    job: Job,
    crew: Crew,
    progress: Progress,
) -> dict[int, Outcome]:
    """Compile each distinct kernel once; the failures by the rows' positions. No host times anything meanwhile."""
    groups: dict[Hashable, list[tuple[int, Row]]] = {}
    for index, row in rows:
        groups.setdefault(kernel_key(row, providers), []).append((index, row))
    tasks = [KernelTask(job=job, rows=tuple(members)) for members in groups.values()]
    failed: dict[int, Outcome] = {}
    until = time.monotonic() + job.options.time_budget_s
    progress("compile", 0, len(tasks))
    for done, (task, outcome) in enumerate(crew("compile", tasks, lambda: time.monotonic() < until), start=1):
        if outcome is None or outcome.disposition != "ok":
            failed |= {index: outcome or lost("compile_failed") for index, _ in task.rows}
        progress("compile", done, len(tasks))
    return failed


def lost(disposition: str) -> Outcome:
    return Outcome(disposition=disposition, detail=f"{DEATHS} workers or more were lost with it")


def remarks_on(readings: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """UUID -> what its sentinel tells against a card: it drifts, or it differs from the others."""
    typical = {
        uuid: statistics.median(reading["runtime_us"] for reading in found)
        for uuid, found in readings.items()
        if found
    }
    middle = statistics.median(typical.values()) if typical else 0.0
    remarks: dict[str, list[str]] = {}
    for uuid, time_us in typical.items():
        drift = sentinel_drift(readings[uuid])
        if drift > SENTINEL_DRIFT_LIMIT:
            remarks.setdefault(uuid, []).append(f"sentinel drifted by {drift:.1%}")
        if abs(time_us / middle - 1.0) > room_numbers("bench").card_difference:
            remark = f"sentinel {time_us / middle - 1.0:+.1%} from the other cards"
            remarks.setdefault(uuid, []).append(remark)
    return {uuid: "; ".join(said) for uuid, said in remarks.items()}


def default_compile_jobs() -> int:
    """One less than the processors of this machine."""
    return max(1, (os.cpu_count() or 2) - 1)
