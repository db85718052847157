"""One k tile of the mainloop of one CTA, in SM clocks."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import (
    Values,
    ceil,
    maximum,
    minimum,
    remainder,
    smooth_maximum,
    where,
)
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.alignment import LINE_BYTES, SCALE_ROW_BYTES, row_alignment
from gemm_model.kernel_model.kernel import Kernel, KernelWaves
from gemm_model.kernel_model.spilling import spilled_clk


@formula_record
class KTile:
    """Times of one k tile of one CTA [clk]; each field is a number or an array."""

    math_clk: Values
    """MMAs and the other work of the MMA warps."""
    spilled_clk: Values
    """The part of math_clk that spilled registers take."""
    port_clk: Values
    """Loads of the A and B tiles at the L2-to-SM bandwidth."""
    arriving_clk: Values
    """Fill of shared memory, with rows outside the matrix; 0 on cards without a known bound."""
    taken_clk: Values
    """Time that a stage is occupied without the latency, over the number of stages in flight."""
    load_clk: Values
    """Latency of a load."""
    latency_clk: Values
    """Round trip of a stage from load to release, over the number of stages in flight."""
    tail_clk: Values
    """Loads once for each tile: rows of its last k tile beyond K, and the other matrices of its epilogue."""

    @property
    def loads_clk(self) -> Values:
        """Loads of the A and B tiles into shared memory: the slower of L2-to-SM bandwidth and fill."""
        return maximum(self.port_clk, self.arriving_clk)


def k_tile(kernel: Kernel, scale_misses: Values = 0.0, fresh_share: Values = 1.0) -> KTile:
    """The times of a k tile.

    `scale_misses` is the share of k tiles whose scale factors come from DRAM, `fresh_share` the share of loads
    that do [1].
    """
    gpu, resources, spilled = kernel.gpu, kernel.resources, spilled_clk(kernel)
    math = unspilled_clk(kernel, kernel.rate, scale_misses) + spilled
    port = _port_bytes(kernel) + _crossing_bytes(kernel)
    way_in = kernel.numbers.port.efficiency * gpu.tensor_load_gain
    way_in = way_in * gpu.known("l2_read_bytes_per_clk_per_sm")
    port = port / way_in
    load = _load_clk(kernel, fresh_share)
    behind = math * resources.math_in_round_trip
    arrived = port
    if resources.short_ring is not False:
        # In a short ring, rows outside the matrix take as long to arrive as rows inside.
        arrived = where(resources.short_ring, _arriving_bytes(kernel) / way_in, port)
    return KTile(
        math_clk=math,
        spilled_clk=spilled,
        port_clk=port,
        arriving_clk=_arriving_clk(kernel) * _beyond_k(kernel),
        taken_clk=(port + behind) / resources.loads_under_way,
        load_clk=load,
        latency_clk=(load + arrived + behind * beside_held(kernel)) / resources.loads_under_way,
        tail_clk=_tail_clk(kernel) + _source_bytes(kernel) / way_in,
    )


def beside_held(kernel: KernelWaves) -> Values:
    """Share of a stage's MMAs that lies in its round trip [1]: less where producer warps load beside a held stage.

    Warps that multiply too issue a load after the MMAs in their code, so that all of them lie before it.
    """
    resources = kernel.resources
    held = minimum(maximum(resources.stages - resources.loads_under_way, 0.0), 1.0)
    return 1.0 - room_numbers("kernel_model").held_math_share * held * (1.0 - resources.in_step)


def math_clk(kernel: KernelWaves) -> Values:
    """Time of a k tile in the MMA warps [clk], averaged over those of a tile, if no scale factor misses in L2."""
    return unspilled_clk(kernel, kernel.rate, 0.0) + spilled_clk(kernel)


def unspilled_clk(kernel: KernelWaves, rate: Values, scale_misses: Values) -> Values:
    """The same without the time of spilled registers [clk], at a peak of `rate` [FLOP/clk]; as in `k_tile`."""
    resources, numbers = kernel.resources, kernel.numbers
    mma = _mma_clk(kernel, rate, scale_misses) * _beyond_k(kernel)
    signals = numbers.round_trip.single_clk + resources.awaited_math * mma / resources.warpgroups
    return smooth_maximum(mma, signals, numbers.overlap.loads_dram_order)


def _beyond_k(kernel: KernelWaves) -> Values:
    """Stages of a tile over those that K fills [1], if one load brings several k tiles."""
    loads, k_tiles = kernel.resources.k_tile_loads, kernel.schedule.k_tiles
    return ceil(k_tiles / loads) * loads / k_tiles


def _load_clk(kernel: KernelWaves, fresh_share: Values) -> Values:
    """Mean latency of a load [clk]: an L2 hit saves the difference of the card's DRAM and L2 latencies."""
    gpu, load_clk = kernel.gpu, kernel.numbers.latency.load_clk
    if gpu.dram_latency_ns is None or gpu.l2_latency_clk is None:
        return load_clk
    sooner = gpu.dram_latency_ns * 1e-3 * gpu.sm_clk_mhz - gpu.l2_latency_clk
    least = minimum(load_clk, gpu.l2_latency_clk)
    return maximum(load_clk - sooner * (1.0 - fresh_share), least)


def _mma_clk(kernel: KernelWaves, rate: Values, scale_misses: Values) -> Values:
    """The MMAs of a k tile with the promotion of their accumulators [clk].

    Warpgroups that share a tile take turns on the tensor cores. A k tile lasts as long as the MMAs of all of
    them, or as the MMAs and additions of one of them, whichever is longer. Once in a tile the last one's additions,
    or the first one's MMAs, have no other one's work beside them.
    """
    batch, resources, numbers = kernel.batch, kernel.resources, kernel.numbers
    flop = 2.0 * batch.cta_m * batch.cta_n * resources.cta_k
    mma = flop / (rate * numbers.tensor.efficiency) * maximum(_reads_per_mma(kernel), 1.0)
    together = mma + numbers.tensor.issue_clk
    if resources.slow_sums is False:
        return together
    own = mma / resources.warpgroups
    alone = _scaled_clk(kernel, own + _promotion_clk(kernel), scale_misses)
    order = numbers.overlap.loads_dram_order
    in_turn = smooth_maximum(together, alone, order) + minimum(own, alone - own) / kernel.schedule.k_tiles
    slow = where(resources.warpgroups > 1.0, in_turn, alone)
    return where(resources.slow_sums, slow, together)


def _reads_per_mma(kernel: KernelWaves) -> Values:
    """Time in which MMAs read operands from shared memory, beside the loads' writes, over that of their FLOP [1].

    CTAs of one tile multiply by `mma.sync`: each row or column of warps reads A and B, two bytes at two FLOP (narrower
    types alike: they are multiplied faster). Four warps are two by two, eight have four along the longer extent:
    `nvjet_sm120_tst_mma_64x64x128_3_32x32x128`; `cutlass_80_tensorop_s16816gemm` of 256x128 has warps of 64x64.
    """
    columns, gpu = kernel.numbers.narrow_mma.bound_columns, kernel.gpu
    if kernel.family.tile_period.persistent or columns == 0.0:
        return (1.0 + columns / kernel.resources.mma_columns) / 2.0
    m, n = kernel.batch.cta_m, kernel.batch.cta_n
    rows = 3.0 * (m + n) + where(kernel.resources.warpgroups > 1.0, 2.0 * minimum(m, n), 0.0)
    return rows / (m * n) * gpu.flop_per_clk_per_sm.get("fp16", 0.0) / gpu.smem_bytes_per_clk_per_sm


def _promotion_clk(kernel: KernelWaves) -> Values:
    """Slow fp8 accumulation [clk]: drain the MMA pipe, then add the sums to a second set of registers.

    If the compiler waits for each MMA, the pipe drains as often (`split_waits`). If blocks of rows are promoted
    in turn, MMAs hide the additions of all blocks but the last. A warpgroup that is its SM's only one for MMAs
    adds faster than one of two: e4m3 tiles of 64 rows take 38 to 52 clk more a k tile in ping-pong, of the same
    instructions (SASS).
    """
    batch, resources, promotion = kernel.batch, kernel.resources, kernel.numbers.promotion
    alone = (resources.warpgroups <= 1.0) & (batch.schedule != PINGPONG)
    adds_per_clk = promotion.adds_per_clk * where(alone, promotion.alone, 1.0)
    adds_clk = batch.cta_m * batch.cta_n / (resources.warpgroups * resources.blocks_in_turn * adds_per_clk)
    wait_clk = maximum(promotion.drain_clk - resources.beside_drain_clk, 0.0)
    return adds_clk + promotion.drain_clk + resources.split_waits * wait_clk


def _scaled_clk(kernel: KernelWaves, alone: Values, misses: Values) -> Values:
    """A k tile of a warpgroup that scales its accumulators [clk]; warpgroups share the FMA units.

    Scale factors of the next k tile are requested when this one begins, so it lasts at least their latency.
    """
    batch, scales = kernel.batch, kernel.numbers.software_scales
    each = scales.sums_clk + batch.kinds.column_scales * scales.columns_clk
    scaled = alone + batch.cta_m * batch.cta_n / 1000.0 * each
    wait = scales.latency_clk + misses * scales.miss_clk
    waited = smooth_maximum(scaled, wait, kernel.numbers.overlap.loads_dram_order)
    return where(batch.kinds.software_scales, waited, alone)


def _source_bytes(kernel: KernelWaves) -> Values:
    """Bytes of other matrices that the epilogue of one tile reads."""
    batch = kernel.batch
    return batch.cta_m * batch.cta_n * batch.source_bits / 8.0


def _tail_clk(kernel: KernelWaves) -> Values:
    """Time of the last k tile's rows if it extends beyond K [clk]: all rows that arrive, multicast ones too."""
    batch, row_clk = kernel.batch, kernel.numbers.k_tail.row_clk
    beyond = remainder(batch.k, kernel.resources.cta_k) > 0.0
    return where(beyond, (batch.cta_m + batch.cta_n) * row_clk, 0.0)


def _port_bytes(kernel: Kernel) -> Values:
    """Bytes of one stage inside the matrix, multicast ones included.

    Of a pair of CTAs on one MMA, each SM receives only its half of B.
    """
    batch, resources, schedule = kernel.batch, kernel.resources, kernel.schedule
    a_bytes = batch.cta_m * batch.a_bytes_per_element
    b_bytes = batch.cta_n * batch.b_bytes_per_element
    outside = a_bytes * (1.0 - schedule.fullest_m) + b_bytes / resources.b_holders * (
        1.0 - schedule.fullest_n
    )
    return maximum(_arriving_bytes(kernel) - outside * resources.cta_k, 0.0)


def _arriving_bytes(kernel: KernelWaves) -> Values:
    """Bytes of one stage; a row of scale factors occupies `scale_factors.row_bytes`."""
    resources = kernel.resources
    scale_rows = resources.scale_bytes * (kernel.numbers.scale_factors.row_bytes / SCALE_ROW_BYTES - 1.0)
    return resources.stage_bytes + scale_rows


def _arriving_clk(kernel: KernelWaves) -> Values:
    """Time in which one stage fills shared memory [clk], with multicast copies and zeros outside the matrix.

    Published microbenchmarks of the B200: pairs fill their shared memory at 13.1 TB/s with multicast, at
    13.3 without.
    """
    filled = kernel.gpu.smem_fill_bytes_per_clk_per_sm
    return 0.0 if filled is None else _arriving_bytes(kernel) / filled


def _crossing_bytes(kernel: Kernel) -> Values:
    """Extra L2-to-SM bytes of rows that cross cache lines, for the rows that the CTA itself requests."""
    batch, schedule = kernel.batch, kernel.schedule
    further_starts = LINE_BYTES / minimum(row_alignment(batch.a_pitch_bytes), LINE_BYTES) - 1.0
    a_bytes = batch.cta_m * batch.a_bits / 8.0 * schedule.fullest_m / batch.cluster_n
    b_bytes = batch.cta_n * batch.b_bits / 8.0 * schedule.fullest_n / batch.cluster_m
    cost = kernel.numbers.line_crossing.line_cost
    return cost * further_starts * (a_bytes + b_bytes) * kernel.resources.cta_k
