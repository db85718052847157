"""The tile problem as an SMT query: Z3 finds the best tile and ring buffer and proves that none is better.

The encoding is the paper's: whole numbers, the event starts S_a, S_b, S_m as arrays that are indexed by a
variable, so that the size of the ring is unknown too. Each `max` of the recurrences becomes two `>=`: a
tile's least solution of the inequalities is its true time, so that "no solution below T" is a proof of "no
tile faster than T", and Z3 need not split cases for the maxima. The time of a tile that Z3 proposes is
computed from the recurrences, then Z3 is asked for a better one until there is none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from gemm_model.errors import InputError, importing, require_one_of
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import Number, PipelineKernel, PipelineMachine, Workload, workload
from gemm_model.solve.exact import OBJECTIVES, Choice

DEFAULT_TIMEOUT_S = 60.0
TIMES = ("load_a", "load_b", "math", "last_load_a", "last_load_b", "latency", "extra")

Tile = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtSolution:
    """The best choice found; `proven` unless the time ran out before Z3 showed that none is better."""

    best: Choice
    proven: bool
    queries: int


def solve_smt(
    sizes: tuple[int, int, int],
    machine: PipelineMachine,
    objective: str = "time",
    *,
    batch: int = 1,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> SmtSolution:
    """The choice of `exact.solve_exact`, by Z3, with the same order among ties.

    Only for consumers 'single', the paper's schedule. Raises InputError where no tile is legal or where the
    time ran out before the first one was found, MissingExtraError without Z3.
    """
    require_one_of(f"objective is {objective!r}", objective, OBJECTIVES)
    if machine.consumers != "single":
        raise InputError(
            f"consumers {machine.consumers}; the SMT encoding covers the paper's schedule, consumers single"
        )
    if not timeout_s > 0:
        raise InputError(f"a time-out of {timeout_s:g} s; expected a positive number of seconds")
    with importing("the SMT solver needs z3; install gemm-model[smt]"):
        import z3

    deadline = time.monotonic() + timeout_s
    query = _Query(z3, (*sizes, batch), machine, objective)
    best: Choice | None = None
    queries = 0
    while True:
        left_ms = int((deadline - time.monotonic()) * 1e3)
        query.solver.set("timeout", max(left_ms, 1))
        answer = query.solver.check()
        queries += 1
        if answer == z3.sat:
            best = query.choice()
            query.ask_for_better_than(best)
            continue
        proven = answer == z3.unsat
        if best is None:
            raise InputError(
                f"machine {machine.name}: the query is unsatisfiable, no tile and ring fit"
                if proven
                else f"no tile found within {timeout_s:g} s"
            )
        return SmtSolution(best=best, proven=proven, queries=queries)


class _Query:
    """The unknowns and constraints of one problem on one machine."""

    def __init__(self, z3: Any, problem: Sequence[int], machine: PipelineMachine, objective: str) -> None:
        self._z3 = z3
        self._machine = machine
        self._objective = objective
        self._problem = dict(zip(("m", "n", "k", "batch"), problem, strict=True))
        self.solver = z3.Solver()
        space = machine.tiles
        self._tile = z3.Ints("tile_m tile_n tile_k")
        self._stages = z3.Int("stages")
        self._steps, self._waves, self._goal = z3.Ints("steps waves goal")
        self._stage_bytes, self._ring_bytes = z3.Ints("stage_bytes ring_bytes")
        add = self.solver.add
        offered = (space.tile_m, space.tile_n, space.tile_k, range(1, space.max_stages + 1))
        for unknown, sizes in zip((*self._tile, self._stages), offered, strict=True):
            add(z3.Or([unknown == size for size in sizes]))
        # Bytes in eighths: 4- and 6-bit elements take no whole number of bytes.
        a_bits, b_bits = (round(8 * float(x)) for x in (machine.a_element_bytes, machine.b_element_bytes))
        works: dict[Tile, Workload] = {}
        for tile_m, tile_n, tile_k in product(space.tile_m, space.tile_n, space.tile_k):
            tile = (tile_m, tile_n, tile_k)
            if tile_m * tile_n > space.max_accumulators:
                add(z3.Not(self._equal(self._tile, tile)))
                continue
            work = works[tile] = self._work(tile, 1)
            stage = (tile_m * a_bits + tile_n * b_bits) * tile_k
            self._of_tile(
                tile, (self._stage_bytes, self._steps, self._waves), (stage, work.steps, work.waves)
            )
        for stages in range(1, space.max_stages + 1):
            add(z3.Implies(self._stages == stages, self._ring_bytes == stages * self._stage_bytes))
        add(self._ring_bytes <= 8 * space.smem_bytes)
        self._add_goal(works)

    def _equal(self, unknowns: Sequence[Any], values: Sequence[Number]) -> Any:
        pairs = zip(unknowns, values, strict=True)
        return self._z3.And([unknown == int(value) for unknown, value in pairs])

    def _of_tile(self, tile: Tile, unknowns: Sequence[Any], values: Sequence[Number]) -> None:
        """What unknowns are with a tile."""
        self.solver.add(self._z3.Implies(self._equal(self._tile, tile), self._equal(unknowns, values)))

    def _work(self, tile: Tile, stages: int) -> Workload:
        tile_m, tile_n, tile_k = tile
        sizes = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "stages": stages}
        return workload(self._machine, PipelineKernel(**self._problem, **sizes))

    def _add_goal(self, works: dict[Tile, Workload]) -> None:
        """The goal is the time, or the consumers' waiting, summed over the waves."""
        z3, add = self._z3, self.solver.add
        full = self._wave("full", works)
        full_steps = [(work.full, work.full_last) for work in works.values()]
        tail_steps = [(work.tail, work.tail_last) for work in works.values()]
        tail = full if tail_steps == full_steps else self._wave("tail", works)
        launch = next((int(work.init) for work in works.values()), 0) if self._objective == "time" else 0
        for waves in sorted({int(work.waves) for work in works.values()}):
            add(z3.Implies(self._waves == waves, self._goal == (waves - 1) * full + tail + launch))

    def _wave(self, kind: str, works: dict[Tile, Workload]) -> Any:
        """Contribution of a wave ('full' or 'tail') to the goal; adds the inequalities of its recurrence."""
        *times, latency, extra = unknowns = [self._z3.Int(f"{kind}_{part}") for part in TIMES]
        most_steps = 0
        for tile, work in works.items():
            regular, last = (work.tail, work.tail_last) if kind == "tail" else (work.full, work.full_last)
            steps = int(work.steps)
            most_steps = max(most_steps, steps)
            # Besides the start of the last math: its length and the epilogue, or less the math before it.
            counted = int(last.math) if self._machine.counts_last_math else 0
            added = (
                counted + int(work.epilogue)
                if self._objective == "time"
                else -(steps - 1) * int(regular.math)
            )
            loads = (regular.load_a, regular.load_b, regular.math, last.load_a, last.load_b)
            self._of_tile(tile, unknowns, (*loads, work.latency, added))
        return self._last_math_start(kind, most_steps, times, latency) + extra

    def _last_math_start(self, kind: str, most_steps: int, times: Sequence[Any], latency: Any) -> Any:
        """When a wave's last math starts: the recurrences of its steps as inequalities."""
        z3, add, machine = self._z3, self.solver.add, self._machine
        load_a, load_b, math, last_a, last_b = times
        whole = z3.IntSort()
        start_a, start_b, start_m = (z3.Array(f"{kind}_S_{part}", whole, whole) for part in "abm")
        add(start_a[1] >= 0, start_b[1] >= 0)
        for step in range(1, most_steps + 1):
            this_a = z3.If(self._steps == step, last_a, load_a)
            this_b = z3.If(self._steps == step, last_b, load_b)
            add(start_m[step] >= start_a[step] + this_a + latency)
            add(start_m[step] >= start_b[step] + this_b + latency)
            if machine.dma_warps == 1:
                add(start_b[step] >= start_a[step] + this_a)
            if step == 1:
                continue
            freed = start_m[step - self._stages] + math
            add(
                z3.Implies(self._stages < step, z3.And(start_a[step] >= freed, start_b[step] >= freed)),
                start_m[step] >= start_m[step - 1] + math,
            )
            if machine.dma_warps == 1:
                add(start_a[step] >= start_b[step - 1] + load_b)
            else:
                add(start_a[step] >= start_a[step - 1] + load_a, start_b[step] >= start_b[step - 1] + load_b)
        return start_m[self._steps]

    def choice(self) -> Choice:
        """The tile and ring that Z3 proposes, with their times from the recurrences."""
        model = self.solver.model()
        tile_m, tile_n, tile_k, stages = (
            model.eval(unknown).as_long() for unknown in (*self._tile, self._stages)
        )
        work = self._work((tile_m, tile_n, tile_k), stages)
        starts = recurrence.run(work, self._machine)
        wait = 0.0
        for wave in range(int(work.waves)):
            begun = starts.epilogue[wave - 1] + work.epilogue if wave else 0.0
            wait += starts.math[wave, -1] - begun - (work.steps - 1) * work.full.math
        return Choice(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=tile_k,
            stages=stages,
            time_ps=int(starts.end),
            wait_ps=int(wait),
        )

    def ask_for_better_than(self, best: Choice) -> None:
        """Require a smaller goal or, at an equal goal, a smaller ring, then a taller and narrower tile."""
        z3 = self._z3
        goal = best.time_ps if self._objective == "time" else best.wait_ps
        model = self.solver.model()
        ring = model.eval(self._ring_bytes).as_long()
        tile_m, tile_n, tile_k = self._tile
        order = [
            (self._ring_bytes, ring),
            (-tile_m, -best.tile_m),
            (tile_n, best.tile_n),
            (tile_k, best.tile_k),
        ]
        better = z3.BoolVal(False)
        for value, reached in reversed(order):
            better = z3.Or(value < reached, z3.And(value == reached, better))
        self.solver.add(self._goal <= goal, z3.Or(self._goal < goal, better))
