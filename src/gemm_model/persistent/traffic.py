"""Bytes that a kernel moves: DRAM, L2, and into the shared memory of one SM."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Values,
    floor,
    maximum,
    minimum,
    power_of_two_divisor,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernels.feasibility import Resources
from gemm_model.persistent.edge_tiles import OutsideRows
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.placement import MOST_MERGED, requests_in_order
from gemm_model.persistent.spilling import spilled_l2_bytes
from gemm_model.persistent.tile_schedule import TileSchedule

SMS_PER_COALESCER = 8.0
"""SMs that merge equal requests as well as the 16 or 18 of a GPC do, of which up to four requests merge.

Pairs of SMs that stream the same bytes: L2 counts them once within a GPC, twice across two.
"""
SMS_THAT_MEET = 12.0
"""Where panels are few, so many SMs ask for each of them alike, and up to MOST_MERGED of them merge."""
IN_ORDER_US = 80.0
"""Work of L2 after which the order in which tiles went to GPCs tells half of which requests meet; the rest is
chance. Timings of 10 us to 1 ms, alike in 16-bit and fp8."""
NARROW_WRITES = 0.6
"""What pieces of an output row cost more where tiles store rows of 32 bytes (208 columns), not of 64."""
PARTIAL_SUM_BYTES = 4.0
ALIGNED_BYTES = 64.0
SECTOR_BYTES = 32.0
TMA_ALIGNMENT_BYTES = 16.0
LINE_BYTES = 128.0
KEPT_MISALIGNMENT = 0.58
"""What `write_misalignment` is while L2 keeps the whole output: pieces of a sector meet there."""
DRIFT_FOOTPRINT = 0.06
"""Of a wave's panels: what comes between two uses of a line once tiles have lost their lock-step."""
DRIFT_MISSES = 0.55
"""Share of the requests that then go to DRAM, at most. DRAM counters of kernels of 0.1 to 30 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of the whole kernel; each field a number or an array."""

    operand_bytes: Values
    """A and B, once."""
    output_bytes: Values
    dram_read_bytes: Values
    dram_write_bytes: Values
    l2_request_bytes: Values
    """What SMs ask of L2 for A and B after multicast and coalescing, and what they write."""
    l2_load_bytes: Values
    """The work of L2 in bytes: requests, misaligned rows, fills, spilled registers, and writes."""
    l2_store_bytes: Values
    """The part of it that is writes."""
    merged_bytes: Values
    """What coalescing saves L2 while neighbouring SMs stay in lock-step, if requests meet by chance."""
    ordered_bytes: Values
    """What it saves beyond that while tiles stay where they began (it may be less than nothing)."""
    wave_footprint_bytes: Values
    """Distinct panels that one full wave reads."""

    @property
    def dram_bytes(self) -> Values:
        return self.dram_read_bytes + self.dram_write_bytes


def traffic(
    batch: GemmBatch,
    gpu: GpuSpec,
    found: Resources,
    schedule: TileSchedule,
    outside: OutsideRows,
    p: KernelParameters,
    *,
    warm: bool = False,
) -> Traffic:
    """Bytes by level for a kernel that starts with a cold L2 (or, `warm`, with what an earlier run left)."""
    a_bytes = (batch.a_bits + batch.a_scale_bits) / 8.0
    b_bytes = (batch.b_bits + batch.b_scale_bits) / 8.0
    operands = (batch.m * a_bytes + batch.n * b_bytes) * batch.k * batch.batch
    output = batch.m * batch.n * batch.batch * batch.out_bits / 8.0
    partial_sums = batch.m * batch.n * batch.batch * PARTIAL_SUM_BYTES * 2.0 * (batch.split_k - 1.0)

    m_panel = batch.cluster_m * batch.cta_m * a_bytes * batch.k
    n_panel = batch.cluster_n * batch.cta_n * b_bytes * batch.k
    fast_panel = where(schedule.fast_is_m, m_panel * schedule.filled_m, n_panel * schedule.filled_n)
    slow_panel = where(schedule.fast_is_m, n_panel * schedule.filled_n, m_panel * schedule.filled_m)
    shared = schedule.fast_panels * fast_panel
    footprint = shared + schedule.slow_panels * slow_panel
    kept = _kept(operands, p.l2_capacity_share * gpu.l2_bytes)
    # Until a fast panel is wanted again, the rest of its group comes by, which may be more than a wave.
    until_reuse = where(schedule.group > schedule.slots, schedule.group * fast_panel, footprint)
    reads = _dram_reads(gpu, schedule, p, operands, footprint, shared, until_reuse, kept)
    if warm:
        reads = reads * (1.0 - _kept(operands + output, p.l2_capacity_share * gpu.l2_bytes))

    cluster_size = batch.cluster_m * batch.cluster_n
    requesters = SMS_PER_COALESCER / cluster_size
    a_pieces = further_pieces(where(batch.a_k_major, batch.k, batch.m) * batch.a_bits / 8.0)
    b_pieces = further_pieces(where(batch.b_k_major, batch.k, batch.n) * batch.b_bits / 8.0)
    # Multicast requests do not merge, nor do rows that share sectors with their neighbours.
    a_alone = (batch.cluster_n < 2) & (a_pieces < ALIGNED_BYTES / SECTOR_BYTES)
    b_alone = (batch.cluster_m < 2) & (b_pieces < ALIGNED_BYTES / SECTOR_BYTES)
    a_panels = where(schedule.fast_is_m, schedule.fast_panels, schedule.slow_panels)
    b_panels = where(schedule.fast_is_m, schedule.slow_panels, schedule.fast_panels)
    a_equal, b_equal = merged_share(a_panels, requesters), merged_share(b_panels, requesters)
    # Multicast: the CTAs of a cluster row share A, those of a column share B.
    a_asked = batch.cta_m * a_bytes / batch.cluster_n * schedule.filled_m
    b_asked = batch.cta_n * b_bytes / batch.cluster_m * schedule.filled_n
    a_mergeable = p.coalescing * a_alone * outside.a_in_step * a_asked
    b_mergeable = p.coalescing * b_alone * outside.b_in_step * b_asked
    a_merged, b_merged = a_mergeable * a_equal, b_mergeable * b_equal
    a_requests, b_requests = a_asked - a_merged, b_asked - b_merged
    in_order = requests_in_order(schedule, cluster_size, gpu)
    ordered: Values = 0.0
    if in_order is not None:
        fast, slow = in_order
        a_ordered = a_mergeable * (1.0 - where(schedule.fast_is_m, fast, slow) - a_equal)
        b_ordered = b_mergeable * (1.0 - where(schedule.fast_is_m, slow, fast) - b_equal)
        ordered = (requesters > 2.0) * (a_ordered + b_ordered)
    requests = a_requests + b_requests
    output_pieces = further_pieces(where(batch.c_n_major, batch.n, batch.m) * batch.out_bits / 8.0)
    lines = requests + p.read_misalignment * (a_requests * a_pieces + b_requests * b_pieces)
    cta_steps = schedule.tiles * cluster_size * schedule.k_steps
    k_bytes = cta_steps * found.cta_k
    spilled = spilled_l2_bytes(batch, found) * cta_steps
    writes = output + partial_sums
    kept_output = _kept(output, p.l2_capacity_share * gpu.l2_bytes)
    write_misalignment = kept_output * KEPT_MISALIGNMENT + (1.0 - kept_output) * p.write_misalignment
    stored_row = minimum(power_of_two_divisor(batch.cta_n) * batch.out_bits / 8.0, ALIGNED_BYTES)
    narrow = 1.0 + NARROW_WRITES * (ALIGNED_BYTES / stored_row - 1.0)
    write_load = writes + write_misalignment * output * output_pieces * narrow
    return Traffic(
        operand_bytes=operands,
        output_bytes=output,
        dram_read_bytes=reads,
        dram_write_bytes=output,
        l2_request_bytes=requests * k_bytes + writes,
        l2_load_bytes=lines * k_bytes + p.fill_share * reads + write_load + spilled,
        l2_store_bytes=write_load,
        merged_bytes=(a_merged + b_merged) * k_bytes,
        ordered_bytes=ordered * k_bytes,
        wave_footprint_bytes=footprint,
    )


def merged_share(panels: Values, requesters: Values) -> Values:
    """Share of requests that merge where `requesters` clusters each want one of `panels` at random.

    They want panels (1 - (1 - 1/panels)^requesters) distinct ones on average; where panels are fewer than the
    clusters on SMS_THAT_MEET, all of those meet, up to MOST_MERGED. `requesters` is 8, 4, 2 or less
    for clusters of 1, 2, 4 and more: the power is taken by multiplication.
    """
    miss = 1.0 - 1.0 / maximum(panels, 1.0)
    squared = miss * miss
    fourth = squared * squared
    power = where(requesters == 8.0, fourth * fourth, where(requesters == 4.0, fourth, squared))
    distinct = panels * (1.0 - power)
    meeting = requesters * (SMS_THAT_MEET / SMS_PER_COALESCER)
    asked = minimum(distinct / requesters, maximum(panels / meeting, 1.0 / MOST_MERGED))
    return where(requesters > 1.5, maximum(1.0 - asked, 0.0), 0.0)


def further_pieces(pitch_bytes: Values) -> Values:
    """Pieces of 64 bytes or less beyond the first that a row falls into, by where its pitch lets rows start.

    None where rows start at multiples of 64 bytes, one at 32, three at 16 (TMA allows no less).
    """
    return ALIGNED_BYTES / minimum(row_alignment(pitch_bytes), ALIGNED_BYTES) - 1.0


def row_alignment(pitch_bytes: Values) -> Values:
    """What divides where rows start, in bytes: a power of two from 16 (TMA's least) to 128 (a line)."""
    pitch = maximum(floor(pitch_bytes), 1.0)
    return maximum(minimum(power_of_two_divisor(pitch), LINE_BYTES), TMA_ALIGNMENT_BYTES)


def _kept(needed_bytes: Values, capacity_bytes: Values) -> Values:
    """Share of some data that L2 still holds when it is wanted again: a smooth step at the capacity."""
    ratio = needed_bytes / capacity_bytes
    squared = ratio * ratio
    return 1.0 / (1.0 + squared * squared)


def _dram_reads(
    gpu: GpuSpec,
    schedule: TileSchedule,
    p: KernelParameters,
    operands: Values,
    footprint: Values,
    shared: Values,
    until_reuse: Values,
    fits: Values,
) -> Values:
    """Bytes of A and B from DRAM: each wave's distinct panels, less what L2 keeps from the wave before.

    Within a wave the tiles advance together, so that L2 serves every further use of a panel. The next wave of
    a group uses the same fast panels (`shared`), if L2 keeps them for so many bytes (`until_reuse`). Operands
    that fit in L2 together are read once.
    """
    capacity = p.l2_capacity_share * gpu.l2_bytes
    waves = schedule.tiles / schedule.slots
    streamed = maximum(waves, 1.0) * footprint - maximum(waves - 1.0, 0.0) * shared * _kept(
        until_reuse, capacity
    )
    return maximum(fits * operands + (1.0 - fits) * streamed, operands)


def out_of_step(moved: Traffic, l2_us: Values, gpu: GpuSpec, p: KernelParameters) -> Traffic:
    """The traffic once tiles have lost their lock-step, and with it requests that merge, and reuse in L2.

    Tiles are served unevenly and drift apart, the longer L2 works the further, until neighbours no longer ask
    for the same at the same time, and what the first has read is gone when the last one asks for it.
    """
    elapsed = p.lockstep_loss_per_ms * 1e-3 * l2_us
    ordered = moved.ordered_bytes * (IN_ORDER_US / (IN_ORDER_US + l2_us))
    merged = (moved.merged_bytes + ordered) / (1.0 + elapsed)
    lost = moved.merged_bytes - merged
    between = DRIFT_FOOTPRINT * elapsed * moved.wave_footprint_bytes / gpu.l2_bytes
    hits = maximum(moved.l2_request_bytes - moved.output_bytes - moved.dram_read_bytes, 0.0)
    again = DRIFT_MISSES * hits * between / (1.0 + between)
    # Written out: `dataclasses.replace` would take a tenth of the whole model's time on one row.
    return Traffic(
        operand_bytes=moved.operand_bytes,
        output_bytes=moved.output_bytes,
        dram_read_bytes=moved.dram_read_bytes + again,
        dram_write_bytes=moved.dram_write_bytes,
        l2_request_bytes=moved.l2_request_bytes + lost,
        l2_load_bytes=moved.l2_load_bytes + lost + p.fill_share * again,
        l2_store_bytes=moved.l2_store_bytes,
        merged_bytes=merged,
        ordered_bytes=ordered,
        wave_footprint_bytes=moved.wave_footprint_bytes,
    )
