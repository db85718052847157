"""One k tile of the mainloop of one CTA, in SM clocks."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Values,
    any_of,
    ceil,
    is_zero,
    maximum,
    minimum,
    remainder,
    smooth_maximum,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.records import constructor, formula_record
from gemm_model.kernel_model.alignment import LINE_BYTES, SCALE_ROW_BYTES, row_alignment
from gemm_model.kernel_model.spilling import spilled_clk
from gemm_model.kernel_model.tile_schedule import TileSchedule
from gemm_model.kernels.feasibility import Resources
from gemm_model.kernels.mechanisms import KernelNumbers, KTail, Latency, Promotion


@formula_record
class KTile:
    """Clocks of one k tile of one CTA; each field a number or an array."""

    math_clk: Values
    """The MMAs and what the MMA warps do besides."""
    spilled_clk: Values
    """Of that, what spilled registers take."""
    port_clk: Values
    """Bringing the A and B tiles into the SM."""
    arriving_clk: Values
    """Their arrival in shared memory, rows outside the matrix too; 0 where nothing is known to bound that."""
    taken_clk: Values
    """How long a stage takes no further load, the latency aside, over the stages that are under way."""
    latency_clk: Values
    """A stage's round trip from load to release, over the stages that are under way."""
    tail_clk: Values
    """What loads take once for each tile at the L2-to-SM bandwidth: rows of its last k tile beyond K, and
    the further matrices of its epilogue."""

    @property
    def loads_clk(self) -> Values:
        """The A and B tiles on their way from L2 to where the MMAs read them."""
        return self.port_clk if is_zero(self.arriving_clk) else maximum(self.port_clk, self.arriving_clk)


_new_k_tile = constructor(KTile)


def k_tile(
    batch: GemmBatch,
    gpu: GpuSpec,
    rate: Values,
    resources: Resources,
    schedule: TileSchedule,
    numbers: KernelNumbers,
    scale_misses: Values = 0.0,
    fresh_share: Values = 1.0,
) -> KTile:
    """`rate` is the peak FLOP per clock of one SM for the row's types.

    `scale_misses` is the share of k tiles whose scale factors come from DRAM, `fresh_share` that of loads.
    """
    spilled = spilled_clk(resources, schedule.k_tiles, numbers.spilling)
    math = unspilled_clk(batch, rate, resources, schedule.k_tiles, numbers, scale_misses) + spilled
    port = _port_bytes(batch, resources, schedule, numbers) + _crossing_bytes(
        batch, resources, schedule, numbers
    )
    way_in = numbers.port.efficiency * gpu.tensor_load_gain
    way_in = way_in * gpu.known("l2_read_bytes_per_clk_per_sm")
    port = port / way_in
    load = _load_clk(gpu, numbers.latency, fresh_share)
    behind = math * resources.math_in_round_trip
    arrived = port
    if resources.short_ring is not False:
        # Rows outside the matrix arrive as those inside do.
        arrived = where(resources.short_ring, _arriving_bytes(resources, numbers) / way_in, port)
    return _new_k_tile(
        math_clk=math,
        spilled_clk=spilled,
        port_clk=port,
        arriving_clk=_arriving_clk(gpu, resources, numbers) * _beyond_k(resources, schedule.k_tiles),
        taken_clk=(port + behind) / resources.loads_under_way,
        latency_clk=(load + arrived + behind) / resources.loads_under_way,
        tail_clk=_tail_clk(batch, resources, numbers.k_tail) + _source_bytes(batch) / way_in,
    )


def math_clk(
    batch: GemmBatch,
    rate: Values,
    resources: Resources,
    k_tiles: Values,
    numbers: KernelNumbers,
    scale_misses: Values,
) -> Values:
    """Clocks of a k tile of a tile of `k_tiles` in the MMA warps, as in `k_tile`."""
    spilled = spilled_clk(resources, k_tiles, numbers.spilling)
    return unspilled_clk(batch, rate, resources, k_tiles, numbers, scale_misses) + spilled


def unspilled_clk(
    batch: GemmBatch,
    rate: Values,
    resources: Resources,
    k_tiles: Values,
    numbers: KernelNumbers,
    scale_misses: Values,
) -> Values:
    """The same without what spilled registers take."""
    mma = _mma_clk(batch, rate, resources, numbers, scale_misses) * _beyond_k(resources, k_tiles)
    signals: Values = numbers.round_trip.single_clk
    if not is_zero(resources.awaited_math):
        signals = signals + resources.awaited_math * mma / resources.warpgroups
    return smooth_maximum(mma, signals, numbers.overlap.loads_dram_order)


def _beyond_k(resources: Resources, k_tiles: Values) -> Values:
    """All stages of a tile over those that K reaches, where k tiles come in several."""
    loads = resources.k_tile_loads
    return ceil(k_tiles / loads) * loads / k_tiles


def _load_clk(gpu: GpuSpec, latency: Latency, fresh_share: Values) -> Values:
    """Latency of a load: what L2 holds is there sooner, by as much as the card's two latencies differ."""
    if gpu.dram_latency_ns is None or gpu.l2_latency_clk is None:
        return latency.load_clk
    sooner = gpu.dram_latency_ns * 1e-3 * gpu.sm_clk_mhz - gpu.l2_latency_clk
    least = minimum(latency.load_clk, gpu.l2_latency_clk)
    return maximum(latency.load_clk - sooner * (1.0 - fresh_share), least)


def _mma_clk(
    batch: GemmBatch, rate: Values, resources: Resources, numbers: KernelNumbers, scale_misses: Values
) -> Values:
    """The MMAs of a k tile, with promoting their sums.

    Warpgroups that share a tile take the tensor cores in turn: together they take all MMAs, or as long as
    each of them alone takes for its own MMAs and additions.
    """
    flop = 2.0 * batch.cta_m * batch.cta_n * resources.cta_k
    narrow = numbers.narrow_mma
    reads = maximum(narrow.bound_columns / resources.mma_columns - 1.0, 0.0) / 2.0
    mma = flop / (rate * numbers.tensor.efficiency) * (1.0 + reads)
    together = mma + numbers.tensor.issue_clk
    if resources.slow_sums is False:
        return together
    promoted = mma / resources.warpgroups + _promotion_clk(batch, resources, numbers.promotion)
    alone = _scaled_clk(batch, promoted, numbers, scale_misses)
    order = numbers.overlap.loads_dram_order
    slow = where(resources.warpgroups > 1.0, smooth_maximum(together, alone, order), alone)
    return where(resources.slow_sums, slow, together)


def _promotion_clk(batch: GemmBatch, resources: Resources, promotion: Promotion) -> Values:
    """Slow fp8 accumulation: drain the MMA pipe at each k tile, add its sums to a second set of registers.

    Where the compiler waits for each MMA the pipe is drained as often (`split_waits`). Of blocks that are
    promoted in turn only the last one's sums are not added beside MMAs.
    """
    pingpong = batch.schedule == PINGPONG
    adds_per_clk = where(pingpong, promotion.pingpong_adds_per_clk, promotion.adds_per_clk)
    adds_clk = batch.cta_m * batch.cta_n / (resources.warpgroups * resources.blocks_in_turn * adds_per_clk)
    wait_clk = maximum(promotion.drain_clk - resources.beside_drain_clk, 0.0)
    return adds_clk + promotion.drain_clk + resources.split_waits * wait_clk


def _scaled_clk(batch: GemmBatch, alone: Values, numbers: KernelNumbers, misses: Values) -> Values:
    """A k tile of a warpgroup that scales its sums on the way; warpgroups share the units.

    Scale factors of the next k tile are asked for when this one begins, which lasts until they come at least.
    """
    if batch.further is None:
        return alone
    scales = numbers.software_scales
    each = scales.sums_clk + batch.further.column_scales * scales.columns_clk
    scaled = alone + batch.cta_m * batch.cta_n / 1000.0 * each
    wait = scales.latency_clk + misses * scales.miss_clk
    waited = smooth_maximum(scaled, wait, numbers.overlap.loads_dram_order)
    return where(batch.further.software_scales, waited, alone)


def _source_bytes(batch: GemmBatch) -> Values:
    """Bytes of further matrices that the epilogue of one tile reads."""
    if batch.further is None:
        return 0.0
    return batch.cta_m * batch.cta_n * batch.source_bits / 8.0


def _tail_clk(batch: GemmBatch, resources: Resources, tail: KTail) -> Values:
    """Rows of a tile's last k tile that lie partly beyond K: all that arrive, whoever asked for them."""
    beyond = remainder(batch.k, resources.cta_k) > 0.0
    if not any_of(beyond):
        return 0.0
    rows = batch.cta_m + batch.cta_n
    return where(beyond, rows * tail.row_clk, 0.0)


def _port_bytes(
    batch: GemmBatch, resources: Resources, schedule: TileSchedule, numbers: KernelNumbers
) -> Values:
    """Bytes of one stage inside the matrix, whoever asked for them.

    The half of B that a pair of CTAs leaves to the other SM never comes.
    """
    a_bytes = batch.cta_m * batch.a_bytes_per_element
    b_bytes = batch.cta_n * batch.b_bytes_per_element
    outside = a_bytes * (1.0 - schedule.filled_m) + b_bytes / resources.b_holders * (1.0 - schedule.filled_n)
    return maximum(_arriving_bytes(resources, numbers) - outside * resources.cta_k, 0.0)


def _arriving_bytes(resources: Resources, numbers: KernelNumbers) -> Values:
    """Bytes of one stage, rows of scale factors counted as what they take."""
    scale_rows = resources.scale_bytes * (numbers.scale_factors.row_bytes / SCALE_ROW_BYTES - 1.0)
    return resources.stage_bytes + scale_rows


def _arriving_clk(gpu: GpuSpec, resources: Resources, numbers: KernelNumbers) -> Values:
    """Clocks in which one stage arrives, each multicast copy in full, at what an SM takes in.

    Published microbenchmarks of the B200: pairs fill their shared memory at 13.1 TB/s by multicast, at 13.3
    without. Zeros outside the matrix are written there as rows inside are.
    """
    if gpu.smem_fill_bytes_per_clk_per_sm is None:
        return 0.0
    return _arriving_bytes(resources, numbers) / gpu.smem_fill_bytes_per_clk_per_sm


def _crossing_bytes(
    batch: GemmBatch, resources: Resources, schedule: TileSchedule, numbers: KernelNumbers
) -> Values:
    """What rows that cross lines take of the L2-to-SM bandwidth, in bytes: those that the CTA asks for."""
    further_starts = LINE_BYTES / minimum(row_alignment(batch.a_pitch_bytes), LINE_BYTES) - 1.0
    if is_zero(further_starts):
        return 0.0
    a_bytes = batch.cta_m * batch.a_bits / 8.0 * schedule.filled_m / batch.cluster_n
    b_bytes = batch.cta_n * batch.b_bits / 8.0 * schedule.filled_n / batch.cluster_m
    return numbers.line_crossing.line_cost * further_starts * (a_bytes + b_bytes) * resources.cta_k
