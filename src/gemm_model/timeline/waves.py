"""A kernel on its own time axis, from the kernel model: waves, the warps on their tiles, the ring.

The model knows the length of a wave, not which CTA is late. So all clusters end a wave together, CTAs start
one after the other, and the mean CTA has its k tiles sooner than the slowest, which sets the length of a
wave. The launch phase holds all time outside the waves; traces say when a CTA starts and loads within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from gemm_model.config.mechanisms import WithinPhases
from gemm_model.core.batch import FloatArray, GemmBatch, IntArray
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.prediction import Prediction
from gemm_model.errors import InputError
from gemm_model.kernel_model.kernel_time import TileTimes
from gemm_model.kernel_model.model import PhysicalEvaluation

SHORTEST_WAIT_US = 1e-4
"""Shortest wait that is drawn [us]; all traces; the resolution of a trace."""
MOST_TILES = 10_000_000
"""Tiles of a kernel that are dealt one by one [tiles]; timelines; chosen: these take 3 s and 0.5 GB."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A track of an SM: which tiles its warps compute, and how far they lag behind the wave."""

    role: str
    first: int
    """Its first tile, of a CTA's tiles counted from 0."""
    step: int
    lag_us: float
    """From the end of a wave to the end of its epilogue."""
    epilogue_us: float
    """Epilogue of its last tile, with nothing beside it."""
    beside_us: float
    """Epilogue of a tile beside the MMAs of other warps, if those last that long."""
    computes: bool = True
    stores: bool = True


@dataclass(frozen=True, slots=True)
class Waves:
    """The kernel on its own time axis, in us; a cluster's tile `w` belongs to wave `w`."""

    tile_of: IntArray
    """Position in the kernel's order of each wave's (row) and cluster's tile; -1 without a tile."""

    start: FloatArray
    """Start of each wave, then the end of the last one."""
    cta_start: FloatArray
    """Start of each cluster's CTAs."""
    ready: FloatArray
    """Time from which each cluster loads."""
    first_wait_us: float
    """Time from the first load until the first tile's data are there."""
    drain_us: float
    """From the last store of a CTA to its end."""
    exposed_us: float
    k_tiles: int
    stages: int
    clusters: int
    ctas: int
    """Of one cluster."""
    times: TileTimes
    data_wait_us: FloatArray
    """Wait of the MMA warps for data in each wave."""
    skew_us: FloatArray
    """Time from the fastest to the slowest CTA at the end of each wave."""

    @property
    def count(self) -> int:
        return len(self.start) - 1

    @property
    def end_us(self) -> float:
        """End of the kernel."""
        return float(self.start[-1] + self.exposed_us)

    def tiles_of_cta(self, cta: int) -> int:
        """Tiles that a CTA computes, CTAs counted from 0 cluster by cluster."""
        return int((self.tile_of[:, cta // self.ctas] >= 0).sum())

    @property
    def last_clusters(self) -> int:
        """Clusters with a tile in the last wave."""
        return int((self.tile_of[-1] >= 0).sum())


@dataclass(frozen=True, slots=True)
class LaneTiles:
    """The tiles of one lane in their order; times in us."""

    lane: Lane
    wave: IntArray
    start_us: FloatArray
    """Start of each tile's MMAs."""
    mma_end_us: FloatArray
    stored_us: FloatArray
    """End of the epilogue."""
    free_us: FloatArray
    """Time from which its warps are idle; -inf for the first tile of a CTA."""


def waves_of(evaluation: PhysicalEvaluation, prediction: Prediction, *, read_us: float = 0.0) -> Waves:
    """The waves of an evaluation of one row, stretched to the runtime with the residual.

    `read_us` is a tracer's reading of a wait for a k tile that is ready [us].
    """
    times, schedule, batch = evaluation.times, evaluation.geometry.schedule, evaluation.geometry.batch
    if schedule.tiles > MOST_TILES:
        raise InputError(f"{float(schedule.tiles):.4g} tiles; expected at most {MOST_TILES:,} for a timeline")
    tile = evaluation.tile_times()
    stretch = float(prediction.runtime_us / times.runtime_us)
    launch_us, first_us = float(times.launch_us * stretch), float(times.first_load_us * stretch)
    exposed_us = float(times.exposed_us * stretch)
    # If the speed of light bounds the kernel, its waves take the time that the other phases leave.
    waves_us = prediction.runtime_us - launch_us - first_us - exposed_us
    tile = _stretched(tile, stretch)
    longer = float(waves_us / (times.waves_us * stretch)) if times.waves_us > 0 else 1.0
    full = int(schedule.full_waves)
    lengths = np.full(full, tile.full_wave_us * longer)
    if schedule.last_tiles > 0:
        lengths = np.append(lengths, waves_us - lengths.sum())
    start = launch_us + first_us + np.concatenate([[0.0], np.cumsum(lengths)])
    clusters, ctas = int(schedule.resident), int(batch.cluster_m * batch.cluster_n)
    numbers = evaluation.known.calibration.within_phases
    grid_us = min(numbers.start_share * tile.grid_us, launch_us)
    before_us = _before_first_mma_us(batch, numbers, tile, first_us, launch_us - grid_us)
    cta_start = (
        launch_us + first_us - sum(before_us) - grid_us * (1.0 - np.arange(1, clusters + 1) / clusters)
    )
    return Waves(
        tile_of=_tiles_in_waves(evaluation, cta_start, start),
        start=start,
        cta_start=cta_start,
        ready=cta_start + before_us[0],
        first_wait_us=min(numbers.first_turn_us, before_us[1]) if batch.schedule == PINGPONG else 0.0,
        drain_us=min(numbers.drain_us * float(evaluation.geometry.resources.warpgroups), exposed_us),
        exposed_us=exposed_us,
        k_tiles=int(schedule.k_tiles),
        stages=int(evaluation.geometry.resources.stages),
        clusters=clusters,
        ctas=ctas,
        times=tile,
        data_wait_us=_data_wait_us(evaluation, tile, lengths, read_us),
        skew_us=grid_us + _loaded_apart_us(numbers, tile, lengths, before_us[1]),
    )


def _tiles_in_waves(evaluation: PhysicalEvaluation, cta_start: FloatArray, start: FloatArray) -> IntArray:
    """The tile of each wave and cluster, as the scheduler assigns them to clusters that run in step."""
    scheduler = evaluation.geometry.family.tile_order.scheduler
    tiles, clusters = int(evaluation.geometry.schedule.tiles), len(cta_start)
    lengths = np.repeat(np.diff(start), clusters)[:tiles]
    lengths[:clusters] = start[1] - cta_start
    dealt = scheduler.deal(lengths, cta_start, evaluation.model.gpu.next_cluster_us or 0.0)
    in_order = np.argsort(dealt, kind="stable")
    own = np.bincount(dealt, minlength=clusters)
    wave = np.arange(tiles) - np.repeat(np.cumsum(own) - own, own)
    found = np.full((len(start) - 1, clusters), -1)
    found[wave, dealt[in_order]] = in_order
    return found


def _loaded_apart_us(
    numbers: WithinPhases, tile: TileTimes, lengths: FloatArray, first_us: float
) -> FloatArray:
    """Lead of the fastest CTA over the slowest at the end of each wave, from loads alone [us].

    The fastest CTA has its data as long before the mean CTA as the slowest has them after it; that holds for
    the first load, which takes `first_us`, too. The MMAs take all CTAs the same time. The fastest CTA keeps
    its lead from wave to wave. The slowest changes, so that its lag grows with the root of the waves.
    """
    share = 1.0 - numbers.mean_share
    gained_us = np.clip((lengths - tile.period_us) / 2.0, 0.0, share * lengths)
    lead_us, lag_us = np.cumsum(gained_us), np.sqrt(np.cumsum(gained_us**2))
    apart_us: FloatArray = 2.0 * share * first_us + lead_us + lag_us
    return apart_us


@dataclass(frozen=True, slots=True)
class _Supply:
    """How k tiles arrive at a CTA and how its MMA warps use them; times in us."""

    k_tiles: int
    mma_us: float
    """MMA time of one k tile."""
    issue_us: float
    """Time from the arrival of a k tile until its MMAs are in flight."""
    read_us: float
    """A tracer's reading of a wait that finds its data ready."""
    in_flight: bool
    """Whether warps wait for a k tile while the MMAs of the one before run."""

    def waits_us(self, each_us: float, ahead: float = 0.0) -> FloatArray:
        """Waits for the k tiles after the first, which arrive every `each_us`, `ahead` of them in advance.

        With MMAs in flight, a warp waits from the end of the MMAs two k tiles earlier, otherwise from the end
        of the previous k tile's. No wait exceeds the interval between k tiles less the warp's own work in it.
        """
        step = np.arange(1, self.k_tiles)
        free_us = step * (self.mma_us + self.read_us)
        if self.in_flight:
            free_us = (step - 1) * self.mma_us + self.read_us
        waits: FloatArray = np.clip((step - ahead) * each_us - free_us, 0.0, self.longest_us(each_us))
        return waits

    def longest_us(self, each_us: float) -> float:
        """The wait for a k tile if none has arrived in advance."""
        busy_us = self.issue_us if self.in_flight else self.mma_us
        return max(each_us - busy_us - self.read_us, 0.0)


def _data_wait_us(
    evaluation: PhysicalEvaluation, tile: TileTimes, lengths: FloatArray, read_us: float
) -> FloatArray:
    """Waits of the mean CTA's MMA warps for data in each wave [us].

    A kernel starts with an empty ring: the k tiles of the ring's first turn, requested at once, arrive one by
    one. Later k tiles are ready in time unless loads take the mean CTA longer than its MMA warps. The mean
    CTA has its data in `mean_share` of the slowest CTA's time, and closer to it over several waves, because
    the slowest CTA changes. If the operands alone arrive in time, output traffic delays stores and no MMAs.
    """
    numbers, resources = evaluation.known.calibration.within_phases, evaluation.geometry.resources
    k_tiles, stages = int(evaluation.geometry.schedule.k_tiles), int(resources.stages)
    supply = _Supply(k_tiles, tile.mma_us, numbers.issue_us, read_us, in_flight=not resources.slow_sums)
    period_us = tile.period_us - tile.turns_us
    share = 1.0 / (1.0 + (1.0 / numbers.mean_share - 1.0) / np.sqrt(len(lengths)))
    operands = tile.operands_us / max(tile.loads_us.values())
    loads_us = share * (lengths - tile.turns_us)
    gap_us = period_us - k_tiles * tile.mma_us
    spilled_us = k_tiles * numbers.spilled_wait_us if resources.spilled_registers > 0 else 0.0
    waits_us = np.full(len(lengths), spilled_us)
    for wave, mean_us in enumerate(loads_us):
        late = operands * mean_us > period_us
        each_us = mean_us / k_tiles
        if wave > 0:
            waits_us[wave] += supply.waits_us(each_us, gap_us / each_us).sum() if late else 0.0
            continue
        burst_us = supply.waits_us(numbers.mean_share * tile.operands_us / k_tiles)[: stages - 1]
        later = np.full(k_tiles - 1 - len(burst_us), supply.longest_us(each_us) if late else 0.0)
        waits_us[wave] += burst_us.sum() + later.sum()
    return waits_us


def _before_first_mma_us(
    batch: GemmBatch, numbers: WithinPhases, tile: TileTimes, first_us: float, launch_us: float
) -> tuple[float, float]:
    """Of the last CTA to start: time to its first load, and from there to its first MMAs.

    All CTAs request their first k tile at once, and the mean CTA has it before the slowest. The sum is
    limited to the launch phase plus the model's first load.
    """
    prologue_us, load_us = numbers.prologue_us, numbers.first_load_us + numbers.mean_share * tile.k_tile_us
    if batch.cluster_m * batch.cluster_n > 1:
        prologue_us += numbers.cluster_prologue_us
    if batch.m <= batch.cta_m * batch.cluster_m:
        load_us += numbers.own_pages_us
    load_us = max(load_us, first_us)
    share = min(1.0, (launch_us + first_us) / (prologue_us + load_us))
    return prologue_us * share, load_us * share


def _stretched(tile: TileTimes, by: float) -> TileTimes:
    numbers = (spec.name for spec in fields(tile) if spec.name != "loads_us")
    loads_us = {limiter: time_us * by for limiter, time_us in tile.loads_us.items()}
    return replace(tile, **{name: getattr(tile, name) * by for name in numbers}, loads_us=loads_us)


def lanes_of(evaluation: PhysicalEvaluation, waves: Waves) -> list[LaneTiles]:
    """The tiles of each lane of a CTA."""
    return [lane_tiles(waves, lane) for lane in _lanes(evaluation, waves)]


def _lanes(evaluation: PhysicalEvaluation, waves: Waves) -> list[Lane]:
    """The warps of one CTA that compute and store tiles.

    Cooperative warpgroups share each tile and drift apart by the hidden part of the epilogue. Ping-pong
    warpgroups alternate tiles. With tensor memory one warp issues MMAs and others store.
    """
    geometry, exposed = evaluation.geometry, waves.exposed_us
    groups, stored_us = int(geometry.resources.warpgroups), waves.times.epilogue_us
    if geometry.family.tile_period.in_tensor_memory:
        return [
            Lane("MMA warp", 0, 1, exposed, stored_us, stored_us, stores=False),
            Lane("epilogue warps", 0, 1, exposed, stored_us, stored_us, computes=False),
        ]
    numbers = evaluation.known.calibration.within_phases
    turns_us = numbers.split_turn_us * (float(geometry.batch.split_k) - 1.0) / 2.0
    last, beside = _epilogue_factors(evaluation)
    last_us, beside_us = stored_us * last + turns_us, stored_us * beside + turns_us
    if geometry.batch.schedule == PINGPONG:
        turns = range(min(2, waves.count))
        return [Lane(f"consumer {turn + 1}", turn, 2, exposed, last_us, beside_us) for turn in turns]
    lags_us = [exposed * i / (groups - 1) for i in range(groups)] if groups > 1 else [0.0]
    return [Lane(f"consumer {i + 1}", 0, 1, lag, last_us, beside_us) for i, lag in enumerate(lags_us)]


def _epilogue_factors(evaluation: PhysicalEvaluation) -> tuple[float, float]:
    """Epilogue of a CTA's last tile and of one beside other warps' MMAs, over that of the runtime."""
    numbers = evaluation.known.calibration.within_phases
    resources = evaluation.geometry.resources
    spills = resources.spilled_registers > 0
    together = numbers.together if resources.warpgroups > 1 else numbers.alone
    last = numbers.spilled if spills else together
    if evaluation.geometry.batch.schedule == PINGPONG:
        return last, numbers.beside_mmas * (numbers.spilled if spills else 1.0)
    return last, numbers.spilled_together if spills else together


def lane_tiles(waves: Waves, lane: Lane) -> LaneTiles:
    """A tile's MMAs begin with its wave, or when the warps that compute it have stored the tile before.

    Alternating warps store under the others' MMAs, at the latest until their own next wave. After a wave that
    is the last for most CTAs they store alone.
    """
    wave = np.arange(lane.first, waves.count, lane.step)
    last = wave == waves.count - 1
    most = waves.count - int(2 * waves.last_clusters < waves.clusters)
    stored = waves.start[wave + 1] + lane.lag_us - np.where(last, waves.drain_us, 0.0)
    mma_end = stored - np.where(last, lane.epilogue_us, lane.beside_us)
    if lane.step > 1:
        handed_over = waves.start[wave + 1] + lane.lag_us - waves.times.epilogue_us
        next_turn = waves.start[np.minimum(wave + lane.step, waves.count)]
        mma_end = np.where(last, mma_end, handed_over)
        storing_us = np.where(wave < most - 1, lane.beside_us, lane.epilogue_us)
        stored = np.where(last, stored, np.minimum(mma_end + storing_us, np.maximum(next_turn, stored)))
    free = stored if lane.stores else mma_end
    free = np.concatenate([[-np.inf], free[:-1]])
    start = np.maximum(waves.start[wave], free)
    mma_end = np.maximum(mma_end, start)
    return LaneTiles(
        lane=lane,
        wave=wave,
        start_us=start,
        mma_end_us=mma_end,
        stored_us=np.maximum(stored, mma_end),
        free_us=free,
    )


@dataclass(frozen=True, slots=True)
class Ring:
    """For each k tile of a CTA [us]: request, arrival, first use, and release of its stage."""

    issue_us: FloatArray
    arrival_us: FloatArray
    used_us: FloatArray
    freed_us: FloatArray


def ring_of(waves: Waves, lanes: Sequence[LaneTiles]) -> Ring:
    """The ring of a CTA. A stage is free once its last readers end the next k tile's MMAs, or their tile."""
    begin, end = np.full(waves.count, -np.inf), np.full(waves.count, -np.inf)
    for tiles in lanes:
        if tiles.lane.computes:
            begin[tiles.wave] = np.maximum(begin[tiles.wave], tiles.start_us)
            end[tiles.wave] = np.maximum(end[tiles.wave], tiles.mma_end_us)
    slot = (end - begin) / waves.k_tiles
    wait = np.minimum(waves.data_wait_us, end - begin) / waves.k_tiles
    steps = np.arange(waves.k_tiles)
    used_us = (begin[:, None] + steps * slot[:, None] + wait[:, None]).ravel()
    freed_us = (begin[:, None] + np.minimum(steps + 2, waves.k_tiles) * slot[:, None]).ravel()
    # The producer asks as soon as a stage is free, one k tile after the other at the port's pace; all CTAs
    # as the last one to start.
    pace = np.arange(len(used_us)) * waves.times.load_us
    opened = np.concatenate([np.full(waves.stages, waves.ready[-1]), freed_us])[: len(used_us)]
    issue_us = np.minimum(np.maximum.accumulate(opened - pace) + pace, used_us)
    soonest = np.minimum(issue_us + waves.times.latency_us + waves.times.load_us, used_us)
    late = np.repeat(wait, waves.k_tiles) > SHORTEST_WAIT_US
    return Ring(
        issue_us=issue_us, arrival_us=np.where(late, used_us, soonest), used_us=used_us, freed_us=freed_us
    )
