"""Rows outside the matrix: TMA fills them with zeros, which takes longer than reading rows."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Values,
    ceil,
    eighth_power,
    floor,
    is_number,
    maximum,
    minimum,
    negated,
    remainder,
    sqrt,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernels.feasibility import Resources
from gemm_model.persistent.tile_schedule import TileSchedule

FIXED_ROWS = 8.0
"""Up to so many rows of clusters a slot can keep its row of the output from tile to tile."""
BEND = 0.5
"""Share of the SMs at work up to which zeros take time in proportion to it."""
FURTHER_SM, FURTHER_SM_OF_PAIRS, FURTHER_SM_OF_FEW = 0.11, 0.3, 0.5
"""What an SM beyond adds to that time, over one up to there: single CTAs, clusters of two, and either where
only the slots of one row have zeros. In clusters of four it adds as much."""
TWO_WAY_COST = 1.36
"""Zeros in clusters that share both operands, over those in others."""
TWO_WAY_HIDDEN = 0.62
"""What zeros and loads hide of each other in such clusters, in parts of half their harmonic mean."""
WHOLE_BOX_COST, FURTHER_PART_COST = 1.18, 0.65
"""A box of multicast rows that lies wholly outside, and the rows outside of one that lies there in part
beside such a box, over the same rows without multicast."""
WIDE = 4.0
WIDE_MULTICAST_COST = 0.575
"""Zeros that one request brings to four CTAs or more, over those of one: clusters of 1x4."""
TURNS_COST = 1.4
"""Zeros that slots take turns at where the rows are walked first, over an even share of them: some slots have
more turns than others."""
WORST_CTA = 0.06
"""How far a cluster whose CTAs lie outside in different parts waits for the one that does so most."""
ONE_ROW_COST = 1.08
"""Zeros beside the only row of a matrix, over those beside two rows or more: timings with m = 1."""
STEPS_AT_COST = 64.0
"""k steps at which zeros cost what these constants say: 2 % less for each doubling, from 5 steps to 1000.
Timings of decode shapes, alike in 16-bit and fp8; why is not known."""
GPC_SHARE = 0.41
"""Part of the time of zeros that clusters of four share with those of their GPC, not of the whole device."""
CTAS_OF_LARGE_GPC = 16
"""Of clusters of so many CTAs as many run as there are GPCs that hold four clusters of four."""
IN_STEP_ROWS, OUT_OF_STEP_ROWS = 24.0, 84.0
"""Rows of zeros of one CTA up to which its requests merge with its neighbours', and from which on none do."""
MIXED_LOSS = 0.35
"""Of the other operand's requests as many stop to merge, where some of those who ask have no zeros."""
EDGE = 1e-6
"""CTAs; less than this outside is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRows:
    """The slots with most zeros, which hold up the kernel; each field a number or an array."""

    bytes_per_wave: Values
    """Zeros that all slots of a full wave would be filled with if each were like the slowest."""
    slow_load: Values
    """Loads of the slowest slots for rows inside, over the mean of all slots."""
    fixed: Values
    """Whether some slots have zeros for all their tiles, and the others none."""
    fast_load: Values
    """The same of slots without zeros; 0 where every slot has its turn of zeros."""
    hidden: Values
    """What zeros and loads of the slowest slots hide of each other, in parts of half their harmonic mean."""
    a_in_step: Values
    """Share of the requests for A that merge in spite of zeros."""
    b_in_step: Values


ALL_INSIDE = OutsideRows(
    bytes_per_wave=0.0,
    slow_load=1.0,
    fixed=False,
    fast_load=0.0,
    hidden=0.0,
    a_in_step=1.0,
    b_in_step=1.0,
)
"""Of one row whose tiles fill the matrix."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """How the tiles of one operand lie over the edge of the matrix; each field a number or an array."""

    outside: Values
    """Share of the last row of clusters."""
    rows: Values
    """Rows of clusters."""
    fixed: Values
    """Whether a slot keeps its row for all its tiles."""
    walked: Values
    """Whether consecutive tiles walk along all rows."""
    along: Values
    """CTAs of a cluster along the operand's extent."""
    sharers: Values
    """CTAs that take a tile of it by multicast."""
    whole: Values
    """CTAs of the last cluster that lie wholly outside."""
    partial: Values
    """Share of the tile of the CTA that the edge crosses."""


def outside_rows(batch: GemmBatch, schedule: TileSchedule, found: Resources) -> OutsideRows:
    """Zeros per wave, from the share of the tiles that lies outside along m and along n."""
    if is_number(schedule.filled_m) and schedule.filled_m == schedule.filled_n == 1.0:
        return ALL_INSIDE
    rows_m = ceil(batch.m / (batch.cta_m * batch.cluster_m))
    rows_n = ceil(batch.n / (batch.cta_n * batch.cluster_n))
    walked_m = (rows_m <= batch.swizzle) & (schedule.fast_is_m > 0.5)
    walked_n = (rows_n <= batch.swizzle) & (schedule.fast_is_m < 0.5)
    fixed_m, fixed_n = _fixed(schedule, rows_m, walked_m), _fixed(schedule, rows_n, walked_n)
    a_edge = _edge(schedule.filled_m, rows_m, fixed_m, walked_m, batch.cluster_m, batch.cluster_n)
    b_edge = _edge(schedule.filled_n, rows_n, fixed_n, walked_n, batch.cluster_n, batch.cluster_m)
    a_bytes = batch.cta_m * (batch.a_bits + batch.a_scale_bits) / 8.0
    b_bytes = batch.cta_n * (batch.b_bits + batch.b_scale_bits) / 8.0
    a_zeros = a_bytes * _zeros_cost(a_edge, schedule) * where(batch.m == 1, ONE_ROW_COST, 1.0)
    b_zeros = b_bytes * _zeros_cost(b_edge, schedule) * where(batch.n == 1, ONE_ROW_COST, 1.0)
    mean = a_bytes * schedule.filled_m + b_bytes * schedule.filled_n
    slow_a = a_bytes * where(fixed_m, 1.0 - a_edge.outside, schedule.filled_m)
    slow_b = b_bytes * where(fixed_n, 1.0 - b_edge.outside, schedule.filled_n)
    fast_a = a_bytes * where(fixed_m, 1.0, schedule.filled_m)
    fast_b = b_bytes * where(fixed_n, 1.0, schedule.filled_n)
    ctas = schedule.slots * batch.cluster_m * batch.cluster_n
    spills = found.spilled_registers > 0
    a_lost, a_mixed = _out_of_step(a_edge, batch.cta_m)
    b_lost, b_mixed = _out_of_step(b_edge, batch.cta_n)
    return OutsideRows(
        bytes_per_wave=(a_zeros + b_zeros)
        * ctas
        * schedule.k_steps
        * found.cta_k
        * _by_steps(schedule.k_steps),
        # What a kernel spills, most of its L2 bytes, is the same in all slots.
        slow_load=where(spills, 1.0, (slow_a + slow_b) / mean),
        fixed=fixed_m | fixed_n,
        fast_load=where((fixed_m | fixed_n) & negated(spills), (fast_a + fast_b) / mean, 0.0),
        hidden=where(_two_way(batch), TWO_WAY_HIDDEN, 0.0),
        a_in_step=(1.0 - a_lost) * (1.0 - b_mixed),
        b_in_step=(1.0 - b_lost) * (1.0 - a_mixed),
    )


def _by_steps(k_steps: Values) -> Values:
    """(STEPS_AT_COST / k_steps) to the power 1/32."""
    return eighth_power(sqrt(sqrt(STEPS_AT_COST / k_steps)))


def _two_way(batch: GemmBatch) -> Values:
    return (batch.cluster_m > 1) & (batch.cluster_n > 1)


def _edge(
    filled: Values, rows: Values, fixed: Values, walked: Values, along: Values, sharers: Values
) -> _Edge:
    outside = minimum((1.0 - filled) * rows, 1.0)
    whole = floor(outside * along + EDGE)
    partial = maximum(outside * along - whole, 0.0)
    return _Edge(outside, rows, fixed, walked, along, sharers, whole, partial)


def _out_of_step(edge: _Edge, tile: Values) -> tuple[Values, Values]:
    """Share of an operand's requests that no longer merge, and of the other operand's.

    A CTA that is filled with zeros advances at another pace than its neighbours. Those that take the same
    tile of the other operand have zeros too, unless some CTAs with rows inside have none. Decode shapes;
    the root of the rows of clusters because the more there are, the fewer neighbours have zeros.
    """
    zeros = edge.partial * tile
    lost = minimum(maximum(zeros - IN_STEP_ROWS, 0.0) / (OUT_OF_STEP_ROWS - IN_STEP_ROWS), 1.0)
    lost = lost / sqrt(edge.rows)
    mixed = (edge.rows > 1.0) | (edge.along - edge.whole > 1.5)
    return lost, where(mixed, MIXED_LOSS * lost, 0.0)


def _fixed(schedule: TileSchedule, rows: Values, walked: Values) -> Values:
    """Whether a slot keeps its row (or column) of the output for all its tiles.

    It does where it has one tile, or where the rows are walked first and divide the number of slots.
    """
    returns = walked & (remainder(schedule.slots, rows) < 0.5)
    few = (rows > 1.0) & (rows <= FIXED_ROWS)
    return few & (returns | (schedule.tiles <= schedule.slots))


def _zeros_cost(edge: _Edge, schedule: TileSchedule) -> Values:
    """Cost of the zeros of one operand's tile, as a share of the tile, for a slot's mean wave.

    Each of the CTAs that share a tile by multicast asks for a box of it. Zeros cost less where fewer SMs have
    them. Slots that keep their row have all of it or none; the others have their turn. Costs and powers from
    timings of decode shapes.
    """
    boxes = edge.along * edge.sharers
    whole = floor(edge.outside * boxes + EDGE)
    part = maximum(edge.outside * boxes - whole, 0.0) * where(whole > 0.0, FURTHER_PART_COST, 1.0)
    share = where(edge.sharers > 1.0, (WHOLE_BOX_COST * whole + part) / boxes, edge.outside)
    share = share + WORST_CTA * (minimum(edge.outside * edge.along, 1.0) - edge.outside)
    share = share * where(edge.sharers >= WIDE, WIDE_MULTICAST_COST, 1.0)
    eighth = eighth_power(edge.rows)
    quarter = eighth * eighth
    shared = where(edge.along > 1.0, quarter * quarter, quarter * eighth)
    alike = where(edge.sharers > 1.0, shared, where(schedule.tiles <= schedule.slots, quarter, eighth))
    turns = edge.walked & (edge.rows > 1.0) & (schedule.tiles > schedule.slots)
    in_turn = edge.rows / where(turns, TURNS_COST, 1.0)
    return share / where(edge.fixed, alike, in_turn)


def crowding(slots: Values, batch: GemmBatch, gpu: GpuSpec, fixed: Values) -> Values:
    """What zeros take of the device's time over what they take where every SM has a tile.

    The device fills so many rows in a microsecond, whoever asks for them, but more of them once more than
    half of its SMs are at work, except in clusters of four; less so where only the slots of one row ask
    (`fixed`). Timings of decode shapes, alike in 16-bit and fp8.
    """
    ctas_per_cluster = batch.cluster_m * batch.cluster_n
    busy = slots * ctas_per_cluster / gpu.sm_count
    felt = _felt_by_fours(busy, slots, ctas_per_cluster, gpu)
    few = where(fixed, FURTHER_SM_OF_FEW, where(ctas_per_cluster > 1.0, FURTHER_SM_OF_PAIRS, FURTHER_SM))
    further = where(ctas_per_cluster > 2.0, 1.0, few)
    device = minimum(felt, BEND) + further * maximum(felt - BEND, 0.0)
    whole_device = BEND + further * (1.0 - BEND)
    return where(_two_way(batch), TWO_WAY_COST, 1.0) * device / whole_device / busy


def _felt_by_fours(busy: Values, slots: Values, ctas_per_cluster: Values, gpu: GpuSpec) -> Values:
    """Share of the SMs that zeros have to share the device with, as clusters of four feel it.

    They spread evenly over the GPCs; on an H200 seven hold four of them and one holds two. The time of zeros
    steps up with the clusters on the fullest: from 16 clusters to 17, from 23 to 24.
    """
    large = gpu.resident_clusters.get(CTAS_OF_LARGE_GPC)
    if large is None or (is_number(ctas_per_cluster) and ctas_per_cluster != 4):
        return busy
    at_once = gpu.clusters_at_once(4)
    each = CTAS_OF_LARGE_GPC // 4
    small = max(at_once - each * large, 0)
    gpcs = large + (small > 0)
    on_fullest = maximum(ceil(slots / gpcs), ceil((slots - small) / large))
    by_gpc = on_fullest / each * (at_once * 4 / gpu.sm_count)
    return where(ctas_per_cluster == 4, busy + GPC_SHARE * (by_gpc - busy), busy)
