"""Rows outside the matrix: TMA fills them with zeros, which takes longer than reading rows."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.batch import GemmBatch
from gemm_model.elementwise import Values, ceil, eighth_power, maximum, minimum, negated, where
from gemm_model.feasibility import Resources
from gemm_model.gpu import GpuSpec
from gemm_model.schedule import TileSchedule

FIXED_ROWS = 8.0
"""Up to so many rows of clusters a slot can keep its row of the output from tile to tile."""
CROWDED_SHARE = 1.62
"""Zeros are bound by the device while up to 1 / 1.62 of the SMs have a tile, by the SM beyond."""
TWO_WAY_COST = 1.18
"""Clusters that share both operands: bound by the device on all SMs."""
WIDE = 4.0
WIDE_CLUSTER_COST = 0.85
"""Zeros of an operand along whose extent a cluster has four CTAs or more, most of them wholly outside, over
those of smaller clusters: decode shapes in clusters of 4x1."""
WIDE_MULTICAST_COST = 0.55
"""Zeros that one request brings to four CTAs or more, over those of one: TMA loads in clusters of 1x4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRows:
    """The slots with most zeros, which hold up the kernel; each field a number or an array."""

    bytes_per_wave: Values
    """Zeros that all slots of a full wave would be filled with if each were like the slowest."""
    slow_load: Values
    """Loads of the slowest slots for rows inside, over the mean of all slots."""
    fast_load: Values
    """The same of slots without zeros; 0 where every slot has its turn of zeros."""


def outside_rows(batch: GemmBatch, schedule: TileSchedule, found: Resources) -> OutsideRows:
    """Zeros per wave, from the share of the tiles that lies outside along m and along n."""
    fixed_m, rows_m = _fixed(batch, schedule, batch.m / (batch.cta_m * batch.cluster_m), schedule.fast_is_m)
    along_n = schedule.fast_is_m < 0.5
    fixed_n, rows_n = _fixed(batch, schedule, batch.n / (batch.cta_n * batch.cluster_n), along_n)
    outside_m = minimum((1.0 - schedule.filled_m) * rows_m, 1.0)
    outside_n = minimum((1.0 - schedule.filled_n) * rows_n, 1.0)
    a_bytes = batch.cta_m * (batch.a_bits + batch.a_scale_bits) / 8.0
    b_bytes = batch.cta_n * (batch.b_bits + batch.b_scale_bits) / 8.0
    zeros = a_bytes * _zeros_cost(outside_m, rows_m, fixed_m, batch.cluster_m, batch.cluster_n, schedule)
    zeros = zeros + b_bytes * _zeros_cost(
        outside_n, rows_n, fixed_n, batch.cluster_n, batch.cluster_m, schedule
    )
    mean = a_bytes * schedule.filled_m + b_bytes * schedule.filled_n
    slow_a = a_bytes * where(fixed_m, 1.0 - outside_m, schedule.filled_m)
    slow_b = b_bytes * where(fixed_n, 1.0 - outside_n, schedule.filled_n)
    fast_a = a_bytes * where(fixed_m, 1.0, schedule.filled_m)
    fast_b = b_bytes * where(fixed_n, 1.0, schedule.filled_n)
    ctas = schedule.slots * batch.cluster_m * batch.cluster_n
    spills = found.spilled_registers > 0
    return OutsideRows(
        bytes_per_wave=zeros * ctas * schedule.k_steps * found.cta_k,
        # What a kernel spills, most of its L2 bytes, is the same in all slots.
        slow_load=where(spills, 1.0, (slow_a + slow_b) / mean),
        fast_load=where((fixed_m | fixed_n) & negated(spills), (fast_a + fast_b) / mean, 0.0),
    )


def _fixed(
    batch: GemmBatch, schedule: TileSchedule, clusters: Values, is_fast: Values
) -> tuple[Values, Values]:
    """Whether a slot keeps its row (or column) of the output for all its tiles, and how many rows there are.

    It does where it has one tile, or where the rows are walked first and divide the number of slots.
    """
    rows = ceil(clusters)
    returns = (rows <= batch.swizzle) & (schedule.slots % rows < 0.5) & (is_fast > 0.5)
    few = (rows > 1.0) & (rows <= FIXED_ROWS)
    return few & (returns | (schedule.tiles <= schedule.slots)), rows


def _zeros_cost(
    outside: Values, rows: Values, fixed: Values, along: Values, sharers: Values, schedule: TileSchedule
) -> Values:
    """Cost of the zeros of one operand's tile, as a share of the tile, for a slot's mean wave.

    `outside` is their share of the row of tiles that has them. They cost less than in proportion where they
    are many, and less where fewer SMs have them. Slots that keep their row have all of it or none; the others
    have their turn. A cluster has `along` CTAs along the operand's extent, and `sharers` that take a tile by
    multicast. Powers from timings of decode shapes.
    """
    share = outside / maximum(eighth_power(outside), 1e-9)
    share = share * where(sharers >= WIDE, WIDE_MULTICAST_COST, 1.0)
    share = share * where(along >= WIDE, WIDE_CLUSTER_COST, 1.0)
    eighth = eighth_power(rows)
    alike = where((schedule.tiles <= schedule.slots) | (sharers > 1), eighth * eighth * eighth, eighth)
    return share / where(fixed, alike, rows)


def crowding(slots: Values, batch: GemmBatch, gpu: GpuSpec) -> Values:
    """What zeros take of the device's time over what they take where every SM has a tile.

    Up to some share of the SMs the device fills so many rows in a microsecond, whoever asks for them; beyond,
    the two SMs of a TPC help each other. Timings of decode shapes: 25 rows a ns up to 80 SMs, 40 on 132.
    """
    ctas_per_cluster = batch.cluster_m * batch.cluster_n
    spread = minimum(gpu.sm_count / (slots * ctas_per_cluster), CROWDED_SHARE)
    return where((batch.cluster_m > 1) & (batch.cluster_n > 1), TWO_WAY_COST, spread)
