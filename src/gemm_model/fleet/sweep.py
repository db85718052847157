"""The cards of a cluster as the crew of a sweep, and the work of its workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gemm_model.bench.rows import Outcome
from gemm_model.bench.runner import (
    Card,
    CardReply,
    Crew,
    Job,
    KernelTask,
    RowsTask,
    RunOptions,
    compiler,
)
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.core.errors import InputError
from gemm_model.fleet.cluster import CARD, COMPILER, offered, refuse_other_versions
from gemm_model.fleet.stream import LOOK_EVERY_S, Stream

if TYPE_CHECKING:
    from distributed import Client, Future

Cards = dict[str, dict[str, Any]]


def cards_of(client: Client, options: RunOptions, kernels: Sequence[str]) -> Cards:
    """UUID -> description of each card of the cluster.

    Raises InputError if no worker has a card, if two workers share one, or if the cards differ in kind.
    """
    refuse_other_versions(client)
    if not offered(client, CARD):
        raise InputError(f"no worker of the cluster offers {CARD}=1; expected one beside each card")
    job = Job(options=options, kernels=tuple(kernels), compute_capability=(0, 0))
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


def _descriptions(client: Client, job: Job) -> dict[str, CardReply]:
    """Address -> the card's description, of each worker that has one; a worker that dies is left out.

    Its replacement has another address and is asked separately.
    """
    from distributed import wait

    asked: dict[str, Future] = {}
    while True:
        workers = offered(client, CARD)
        for address in asked.keys() - workers.keys():
            asked.pop(address).cancel()
        for address in workers.keys() - asked.keys():
            asked[address] = client.submit(describe, job, workers=[address], resources={CARD: 1}, pure=False)
        if asked and all(future.done() for future in asked.values()):
            return dict(zip(asked, client.gather(list(asked.values())), strict=True))
        with suppress(TimeoutError):
            wait(list(asked.values()), timeout=LOOK_EVERY_S)


def crew_of(client: Client) -> Crew:
    """The workers of a cluster, beside its cards and those that compile."""
    work: dict[str, tuple[Callable[[Any], Any], str]] = {
        "compile": (compile_kernel, COMPILER),
        "check": (check, CARD),
        "time": (measure, CARD),
    }

    def crew(
        step: str, tasks: Sequence[Any], wanted: Callable[[], bool]
    ) -> Iterable[tuple[Any, Outcome | CardReply | None]]:
        call, resource = work[step]
        # Without workers that compile, those with cards do, with the first row of a kernel.
        if step == "compile" and not offered(client, resource):
            return ()
        return Stream(client, call, resource, wanted).results(tasks)

    return crew


_cards: dict[str, Card] = {}
"""The card beside this worker, from its first task to the worker's end."""
_compilers = threading.local()


def _card(job: Job) -> Card:
    job.require_own_version()
    if job.options.device not in _cards:
        _cards[job.options.device] = Card(WorkerProcess(job.options.device, job.kernels))
    return _cards[job.options.device]


def describe(job: Job) -> CardReply:
    """The description of this worker's card."""
    return CardReply(card=_card(job).description)


def compile_kernel(task: KernelTask) -> Outcome:
    """Put a kernel into the cache on this worker's disk."""
    task.job.require_own_version()
    if not hasattr(_compilers, "worker"):
        _compilers.worker = compiler(task.job.options.device, task.job.kernels)
    return task.compiled_by(_compilers.worker)


def check(task: RowsTask) -> CardReply:
    return _card(task.job).check(task)


def measure(task: RowsTask) -> CardReply:
    return _card(task.job).measure(task)
