"""Closed forms of the pipeline's recurrences, whose cost does not depend on K.

k tile i = 1, 2, ... of a tile is loaded into stage i mod M of a ring with M stages, then multiplied:

    load start  X(i) = max(X(i-1) + load, Y(i-M) + math)
    math start  Y(i) = max(Y(i-1) + math, X(i) + load + latency)

`load` is how long a step keeps the producer busy: A and B together for one DMA warp, the longer of the two
for two (the slower warp starts no load earlier than the faster one, so that it alone decides). `latency` is
how much later the data are visible; the producer goes on meanwhile.

An event's time is the longest path to it through the recurrence, seen as a graph. A path alternates between
runs of loads, runs of math, crossings from a load to its math, and returns from a math to the load that waits
for its stage, M steps on. Each round trip (crossing and return) gains load + latency + math where M steps of
the slower of load and math would have gained as many times that. The difference is the same for each round
trip, so that a longest path takes either as few or as many as it can, and its length has a closed form.

The functions take scalars and arrays alike, in any one unit of time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from operator import itemgetter

import numpy as np

from gemm_model.core.batch import BoolArray, FloatArray
from gemm_model.core.elementwise import Values, floor, maximum, where
from gemm_model.pipeline.machine import Number, PipelineMachine, StepTimes, Workload


def time_per_k_tile(load: Values, latency: Values, math: Values, stages: Values) -> Values:
    """Time between k tiles once the pipeline is in its periodic regime.

    The largest mean weight of a cycle of the recurrence: the producer alone, the consumer alone, or a stage's
    round trip (load, latency, math), of which `stages` are in flight at a time.
    """
    return maximum(maximum(load, math), (load + latency + math) / stages)


def math_start(step: Values, load: Values, latency: Values, math: Values, stages: Values) -> Values:
    """When the math of a k tile (1, 2, ...) starts, in a pipeline that starts empty at time 0."""
    return _Paths(load, latency, math, stages).load_to_math(step - 1)


@dataclass(frozen=True, slots=True)
class _Paths:
    """Longest paths over `n` >= 0 k tiles of a uniform pipeline; -inf where there is none."""

    load: Values
    latency: Values
    math: Values
    stages: Values

    def load_to_math(self, n: Values) -> Values:
        slower = maximum(self.load, self.math)
        crossing = self.load + self.latency
        gain = maximum(crossing + self.math - self.stages * slower, 0.0)
        return where(n >= 0, crossing + n * slower + floor(n / self.stages) * gain, -np.inf)

    def load_to_load(self, n: Values) -> Values:
        direct = where(n >= 0, n * self.load, -np.inf)
        return maximum(direct, self.load_to_math(n - self.stages) + self.math)

    def math_to_math(self, n: Values) -> Values:
        direct = where(n >= 0, n * self.math, -np.inf)
        return maximum(direct, self.load_to_math(n - self.stages) + self.math)

    def math_to_load(self, n: Values) -> Values:
        left = n - self.stages
        direct = where(left >= 0, left * maximum(self.load, self.math), -np.inf)
        return self.math + maximum(direct, self.load_to_math(left - self.stages) + self.math)


def load_of_step(times: StepTimes, dma_warps: int) -> Number:
    """How long a k tile keeps the producer busy."""
    if dma_warps == 1:
        return times.load_a + times.load_b
    result: Number = np.maximum(times.load_a, times.load_b)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of the pipeline; ps, scalars or arrays."""

    end: Number
    """When the kernel is done, T_INIT included; equal to `recurrence.run(...).end`."""
    consumer_wait: Number
    """Total time that the busiest SM's consumers wait before their last epilogue.

    For restarting waves this is the paper's sum of Wait(i) over all k tiles and waves.
    """


def timing(work: Workload, machine: PipelineMachine) -> Timing:
    """Time of the kernel and waiting of its consumers.

    The cost does not depend on the number of k tiles. Where tiles follow each other without a pause
    (cooperative, pingpong) it grows with the ring, and with the tiles until their rhythm repeats.
    """
    busy_full = (work.steps - 1) * work.full.math + work.full_last.math
    busy_tail = (work.steps - 1) * work.tail.math + work.tail_last.math
    before = work.waves - 1
    if machine.consumers == "single":
        full, tail = _last_math_starts(work, machine)
        counted_full, counted_tail = (
            times.math if machine.counts_last_math else 0.0 for times in (work.full_last, work.tail_last)
        )
        return Timing(
            end=before * (full + counted_full + work.epilogue)
            + tail
            + counted_tail
            + work.epilogue
            + work.init,
            consumer_wait=before * (full + work.full_last.math - busy_full)
            + (tail + work.tail_last.math - busy_tail),
        )
    end, last_epilogue, epilogue_before = _persistent(work, machine)
    busy = before * busy_full + busy_tail
    if machine.consumers == "cooperative":
        return Timing(end=end, consumer_wait=last_epilogue - busy - before * work.epilogue)
    # Up to its last epilogue a consumer has done the math of all its tiles and all other epilogues.
    both = last_epilogue + np.where(work.waves > 1, epilogue_before, 0.0)
    return Timing(end=end, consumer_wait=both - busy - np.maximum(work.waves - 2, 0) * work.epilogue)


def kernel_time(work: Workload, machine: PipelineMachine) -> Number:
    """When the kernel is done, in ps: `timing(...).end`."""
    return timing(work, machine).end


def consumer_wait(work: Workload, machine: PipelineMachine) -> Number:
    """How long consumers wait, in ps: `timing(...).consumer_wait`."""
    return timing(work, machine).consumer_wait


def _last_math_starts(work: Workload, machine: PipelineMachine) -> tuple[Number, Number]:
    """Start of the last math of a tile that starts with an empty pipeline: in a full and in the last wave."""
    starts = []
    for regular, last in ((work.full, work.full_last), (work.tail, work.tail_last)):
        paths = _Paths(load_of_step(regular, machine.dma_warps), work.latency, regular.math, work.stages)
        before = np.where(work.steps > 1, paths.load_to_math(work.steps - 2) + regular.math, 0.0)
        loaded = paths.load_to_load(work.steps - 1) + load_of_step(last, machine.dma_warps) + work.latency
        starts.append(np.maximum(before, loaded))
    return starts[0], starts[1]


_BESIDE_THE_SLOTS = 6
"""Rows of a stacked `_State` that are not stages [1]; all machines; its fields."""


@dataclass(slots=True)
class _State:
    """State of the pipeline between two tiles; times in ps, one column for each kernel.

    `slots` (stages, rows) holds when the stages of the next steps become free, in ring order.
    """

    slots: FloatArray
    producer: FloatArray
    main_end: FloatArray
    epilogue_ends: FloatArray
    """Ends of the last two epilogues, the earlier first; shape (2, rows)."""
    epilogue_start: FloatArray
    epilogue_start_before: FloatArray

    def stacked(self) -> FloatArray:
        singles = [self.producer, self.main_end, self.epilogue_start, self.epilogue_start_before]
        return np.vstack([self.slots, self.epilogue_ends, *singles])

    @classmethod
    def of(cls, stacked: FloatArray, stages: int) -> _State:
        slots, ends, rest = np.split(stacked, [stages, stages + 2])
        return cls(slots, rest[0], rest[1], ends, rest[2], rest[3])


def _persistent(work: Workload, machine: PipelineMachine) -> tuple[FloatArray, FloatArray, FloatArray]:
    """End of the kernel, start of the last epilogue and of the one before it, for tiles without a pause."""
    sizes: set[int] = set()
    work.each(lambda v: sizes.add(np.size(v)))
    rows = work.each(lambda v: np.broadcast_to(np.asarray(v, dtype=np.float64), max(sizes)))
    ring = np.asarray(rows.stages)
    result = np.empty((3, len(ring)))
    for stages in np.unique(ring):
        alike = np.flatnonzero(ring == stages)
        result[:, alike] = _persistent_ring(rows.each(itemgetter(alike)), int(stages), machine)
    if np.ndim(work.waves) == 0 and len(ring) == 1:
        return result[0, 0], result[1, 0], result[2, 0]
    return result[0], result[1], result[2]


def _persistent_ring(work: Workload, stages: int, machine: PipelineMachine) -> FloatArray:
    """The kernels of one ring size, tile by tile; whole periods are skipped once the rhythm repeats."""
    left = np.asarray(work.waves) - 1
    states = np.zeros((stages + _BESIDE_THE_SLOTS, len(left)))
    running = np.flatnonzero(left > 0)
    tile = _Tile.of(work.each(itemgetter(running)), stages, machine, tail=False)
    history = [states[:, running]]
    while running.size:
        now = tile.after(_State.of(history[-1], stages)).stacked()
        left[running] -= 1
        # The system is max-plus linear: a state that equals an earlier one up to a shift repeats with that
        # period, so whole periods only add their shift.
        skipped = np.zeros(len(running), dtype=bool)
        shifts = np.zeros(len(running))
        for period, earlier in enumerate(reversed(history), start=1):
            shift = now - earlier
            repeats: BoolArray = (shift == shift[0]).all(axis=0) & ~skipped
            periods = np.floor(left[running[repeats]] / period)
            shifts[repeats] = periods * shift[0, repeats]
            left[running[repeats]] -= periods * period
            skipped |= repeats
        history.append(now + shifts)
        del history[: -stages - 2]
        done = left[running] == 0
        if done.any():
            states[:, running[done]] = history[-1][:, done]
            history = [earlier[:, ~done] for earlier in history]
            tile, running = tile.rows(~done), running[~done]
    last = _Tile.of(work, stages, machine, tail=True).after(_State.of(states, stages))
    return np.vstack([last.epilogue_ends[1] + work.init, last.epilogue_start, last.epilogue_start_before])


@dataclass(frozen=True, slots=True)
class _Tile:
    """How one tile advances the state: all k tiles but the last in closed form, the last by the recurrence.

    Path lengths to the tile's last k tiles; row d - 1 of a table reaches over `steps` - d steps.
    """

    steps: FloatArray
    load_to_math: FloatArray
    math_to_math: FloatArray
    load_to_load: FloatArray
    math_to_load: FloatArray
    math: FloatArray
    last_load: FloatArray
    last_math: FloatArray
    latency: FloatArray
    epilogue: FloatArray
    consumer_waits_for_own_epilogue: bool

    @classmethod
    def of(cls, work: Workload, stages: int, machine: PipelineMachine, *, tail: bool) -> _Tile:
        regular, last = (work.tail, work.tail_last) if tail else (work.full, work.full_last)
        steps = np.asarray(work.steps)
        paths = _Paths(load_of_step(regular, machine.dma_warps), work.latency, regular.math, float(stages))
        reach = steps - np.arange(1.0, 2 * stages + 1)[:, None]
        return cls(
            steps=steps,
            load_to_math=np.asarray(paths.load_to_math(reach)),
            math_to_math=np.asarray(paths.math_to_math(reach)),
            load_to_load=np.asarray(paths.load_to_load(reach[:stages])),
            math_to_load=np.asarray(paths.math_to_load(reach[0])),
            math=np.asarray(regular.math),
            last_load=np.asarray(load_of_step(last, machine.dma_warps)),
            last_math=np.asarray(last.math),
            latency=np.asarray(work.latency),
            epilogue=np.asarray(work.epilogue),
            consumer_waits_for_own_epilogue=machine.consumers == "cooperative",
        )

    def rows(self, kept: BoolArray) -> _Tile:
        """The tiles of some kernels."""
        names = [spec.name for spec in fields(self) if spec.type == "FloatArray"]
        tables = {name: getattr(self, name)[..., kept] for name in names}
        return replace(self, **tables)

    def after(self, state: _State) -> _State:
        stages = len(state.slots)
        epilogue_before = state.epilogue_ends[1 if self.consumer_waits_for_own_epilogue else 0]
        consumer = np.maximum(state.main_end, epilogue_before)

        def math_end(back: int) -> FloatArray:
            """End of the math `back` k tiles before the last."""
            start = (state.slots[:stages] + self.load_to_math[back : back + stages]).max(axis=0)
            np.maximum(start, state.producer + self.load_to_math[back], out=start)
            np.maximum(start, consumer + self.math_to_math[back], out=start)
            return np.asarray(start + self.math)

        # Stage releases after the tile: its own last k tiles', and earlier tiles' if it has fewer k tiles
        # than stages.
        slots = np.empty_like(state.slots)
        for back in range(1, stages):
            slots[stages - 1 - back] = math_end(back)
            missing = np.flatnonzero(self.steps <= back)
            earlier = (stages - 1 - back + self.steps[missing]).astype(np.int64)
            slots[stages - 1 - back, missing] = state.slots[earlier, missing]
        load_start = (state.slots + self.load_to_load).max(axis=0)
        np.maximum(load_start, state.producer + self.load_to_load[0], out=load_start)
        np.maximum(load_start, consumer + self.math_to_load, out=load_start)
        producer = load_start + self.last_load
        before = math_end(1) if stages == 1 else slots[stages - 2]
        start = np.maximum(producer + self.latency, np.where(self.steps > 1, before, consumer))
        slots[stages - 1] = start + self.last_math
        epilogue_start = np.maximum(slots[stages - 1], state.epilogue_ends[1])
        return _State(
            slots=slots,
            producer=producer,
            main_end=slots[stages - 1],
            epilogue_ends=np.vstack([state.epilogue_ends[1], epilogue_start + self.epilogue]),
            epilogue_start=epilogue_start,
            epilogue_start_before=state.epilogue_start,
        )
