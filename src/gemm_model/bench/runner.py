"""Run a sweep: compile in parallel, check every result, time in mixed order, keep every row."""

from __future__ import annotations

import dataclasses
import math
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_model.bench import counters
from gemm_model.bench.device import TimingSettings
from gemm_model.bench.environment import (
    environment_path,
    new_environment,
    resumed_environment,
    timestamp,
    write_environment,
)
from gemm_model.bench.provider import Provider
from gemm_model.bench.row_log import RowLog
from gemm_model.bench.rows import Outcome, Row, table_columns
from gemm_model.bench.sweep import digest, estimated_kernel_us, kernel_key, problem_key
from gemm_model.bench.worker import check_request, time_request
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.core.errors import InputError

TORCH_DEVICE = "gemm_model.bench.torch_device:TorchDevice"
SENTINEL_DRIFT_LIMIT = 0.01
"""Change of the sentinel that is reported as drift [1]; sweeps; chosen."""
FIRST_CALL_LIMIT_S = 300.0
"""Most time of a first answer [s]; a new worker, which imports and compiles; chosen."""
COMPILE_LIMIT_S = 300.0
"""Most time to compile a kernel [s]; `--compile-workers`; chosen."""
PROFILED_ROW_LIMIT_S = 5.0
"""Most time of a row, beside a first answer [s]; runs under the profiler; chosen."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a run did."""

    rows: int
    done: int
    dispositions: Mapping[str, int]
    remarks: Mapping[str, int]
    """Remarks on good rows, such as an unknown kernel name, with the number of rows."""
    sentinel_drift: float


def describe_card(worker: WorkerProcess) -> dict[str, Any]:
    """The card's description; MissingExtraError without a GPU."""
    outcome = worker.ask({"operation": "describe"}, FIRST_CALL_LIMIT_S)
    if outcome.disposition != "ok":
        raise InputError(f"the GPU does not answer ({outcome.disposition}: {outcome.detail})")
    return dict(outcome.values)


def rows_by_kernel(rows: Sequence[Row], providers: Mapping[str, Provider]) -> list[list[int]]:
    """Positions of the rows that share one compiled kernel, kernel by kernel."""
    groups: dict[Hashable, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(kernel_key(row, providers), []).append(index)
    return list(groups.values())


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


def outcomes(
    worker: WorkerProcess, rows: Sequence[Row], options: RunOptions, wanted: Callable[[], bool]
) -> Iterator[Outcome]:
    """The outcomes of rows of one regime: timed one by one, or profiled in groups, one process each.

    `wanted` is asked before each row or group; once it is False no more come.
    """
    done, counts = 0, bool(rows) and rows[0].regime == "counters"
    if counts:
        worker.stop()
    while done < len(rows) and wanted():
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


def compile_rows(
    rows: Sequence[Row],
    providers: Mapping[str, Provider],
    compute_capability: tuple[int, int],
    options: RunOptions,
    progress: Progress,
) -> dict[int, Outcome]:
    """Compile each distinct kernel once, several at a time; the failures by row index."""
    groups = rows_by_kernel(rows, providers)
    kernels = sorted({row.kernel for row in rows})
    failures: dict[int, Outcome] = {}
    free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()

    def compiled(indices: Sequence[int]) -> Outcome:
        worker = free.get()
        try:
            return compile_row(worker, rows[indices[0]], compute_capability)
        finally:
            free.put(worker)

    progress("compile", 0, len(groups))
    jobs = max(1, min(options.compile_jobs, len(groups)))
    with ExitStack() as stack:
        for _ in range(jobs):
            free.put(stack.enter_context(closing(compiler(options.device, kernels))))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for done, (indices, outcome) in enumerate(zip(groups, pool.map(compiled, groups), strict=True)):
            if outcome.disposition != "ok":
                failures |= dict.fromkeys(indices, outcome)
            progress("compile", done + 1, len(groups))
    return failures


class Run:
    """One run of a sweep into one table."""

    def __init__(
        self, rows: Sequence[Row], table: Path, card: Mapping[str, Any], options: RunOptions, *, resume: bool
    ) -> None:
        self._rows = rows
        self._options = options
        self._card = dict(card)
        self._regime = rows[0].regime
        self._columns = table_columns(rows)
        self._environment_path = environment_path(table)
        sweep = digest(rows)
        if resume:
            self._environment = resumed_environment(self._environment_path, self._card, sweep)
            self._log, self._done = RowLog.resume(table, self._columns, rows)
        else:
            settings = dataclasses.asdict(options.settings)
            self._log, self._done = RowLog.create(table, self._columns), 0
            self._environment = new_environment(self._card, sweep, settings, len(rows))
        write_environment(self._environment_path, self._environment)
        self._dispositions: Counter[str] = Counter()
        self._known: dict[int, Outcome] = {}
        self._remarks: Counter[str] = Counter()
        self._checked: dict[int, Mapping[str, Any]] = {}
        self._deadline = time.monotonic() + options.time_budget_s

    @property
    def done(self) -> int:
        return self._done

    def go(self, worker: WorkerProcess, failures: Mapping[int, Outcome], progress: Progress) -> RunSummary:
        """Check and time the remaining rows. `failures` holds rows known to be impossible, by index."""
        self._known.update(failures)
        try:
            self._check(worker, progress)
            self._measure(worker, progress)
        finally:
            self._log.close()
            self._finish()
        return RunSummary(
            rows=len(self._rows),
            done=self._done,
            dispositions=self._dispositions,
            remarks=self._remarks,
            sentinel_drift=self._drift(),
        )

    def _check(self, worker: WorkerProcess, progress: Progress) -> None:
        """Compare every result that is still to be timed with the reference, problem by problem."""
        left = [index for index in range(self._done, len(self._rows)) if index not in self._known]
        left.sort(key=lambda index: (problem_key(self._rows[index]), index))
        for number, index in enumerate(left):
            if not self._in_time():
                return
            outcome = worker.ask(check_request(self._rows[index]), self._options.row_limit_s)
            if outcome.disposition == "ok":
                self._checked[index] = outcome.values
            else:
                self._known[index] = outcome
            progress("check", number + 1, len(left))

    def _measure(self, worker: WorkerProcess, progress: Progress) -> None:
        counts = self._regime == "counters"
        phase, sentinel = "profile" if counts else "time", None
        runnable = [index for index in range(len(self._rows)) if index not in self._known]
        left = [self._rows[index] for index in runnable if index >= self._done]
        if not counts:
            time.sleep(self._options.rest_after_check_s)
            sentinel = sentinel_of([self._rows[index] for index in runnable])
        next_sentinel = time.monotonic()
        found = outcomes(worker, left, self._options, self._in_time)
        progress(phase, self._done, len(self._rows))
        while self._done < len(self._rows):
            if sentinel is not None and time.monotonic() >= next_sentinel:
                self._watch(worker, sentinel)
                next_sentinel = time.monotonic() + self._options.sentinel_every_s
            outcome = self._known.get(self._done) or next(found, None)
            if outcome is None:
                break
            self._record(self._done, outcome)
            progress(phase, self._done, len(self._rows))

    def _record(self, index: int, outcome: Outcome) -> None:
        cells = table_cells(self._rows[index], outcome, self._checked.get(index, {}), self._card, index)
        self._log.append(cells)
        self._done += 1
        if outcome.disposition == "ok" and cells["detail"]:
            self._remarks[cells["detail"]] += 1
        self._dispositions[outcome.disposition] += 1

    def _watch(self, worker: WorkerProcess, sentinel: Row) -> None:
        reading = read_sentinel(worker, sentinel, self._done, self._options)
        if reading is not None:
            self._environment["sentinel"].append(reading)
            self._environment["sentinel_row"] = sentinel.columns()
            write_environment(self._environment_path, self._environment)

    def _drift(self) -> float:
        return sentinel_drift(self._environment["sentinel"])

    def _finish(self) -> None:
        self._environment["finished"] = timestamp()
        self._environment["done"] = self._done
        self._environment["sentinel_drift"] = round(self._drift(), 5)
        write_environment(self._environment_path, self._environment)

    def _in_time(self) -> bool:
        return time.monotonic() < self._deadline


def default_compile_jobs() -> int:
    """One less than the processors of this machine."""
    return max(1, (os.cpu_count() or 2) - 1)
