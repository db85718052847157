"""Event simulation of one SM's producer/consumer pipeline.

Warps are processes that keep busy for a while or wait for a barrier; a queue of events moves the clock.
Stages of the ring are handed over as the hardware does it: the transfers of A and B arrive at a stage's full
barrier, the consumer arrives at its empty barrier, and each waits for the other's phase. Nothing of the
recurrences is used here, so that the two check each other.

All SMs run alike: an SM differs from the busiest one only in that it may have no tile in the last wave. So
one SM is simulated, and the others are copies of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise

from gemm_model.errors import InputError
from gemm_model.pipeline.machine import PS_PER_US, PipelineMachine, StepTimes, Workload

MAX_EVENTS = 2_000_000
"""Longest timeline [events]; simulations; beyond it memory fills, and the closed form gives the time of any
size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One activity or wait of a warp; times in ps from the kernel's launch.

    `kind` is load_a, load_b, math, epilogue, init, or wait; `wave` and `step` count from 1, `slot` from 0;
    step 0 is the whole tile, wave 0 the whole kernel. `reason` is the cause of a wait.
    """

    warp: str
    kind: str
    start: float
    end: float
    wave: int = 0
    step: int = 0
    slot: int = -1
    reason: str = ""

    @property
    def length_us(self) -> float:
        return (self.end - self.start) / PS_PER_US

    @property
    def what(self) -> str:
        """The activity, or the wait with its cause."""
        return f"wait for {self.reason}" if self.kind == "wait" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All spans of one SM in the order of their start, and the occupancy of the ring over time."""

    spans: tuple[Span, ...]
    occupancy: tuple[tuple[float, int], ...]
    """(time in ps, stages taken from then on)"""
    end: float
    stages: int

    @property
    def runtime_us(self) -> float:
        return self.end / PS_PER_US

    def consumer_wait(self) -> float:
        """Total time in ps that consumers waited."""
        waits = (span for span in self.spans if span.kind == "wait" and span.warp.startswith("consumer"))
        return sum(span.end - span.start for span in waits)

    def occupancy_share(self) -> dict[int, float]:
        """Share of the time from the first to the last change that each number of stages was taken."""
        spent: dict[int, float] = {}
        for (start, taken), (stop, _) in pairwise(self.occupancy):
            spent[taken] = spent.get(taken, 0.0) + stop - start
        total = sum(spent.values())
        return {taken: spent[taken] / total for taken in sorted(spent)} if total else {}


class Barrier:
    """Counts arrivals; every `count` of them complete a phase and wake those who wait for it."""

    __slots__ = ("_arrived", "_count", "_waiting", "phase")

    def __init__(self, count: int) -> None:
        self.phase = 0
        self._count = count
        self._arrived = 0
        self._waiting: list[tuple[int, Warp]] = []

    def arrive(self, clock: Clock) -> None:
        self._arrived += 1
        if self._arrived == self._count:
            self._arrived = 0
            self.phase += 1
            waiting, self._waiting = self._waiting, []
            for phase, warp in waiting:
                self.wait(clock, phase, warp)

    def wait(self, clock: Clock, phase: int, warp: Warp) -> None:
        if self.phase >= phase:
            clock.resume(warp)
        else:
            self._waiting.append((phase, warp))


Step = float | tuple[Barrier, int]
Warp = Generator[Step, None, None]


@dataclass(slots=True)
class Clock:
    """The queue of events: warps that go on at a time, and transfers that arrive."""

    now: float = 0.0
    _queue: list[tuple[float, int, Warp | Callable[[], None]]] = field(default_factory=list)
    _tickets: int = 0

    def at(self, time: float, event: Warp | Callable[[], None]) -> None:
        self._tickets += 1
        heapq.heappush(self._queue, (time, self._tickets, event))

    def resume(self, warp: Warp) -> None:
        self.at(self.now, warp)

    def run(self) -> None:
        while self._queue:
            self.now, _, event = heapq.heappop(self._queue)
            if callable(event):
                event()
                continue
            step = next(event, None)
            if isinstance(step, tuple):
                step[0].wait(self, step[1], event)
            elif step is not None:
                self.at(self.now + step, event)


@dataclass(slots=True)
class _Sm:
    """One SM: its clock, the ring's barriers, and the recorded spans."""

    machine: PipelineMachine
    work: Workload
    clock: Clock
    spans: list[Span] = field(default_factory=list)
    occupancy: list[tuple[float, int]] = field(default_factory=list)
    full: list[Barrier] = field(default_factory=list)
    empty: list[Barrier] = field(default_factory=list)

    def new_ring(self) -> None:
        stages = int(self.work.stages)
        self.full = [Barrier(2) for _ in range(stages)]
        self.empty = [Barrier(1) for _ in range(stages)]

    def times(self, wave: int, step: int) -> StepTimes:
        tail, last = wave == int(self.work.waves), step == int(self.work.steps)
        if tail:
            return self.work.tail_last if last else self.work.tail
        return self.work.full_last if last else self.work.full

    def waited(self, warp: str, since: float, reason: str, wave: int, step: int = 0, slot: int = -1) -> None:
        if self.clock.now > since:
            place = {"wave": wave, "step": step, "slot": slot}
            wait = Span(warp=warp, kind="wait", start=since, end=self.clock.now, reason=reason, **place)
            self.spans.append(wait)

    def busy(self, warp: str, kind: str, length: float, wave: int, step: int = 0, slot: int = -1) -> float:
        now = self.clock.now
        self.spans.append(
            Span(warp=warp, kind=kind, start=now, end=now + length, wave=wave, step=step, slot=slot)
        )
        return length

    def run(self) -> None:
        """Run the warps that were started; notes how many stages of their ring were taken."""
        first = len(self.spans)
        self.clock.run()
        # A stage is taken from the first of its two loads on, until its math has ended.
        taken: dict[tuple[int, int], float] = {}
        for span in self.spans[first:]:
            if span.kind.startswith("load"):
                taken.setdefault((span.wave, span.step), span.start)
        freed = [span.end for span in self.spans[first:] if span.kind == "math"]
        self.occupancy += stages_taken(taken.values(), freed)

    def producer(self, warp: str, operands: str, first_wave: int, last_wave: int) -> Warp:
        """A DMA warp that loads the tiles of some operands for all k tiles of some waves."""
        work, stages = self.work, int(self.work.stages)
        full, empty = self.full, self.empty
        latency, steps = float(work.latency), int(work.steps)
        uses = 0
        for wave in range(first_wave, last_wave + 1):
            for step in range(1, steps + 1):
                slot, phase = uses % stages, uses // stages
                uses += 1
                times = self.times(wave, step)
                since = self.clock.now
                yield empty[slot], phase
                self.waited(warp, since, "a free stage", wave, step, slot)
                for operand in operands:
                    length = float(times.load_a if operand == "a" else times.load_b)
                    yield self.busy(warp, f"load_{operand}", length, wave, step, slot)
                    self.clock.at(self.clock.now + latency, partial(full[slot].arrive, self.clock))

    def mainloop(self, warp: str, wave: int, uses: int) -> Warp:
        """A consumer's math over the k tiles of one tile; `uses` counts the stages used before."""
        stages, full = int(self.work.stages), self.full
        for step in range(1, int(self.work.steps) + 1):
            slot, phase = uses % stages, uses // stages
            uses += 1
            since = self.clock.now
            yield full[slot], phase + 1
            self.waited(warp, since, "loaded data", wave, step, slot)
            yield self.busy(warp, "math", float(self.times(wave, step).math), wave, step, slot)
            self.empty[slot].arrive(self.clock)


def stages_taken(taken: Iterable[float], freed: Iterable[float]) -> list[tuple[float, int]]:
    """(time, stages taken from then on) of a ring, from the times at which stages are taken and freed."""
    times, changes = zip(*sorted([*((at, 1) for at in taken), *((at, -1) for at in freed)]), strict=True)
    return list(dict(zip(times, accumulate(changes), strict=True)).items())


def simulate(work: Workload, machine: PipelineMachine) -> Timeline:
    """Simulate the busiest SM; all fields of the workload are scalars.

    Raises InputError where there would be more events than fit.
    """
    events = 3 * int(work.waves) * int(work.steps)
    if events > MAX_EVENTS:
        raise InputError(
            f"{int(work.waves)} waves of {int(work.steps)} k tiles make {events} events; "
            f"expected at most {MAX_EVENTS}"
        )
    sm = _Sm(machine=machine, work=work, clock=Clock())
    sm.clock.now = float(work.init)
    if work.init > 0:
        sm.spans.append(Span(warp="launch", kind="init", start=0.0, end=float(work.init)))
    end = _restarting(sm) if machine.consumers == "single" else _persistent(sm)
    return Timeline(
        spans=tuple(sorted(sm.spans, key=lambda span: span.start)),
        occupancy=tuple(sm.occupancy),
        end=end,
        stages=int(work.stages),
    )


def _start_producers(sm: _Sm, first_wave: int, last_wave: int) -> None:
    if sm.machine.dma_warps == 1:
        sm.clock.resume(sm.producer("DMA", "ab", first_wave, last_wave))
        return
    for operand in "ab":
        sm.clock.resume(sm.producer(f"DMA {operand.upper()}", operand, first_wave, last_wave))


def _restarting(sm: _Sm) -> float:
    """One CTA after the other: each starts when the one before has stored its tile."""
    epilogue = float(sm.work.epilogue)
    for wave in range(1, int(sm.work.waves) + 1):
        sm.new_ring()
        _start_producers(sm, wave, wave)
        sm.clock.resume(sm.mainloop("consumer", wave, 0))
        sm.run()
        stored_from = sm.clock.now
        if not sm.machine.counts_last_math:
            stored_from = next(span.start for span in reversed(sm.spans) if span.kind == "math")
        sm.clock.now = stored_from
        sm.busy("consumer", "epilogue", epilogue, wave)
        sm.clock.now = stored_from + epilogue
    return sm.clock.now


def _persistent(sm: _Sm) -> float:
    """Consumers take tile after tile while the producers run ahead."""
    waves, steps = int(sm.work.waves), int(sm.work.steps)
    consumers = 2 if sm.machine.consumers == "pingpong" else 1
    sm.new_ring()
    math_turn, store_turn = Barrier(1), Barrier(1)

    def consumer(warp: str, first_wave: int) -> Warp:
        for wave in range(first_wave, waves + 1, consumers):
            since = sm.clock.now
            yield math_turn, wave - 1
            sm.waited(warp, since, "its turn at the tensor cores", wave)
            yield from sm.mainloop(warp, wave, (wave - 1) * steps)
            math_turn.arrive(sm.clock)
            since = sm.clock.now
            yield store_turn, wave - 1
            sm.waited(warp, since, "its turn to store", wave)
            yield sm.busy(warp, "epilogue", float(sm.work.epilogue), wave)
            store_turn.arrive(sm.clock)

    _start_producers(sm, 1, waves)
    for number in range(consumers):
        sm.clock.resume(consumer("consumer" if consumers == 1 else f"consumer {number + 1}", number + 1))
    sm.run()
    return sm.clock.now
