"""Positions in the output of the tiles that a kernel walks."""

from __future__ import annotations

import numpy as np

from gemm_model.core.batch import GemmBatch, IntArray
from gemm_model.kernel_model.tile_schedule import TileSchedule
from gemm_model.kernels.family import TileOrder


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
