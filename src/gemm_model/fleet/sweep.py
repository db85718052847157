"""A sweep over all cards of a cluster: compile everywhere, check, time, and keep every row."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gemm_model.bench.environment import timestamp
from gemm_model.bench.provider import Provider
from gemm_model.bench.rows import Outcome, Row
from gemm_model.bench.runner import (
    SENTINEL_DRIFT_LIMIT,
    Progress,
    RunOptions,
    rows_by_kernel,
    sentinel_drift,
    sentinel_of,
    table_cells,
)
from gemm_model.config.numbers import room_numbers
from gemm_model.core.errors import InputError
from gemm_model.fleet.cluster import CARD, COMPILER, offered, refuse_other_versions
from gemm_model.fleet.journal import Journal
from gemm_model.fleet.stream import DEATHS, LOOK_EVERY_S, Stream
from gemm_model.fleet.tasks import CardReply, Job, RowsTask, check, compile_kernel, cut, describe, measure

if TYPE_CHECKING:
    from distributed import Client, Future

NOTE_EVERY_S = 10.0
"""Shortest time between two records of the sentinels [s]; sweeps; chosen, because each rewrites the
record."""

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


@dataclass(slots=True)
class FleetSweep:
    """One sweep on one cluster into one run of a data set."""

    client: Client
    rows: Sequence[Row]
    journal: Journal
    cards: Cards
    options: RunOptions
    progress: Progress
    dispositions: Counter[str] = field(default_factory=Counter)
    readings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _job: Job = field(init=False)
    _deadline: float = field(init=False)
    _next_note: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        capability = next(iter(self.cards.values()))["compute_capability"]
        self._job = Job(
            options=self.options,
            kernels=tuple(sorted({row.kernel for row in self.rows})),
            compute_capability=(int(capability[0]), int(capability[1])),
        )
        self._deadline = time.monotonic() + self.options.time_budget_s
        self.readings.update(self.journal.record.provenance.get("sentinel", {}))

    def go(self, providers: Mapping[str, Provider]) -> None:
        """Measure the remaining rows; without `providers` nothing is compiled in advance."""
        try:
            failed = self._compile(providers) if providers else {}
            for index, outcome in sorted(failed.items()):
                self._record(table_cells(self.rows[index], outcome, {}, self._card(None), index))
            checked = self._check()
            self._time(checked)
        finally:
            self.journal.note(provenance=self._provenance(), card_remarks=remarks_on(self.readings))

    @property
    def left(self) -> list[tuple[int, Row]]:
        return [(index, row) for index, row in enumerate(self.rows) if index not in self.journal.done]

    def _compile(self, providers: Mapping[str, Provider]) -> dict[int, Outcome]:
        """Compile all kernels; returns failures by the rows' positions. No host times anything meanwhile."""
        left = self.left
        groups = rows_by_kernel([row for _, row in left], providers)
        if not offered(self.client, COMPILER):
            return {}
        tasks = [
            (self._job, left[positions[0]][1], [left[position][0] for position in positions])
            for positions in groups
        ]
        failed: dict[int, Outcome] = {}
        self.progress("compile", 0, len(tasks))
        stream = Stream(self.client, _compile_first, COMPILER, self._in_time)
        for done, (task, outcome) in enumerate(stream.results(tasks), start=1):
            if outcome is None or outcome.disposition != "ok":
                failed |= dict.fromkeys(task[2], outcome or _crashed("compile_failed"))
            self.progress("compile", done, len(tasks))
        return failed

    def _check(self) -> dict[int, Mapping[str, Any]]:
        """Check all results; returns the checks' cells by the rows' positions and records wrong rows."""
        checked: dict[int, Mapping[str, Any]] = {}
        left = self.left
        tasks = (RowsTask(job=self._job, rows=rows) for rows in cut(left, self.options, len(self.cards)))
        for task, reply in Stream(self.client, check, CARD, self._in_time).results(tasks):
            for index, row in task.rows:
                outcome = reply.outcomes[index] if reply else _crashed("crashed")
                if outcome.disposition == "ok":
                    checked[index] = outcome.values
                else:
                    self._record(table_cells(row, outcome, {}, self._card(reply), index))
            self.progress("check", len(checked), len(left))
        return checked

    def _time(self, checked: Mapping[int, Mapping[str, Any]]) -> None:
        left = [(index, row) for index, row in self.left if index in checked]
        job = replace(self._job, sentinel=sentinel_of(self.rows))
        tasks = (
            RowsTask(job=job, rows=rows, checked={index: checked[index] for index, _ in rows})
            for rows in cut(left, self.options, len(self.cards))
        )
        self.progress("time", len(self.journal.done), len(self.rows))
        for task, reply in Stream(self.client, measure, CARD, self._in_time).results(tasks):
            if reply is None:
                for index, row in task.rows:
                    self._record(table_cells(row, _crashed("crashed"), {}, self._card(None), index))
            else:
                new = {place: line for place, line in reply.lines.items() if place not in self.journal.done}
                self.journal.extend(new)
                self.dispositions.update(reply.dispositions[place] for place in new)
                self._watch(reply)
            self.progress("time", len(self.journal.done), len(self.rows))

    def _watch(self, reply: CardReply) -> None:
        """Keep a card's sentinel; a card that has come later is noted with it."""
        if not reply.sentinel:
            return
        uuid = str(reply.card["gpu_uuid"])
        self.cards.setdefault(uuid, dict(reply.card))
        self.readings.setdefault(uuid, []).extend(dict(reading) for reading in reply.sentinel)
        if time.monotonic() >= self._next_note:
            self.journal.note(provenance=self._provenance(), card_remarks=remarks_on(self.readings))
            self._next_note = time.monotonic() + NOTE_EVERY_S

    def _record(self, cells: Mapping[str, Any]) -> None:
        if int(cells["order"]) in self.journal.done:
            return
        self.journal.append(cells)
        self.dispositions[str(cells["disposition"])] += 1

    def _card(self, reply: CardReply | None) -> Mapping[str, Any]:
        return reply.card if reply else next(iter(self.cards.values()))

    def _provenance(self) -> dict[str, Any]:
        known = dict(self.journal.record.provenance)
        known["cards"] = {**known.get("cards", {}), **self.cards}
        return known | {"sentinel": self.readings, "done": len(self.journal.done), "last": timestamp()}

    def _in_time(self) -> bool:
        return time.monotonic() < self._deadline


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


def _compile_first(task: tuple[Job, Row, Sequence[int]]) -> Outcome:
    return compile_kernel(task[:2])


def _crashed(disposition: str) -> Outcome:
    return Outcome(disposition=disposition, detail=f"{DEATHS} workers or more were lost with it")
