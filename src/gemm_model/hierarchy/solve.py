"""The inverse question: which tiles match the demand, and what to change if none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemm_model.config import read_toml
from gemm_model.errors import InputError
from gemm_model.hierarchy.blocking import WARP, Blocking, Footprint, footprint, tensor_core_blocking
from gemm_model.hierarchy.levels import Machine
from gemm_model.hierarchy.matching import Matching, match, resident_grid

THREAD_EXTENTS = (4, 8, 16)
LANES_M = (4, 8)
WARP_GRIDS = tuple(product((1, 2, 4, 8), repeat=2))
DEPTHS = (8, 16, 32)
"""Candidate tiles on CUDA cores: outputs of a thread, rows of lanes, warps of a CTA, depth of a slice."""

REMEDIES: dict[str, str] = read_toml("shown")["remedies"]
TENSOR_CTA_M = (64, 128, 192, 256)
TENSOR_CTA_N = (32, 64, 96, 128, 160, 192, 224, 256)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One blocking that fits, with its figures."""

    blocking: Blocking
    footprint: Footprint
    matching: Matching

    @property
    def fraction_of_peak(self) -> float:
        return self.matching.fraction_of_peak

    @property
    def tile_size(self) -> int:
        """Outputs of the CTA tile, by which candidates are compared in size."""
        return self.blocking.cta_m * self.blocking.cta_n


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Result of the search.

    `smallest` is the smallest CTA tile that reaches the target (None if none does), `frontier` holds the
    candidates that no smaller or equal tile beats, smallest first, `advice` names what to change.
    """

    target: float
    smallest: Candidate | None
    smallest_by_stage: dict[str, Candidate]
    """For each stage, the candidate with the smallest tile there that lets this stage reach the target."""
    frontier: tuple[Candidate, ...]
    candidates: int
    advice: tuple[str, ...]


def solve(
    machine: Machine,
    shape: tuple[int, int, int],
    *,
    stages: int,
    target: float = 1.0,
    reuse_in_l2: bool = True,
    output: str = "ignored",
) -> Solution:
    """Search all candidate tiles that fit registers and shared memory with `stages` buffers.

    `target` is the fraction of the datapath's peak to reach. Raises InputError for a target outside (0, 1] or
    where nothing fits at all.
    """
    if not 0 < target <= 1:
        raise InputError(f"target is {target!r}; expected a fraction of peak above 0, at most 1")
    found: list[Candidate] = []
    refusals: list[str] = []
    cuda_cores = machine.datapath.name == "cuda_cores"
    for blocking in _cuda_core_candidates(stages) if cuda_cores else _tensor_core_candidates(machine, stages):
        try:
            taken = footprint(blocking, machine.gpu, machine.datapath)
        except InputError as error:
            refusals.append(str(error))
            continue
        grid = resident_grid(machine, blocking, taken.ctas_per_sm, shape)
        matching = match(machine, blocking, grid, reuse_in_l2=reuse_in_l2, output=output)
        found.append(Candidate(blocking=blocking, footprint=taken, matching=matching))
    if not found:
        raise InputError(
            f"no tile fits {machine.gpu.name} with {stages} stages ({refusals[0]}); expected fewer stages"
        )
    ordered = sorted(found, key=lambda item: (item.tile_size, -item.fraction_of_peak))
    frontier: list[Candidate] = []
    for candidate in ordered:
        if not frontier or candidate.fraction_of_peak > frontier[-1].fraction_of_peak + 1e-9:
            frontier.append(candidate)
    reaching = [candidate for candidate in ordered if candidate.fraction_of_peak >= target - 1e-9]
    return Solution(
        target=target,
        smallest=reaching[0] if reaching else None,
        smallest_by_stage=_smallest_by_stage(found, target),
        frontier=tuple(frontier),
        candidates=len(found),
        advice=() if reaching else _advice(frontier[-1], target, stages),
    )


def _smallest_by_stage(found: list[Candidate], target: float) -> dict[str, Candidate]:
    best: dict[str, Candidate] = {}
    for of_all in zip(*(candidate.matching.stages for candidate in found), strict=True):
        enough = [pair for pair in zip(of_all, found, strict=True) if pair[0].fraction >= target - 1e-9]
        if enough:
            stage, smallest = min(
                enough, key=lambda pair: (pair[0].tile_m * pair[0].tile_n, pair[1].tile_size)
            )
            best[stage.name] = smallest
    return best


def _cuda_core_candidates(stages: int) -> Iterator[Blocking]:
    threads = product(THREAD_EXTENTS, repeat=2)
    for (thread_m, thread_n), lanes_m, (warps_m, warps_n), depth in product(
        threads, LANES_M, WARP_GRIDS, DEPTHS
    ):
        warp_m, warp_n = lanes_m * thread_m, WARP // lanes_m * thread_n
        yield Blocking(
            cta_m=warps_m * warp_m,
            cta_n=warps_n * warp_n,
            cta_k=depth,
            warp_m=warp_m,
            warp_n=warp_n,
            thread_m=thread_m,
            thread_n=thread_n,
            stages=stages,
        )


def _tensor_core_candidates(machine: Machine, stages: int) -> Iterator[Blocking]:
    for cta_m, cta_n, (cluster_m, cluster_n) in product(TENSOR_CTA_M, TENSOR_CTA_N, CLUSTERS):
        if cluster_m * cluster_n > machine.gpu.max_cluster_size:
            continue
        others = {"cluster_m": cluster_m, "cluster_n": cluster_n, "stages": stages}
        yield tensor_core_blocking(machine.gpu, machine.datapath, cta_m, cta_n, **others)


def _advice(best: Candidate, target: float, stages: int) -> tuple[str, ...]:
    limit = best.matching.limiting
    taken = best.footprint
    lines = [
        f"no tile reaches {target:.0%} of peak; the best reaches {best.fraction_of_peak:.1%}, limited by "
        f"{limit.name}: it needs an amplification of {limit.required:.3g} and gets {limit.amplification:.3g}",
        f"to change it: {REMEDIES[limit.name]}",
    ]
    if limit.name != "instruction slots":
        lines.append(
            f"that tile takes {taken.registers_per_thread} registers a thread and {taken.smem_bytes} bytes "
            f"of shared memory with {stages} stages; fewer or shallower ones make room for a larger tile"
        )
    return tuple(lines)
