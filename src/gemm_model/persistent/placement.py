"""Which GPC the CTAs of a wave land on, and how many of their equal requests meet there on the way to L2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.core.elementwise import Values, is_number
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.tile_schedule import TileSchedule

MOST_MERGED = 4
"""Equal requests of a GPC that L2 sees as one, at most: L2 counters of SMs that stream the same bytes."""
WIDEST_GROUP = 16
"""Of fast panels; wider groups are taken for this one."""
SMS_PER_TPC = 2


def requests_in_order(
    schedule: TileSchedule, ctas_per_cluster: Values, gpu: GpuSpec
) -> tuple[Values, Values] | None:
    """Requests that L2 sees for each that an SM makes: for panels of the fast extent, and of the slow one.

    Tiles go to slots in their order, slots to GPCs in that of the launcher, and requests of one GPC for the
    same panel merge. For clusters of one or two; None where the order of the GPU's TPCs is not known.
    """
    if not gpu.tpc_rounds:
        return None
    numbers = (schedule.group, schedule.slots, ctas_per_cluster)
    table = _requests_table(gpu.tpc_rounds)
    limits = (WIDEST_GROUP, table.shape[-1] - 1, SMS_PER_TPC)
    if all(map(is_number, numbers)):
        group, slots, ctas = (min(int(value), limit) for value, limit in zip(numbers, limits, strict=True))
        return float(table[0, ctas - 1, group, slots]), float(table[1, ctas - 1, group, slots])
    groups, slots_of, sizes = (
        np.minimum(np.asarray(value, dtype=np.int64), limit)
        for value, limit in zip(numbers, limits, strict=True)
    )
    places = (sizes - 1, groups, slots_of)
    return table[0][places], table[1][places]


def gpc_of_slots(tpc_rounds: Sequence[Sequence[int]], ctas_per_cluster: int) -> list[int]:
    """GPC of each slot, in the order in which the launcher fills them.

    Single CTAs go to one SM of each TPC of a round, then to the other one; clusters of two take a TPC each.
    """
    times = SMS_PER_TPC // ctas_per_cluster
    return [gpc for tpcs in tpc_rounds for gpc in list(tpcs) * times]


@cache
def _requests_table(tpc_rounds: tuple[tuple[int, ...], ...]) -> FloatArray:
    """By fast or slow extent, CTAs of a cluster less one, width of the group of fast panels, and slots."""
    tpcs = sum(map(len, tpc_rounds))
    table = np.ones((2, SMS_PER_TPC, WIDEST_GROUP + 1, tpcs * SMS_PER_TPC + 1))
    for ctas_per_cluster in range(1, SMS_PER_TPC + 1):
        gpcs = gpc_of_slots(tpc_rounds, ctas_per_cluster)
        slots = np.arange(1, len(gpcs) + 1)
        for width in range(1, WIDEST_GROUP + 1):
            for extent in range(2):
                panels = (divmod(slot, width)[1 - extent] for slot in range(len(gpcs)))
                seen = np.array(_requests(gpcs, panels)) / slots
                table[extent, ctas_per_cluster - 1, width, 1 : len(gpcs) + 1] = seen
                table[extent, ctas_per_cluster - 1, width, len(gpcs) + 1 :] = seen[-1]
    return table


def _requests(gpcs: Iterable[int], panels: Iterable[int]) -> list[float]:
    """Requests that L2 sees of the first slot, the first two, and so on."""
    asked: Counter[tuple[int, int]] = Counter()
    total, totals = 0.0, []
    for place in zip(gpcs, panels, strict=True):
        asked[place] += 1
        # The first four of a GPC make one request, each further one a quarter.
        total += 1.0 if asked[place] == 1 else 1.0 / MOST_MERGED if asked[place] > MOST_MERGED else 0.0
        totals.append(total)
    return totals
