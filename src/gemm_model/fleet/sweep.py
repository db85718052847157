"""The cards of a cluster as the crew of a sweep, and the work of its workers.

Tasks stream through the cluster: few in flight at a time, lost ones run again elsewhere.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gemm_model.bench import runner
from gemm_model.bench.rows import Outcome
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.errors import GemmModelError, InputError, PartialResultError
from gemm_model.fleet.cluster import CARD, COMPILER, offered, refuse_other_versions

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 2
"""Tasks in flight for each unit of the resource [1]; sweeps; chosen: one runs, one waits."""
GATHERED = 256
"""Most tasks whose results are gathered at once [1]; sweeps; chosen: the others wait with their workers."""
LOOK_EVERY_S = 1.0
"""Time between two looks at the workers and the scheduler's health [s]; sweeps; chosen."""
NO_WORKER_LIMIT_S = 600.0
"""Longest wait for workers [s]; a cluster without any; chosen: batch jobs may queue before they start."""


@dataclass(slots=True)
class Stream(Generic[Task, Result]):
    """`work(task)` for each task, one at a time on each unit of `resource`.

    `wanted` is called before each task. Once it returns False, running tasks finish and the rest are dropped.
    Results come as they are ready; a task that killed DEATHS workers or more, the last of them alone, gives
    None. Raises PartialResultError if the scheduler or all workers are lost, and passes on this package's
    errors from `work`.
    """

    client: Client
    work: Callable[[Task], Result]
    resource: str
    wanted: Callable[[], bool] = lambda: True
    _ended: queue.SimpleQueue[Future] = field(init=False, default_factory=queue.SimpleQueue)
    _running: dict[str, tuple[Future, Task, int]] = field(init=False, default_factory=dict)
    _suspects: list[tuple[Task, int]] = field(init=False, default_factory=list)
    _room: int = field(init=False, default=0)
    _looked: float = field(init=False, default=0.0)
    _workers: frozenset[str] = field(init=False, default=frozenset())

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result | None]]:
        left = iter(tasks)
        following = next(left, None)
        try:
            while self._running or ((following is not None or self._suspects) and self.wanted()):
                self._look()
                while following is not None and len(self._running) < self._room and self.wanted():
                    self._submit(following, 0)
                    following = next(left, None)
                if following is None and self._suspects and not self._running and self._room:
                    self._submit(*self._suspects.pop())
                if not self._running:
                    time.sleep(LOOK_EVERY_S / 10)
                    continue
                ended = self._take_ended()
                results = self._gathered([future for future in ended if future.status == "finished"])
                for future in ended:
                    _, task, deaths = self._running.pop(future.key)
                    if future.key in results:
                        yield task, results[future.key]
                        continue
                    suspect = deaths >= runner.DEATHS - 1
                    deaths += self._deaths(future)
                    if suspect:
                        yield task, None
                    elif deaths >= runner.DEATHS - 1:
                        self._suspects.append((task, deaths))
                    else:
                        self._submit(task, deaths)
        except (OSError, asyncio.CancelledError, futures.CancelledError):
            # Errors of the connection; errors of tasks have other types.
            raise self._scheduler_lost() from None
        finally:
            with suppress(OSError):
                for future, _, _ in self._running.values():
                    future.cancel()

    def _submit(self, task: Task, deaths: int) -> None:
        future = self.client.submit(self.work, task, resources={self.resource: 1}, pure=False)
        self._running[future.key] = (future, task, deaths)
        future.add_done_callback(self._ended.put)

    def _take_ended(self) -> list[Future]:
        """Tasks that have ended, GATHERED at most; after LOOK_EVERY_S none."""
        ended: list[Future] = []
        with suppress(queue.Empty):
            ended.append(self._ended.get(timeout=LOOK_EVERY_S))
            while len(ended) < GATHERED:
                ended.append(self._ended.get_nowait())
        return ended

    def _gathered(self, ready: list[Future]) -> dict[str, Result]:
        """Results by the tasks' keys, in one gathering: each costs a round trip.

        A result is left out if it is lost with its worker, and again with the workers that recompute it.
        """
        from distributed import KilledWorker

        try:
            return dict(zip((future.key for future in ready), self.client.gather(ready), strict=True))
        except KilledWorker:
            if len(ready) == 1:
                return {}
            half = len(ready) // 2
            return self._gathered(ready[:half]) | self._gathered(ready[half:])

    def _deaths(self, future: Future) -> int:
        """How many workers died with the task or with its result; raises what else went wrong."""
        from distributed import KilledWorker

        if future.status == "cancelled":
            raise self._scheduler_lost()
        if future.status != "error":
            # Its worker died between end and gathering: the result is lost, or is being recomputed.
            return 1
        error = future.exception()
        if isinstance(error, GemmModelError):
            raise error
        if not isinstance(error, KilledWorker):
            raise InputError(f"a worker failed: {type(error).__name__}: {error}")
        # Dask gives a task up once it has taken one worker more with it than it allows.
        return int(error.allowed_failures) + 1

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S and self._room > 0:
            return
        if self.client.status != "running":
            raise self._scheduler_lost()
        room, workers = self._room, frozenset(self.client.nthreads())
        if workers != self._workers:
            # Asking for all workers' resources is slow, so ask only when the workers change.
            room, self._workers = round(AHEAD * sum(offered(self.client, self.resource).values())), workers
        if room > 0 or self._looked == 0.0:
            self._looked = now
        elif now - self._looked > NO_WORKER_LIMIT_S:
            raise PartialResultError(f"no worker offers {self.resource} any more; go on with --resume")
        self._room = room

    def _scheduler_lost(self) -> PartialResultError:
        return PartialResultError("the scheduler is lost; go on with --resume")


Cards = dict[str, dict[str, Any]]


def cards_of(client: Client, options: runner.RunOptions, kernels: Sequence[str]) -> Cards:
    """UUID -> description of each card of the cluster.

    Raises InputError if no worker has a card, if two workers share one, or if the cards differ in kind.
    """
    refuse_other_versions(client)
    if not offered(client, CARD):
        raise InputError(f"no worker of the cluster offers {CARD}=1; expected one beside each card")
    job = runner.Job(options=options, kernels=tuple(kernels), compute_capability=(0, 0))
    cards: Cards = {}
    for address, reply in _descriptions(client, job).items():
        uuid = reply.card["gpu_uuid"]
        if uuid in cards:
            raise InputError(f"worker {address} has the card {uuid} of another worker; expected a card each")
        cards[uuid] = dict(reply.card)
    names = sorted({str(card["gpu_name"]) for card in cards.values()})
    if len(names) > 1:
        raise InputError(f"the cluster has cards of several kinds ({', '.join(names)}); expected one kind")
    return cards


def _descriptions(client: Client, job: runner.Job) -> dict[str, runner.CardReply]:
    """Address -> the card's description, of each worker that has one; a worker that dies is left out.

    Its replacement has another address and is asked separately.
    """
    from distributed import wait

    asked: dict[str, Future] = {}
    while True:
        workers = offered(client, CARD)
        for address in asked.keys() - workers.keys():
            asked.pop(address).cancel()
        for address in sorted(workers.keys() - asked.keys()):
            asked[address] = client.submit(describe, job, workers=[address], resources={CARD: 1}, pure=False)
        if asked and all(future.done() for future in asked.values()):
            return dict(zip(asked, client.gather(list(asked.values())), strict=True))
        with suppress(TimeoutError):
            wait(list(asked.values()), timeout=LOOK_EVERY_S)


def crew_of(client: Client) -> runner.Crew:
    """The workers of a cluster, beside its cards and those that compile."""
    work: dict[str, tuple[Callable[[Any], Any], str]] = {
        "compile": (compile_kernel, COMPILER),
        "check": (check, CARD),
        "time": (measure, CARD),
    }

    def crew(
        step: str, tasks: Sequence[Any], wanted: Callable[[], bool]
    ) -> Iterable[tuple[Any, Outcome | runner.CardReply | None]]:
        call, resource = work[step]
        # Without workers that compile, those with cards do, with the first row of a kernel.
        if step == "compile" and not offered(client, resource):
            return ()
        return Stream(client, call, resource, wanted).results(tasks)

    return crew


_cards: dict[str, runner.Card] = {}
"""The card beside this worker, from its first task to the worker's end."""
_compilers = threading.local()


def _card(job: runner.Job) -> runner.Card:
    job.require_own_version()
    if job.options.device not in _cards:
        _cards[job.options.device] = runner.Card(WorkerProcess(job.options.device, job.kernels))
    return _cards[job.options.device]


def describe(job: runner.Job) -> runner.CardReply:
    """The description of this worker's card."""
    return runner.CardReply(card=_card(job).description)


def compile_kernel(task: runner.KernelTask) -> Outcome:
    """Put a kernel into the cache on this worker's disk."""
    task.job.require_own_version()
    if not hasattr(_compilers, "worker"):
        _compilers.worker = runner.compiler(task.job.options.device, task.job.kernels)
    return task.compiled_by(_compilers.worker)


def check(task: runner.RowsTask) -> runner.CardReply:
    return _card(task.job).check(task)


def measure(task: runner.RowsTask) -> runner.CardReply:
    return _card(task.job).measure(task)
