"""Event simulation of one tile of an attention kernel on its SM.

A producer and consumer groups are warps that keep busy for a while or wait for a barrier (`timeline.simulator`).
Tensor cores and SFU serve them in the order of arrival. The simulation shares no code with the recurrences, so each
checks the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gemm_model.attention.pipeline import StageTimes
from gemm_model.timeline.simulator import Barrier, Clock, Span, Warp

UNITS = {"qk": "tensor", "pv": "tensor", "exponentials": "sfu"}
"""Units that groups share, by what they do."""


@dataclass(slots=True)
class _Tile:
    """One tile: a producer, consumer groups, and the barriers between them; times in clk."""

    times: StageTimes
    groups: int
    stages: int
    blocks: int
    overlap: bool
    clock: Clock = field(default_factory=Clock)
    turns: Barrier = field(default_factory=partial(Barrier, 1))
    full: dict[str, Barrier] = field(default_factory=dict)
    free: dict[str, Barrier] = field(default_factory=dict)
    unit_free: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def run(self) -> None:
        for operand in "kv":
            self.full[operand], self.free[operand] = Barrier(1), Barrier(self.groups)
        self.clock.resume(self.producer())
        for group in range(self.groups):
            self.clock.resume(self.overlapping(group) if self.overlap else self.alternating(group))
        self.clock.run()

    def busy(self, kind: str, block: int, group: int = -1) -> float:
        """Time until a piece of work is done that begins now, or once its unit is free."""
        length = float(getattr(self.times, kind))
        unit = UNITS.get(kind, "")
        start = max(self.clock.now, self.unit_free.get(unit, 0.0)) if unit else self.clock.now
        self.unit_free[unit] = start + length
        warp = "producer" if group < 0 else f"group {group}"
        self.spans.append(Span(warp=warp, kind=kind, start=start, end=start + length, step=block + 1))
        return start + length - self.clock.now

    def left(self, end: float) -> float:
        return max(end - self.clock.now, 0.0)

    def producer(self) -> Warp:
        """Loads K0 K1 V0 K2 V1 ... where groups overlap, else K0 V0 K1 V1 ..."""
        ahead = int(self.overlap)
        for step in range(self.blocks + ahead):
            for operand, block in (("k", step), ("v", step - ahead)):
                if 0 <= block < self.blocks:
                    yield self.free[operand], block - self.stages + 1
                    yield self.busy(f"load_{operand}", block)
                    arrival = self.clock.now + float(self.times.latency)
                    self.clock.at(arrival, partial(self.full[operand].arrive, self.clock))

    def softmax(self, block: int, group: int) -> Warp:
        yield self.busy("softmax", block, group)
        yield self.busy("exponentials", block, group)

    def overlapping(self, group: int) -> Warp:
        yield self.full["k"], 1
        yield self.busy("qk", 0, group)
        self.free["k"].arrive(self.clock)
        yield from self.softmax(0, group)
        for block in range(1, self.blocks):
            yield self.full["k"], block + 1
            yield self.turns, (block - 1) * self.groups + group
            scores = self.clock.now + self.busy("qk", block, group)
            yield self.full["v"], block
            outputs = self.clock.now + self.busy("pv", block - 1, group)
            self.turns.arrive(self.clock)
            yield self.left(scores)
            self.free["k"].arrive(self.clock)
            yield from self.softmax(block, group)
            yield self.left(outputs)
            self.free["v"].arrive(self.clock)
            yield self.busy("correction", block, group)
        yield self.full["v"], self.blocks
        yield self.busy("pv", self.blocks - 1, group)

    def alternating(self, group: int) -> Warp:
        yield self.turns, group
        for block in range(self.blocks):
            yield self.full["k"], block + 1
            scores = self.busy("qk", block, group)
            self.turns.arrive(self.clock)
            yield scores
            self.free["k"].arrive(self.clock)
            yield from self.softmax(block, group)
            yield self.busy("correction", block, group)
            yield self.full["v"], block + 1
            yield self.turns, (block + 1) * self.groups + group
            yield self.busy("pv", block, group)
            self.free["v"].arrive(self.clock)
        self.turns.arrive(self.clock)


def simulate_tile(
    times: StageTimes, *, groups: int, stages: int, overlap: bool, blocks: int
) -> tuple[Span, ...]:
    """The spans of one tile of `blocks` key blocks [clk], ordered by start; `step` is the key block, from 1.

    `times` are scalars.
    """
    tile = _Tile(times, groups, stages, blocks, overlap)
    tile.run()
    return tuple(sorted(tile.spans, key=lambda span: (span.start, span.end)))
