"""The predicted trace of a kernel: the activity of each warp on each SM, from the kernel model's waves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gemm_model.core.batch import BoolArray, FloatArray, GemmBatch, IntArray, numbers_of
from gemm_model.core.fields import counted
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, RefusedKernelError
from gemm_model.kernel_model.model import KernelModel, PhysicalEvaluation
from gemm_model.kernel_model.tile_schedule import TileSchedule
from gemm_model.kernels.family import KernelFamily, TileOrder
from gemm_model.timeline.trace import RING, Trace, TraceInfo, kernel_identity, new_rows
from gemm_model.timeline.waves import SHORTEST_WAIT_US, LaneTiles, Ring, Waves, lanes_of, ring_of, waves_of

MOST_ROWS = 60_000
"""Rows of all SMs [rows]; beyond it the tiles between an SM's first and last are drawn several at once; a
screen of 4,000 pixels shows fewer, and Perfetto's file of them takes 10 MB."""
MOST_K_TILES = 2_000
"""K tiles of the SM drawn in detail [k tiles]; long kernels; chosen: beyond it those of its first tiles and
of its last one."""

DATA, TURN, NEXT_TILE = "loaded data", "its turn at the tensor cores", "the next tile"
"""Causes of a consumer's waits."""
STORE_BUFFER, SOURCE_MATRIX = "a free store buffer", "the matrix to add"
"""Causes of waits within an epilogue, whose time includes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimeline:
    """The predicted trace of a kernel, and the prediction that it draws."""

    trace: Trace
    prediction: Prediction
    data_limiter: str
    """The resource that loads wait for most: PORT, LATENCY, L2 or DRAM."""


def kernel_timeline(
    problem: GemmProblem,
    config: KernelConfig,
    model: KernelModel,
    *,
    detailed_sm: int = 0,
    read_us: float = 0.0,
) -> KernelTimeline:
    """The timeline of one kernel; it ends at the prediction's runtime, and its phases are the prediction's.

    A residual stretches all parts alike. Of `detailed_sm` the k tiles and ring stages are drawn too. `read_us` is
    a tracer's reading of a wait that finds its data ready
    (`phases.unwaited_us`); 0 without a tracer. Raises InputError for a kernel that cannot run, for an SM
    without a tile, and for a problem that is no plain GEMM.
    """
    evaluation = _evaluated(problem, config, model)
    prediction = model.predict_row(numbers_of(problem, config))
    waves = waves_of(evaluation, prediction, read_us=read_us)
    sms = waves.clusters * waves.ctas
    if not 0 <= detailed_sm < sms:
        raise InputError(f"SM {detailed_sm} has no tile; expected one of 0 to {sms - 1}")
    lanes = lanes_of(evaluation, waves)
    grouped = _tiles_per_row(waves, len(lanes))
    family = evaluation.geometry.family
    of_one_cta = pd.concat(list(_cta_rows(waves, lanes, family, grouped)), ignore_index=True)
    shown = _waves_in_detail(waves, detailed_sm)
    rows = [
        new_rows(1, role="launch", activity="launch", end_us=np.array([waves.cta_start[0]])),
        _resident_rows(waves),
        _rows_of_ctas(waves, waves.ready, role="producer", activity="other", detail="prologue"),
        _on_all_sms(of_one_cta, waves, evaluation),
        *_ring_rows(waves, lanes, detailed_sm, shown),
        *(row for tiles in lanes for row in _k_tile_rows(waves, tiles, detailed_sm, shown)),
    ]
    info = TraceInfo(
        source="predicted",
        gpu=model.gpu.name,
        kernel=kernel_identity(problem, replace(config, kernel=family.name)),
        k_tiles=waves.k_tiles,
        stages=waves.stages,
        runtime_us=prediction.runtime_us,
        wave_skew_us=_wave_skew_us(waves),
        notes=_notes(waves, grouped, len(shown), detailed_sm),
    )
    loads_us = waves.times.loads_us
    return KernelTimeline(
        trace=Trace(info=info, rows=pd.concat(rows, ignore_index=True)),
        prediction=prediction,
        data_limiter=max(loads_us, key=loads_us.__getitem__),
    )


def _evaluated(problem: GemmProblem, config: KernelConfig, model: KernelModel) -> PhysicalEvaluation:
    """What the model says of a kernel; raises InputError where there is no timeline of it."""
    if not problem.plain:
        raise InputError(
            "timelines are those of plain products; expected no epilogue, groups, scales or conv"
        )
    try:
        evaluation = model.evaluate_row(numbers_of(problem, config))
    except RefusedKernelError as refused:
        size = f"{problem.m} x {problem.n} x {problem.k} on {model.gpu.name}"
        raise InputError(f"{size}: {refused.reason}") from None
    if evaluation.geometry.schedule.last_work != 1.0:
        raise InputError("stream-K deals out parts of tiles; expected scheduler static")
    return evaluation


def _tiles_per_row(waves: Waves, lanes: int) -> int:
    """Tiles that one row represents between an SM's first and last tile: 1 if all can be drawn."""
    rows = (1 + 2 * lanes) * waves.count * waves.clusters * waves.ctas
    return max(1, -(-rows // MOST_ROWS))


def _notes(waves: Waves, grouped: int, shown: int, sm: int) -> tuple[str, ...]:
    found = []
    if grouped > 1:
        found.append(
            f"{waves.count} tiles an SM: between the first and the last, {grouped} are drawn as one; "
            "no screen shows each"
        )
    if shown < waves.tiles_of_cta(sm):
        found.append(
            f"SM {sm} is drawn k tile by k tile for {counted(shown, 'tile')}: the first ones and the last"
        )
    return tuple(found)


def _wave_skew_us(waves: Waves) -> float:
    """Time between the first and the last CTA to end a full wave [us]: the median over full waves."""
    complete = waves.count - int(waves.count > 1 and waves.last_clusters < waves.clusters)
    return float(np.median(waves.skew_us[:complete]))


def _cta_rows(
    waves: Waves, lanes: Sequence[LaneTiles], family: KernelFamily, grouped: int
) -> Iterator[pd.DataFrame]:
    """The rows of a CTA that has a tile in every wave; `tile` counts its tiles from 0."""
    ring = ring_of(waves, lanes)
    known_us = _known_us(waves, ring, family)
    yield _load_rows(waves, ring, grouped)
    for tiles in lanes:
        first, last = _groups(len(tiles.wave), grouped)
        alone = first == last
        place = {"role": tiles.lane.role, "tile": tiles.wave[first]}
        if tiles.lane.computes:
            waited = np.minimum(waves.data_wait_us[tiles.wave], tiles.mma_end_us - tiles.start_us)
            yield new_rows(
                len(first),
                activity="mma",
                tiles=last - first + 1,
                start_us=tiles.start_us[first],
                # A row for several tiles holds their epilogues too.
                end_us=np.where(alone, tiles.mma_end_us[first], tiles.stored_us[last]),
                waited_us=np.add.reduceat(waited, first),
                **place,
            )
            yield from _wait_rows(tiles, first, known_us)
        if tiles.lane.stores:
            own = first[alone]
            yield new_rows(
                len(own),
                role=tiles.lane.role,
                tile=tiles.wave[own],
                activity="epilogue",
                start_us=tiles.mma_end_us[own],
                end_us=tiles.stored_us[own],
            )
            yield _drain_row(waves, tiles)


def _drain_row(waves: Waves, tiles: LaneTiles) -> pd.DataFrame:
    """The row from a CTA's last store to its end, on the lane of its last tile."""
    last = tiles.wave == waves.count - 1
    return new_rows(
        int(last.sum()),
        role=tiles.lane.role,
        tile=tiles.wave[last],
        activity="store",
        start_us=tiles.stored_us[last],
        end_us=np.full(int(last.sum()), waves.end_us),
        detail="what is under way lands",
    )


def _groups(tiles: int, grouped: int) -> tuple[IntArray, IntArray]:
    """First and last tile of each row; the very first and the very last tile have rows of their own."""
    if tiles <= 2:
        return np.arange(tiles), np.arange(tiles)
    first = np.concatenate([[0], np.arange(1, tiles - 1, grouped), [tiles - 1]])
    return first, np.append(first[1:], tiles) - 1


def _wait_rows(tiles: LaneTiles, first: IntArray, known_us: FloatArray) -> Iterator[pd.DataFrame]:
    """A lane's waits before the MMAs of each tile; the first wait begins with its CTA.

    Before the first tile it waits for data. Before a later tile it waits for the tile's number (`known_us`,
    for each wave), then for its turn.
    """
    wave, free_us, start_us = tiles.wave[first], tiles.free_us[first], tiles.start_us[first]
    known = np.clip(known_us[wave], free_us, start_us)
    spans = (
        (DATA, wave == 0, free_us, start_us),
        (NEXT_TILE, wave > 0, free_us, known),
        (TURN, wave > 0, known, start_us),
    )
    for cause, of_cause, begin_us, end_us in spans:
        shown = of_cause & (end_us > begin_us + SHORTEST_WAIT_US)
        yield new_rows(
            int(shown.sum()),
            role=tiles.lane.role,
            activity="wait",
            tile=wave[shown],
            start_us=begin_us[shown],
            end_us=end_us[shown],
            detail=cause,
        )


def _known_us(waves: Waves, ring: Ring, family: KernelFamily) -> FloatArray:
    """When the warps of a CTA know the tile of each wave: at once, or when the load warp announces it."""
    if not family.loader_deals:
        return np.full(waves.count, -np.inf)
    asked_us = ring.issue_us.reshape(waves.count, waves.k_tiles)[:, -1] + waves.times.load_us
    return np.append(-np.inf, asked_us[:-1])


def _load_rows(waves: Waves, ring: Ring, grouped: int) -> pd.DataFrame:
    """One row a tile: from asking for its first k tile to asking for its last one.

    The first row begins when its CTA is ready. Time not spent on issuing loads is a wait for a free stage.
    """
    issue_us = ring.issue_us.reshape(waves.count, waves.k_tiles)
    first, last = _groups(waves.count, grouped)
    start_us, end_us = issue_us[first, 0], issue_us[last, -1] + waves.times.load_us
    asking_us = (last - first + 1) * waves.k_tiles * waves.times.load_us
    return new_rows(
        len(first),
        role="producer",
        activity="load",
        tile=first,
        tiles=last - first + 1,
        start_us=np.where(first == 0, -np.inf, start_us),
        end_us=end_us,
        waited_us=np.maximum(end_us - start_us - asking_us, 0.0),
    )


def _resident_rows(waves: Waves) -> pd.DataFrame:
    """One row a CTA: from its start to its last store."""
    end = np.full(waves.clusters, waves.end_us)
    if waves.count > 1:
        end[waves.tile_of[-1] < 0] = waves.start[-2] + waves.exposed_us
    return _rows_of_ctas(waves, end, role="CTA", activity="resident")


def _rows_of_ctas(waves: Waves, end_us: FloatArray, **texts: str) -> pd.DataFrame:
    """One row a CTA: from its start to the end of its cluster."""
    sms = np.arange(waves.clusters * waves.ctas)
    start_us, end_us = (np.repeat(each, waves.ctas) for each in (waves.cta_start, end_us))
    return new_rows(len(sms), sm=sms, cta=sms, start_us=start_us, end_us=end_us, **texts)


def _on_all_sms(rows: pd.DataFrame, waves: Waves, evaluation: PhysicalEvaluation) -> pd.DataFrame:
    """The rows of one CTA for each CTA of the grid: SM by SM, tiles by their place in the kernel's order.

    Rows that begin before the first wave begin when their CTA is ready to load.
    """
    tiles = np.array([waves.tiles_of_cta(cta) for cta in range(waves.clusters * waves.ctas)])
    cta, row = np.nonzero(rows["tile"].to_numpy() < tiles[:, None])
    cluster = cta // waves.ctas
    found = {name: column.to_numpy()[row] for name, column in rows.items()}
    found["sm"] = found["cta"] = cta
    found["tile"] = waves.tile_of[found["tile"], cluster]
    of_first_tile = (found["activity"] == "wait") & (rows["tile"].to_numpy()[row] == 0)
    begin_us = waves.ready[cluster] + np.where(of_first_tile, waves.first_wait_us, 0.0)
    found["start_us"] = np.maximum(found["start_us"], begin_us)
    one_tile = (found["activity"] == "mma") & (found["tiles"] == 1)
    at_edge = one_tile & _at_edge(found["tile"], cta, evaluation, waves)
    found["detail"] = np.where(at_edge, "edge tile", found["detail"])
    return pd.DataFrame(found)


def _at_edge(tile: IntArray, cta: IntArray, evaluation: PhysicalEvaluation, waves: Waves) -> BoolArray:
    """Whether a CTA's tile lies partly or wholly outside the output."""
    geometry, batch = evaluation.geometry, evaluation.geometry.batch
    row, column = cluster_coordinates(tile, batch, geometry.schedule, geometry.family.tile_order)
    rank_n, rank_m = np.divmod(cta % waves.ctas, int(batch.cluster_m))
    last_row = (row * batch.cluster_m + rank_m + 1) * batch.cta_m
    last_column = (column * batch.cluster_n + rank_n + 1) * batch.cta_n
    outside: BoolArray = (last_row > batch.m) | (last_column > batch.n)
    return outside


def _waves_in_detail(waves: Waves, sm: int) -> IntArray:
    """The waves whose k tiles one SM shows: all, or the first ones and its last."""
    tiles, fitting = waves.tiles_of_cta(sm), max(MOST_K_TILES // waves.k_tiles, 1)
    return np.arange(tiles) if tiles <= fitting else np.append(np.arange(fitting - 1), tiles - 1)


def _ring_rows(waves: Waves, lanes: Sequence[LaneTiles], sm: int, shown: IntArray) -> Iterator[pd.DataFrame]:
    """Each k tile in its stage of the ring: in flight, then read by the MMAs."""
    ring, cluster = ring_of(waves, lanes), sm // waves.ctas
    step = (shown[:, None] * waves.k_tiles + np.arange(waves.k_tiles)).ravel()
    place = _place(waves, sm, step) | {"role": RING}
    issue_us = np.maximum(ring.issue_us[step], waves.ready[cluster])
    arrival_us, used_us = ring.arrival_us[step], ring.used_us[step]
    yield new_rows(len(step), activity="load", start_us=issue_us, end_us=arrival_us, **place)
    yield new_rows(len(step), activity="mma", start_us=used_us, end_us=ring.freed_us[step], **place)


def _k_tile_rows(waves: Waves, tiles: LaneTiles, sm: int, shown: IntArray) -> Iterator[pd.DataFrame]:
    """A lane's waits and MMAs, k tile by k tile: evenly over the MMAs of a tile."""
    own = np.isin(tiles.wave, shown)
    if not tiles.lane.computes or not own.any():
        return
    wave, start, end = tiles.wave[own], tiles.start_us[own], tiles.mma_end_us[own]
    slot = np.repeat((end - start) / waves.k_tiles, waves.k_tiles)
    wait = np.repeat(np.minimum(waves.data_wait_us[wave], end - start) / waves.k_tiles, waves.k_tiles)
    step = (wave[:, None] * waves.k_tiles + np.arange(waves.k_tiles)).ravel()
    begin = np.repeat(start, waves.k_tiles) + step % waves.k_tiles * slot
    place = _place(waves, sm, step) | {"role": tiles.lane.role}
    waits = new_rows(len(step), activity="wait", start_us=begin, end_us=begin + wait, detail=DATA, **place)
    yield waits[wait > SHORTEST_WAIT_US]
    yield new_rows(len(step), activity="mma", start_us=begin + wait, end_us=begin + slot, **place)


def _place(waves: Waves, sm: int, step: IntArray) -> dict[str, object]:
    """Columns that locate the k tiles of a CTA, counted over all its tiles."""
    everywhere = np.full(len(step), sm)
    tile = waves.tile_of[step // waves.k_tiles, sm // waves.ctas]
    return {
        "sm": everywhere,
        "cta": everywhere,
        "tile": tile,
        "k_tile": step % waves.k_tiles,
        "stage": step % waves.stages,
    }


def cluster_coordinates(
    tiles: IntArray, batch: GemmBatch, schedule: TileSchedule, order: TileOrder
) -> tuple[IntArray, IntArray]:
    """Row and column of each cluster tile, counted in clusters, by its place in the family's order from 0.

    `batch` and `schedule` are of one kernel, as numbers. Splits of K and matrices of a batch lie at the same
    place: splits follow each other, or come in rounds, matrices one after the other (QuACK
    `_delinearize_work_idx`, CUTLASS `PersistentTileSchedulerSm90StreamK`).
    """
    per_matrix = int(schedule.tiles / (batch.batch * batch.split_k))
    side_by_side = 1 if order.splits == "rounds" else int(batch.split_k)
    places = tiles // side_by_side % per_matrix
    minor, major = _extents(batch, schedule, per_matrix)
    width = int(schedule.group)
    group, inside = np.divmod(places, width * major)
    last_width = minor - (minor // width) * width
    widths = np.where(group < minor // width, width, max(last_width, 1))
    along_major, along_minor = np.divmod(inside, widths)
    if order.serpentine:
        along_major = np.where(group % 2 == 1, major - 1 - along_major, along_major)
    along_minor = group * width + along_minor
    return (along_minor, along_major) if schedule.minor_is_m else (along_major, along_minor)


def _extents(batch: GemmBatch, schedule: TileSchedule, per_matrix: int) -> tuple[int, int]:
    """Cluster tiles along the minor extent (that of a group's panels) and along the other."""
    rows = round(float(batch.m / schedule.filled_m / (batch.cta_m * batch.cluster_m)))
    columns = per_matrix // rows
    return (rows, columns) if schedule.minor_is_m else (columns, rows)
