"""Launch order: which GPC the CTAs of a wave land on, and how many of their equal requests meet there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from threading import Lock

import numpy as np

from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.elementwise import Flags, Values, any_of, ceil, floor, in_order, minimum, taken, where
from gemm_model.core.straight import called
from gemm_model.kernel_model.kernel import Kernel
from gemm_model.kernels.family import TileOrder

ORDERED_SIZES = (1, 2, 4)
"""CTAs of the clusters whose order over the GPCs is known [CTAs]; Hopper; `benchmarks/l2_merging.cu map`."""
SMS_PER_TPC = 2
"""SMs of a TPC [SMs]; all GPUs from sm70 on; CUDA driver."""


def requests_in_order(kernel: Kernel, shared: tuple[Flags, Flags]) -> tuple[Values, Values] | None:
    """Requests that L2 sees for each that an SM makes: for panels of the minor extent, and of the major one.

    Clusters take tiles in their order, GPCs clusters in that of the launcher; requests of one GPC for the
    same panel merge. Each matrix of a batch has panels of its own, but of A, or B, where it is `shared`.
    For clusters of ORDERED_SIZES CTAs; None where the order of the GPU's TPCs is not known.
    """
    gpu, schedule = kernel.gpu, kernel.schedule
    if not gpu.tpc_rounds:
        return None
    counted = _counted_once(gpu.tpc_rounds, gpu.l2_merging_sms, kernel.family.tile_order)
    minor_shared, major_shared = in_order(schedule.minor_is_m, *(where(each, 1.0, 0.0) for each in shared))
    return counted.of_waves(
        kernel.cluster_size,
        (minor_shared, major_shared),
        (schedule.group, schedule.group_steps, schedule.groups),
        schedule.resident,
    )


def gpc_of_clusters(tpc_rounds: Sequence[Sequence[int]], ctas_per_cluster: int) -> list[int]:
    """GPC of each cluster, in the order in which the launcher fills them.

    Single CTAs go to one SM of each TPC of a round, then to the other one; clusters of two take a TPC each.
    Clusters of four take two TPCs of each GPC that has them left, without those that a round repeats (SMs of
    each CTA, h200).
    """
    if ctas_per_cluster > SMS_PER_TPC:
        left = Counter(gpc for tpcs in tpc_rounds for gpc in set(tpcs))
        tpcs = ctas_per_cluster // SMS_PER_TPC
        turns = range(max(left.values()) // tpcs)
        return [gpc for turn in turns for gpc in sorted(left) if left[gpc] // tpcs > turn]
    times = SMS_PER_TPC // ctas_per_cluster
    return [gpc for tpcs in tpc_rounds for gpc in list(tpcs) * times]


def gpc_of_taken_sms(tpc_rounds: Sequence[Sequence[int]]) -> list[int]:
    """GPC of each SM, in the order in which larger and larger plain launches of single CTAs take them.

    Both SMs of the TPCs that the first round has beyond one of each GPC come first, then one SM of every
    other TPC, round by round, then its second one. Source: `benchmarks/l2_merging.cu map` (16 to 132 CTAs).
    """
    first_round = list(tpc_rounds[0])
    ahead = [gpc for place, gpc in enumerate(first_round) if gpc in first_round[:place]]
    one_of_each = list(dict.fromkeys(first_round)) + [gpc for tpcs in tpc_rounds[1:] for gpc in tpcs]
    return ahead * SMS_PER_TPC + one_of_each * SMS_PER_TPC


def ctas_of_fullest_gpc(kernel: Kernel, spread: Flags) -> Values:
    """CTAs on the GPC that holds most of those that run; 0 where the order of the GPU's TPCs is not known.

    Single CTAs and clusters of two lie in the launcher's order, which takes SMs as `gpc_of_taken_sms` says
    where the launch names no cluster, larger clusters and those that are `spread` evenly. Source: bulk reads
    of 16 to 48 CTAs, the slowest of which read an even share of what one GPC does (h200, three cards).
    """
    ctas, ctas_per_cluster = kernel.ctas, kernel.cluster_size
    if not kernel.gpu.tpc_rounds:
        return 0.0
    most, gpcs = _most_of_a_gpc(kernel.gpu.tpc_rounds, kernel.family.tile_order.plain_launch)
    sms = float(most.shape[1] - 1)
    row = minimum(ctas_per_cluster, float(SMS_PER_TPC)) - 1.0
    in_order = taken(most, row * (sms + 1.0) + minimum(ctas, sms))
    evenly = ctas_per_cluster * ceil(ctas / (ctas_per_cluster * gpcs))
    return where(spread, ctas / gpcs, where(ctas_per_cluster <= SMS_PER_TPC, in_order, evenly))


@cache
def _most_of_a_gpc(tpc_rounds: tuple[tuple[int, ...], ...], plain_launch: bool) -> tuple[FloatArray, float]:
    """CTAs on the fullest GPC, and the GPCs.

    By CTAs in a cluster (one, two) and CTAs in all, from none to one an SM.
    """
    sms = SMS_PER_TPC * sum(map(len, tpc_rounds))
    most = np.zeros((SMS_PER_TPC, sms + 1))
    for ctas in range(1, SMS_PER_TPC + 1):
        plain = plain_launch and ctas == 1
        gpcs = gpc_of_taken_sms(tpc_rounds) if plain else gpc_of_clusters(tpc_rounds, ctas)
        gpc_of_ctas = np.repeat(gpcs, ctas)
        on_gpc = gpc_of_ctas[:, None] == np.unique(gpc_of_ctas)
        most[ctas - 1, 1:] = np.cumsum(on_gpc, axis=0).max(axis=1)
    return most, float(on_gpc.shape[1])


class _CountedRequests:
    """Requests that L2 sees of waves in a family's order on a GPU, counted when they are first asked for."""

    def __init__(self, tpc_rounds: Sequence[Sequence[int]], most_merged: float, order: TileOrder) -> None:
        self.most_merged, self.serpentine = int(most_merged), order.serpentine
        self.gpcs = [np.array(gpc_of_clusters(tpc_rounds, ctas)) for ctas in ORDERED_SIZES]
        self.sms = len(self.gpcs[0])
        self.starts = [_starts(gpcs.tolist()) if order.fills_gpcs else None for gpcs in self.gpcs]
        if order.plain_launch:
            self.starts[0] = _starts(gpc_of_taken_sms(tpc_rounds))
        self.kinds = (len(ORDERED_SIZES), 2, 2, self.sms + 1, self.sms + 1)
        """Sizes of a cluster less one, shared minor and major operand, width and steps of a group."""
        self.place = np.full(math.prod(self.kinds), -1.0)
        """Of each kind where `counted` has it for matrices of one such group, of two, and so on."""
        self.counted = np.empty((2, 0, self.sms + 1))
        """By extent, place and clusters; the first `waves` places are taken."""
        self.extents = tuple(self.counted)
        """The same of each extent: to take an array apart takes a microsecond each time."""
        self.waves = 0
        self.growth = Lock()
        """Long tables are predicted by several threads."""

    def of_waves(
        self,
        ctas: Values,
        shared: tuple[Values, Values],
        groups: tuple[Values, Values, Values],
        clusters: Values,
    ) -> tuple[Values, Values]:
        """For the minor extent and the major one.

        Of matrices whose minor and major operand is `shared` (0 or 1), in `groups` of so many panels, of so
        many steps, and so many of them; whole numbers, or means.
        """
        sms = float(self.sms)
        group, steps, several = map(floor, groups)
        group = minimum(group, sms)
        # A wave reaches no further steps, and no further groups.
        steps = minimum(steps, ceil(sms / group))
        several = minimum(several, ceil(sms / (group * steps)))
        # The place of these five in a table of `kinds`.
        minor_shared, major_shared = shared
        size = where(ctas < 4.0, minimum(ctas, 2.0) - 1.0, 2.0)
        kind = (size * 2.0 + minor_shared) * 2.0 + major_shared
        kind = (kind * (sms + 1.0) + group) * (sms + 1.0) + steps
        found: tuple[Values, Values] = called(
            self._seen, kind, (several - 1.0) * (sms + 1.0) + minimum(floor(clusters), sms)
        )
        return found

    def _seen(self, kind: Values, behind: Values) -> tuple[Values, Values]:
        """What is counted of a kind, so many places behind its first one."""
        place = taken(self.place, kind)
        if any_of(place < 0.0):
            self._add(np.unique(np.atleast_1d(kind)))
            place = taken(self.place, kind)
        at = place * (self.sms + 1.0) + behind
        minor, major = self.extents
        return taken(minor, at), taken(major, at)

    def _add(self, kinds: FloatArray) -> None:
        with self.growth:
            new: IntArray = kinds[self.place[kinds.astype(np.int64)] < 0.0].astype(np.int64)
            *_, group, steps = found = np.unravel_index(new, self.kinds)
            most = -(-self.sms // (group * steps))
            # Of each kind waves of one such group, of two, and so on.
            first = np.cumsum(most) - most
            groups = np.arange(most.sum()) - np.repeat(first, most) + 1
            rows = [np.repeat(values, most) for values in found]
            counted = np.empty((2, len(groups), self.sms + 1))
            for size in np.unique(found[0]):
                of_size = rows[0] == size
                minor, major, *walk = (values[of_size, None] for values in (*rows[1:], groups))
                counted[:, of_size] = self._count(size, (minor, major), *walk)
            end = self.waves + len(groups)
            if end > self.counted.shape[1]:
                # Twice as many, so that few copies are made.
                more = np.empty((2, 2 * end - self.waves, self.sms + 1))
                self.counted = np.concatenate([self.counted[:, : self.waves], more], axis=1)
                self.extents = tuple(self.counted)
            # Other threads read on: what a place stands for comes before the place.
            self.counted[:, self.waves : end] = counted
            first = first + self.waves
            self.waves = end
            self.place[new] = first

    def _count(
        self, size: int, shared: tuple[IntArray, IntArray], group: IntArray, steps: IntArray, groups: IntArray
    ) -> FloatArray:
        """Of the first cluster, the first two, and so on, over the requests that SMs make; by extent, wave.

        A wave is a row of the columns that tell it.
        """
        gpcs = self.gpcs[size]
        if not len(gpcs):
            # No GPC of the card has room for a cluster of this size.
            return np.ones((2, len(group), self.sms + 1))
        cluster = np.arange(len(gpcs))
        matrix, place = np.divmod(cluster, group * steps * groups)
        groups_before, place = np.divmod(place, group * steps)
        major, within = np.divmod(place, group)
        if self.serpentine:
            major = np.where(groups_before % 2 == 1, steps - 1 - major, major)
        minor = groups_before * group + within
        seen = np.ones((2, len(group), self.sms + 1))
        for extent, (panel, is_shared) in enumerate(zip((minor, major), shared, strict=True)):
            panels = panel.max(axis=1, keepdims=True, initial=0) + 1
            asked = np.where(is_shared > 0, 0, matrix * panels) + panel
            starts = self.starts[size]
            if starts is not None:
                requests = _requests_of_filled_gpcs(asked, starts, self.most_merged)
            else:
                last, merged = _earlier(asked * (gpcs.max() + 1) + gpcs, (1, self.most_merged))
                # The first `most_merged` of a GPC make one request, each further one its share of one.
                requests = np.cumsum((last < 0) + (merged >= 0) / self.most_merged, axis=1) / (cluster + 1)
            seen[extent, :, 1 : len(gpcs) + 1] = requests
            seen[extent, :, len(gpcs) + 1 :] = requests[:, -1:]
        return seen


_counted_once = cache(_CountedRequests)
"""The same object for the same arguments."""


def _starts(gpcs: Sequence[int]) -> IntArray:
    """The first cluster on the GPC of each cluster, in launches of one cluster, of two and so on, by launch and
    cluster, if launches take room on `gpcs` in this order and fill what they take GPC after GPC.
    """
    starts = np.full((len(gpcs), len(gpcs)), len(gpcs))
    for clusters in range(1, len(gpcs) + 1):
        taken_gpcs = np.sort(gpcs[:clusters])
        starts[clusters - 1, :clusters] = np.searchsorted(taken_gpcs, taken_gpcs)
    return starts


def _requests_of_filled_gpcs(asked: IntArray, starts: IntArray, most_merged: int) -> FloatArray:
    """Requests over those that SMs make in launches of one cluster, of two and so on, for rows of panels asked.

    Requests merge as in `_count`, with those of clusters from `starts` on.
    """
    clusters = np.arange(len(starts))
    running = clusters <= clusters[:, None]
    last, merged = (before[:, None] >= starts for before in _earlier(asked, (1, most_merged)))
    requests: FloatArray = ((~last + merged / most_merged) * running).sum(axis=2) / (clusters + 1)
    return requests


def _earlier(asked: IntArray, backs: Sequence[int]) -> list[IntArray]:
    """The place in its row where the same was asked so many times before, for each of `backs`; -1 if nowhere.

    Values of 16 bits.
    """
    order = np.argsort(asked.astype(np.uint16), axis=1, kind="stable")
    ordered = np.take_along_axis(asked, order, axis=1)
    found = []
    for back in backs:
        before = np.full_like(order, -1)
        same = ordered[:, back:] == ordered[:, :-back]
        np.put_along_axis(before, order[:, back:], np.where(same, order[:, :-back], -1), axis=1)
        found.append(before)
    return found
