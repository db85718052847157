"""Event simulation of one tile of an attention kernel on its SM.

Warps are processes that work for some clocks or wait for a barrier. Tensor cores and SFU are queues that serve
in the order of arrival. The simulation shares no code with the recurrences, so each checks the other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from gemm_model.attention.pipeline import StageTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpan:
    """Activity of a warp or unit between two times [clk], on key block `block` (from 0) of group `group`.

    `kind` is load_k, load_v, qk, softmax, exponentials, pv, correction or store; the producer is group -1.
    """

    kind: str
    start: float
    end: float
    block: int
    group: int = -1


class _Event:
    """An event that happens once; processes can wait for it."""

    __slots__ = ("happened", "waiting")

    def __init__(self) -> None:
        self.happened = False
        self.waiting: list[_Process] = []


_Process = Generator["float | _Event", None, None]


@dataclass(slots=True)
class _Clock:
    now: float = 0.0
    queue: list[tuple[float, int, _Process]] = field(default_factory=list)
    tickets: int = 0

    def at(self, time: float, process: _Process) -> None:
        self.tickets += 1
        heapq.heappush(self.queue, (time, self.tickets, process))

    def signal(self, event: _Event) -> None:
        event.happened = True
        for process in event.waiting:
            self.at(self.now, process)
        event.waiting.clear()

    def run(self) -> None:
        while self.queue:
            self.now, _, process = heapq.heappop(self.queue)
            step = next(process, None)
            while isinstance(step, _Event) and step.happened:
                step = next(process, None)
            if isinstance(step, _Event):
                step.waiting.append(process)
            elif step is not None:
                self.at(self.now + step, process)


@dataclass(slots=True)
class _Unit:
    """A unit that serves one request at a time, in the order of arrival."""

    clock: _Clock
    idle: bool = True
    requests: deque[tuple[str, float, int, int, _Event]] = field(default_factory=deque)
    spans: list[AttentionSpan] = field(default_factory=list)

    def ask(self, kind: str, length: float, block: int, group: int) -> _Event:
        """Queue a request; returns the event of its end."""
        done = _Event()
        self.requests.append((kind, length, block, group, done))
        if self.idle:
            self.idle = False
            self.clock.at(self.clock.now, self._serve())
        return done

    def _serve(self) -> _Process:
        while self.requests:
            kind, length, block, group, done = self.requests.popleft()
            start = self.clock.now
            yield length
            self.spans.append(
                AttentionSpan(kind=kind, start=start, end=self.clock.now, block=block, group=group)
            )
            self.clock.signal(done)
        self.idle = True


class _Tile:
    """One tile: a producer, consumer groups, and the barriers between them."""

    def __init__(
        self, times: StageTimes, *, groups: int, stages: int, overlap: bool, blocks: int, store: float
    ) -> None:
        self.times, self.groups, self.stages, self.blocks, self.store = times, groups, stages, blocks, store
        self.overlap = overlap
        self.clock = _Clock()
        self.tensor, self.sfu = _Unit(self.clock), _Unit(self.clock)
        self.spans: list[AttentionSpan] = []
        self.full = {(operand, block): _Event() for operand in "kv" for block in range(blocks)}
        self.free = {key: _Event() for key in self.full}
        self.consumed = dict.fromkeys(self.full, 0)
        self.turns = [_Event() for _ in range((blocks + 1) * groups + 1)]
        self.clock.signal(self.turns[0])

    def run(self) -> None:
        self.clock.at(0.0, self.producer())
        for group in range(self.groups):
            self.clock.at(0.0, self.overlapping(group) if self.overlap else self.alternating(group))
        self.clock.run()

    def span(self, kind: str, start: float, block: int, group: int) -> None:
        self.spans.append(AttentionSpan(kind=kind, start=start, end=self.clock.now, block=block, group=group))

    def producer(self) -> _Process:
        last = self.blocks - 1
        order = [pair for block in range(self.blocks) for pair in (("k", block), ("v", block))]
        if self.overlap:
            ahead = [pair for block in range(last) for pair in (("k", block + 1), ("v", block))]
            order = [("k", 0), *ahead, ("v", last)]
        for operand, block in order:
            if block >= self.stages:
                yield self.free[operand, block - self.stages]
            start = self.clock.now
            yield float(self.times.load_k if operand == "k" else self.times.load_v)
            self.span(f"load_{operand}", start, block, -1)
            self.clock.at(self.clock.now, self.arrival(operand, block))

    def arrival(self, operand: str, block: int) -> _Process:
        yield float(self.times.latency)
        self.clock.signal(self.full[operand, block])

    def release(self, operand: str, block: int) -> None:
        self.consumed[operand, block] += 1
        if self.consumed[operand, block] == self.groups:
            self.clock.signal(self.free[operand, block])

    def pass_on(self, turn: int, group: int) -> None:
        self.clock.signal(self.turns[turn * self.groups + group + 1])

    def softmax(self, block: int, group: int) -> _Process:
        start = self.clock.now
        yield float(self.times.softmax)
        self.span("softmax", start, block, group)
        yield self.sfu.ask("exponentials", float(self.times.exponentials), block, group)

    def correct(self, block: int, group: int) -> _Process:
        start = self.clock.now
        yield float(self.times.correction)
        self.span("correction", start, block, group)

    def last_product(self, group: int) -> _Process:
        last = self.blocks - 1
        yield self.full["v", last]
        yield self.tensor.ask("pv", float(self.times.pv), last, group)
        self.release("v", last)

    def stored(self, group: int) -> _Process:
        start = self.clock.now
        yield self.store
        self.span("store", start, self.blocks - 1, group)

    def overlapping(self, group: int) -> _Process:
        qk, pv = float(self.times.qk), float(self.times.pv)
        yield self.full["k", 0]
        yield self.tensor.ask("qk", qk, 0, group)
        self.release("k", 0)
        yield from self.softmax(0, group)
        for block in range(1, self.blocks):
            yield self.full["k", block]
            yield self.turns[(block - 1) * self.groups + group]
            scores = self.tensor.ask("qk", qk, block, group)
            yield self.full["v", block - 1]
            outputs = self.tensor.ask("pv", pv, block - 1, group)
            self.pass_on(block - 1, group)
            yield scores
            self.release("k", block)
            yield from self.softmax(block, group)
            yield outputs
            self.release("v", block - 1)
            yield from self.correct(block, group)
        yield from self.last_product(group)
        yield from self.stored(group)

    def alternating(self, group: int) -> _Process:
        qk, pv = float(self.times.qk), float(self.times.pv)
        for block in range(self.blocks):
            if block == 0:
                yield self.turns[group]
            yield self.full["k", block]
            scores = self.tensor.ask("qk", qk, block, group)
            self.pass_on(block, group)
            yield scores
            self.release("k", block)
            yield from self.softmax(block, group)
            yield from self.correct(block, group)
            yield self.full["v", block]
            yield self.turns[(block + 1) * self.groups + group]
            yield self.tensor.ask("pv", pv, block, group)
            self.release("v", block)
        self.pass_on(self.blocks, group)
        yield from self.stored(group)


def simulate_tile(
    times: StageTimes, *, groups: int, stages: int, overlap: bool, blocks: int, store: float = 0.0
) -> tuple[AttentionSpan, ...]:
    """The spans of one tile of `blocks` key blocks, ordered by start.

    `times` are scalars; `store` is the time in which a group writes its rows of O [clk].
    """
    tile = _Tile(times, groups=groups, stages=stages, overlap=overlap, blocks=blocks, store=store)
    tile.run()
    spans = [*tile.spans, *tile.tensor.spans, *tile.sfu.spans]
    return tuple(sorted(spans, key=lambda span: (span.start, span.end)))
