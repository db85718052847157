"""Launch order: which GPC the CTAs of a wave land on, and how many of their equal requests meet there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.elementwise import Flags, Values, any_of, is_number, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernels.family import TileOrder
from gemm_model.persistent.tile_schedule import TileSchedule

SMS_PER_TPC = 2
"""SMs of a TPC [SMs]; all GPUs from sm70 on; CUDA driver."""


def requests_in_order(
    schedule: TileSchedule,
    ctas_per_cluster: Values,
    gpu: GpuSpec,
    order: TileOrder,
    shared: tuple[Flags, Flags] = (False, False),
) -> tuple[Values, Values] | None:
    """Requests that L2 sees for each that an SM makes: for panels of the minor extent, and of the major one.

    Clusters take tiles in their order, GPCs clusters in that of the launcher; requests of one GPC for the
    same panel merge. Each matrix of a batch has panels of its own, but of A, or B, where it is `shared`.
    For clusters of one or two; None where the order of the GPU's TPCs is not known.
    """
    if not gpu.tpc_rounds:
        return None
    counted = _counted_requests(gpu.tpc_rounds, gpu.l2_merging_sms, order.serpentine, order.plain_launch)
    minor_shared: Values = 0.0
    major_shared: Values = 0.0
    if any_of(shared[0]) or any_of(shared[1]):
        minor_shared = where(where(schedule.minor_is_m, *shared), 1.0, 0.0)
        major_shared = where(where(schedule.minor_is_m, *reversed(shared)), 1.0, 0.0)
    numbers = (
        *(ctas_per_cluster, minor_shared, major_shared),
        *(schedule.group, schedule.group_steps, schedule.groups, schedule.resident),
    )
    if all(map(is_number, numbers)):
        seen = counted.of_waves(*(np.array([int(value)]) for value in numbers))
        return float(seen[0, 0]), float(seen[1, 0])
    minor, major = counted.of_waves(*np.broadcast_arrays(*(np.asarray(v, dtype=np.int64) for v in numbers)))
    return minor, major


def gpc_of_clusters(
    tpc_rounds: Sequence[Sequence[int]], ctas_per_cluster: int, *, plain_launch: bool = False
) -> list[int]:
    """GPC of each cluster, in the order in which the launcher fills them.

    Single CTAs go to one SM of each TPC of a round, then to the other one; clusters of two take a TPC each.
    A plain launch of single CTAs fills GPC after GPC: counters of 1x1 kernels of CUTLASS (h200) see the
    requests of so many consecutive CTAs merge as a GPC has SMs.
    """
    times = SMS_PER_TPC // ctas_per_cluster
    in_turn = [gpc for tpcs in tpc_rounds for gpc in list(tpcs) * times]
    return sorted(in_turn) if plain_launch and ctas_per_cluster == 1 else in_turn


@cache
def _counted_requests(
    tpc_rounds: tuple[tuple[int, ...], ...], most_merged: float, serpentine: bool, plain_launch: bool
) -> _CountedRequests:
    return _CountedRequests(tpc_rounds, most_merged, serpentine, plain_launch)


class _CountedRequests:
    """Requests that L2 sees of waves in a family's order on a GPU, counted when they are first asked for."""

    def __init__(
        self, tpc_rounds: Sequence[Sequence[int]], most_merged: float, serpentine: bool, plain_launch: bool
    ) -> None:
        self.most_merged, self.serpentine = most_merged, serpentine
        self.gpcs = [
            np.array(gpc_of_clusters(tpc_rounds, ctas, plain_launch=plain_launch))
            for ctas in range(1, SMS_PER_TPC + 1)
        ]
        self.sms = len(self.gpcs[0])
        self.place = np.full((SMS_PER_TPC, 2, 2, self.sms + 1, self.sms + 1), -1)
        """Of each size of a cluster less one, shared minor and major operand, width and steps of a group:
        where `counted` has it for matrices of one such group, of two, and so on."""
        self.counted = np.empty((2, 0, self.sms + 1))
        """By extent, place and clusters."""

    def of_waves(
        self,
        ctas: IntArray,
        minor_shared: IntArray,
        major_shared: IntArray,
        group: IntArray,
        steps: IntArray,
        groups: IntArray,
        clusters: IntArray,
    ) -> FloatArray:
        """For the minor extent and the major one; arrays of equal length."""
        size = np.minimum(ctas, SMS_PER_TPC) - 1
        group = np.minimum(group, self.sms)
        # A wave reaches no further steps, and no further groups.
        steps = np.minimum(steps, -(-self.sms // group))
        groups = np.minimum(groups, -(-self.sms // (group * steps)))
        keys = (size, minor_shared, major_shared, group, steps)
        place = self.place[keys]
        if (new := place < 0).any():
            for key in np.unique(np.stack([each[new] for each in keys]), axis=1).T.tolist():
                self._add(*key)
            place = self.place[keys]
        result: FloatArray = self.counted[:, place + groups - 1, np.minimum(clusters, self.sms)]
        return result

    def _add(self, size: int, minor_shared: int, major_shared: int, group: int, steps: int) -> None:
        self.place[size, minor_shared, major_shared, group, steps] = self.counted.shape[1]
        most = -(-self.sms // (group * steps))
        shared = (bool(minor_shared), bool(major_shared))
        found = [self._count(size, shared, group, steps, groups) for groups in range(1, most + 1)]
        self.counted = np.concatenate([self.counted, np.stack(found, axis=1)], axis=1)

    def _count(self, size: int, shared: tuple[bool, bool], group: int, steps: int, groups: int) -> FloatArray:
        """Of the first cluster, the first two, and so on, over the requests that SMs make; by extent."""
        gpcs = self.gpcs[size]
        cluster = np.arange(len(gpcs))
        matrix, place = np.divmod(cluster, group * steps * groups)
        groups_before, place = np.divmod(place, group * steps)
        major, within = np.divmod(place, group)
        if self.serpentine:
            major = np.where(groups_before % 2 == 1, steps - 1 - major, major)
        minor = groups_before * group + within
        seen = np.ones((2, self.sms + 1))
        for extent, panel in enumerate((minor, major)):
            same = (gpcs[:, None] == gpcs) & (panel[:, None] == panel)
            if not shared[extent]:
                same &= matrix[:, None] == matrix
            earlier = np.tril(same, -1).sum(axis=1)
            # The first `most_merged` of a GPC make one request, each further one its share of one.
            further = np.where(earlier >= self.most_merged, 1.0 / self.most_merged, 0.0)
            requests = np.cumsum(np.where(earlier == 0, 1.0, further)) / (cluster + 1)
            seen[extent, 1 : len(gpcs) + 1] = requests
            seen[extent, len(gpcs) + 1 :] = requests[-1]
        return seen
