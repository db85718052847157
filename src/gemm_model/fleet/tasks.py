"""Tasks of a sweep, and the work on a task in a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemm_model import __version__
from gemm_model.bench.rows import Outcome, Row
from gemm_model.bench.runner import (
    RunOptions,
    compile_row,
    compiler,
    describe_card,
    outcomes,
    read_sentinel,
    table_cells,
)
from gemm_model.bench.sweep import estimated_row_ms, shape_key
from gemm_model.bench.worker import check_request
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.core.errors import InputError
from gemm_model.fleet.journal import journal_line

TASK_MS = 1000.0
"""Shortest task by the rough estimate [ms]; sweeps, which join short shapes up to it; chosen."""
TASK_MS_PER_CARD = 20.0
"""Shortest task for each card of the cluster [ms]; sweeps of many cards; chosen: the scheduler then handles
at most 50 tasks a second (docs/fleet.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Data that all tasks of a sweep share."""

    options: RunOptions
    kernels: tuple[str, ...]
    compute_capability: tuple[int, int]
    sentinel: Row | None = None
    version: str = __version__

    def require_own_version(self) -> None:
        """Raise InputError if this worker's version differs from the one that planned the sweep."""
        if self.version != __version__:
            raise InputError(
                f"a worker has gemm-model {__version__}, this is {self.version}; expected one version"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask:
    """Rows of one kernel family and of whole shapes, by their positions in the sweep."""

    job: Job
    rows: tuple[tuple[int, Row], ...]
    checked: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReply:
    """Reply of a card's worker."""

    card: Mapping[str, Any]
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    """Of checks, by the row's place."""
    lines: Mapping[int, str] = field(default_factory=dict)
    """Of timed rows, as the journal holds them, by the row's place."""
    dispositions: Mapping[int, str] = field(default_factory=dict)
    """Of timed rows, by the row's place."""
    sentinel: Sequence[Mapping[str, Any]] = ()


def cut(
    rows: Sequence[tuple[int, Row]], options: RunOptions, cards: int
) -> list[tuple[tuple[int, Row], ...]]:
    """The rows by kernel family and shape, in their order; short shapes share a task of at least TASK_MS."""
    least_ms = max(TASK_MS, TASK_MS_PER_CARD * cards)
    shapes: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
    for index, row in rows:
        shapes.setdefault((row.kernel, shape_key(row)), []).append((index, row))
    tasks: list[tuple[tuple[int, Row], ...]] = []
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


class _Card:
    """The card beside this worker, from its first task to the worker's end."""

    def __init__(self, job: Job) -> None:
        self.worker = WorkerProcess(job.options.device, job.kernels)
        self.description = describe_card(self.worker)
        self.next_sentinel = 0.0
        self.checked_at = -float("inf")

    def rest(self, options: RunOptions) -> None:
        """Wait until checking no longer heats the card."""
        time.sleep(max(0.0, self.checked_at + options.rest_after_check_s - time.monotonic()))


_cards: dict[str, _Card] = {}
_compilers = threading.local()


def _card(job: Job) -> _Card:
    job.require_own_version()
    if job.options.device not in _cards:
        _cards[job.options.device] = _Card(job)
    return _cards[job.options.device]


def describe(job: Job) -> CardReply:
    """The description of this worker's card."""
    return CardReply(card=_card(job).description)


def compile_kernel(task: tuple[Job, Row]) -> Outcome:
    """Put a row's kernel into the cache on this worker's disk."""
    job, row = task
    job.require_own_version()
    if not hasattr(_compilers, "worker"):
        _compilers.worker = compiler(job.options.device, job.kernels)
    return compile_row(_compilers.worker, row, job.compute_capability)


def check(task: RowsTask) -> CardReply:
    """Compare the results of a task's rows with the reference."""
    card = _card(task.job)
    found = {
        index: card.worker.ask(check_request(row), task.job.options.row_limit_s) for index, row in task.rows
    }
    card.checked_at = time.monotonic()
    return CardReply(card=card.description, outcomes=found)


def measure(task: RowsTask) -> CardReply:
    """Time a task's rows, and the sentinel before them where it is due."""
    job, card = task.job, _card(task.job)
    card.rest(job.options)
    readings = []
    if job.sentinel is not None and time.monotonic() >= card.next_sentinel:
        reading = read_sentinel(card.worker, job.sentinel, task.rows[0][0], job.options)
        readings += [] if reading is None else [reading]
        card.next_sentinel = time.monotonic() + job.options.sentinel_every_s
    found = outcomes(card.worker, [row for _, row in task.rows], job.options, lambda: True)
    by_place = {index: outcome for (index, _), outcome in zip(task.rows, found, strict=True)}
    return CardReply(
        card=card.description,
        # Lines are formatted here, in parallel on the workers.
        lines={
            index: journal_line(
                table_cells(row, by_place[index], task.checked.get(index, {}), card.description, index)
            )
            for index, row in task.rows
        },
        dispositions={index: outcome.disposition for index, outcome in by_place.items()},
        sentinel=readings,
    )
