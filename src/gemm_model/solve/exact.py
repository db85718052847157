"""Exact search: every legal tile and ring buffer, timed at once in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from gemm_model.core.batch import BoolArray, FloatArray
from gemm_model.errors import InputError, require_one_of
from gemm_model.pipeline.machine import PS_PER_US, PipelineKernel, PipelineMachine, workload
from gemm_model.pipeline.steady_state import Timing, timing

OBJECTIVES = ("time", "wait")
"""What is minimised: the run time, or the total waiting of the consumers (the paper's two goals)."""

KERNEL_FIELDS = ("tile_m", "tile_n", "tile_k", "stages")
"""What is chosen of a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Legal choices, one row each; sizes in elements."""

    tile_m: FloatArray
    tile_n: FloatArray
    tile_k: FloatArray
    stages: FloatArray
    ring_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.tile_m)

    def __getitem__(self, rows: BoolArray) -> Candidates:
        return Candidates(**{name: getattr(self, name)[rows] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A tile and ring buffer with what they come to; `time_ps` and `wait_ps` are whole numbers."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    time_ps: int
    wait_ps: int

    @property
    def runtime_us(self) -> float:
        return self.time_ps / PS_PER_US

    @property
    def wait_us(self) -> float:
        return self.wait_ps / PS_PER_US

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k} with {self.stages} stages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The optimum and the best choice with another tile; `candidates` counts what was compared."""

    best: Choice
    runner_up: Choice | None
    candidates: int


def legal_candidates(machine: PipelineMachine) -> Candidates:
    """Every tile that the accumulators hold, with every ring that shared memory holds.

    Raises InputError where nothing is legal.
    """
    space = machine.tiles
    axes = (space.tile_m, space.tile_n, space.tile_k, range(1, space.max_stages + 1))
    tile_m, tile_n, tile_k, stages = np.array(list(product(*axes)), dtype=np.float64).T
    ring = stages * (tile_m * machine.a_element_bytes + tile_n * machine.b_element_bytes) * tile_k
    legal = (ring <= space.smem_bytes) & (tile_m * tile_n <= space.max_accumulators)
    if not legal.any():
        raise InputError(
            f"machine {machine.name}: no legal tile; the smallest ring of one stage takes "
            f"{ring.min():.0f} bytes of shared memory ({space.smem_bytes} are there), the smallest tile "
            f"{(tile_m * tile_n).min():.0f} accumulators ({space.max_accumulators} are there)"
        )
    everything = Candidates(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, stages=stages, ring_bytes=ring)
    return everything[legal]


def solve_exact(
    sizes: tuple[int, int, int],
    machine: PipelineMachine,
    objective: str = "time",
    *,
    batch: int = 1,
    cluster: tuple[int, int] = (1, 1),
    allowed: Callable[[Candidates], BoolArray] | None = None,
) -> Solution:
    """The legal choice for m, n and k with the least time (or waiting) by `objective`.

    Ties go to the smaller ring, then to the taller and the narrower tile. `allowed` marks the candidates that
    a kernel family offers. Raises InputError for an empty space.
    """
    require_one_of(f"objective is {objective!r}", objective, OBJECTIVES)
    candidates = legal_candidates(machine)
    if allowed is not None:
        mask = allowed(candidates)
        if not mask.any():
            raise InputError(
                f"machine {machine.name}: none of {len(candidates)} tiles and rings is one that the kernels "
                "offer"
            )
        candidates = candidates[mask]
    names = ("m", "n", "k", "batch", "cluster_m", "cluster_n")
    kernel = PipelineKernel(
        **dict(zip(names, map(float, (*sizes, batch, *cluster)), strict=True)),
        **{name: getattr(candidates, name) for name in KERNEL_FIELDS},
    )
    return _best(candidates, timing(workload(machine, kernel), machine), objective)


def _best(candidates: Candidates, timed: Timing, objective: str) -> Solution:
    """The best candidate and the best one with another tile."""
    goal = timed.end if objective == "time" else timed.consumer_wait
    order = np.lexsort(
        (candidates.tile_k, candidates.tile_n, -candidates.tile_m, candidates.ring_bytes, np.asarray(goal))
    )

    def choice(row: int) -> Choice:
        return Choice(
            **{name: int(getattr(candidates, name)[row]) for name in KERNEL_FIELDS},
            time_ps=int(np.asarray(timed.end)[row]),
            wait_ps=int(np.asarray(timed.consumer_wait)[row]),
        )

    best = order[0]
    tiles = np.stack([candidates.tile_m, candidates.tile_n, candidates.tile_k])
    other = np.flatnonzero((tiles[:, order] != tiles[:, [best]]).any(axis=0))
    return Solution(
        best=choice(best),
        runner_up=choice(order[other[0]]) if other.size else None,
        candidates=len(candidates),
    )
