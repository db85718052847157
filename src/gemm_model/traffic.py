"""Bytes that a kernel moves: DRAM, L2, and into the shared memory of one SM."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemm_model.batch import GemmBatch
from gemm_model.elementwise import (
    Values,
    floor,
    maximum,
    minimum,
    power_of_two_divisor,
    three_eighth_power,
    three_quarter_power,
    where,
)
from gemm_model.feasibility import Resources
from gemm_model.gpu import GpuSpec
from gemm_model.kernel_parameters import KernelParameters
from gemm_model.schedule import TileSchedule

SMS_PER_COALESCER = 6.0
"""SMs whose L2 requests meet before they leave: a CPC of three TPCs on Hopper."""
PARTIAL_SUM_BYTES = 4.0
ALIGNED_BYTES = 64.0
TMA_ALIGNMENT_BYTES = 16.0
MISALIGNED_MERGING = 0.5
"""Share of the merging that is left where rows start off 64-byte boundaries: as TMA loads alone have it."""


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
    """The work of L2 in bytes: requests, misaligned rows, fills, and writes."""
    l2_zeros_bytes: Values
    """The work of L2 for rows outside the matrix, in bytes of rows inside, while every slot has a tile."""
    zeros_multicast: Values
    """Whether multicast delivers the rows outside."""
    merged_bytes: Values
    """What coalescing saves L2 while neighbouring SMs stay in lock-step."""
    wave_footprint_bytes: Values
    """Distinct panels that one full wave reads."""


def traffic(
    batch: GemmBatch,
    gpu: GpuSpec,
    found: Resources,
    schedule: TileSchedule,
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
    groups = maximum(SMS_PER_COALESCER / cluster_size, 1.0)
    merged_fast = p.coalescing * _merged(schedule.fast_panels, groups)
    merged_slow = p.coalescing * _merged(schedule.slow_panels, groups)
    a_pieces = further_pieces(where(batch.a_k_major, batch.k, batch.m) * batch.a_bits / 8.0)
    b_pieces = further_pieces(where(batch.b_k_major, batch.k, batch.n) * batch.b_bits / 8.0)
    a_merging = where(a_pieces > 0, MISALIGNED_MERGING, 1.0)
    b_merging = where(b_pieces > 0, MISALIGNED_MERGING, 1.0)
    a_kept = 1.0 - a_merging * where(schedule.fast_is_m, merged_fast, merged_slow)
    b_kept = 1.0 - b_merging * where(schedule.fast_is_m, merged_slow, merged_fast)
    # Multicast: the CTAs of a cluster row share A, those of a column share B.
    a_requests = batch.cta_m * a_bytes / batch.cluster_n
    b_requests = batch.cta_n * b_bytes / batch.cluster_m
    a_requests = a_requests * schedule.filled_m * a_kept
    b_requests = b_requests * schedule.filled_n * b_kept
    requests = a_requests + b_requests
    merged = a_requests / a_kept - a_requests + b_requests / b_kept - b_requests
    output_pieces = further_pieces(where(batch.c_n_major, batch.n, batch.m) * batch.out_bits / 8.0)
    lines = requests + p.read_misalignment * (a_requests * a_pieces + b_requests * b_pieces)
    outside_m = batch.cta_m * a_bytes * (1.0 - schedule.filled_m)
    outside_n = batch.cta_n * b_bytes * (1.0 - schedule.filled_n)
    zeros_m = _zeros_cost(outside_m, batch.cta_m * a_bytes)
    zeros_n = _zeros_cost(outside_n, batch.cta_n * b_bytes)
    # One factor for both: hardly a tile has rows and columns outside.
    zeros_multicast = where(outside_m > 0, batch.cluster_n > 1, batch.cluster_m > 1)
    alone = gpu.sm_count / (schedule.slots * cluster_size)
    zeros = (zeros_m + zeros_n) * zeros_alone(alone, zeros_multicast)
    k_bytes = schedule.tiles * cluster_size * schedule.k_steps * found.cta_k
    writes = output + partial_sums
    write_load = writes + p.write_misalignment * output * output_pieces
    return Traffic(
        operand_bytes=operands,
        output_bytes=output,
        dram_read_bytes=reads,
        dram_write_bytes=output,
        l2_request_bytes=requests * k_bytes + writes,
        l2_load_bytes=lines * k_bytes + p.fill_share * reads + write_load,
        l2_zeros_bytes=p.out_of_range_weight * zeros * k_bytes,
        zeros_multicast=zeros_multicast,
        merged_bytes=merged * k_bytes,
        wave_footprint_bytes=footprint,
    )


def _zeros_cost(outside_bytes: Values, tile_bytes: Values) -> Values:
    """Cost of the bytes of a tile that TMA fills with zeros: less than in proportion where there are many.

    Rows outside the matrix do not merge between SMs as rows do that neighbours share. The power is that of
    timings of decode shapes, tiles of 64 to 256 rows.
    """
    return tile_bytes * three_quarter_power(outside_bytes / tile_bytes)


def zeros_alone(alone: Values, multicast: Values) -> Values:
    """What rows of zeros cost more, in L2's work, where `alone` times fewer SMs have a tile.

    Not so much more that each SM is as slow as among all: the way to the SM bounds zeros as well as L2 does.
    With multicast L2 bounds them more. Powers from timings of decode shapes on 16 to 132 SMs.
    """
    return where(multicast, three_eighth_power(alone), three_quarter_power(alone))


def _merged(panels: Values, requesters: Values) -> Values:
    """Share of requests that merge where `requesters` SMs (or clusters) each want one of `panels` at random.

    They want panels (1 - (1 - 1/panels)^requesters) distinct ones on average. `requesters` is 6, 3 or less
    for clusters of 1, 2 and more: the power is taken by multiplication.
    """
    miss = 1.0 - 1.0 / maximum(panels, 1.0)
    cubed = miss * miss * miss
    power = where(requesters == 6.0, cubed * cubed, where(requesters == 3.0, cubed, miss))
    distinct = panels * (1.0 - power)
    return where(requesters > 1.5, maximum(1.0 - distinct / requesters, 0.0), 0.0)


def further_pieces(pitch_bytes: Values) -> Values:
    """Pieces of 64 bytes or less beyond the first that a row falls into, by where its pitch lets rows start.

    None where rows start at multiples of 64 bytes, one at 32, three at 16 (TMA allows no less).
    """
    pitch = maximum(floor(pitch_bytes), 1.0)
    divisor = maximum(minimum(power_of_two_divisor(pitch), ALIGNED_BYTES), TMA_ALIGNMENT_BYTES)
    return ALIGNED_BYTES / divisor - 1.0


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


def out_of_step(moved: Traffic, l2_us: Values, p: KernelParameters) -> Traffic:
    """The traffic once tiles that wait for L2 have lost their lock-step, and with it requests that merge.

    Tiles are served unevenly and drift apart, the longer L2 works the further, until neighbours no longer ask
    for the same at the same time.
    """
    elapsed = p.lockstep_loss_per_ms * 1e-3 * l2_us
    lost = moved.merged_bytes * elapsed / (1.0 + elapsed)
    return replace(
        moved,
        l2_request_bytes=moved.l2_request_bytes + lost,
        l2_load_bytes=moved.l2_load_bytes + lost,
    )
