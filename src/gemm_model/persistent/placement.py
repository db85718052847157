"""Launch order: which GPC the CTAs of a wave land on, and how many of their equal requests meet there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import cache, lru_cache

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.core.elementwise import Flags, Values, any_of, is_number, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.tile_schedule import TileSchedule

WIDEST_GROUP = 16
"""Minor panels of a group that are told apart [panels]; wider groups are taken for this one; the widest that
QuACK launches."""
SMS_PER_TPC = 2
"""SMs of a TPC [SMs]; all GPUs from sm70 on; CUDA driver."""


def requests_in_order(
    schedule: TileSchedule,
    ctas_per_cluster: Values,
    gpu: GpuSpec,
    shared: tuple[Flags, Flags] = (False, False),
) -> tuple[Values, Values] | None:
    """Requests that L2 sees for each that an SM makes: for panels of the minor extent, and of the major one.

    Clusters take tiles in their order, GPCs clusters in that of the launcher; requests of one GPC for the
    same panel merge. Each matrix of a batch has panels of its own, but of A, or B, where it is `shared`.
    For clusters of one or two; None where the order of the GPU's TPCs is not known.
    """
    if not gpu.tpc_rounds:
        return None
    found = _requests_in_one_matrix(schedule, ctas_per_cluster, gpu)
    if not any_of(schedule.matrices > 1.0):
        return found
    per_matrix = schedule.resident / schedule.matrices
    minor_shared = where(schedule.minor_is_m, *shared)
    major_shared = where(schedule.minor_is_m, *reversed(shared))
    facts = (schedule.group, per_matrix, schedule.resident, minor_shared, major_shared)
    columns = np.stack(
        np.broadcast_arrays(schedule.matrices, ctas_per_cluster, *facts, *found), axis=-1, dtype=np.float64
    )
    requests = columns[..., -2:]
    several = (columns[..., 0] > 1.0) & (columns[..., 1] <= SMS_PER_TPC)
    if several.any():
        rows, places = np.unique(columns[several][:, 1:-2], axis=0, return_inverse=True)
        table = [_requests_of_matrices(gpu.tpc_rounds, gpu.l2_merging_sms, *row) for row in rows.tolist()]
        requests[several] = np.array(table)[places.reshape(-1)]
    if requests.ndim == 1:
        return float(requests[0]), float(requests[1])
    return requests[..., 0], requests[..., 1]


@lru_cache(maxsize=4096)
def _requests_of_matrices(
    tpc_rounds: tuple[tuple[int, ...], ...],
    most_merged: float,
    ctas_per_cluster: float,
    group: float,
    per_matrix: float,
    clusters: float,
    *shared: float,
) -> tuple[float, ...]:
    """For minor and major panels of one wave in which each matrix has so many clusters."""
    gpcs = gpc_of_clusters(tpc_rounds, int(ctas_per_cluster))[: int(clusters)]
    width, tiles = max(round(group), 1), max(round(per_matrix), 1)
    places = [divmod(cluster, tiles) for cluster in range(len(gpcs))]
    return tuple(
        _requests(
            gpcs,
            ((0 if same else matrix, divmod(tile, width)[1 - extent]) for matrix, tile in places),
            most_merged,
        )[-1]
        / len(gpcs)
        for extent, same in enumerate(shared)
    )


def _requests_in_one_matrix(
    schedule: TileSchedule, ctas_per_cluster: Values, gpu: GpuSpec
) -> tuple[Values, Values]:
    """As if a wave lay in one matrix."""
    numbers = (schedule.group, schedule.resident, ctas_per_cluster)
    table = _requests_table(gpu.tpc_rounds, gpu.l2_merging_sms)
    limits = (WIDEST_GROUP, table.shape[-1] - 1, SMS_PER_TPC)
    if all(map(is_number, numbers)):
        group, clusters, ctas = (min(int(value), limit) for value, limit in zip(numbers, limits, strict=True))
        return float(table[0, ctas - 1, group, clusters]), float(table[1, ctas - 1, group, clusters])
    groups, clusters_of, sizes = (
        np.minimum(np.asarray(value, dtype=np.int64), limit)
        for value, limit in zip(numbers, limits, strict=True)
    )
    places = (sizes - 1, groups, clusters_of)
    return table[0][places], table[1][places]


def gpc_of_clusters(tpc_rounds: Sequence[Sequence[int]], ctas_per_cluster: int) -> list[int]:
    """GPC of each cluster, in the order in which the launcher fills them.

    Single CTAs go to one SM of each TPC of a round, then to the other one; clusters of two take a TPC each.
    """
    times = SMS_PER_TPC // ctas_per_cluster
    return [gpc for tpcs in tpc_rounds for gpc in list(tpcs) * times]


@cache
def _requests_table(tpc_rounds: tuple[tuple[int, ...], ...], most_merged: float) -> FloatArray:
    """By minor or major extent, CTAs of a cluster less one, width of the group of panels, and clusters."""
    tpcs = sum(map(len, tpc_rounds))
    table = np.ones((2, SMS_PER_TPC, WIDEST_GROUP + 1, tpcs * SMS_PER_TPC + 1))
    for ctas_per_cluster in range(1, SMS_PER_TPC + 1):
        gpcs = gpc_of_clusters(tpc_rounds, ctas_per_cluster)
        clusters = np.arange(1, len(gpcs) + 1)
        for width in range(1, WIDEST_GROUP + 1):
            for extent in range(2):
                panels = (divmod(cluster, width)[1 - extent] for cluster in range(len(gpcs)))
                seen = np.array(_requests(gpcs, panels, most_merged)) / clusters
                table[extent, ctas_per_cluster - 1, width, 1 : len(gpcs) + 1] = seen
                table[extent, ctas_per_cluster - 1, width, len(gpcs) + 1 :] = seen[-1]
    return table


def _requests(gpcs: Iterable[int], panels: Iterable[Hashable], most_merged: float) -> list[float]:
    """Requests that L2 sees of the first cluster, the first two, and so on."""
    asked: Counter[tuple[int, Hashable]] = Counter()
    total, totals = 0.0, []
    for place in zip(gpcs, panels, strict=True):
        asked[place] += 1
        # The first `most_merged` of a GPC make one request, each further one its share of one.
        total += 1.0 if asked[place] == 1 else 1.0 / most_merged if asked[place] > most_merged else 0.0
        totals.append(total)
    return totals
