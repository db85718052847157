"""Event simulation of one tile of an attention kernel on its SM.

A producer and consumer groups are warps that keep busy for a while or wait for a barrier (`timeline.simulator`).
Tensor cores and SFU serve them in the order of arrival. The simulation shares no code with the recurrences, so each
checks the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gemm_model.attention.batch import batch_of
from gemm_model.attention.model import AttentionModel, demand_of, stages_at
from gemm_model.attention.pipeline import StageTimes
from gemm_model.attention.silicon import silicon_of
from gemm_model.attention.tiles import key_blocks, query_blocks
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.prediction import Prediction
from gemm_model.errors import InputError
from gemm_model.pipeline.machine import PS_PER_US
from gemm_model.timeline.simulator import Barrier, Clock, Span, Timeline, Warp, stages_taken

_CAUSES = {"softmax": "scores", "exponentials": "the SFU", "correction": "outputs"}
MOST_BLOCKS = 256
"""Key blocks of a tile that are drawn [blocks]; long sequences; chosen: later ones repeat."""
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
    full: dict[str, Barrier] = field(default_factory=lambda: {"k": Barrier(1), "v": Barrier(1)})
    free: dict[str, Barrier] = field(default_factory=dict)
    unit_free: dict[str, float] = field(default_factory=dict)
    group_free: dict[int, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = {operand: Barrier(self.groups) for operand in "kv"}

    def busy(self, kind: str, block: int, group: int = -1) -> float:
        """Time until a piece of work is done that begins now, or once its unit is free."""
        length = float(getattr(self.times, kind))
        unit = UNITS.get(kind, "")
        start = max(self.clock.now, self.unit_free.get(unit, 0.0)) if unit else self.clock.now
        self.unit_free[unit] = end = start + length
        # A group's products stand apart from its other work, as `timeline.views` draws them.
        track = f"{'MMAs' if unit == 'tensor' else 'consumer'} {group + 1}"
        span = Span(warp=track if group >= 0 else "DMA", kind=kind, start=start, end=end, step=block + 1)
        if kind in _CAUSES:
            before = self.group_free.get(group, start)
            if start > before:
                self.spans.append(replace(span, kind="wait", start=before, end=start, reason=_CAUSES[kind]))
            self.group_free[group] = end
        self.spans.append(span)
        return end - self.clock.now

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
            yield max(scores - self.clock.now, 0.0)
            self.free["k"].arrive(self.clock)
            yield from self.softmax(block, group)
            yield max(outputs - self.clock.now, 0.0)
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


def simulate_tile(times: StageTimes, *, groups: int, stages: int, overlap: bool, blocks: int) -> list[Span]:
    """The spans of one tile of `blocks` key blocks [clk], ordered by start; `step` is the key block, from 1.

    `times` are scalars.
    """
    tile = _Tile(times, groups, stages, blocks, overlap)
    tile.clock.resume(tile.producer())
    for group in range(groups):
        tile.clock.resume(tile.overlapping(group) if overlap else tile.alternating(group))
    tile.clock.run()
    return sorted(tile.spans, key=lambda span: (span.start, span.end))


def simulate_kernel(
    problem: AttentionProblem, config: AttentionConfig, model: AttentionModel
) -> tuple[Timeline, int, Prediction]:
    """The longest tile of a kernel on its SM, how many key blocks it reads, and the kernel's prediction.

    The timeline begins with the first load and ends with the last product of at most MOST_BLOCKS key blocks.
    Raises InputError if the kernel cannot run or reads no key.
    """
    prediction = model.predict([(problem, config)]).row(0)
    batch = batch_of([(problem, config)], model.gpu)
    blocks = key_blocks(batch, query_blocks(batch) - 1.0)
    row = int(blocks.argmax())
    if not blocks[row]:
        raise InputError(f"{problem.name} reads no key; expected a tile to draw")
    demand = demand_of(batch, silicon_of(model.gpu, problem.dtype.math_kind), model.numbers)
    clock = np.full(len(batch), prediction.details["sm_clk_mhz"])
    stages = stages_at(demand, clock, np.minimum(demand.tiles, model.gpu.sm_count))
    rings = int(batch.stages[row])
    spans = simulate_tile(
        StageTimes(**{name: float(getattr(stages, name)[row]) for name in StageTimes.__slots__}),
        groups=1 if batch.apart[row] else int(demand.groups[row]),
        stages=rings,
        overlap=bool(batch.overlap_in_group[row]),
        blocks=int(min(blocks[row], MOST_BLOCKS)),
    )
    scale = PS_PER_US / clock[row]
    drawn = [replace(span, start=span.start * scale, end=span.end * scale) for span in spans]
    freed = {span.step: span.end for span in drawn if span.kind == "qk"}
    taken = stages_taken((span.start for span in drawn if span.kind == "load_k"), freed.values())
    end = max(span.end for span in drawn)
    timeline = Timeline(spans=tuple(drawn), occupancy=tuple(taken), end=end, stages=rings)
    return timeline, int(blocks[row]), prediction
