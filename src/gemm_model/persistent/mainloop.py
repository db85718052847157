"""One k step of the mainloop of one CTA, in SM clocks."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, maximum, remainder, smooth_maximum, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernels.feasibility import PINGPONG, TWO_CTA, Resources
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.spilling import spilled_step
from gemm_model.persistent.tile_schedule import TileSchedule
from gemm_model.persistent.traffic import ALIGNED_BYTES, TMA_ALIGNMENT_BYTES, row_alignment

ADDS_PER_CLK, PINGPONG_ADDS_PER_CLK = 84.0, 62.0
"""fp32 additions of one warpgroup in a clock: what promoting fp8 sums costs."""
ISSUE_CLK = 20.0
"""Of each k step in the MMA warps beside the MMAs: barriers of a stage and the start of its MMAs. MMAs into
tensor memory need none: one thread starts them ahead of time."""
ROUND_TRIP_CLK, PAIR_ROUND_TRIP_CLK = 150.0, 171.0
SQUARE_ROUND_TRIP_CLK, FOUR_ROUND_TRIP_CLK = 188.0, 203.0
"""What a k step takes at least, in clusters of one CTA, two, 2x2, and four in a row: the producer waits for
the consumers to release a slot, they for its loads. Timings of tiles of 64x32 on few SMs."""
SLOW_ROUND_TRIP_CLK = 53.0
"""The same beyond it where sums are promoted: a slot is released once the MMA pipe is drained."""
SMEM_BOUND_COLUMNS = 38.0
"""An instruction of 64 x N takes max(N/2, 16 + N/4) clocks: reading its operands bounds it below 64. Beside
the writes of the loads, which take their share of shared memory, it does so below 76."""
SMEM_CONTENTION = 0.85
"""What of that excess is seen."""
LINE_64, LINE_32, LINE_16 = 0.2, 0.52, 1.5
"""What rows of 128 bytes cost the port beyond aligned ones, by where their pitch lets them start: at 64, 32
or 16 bytes they fall into two lines, at 16 into a fifth sector. Kernels on few SMs."""
RECEIVED_TAIL = 0.6
"""Cost of such a row where another CTA of the cluster asks for it, over one that the CTA asks for itself."""
TAIL_64, TAIL_32, TAIL_16 = 3.0, 3.2, 4.2
"""Clocks of each row of a tile's last k step that reaches beyond K, by what divides its bytes up to K."""
BLACKWELL_PORT_CLK = 55.0
"""Of each k step at the port beside the bytes, where loads of scale factors are issued too: B200, nvfp4."""
CALIBRATED_PORT_BYTES_PER_CLK = 88.0
"""What a Hopper SM reads from L2 by its description: `port_bytes_per_clk` counts on that much."""
SCALE_ROW_BYTES = TMA_ALIGNMENT_BYTES
"""Scale factors lie in rows of 16 bytes; each takes the port as long as a piece of 64 bytes."""
DRAIN_CLK = 75.0
"""Emptying the MMA pipe at each k step of slow fp8 accumulation: tiles of 64 rows and 32 to 192 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KStep:
    """Clocks of one k step of one CTA; each field a number or an array."""

    math_clk: Values
    """The MMAs and what the MMA warps do besides."""
    port_clk: Values
    """Bringing the A and B tiles into the SM."""
    latency_clk: Values
    """A slot's round trip from load to release, over the slots that are under way."""
    tile_clk: Values
    """What the MMA warps do once for each tile (less than nothing where its first step is shorter)."""
    tail_clk: Values
    """What the port does once for each tile: rows of its last step that reach beyond K."""


def k_step(
    batch: GemmBatch,
    gpu: GpuSpec,
    rate: Values,
    found: Resources,
    schedule: TileSchedule,
    p: KernelParameters,
) -> KStep:
    """`rate` is the peak FLOP per clock of one SM for the row's types."""
    spilled = spilled_step(batch, found, schedule.k_steps > 1, p)
    math = smooth_maximum(_math_clk(batch, gpu, rate, found, p), _round_trip_clk(batch, gpu, found))
    math = math + spilled.step_clk
    pitch_bytes = where(batch.a_k_major, batch.k, batch.m) * batch.a_bits / 8.0
    further_lines = _by_alignment(row_alignment(pitch_bytes), (0.0, LINE_64, LINE_32, LINE_16))
    port = _port_bytes(batch, found, schedule) + further_lines * _requested_bytes(batch, found, schedule)
    port = port / _port_bytes_per_clk(gpu, p)
    port = port + (BLACKWELL_PORT_CLK if gpu.tmem_columns > 0 else 0.0)
    # A slot is released one k step after its use (one MMA group stays in flight): one stage fewer is free.
    stages = maximum(found.stages - 1.0, 1.0)
    return KStep(
        math_clk=math,
        port_clk=port,
        latency_clk=(p.latency_clk + port + math) / stages,
        tile_clk=spilled.tile_clk,
        tail_clk=_tail_clk(batch, gpu, found),
    )


def _math_clk(batch: GemmBatch, gpu: GpuSpec, rate: Values, found: Resources, p: KernelParameters) -> Values:
    """The MMAs of a k step, with starting them or with promoting their sums.

    Warpgroups that share a tile take the tensor cores in turn: together they take all MMAs, or as long as
    each of them alone takes for its own MMAs and additions.
    """
    flop = 2.0 * batch.cta_m * batch.cta_n * found.cta_k
    mma = flop / (rate * p.mma_efficiency) * _smem_bound(batch, gpu, found)
    in_turn = mma + (ISSUE_CLK if gpu.tmem_columns == 0 else 0.0)
    if found.slow_sums is False:
        return in_turn
    alone = mma / found.warpgroups + _promotion_clk(batch, found)
    slow = where(found.warpgroups > 1.0, smooth_maximum(in_turn, alone), alone)
    return where(found.slow_sums, slow, in_turn)


def _promotion_clk(batch: GemmBatch, found: Resources) -> Values:
    """Slow fp8 accumulation: drain the MMA pipe at each k step, add its sums to a second set of registers."""
    adds_per_clk = where(batch.schedule == PINGPONG, PINGPONG_ADDS_PER_CLK, ADDS_PER_CLK)
    return batch.cta_m * batch.cta_n / found.warpgroups / adds_per_clk + DRAIN_CLK


def _round_trip_clk(batch: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    """What a k step takes at least: signals between producer and consumers, across the cluster.

    MMAs of tensor memory release a slot themselves; kernels on a B200 show no such bound.
    """
    if gpu.tmem_columns > 0:
        return 0.0
    square = (batch.cluster_m > 1) & (batch.cluster_n > 1)
    ctas = batch.cluster_m * batch.cluster_n
    large = where(square, SQUARE_ROUND_TRIP_CLK, FOUR_ROUND_TRIP_CLK)
    clk = where(ctas > 2, large, where(ctas > 1, PAIR_ROUND_TRIP_CLK, ROUND_TRIP_CLK))
    return clk + where(found.slow_sums, SLOW_ROUND_TRIP_CLK, 0.0)


def _by_alignment(alignment: Values, values: tuple[float, float, float, float]) -> Values:
    """The value for an alignment of 128 bytes, 64, 32 and 16."""
    at_128, at_64, at_32, at_16 = values
    return where(
        alignment > 64.0, at_128, where(alignment > 32.0, at_64, where(alignment > 16.0, at_32, at_16))
    )


def _tail_clk(batch: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    """Rows of a tile's last k step that lie partly beyond K: each CTA asks for its part of a multicast.

    Kernels on a B200 do not show this cost.
    """
    if gpu.tmem_columns > 0:
        return 0.0
    tail_bytes = remainder(batch.k, found.cta_k) * batch.a_bits / 8.0
    asked = batch.cta_m / batch.cluster_n + batch.cta_n / batch.cluster_m
    rows = asked + RECEIVED_TAIL * (batch.cta_m + batch.cta_n - asked)
    row_clk = _by_alignment(row_alignment(tail_bytes), (TAIL_64, TAIL_64, TAIL_32, TAIL_16))
    return where(tail_bytes > 0.0, rows * row_clk, 0.0)


def _smem_bound(batch: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    """Clocks of the MMA instructions over those at the peak rate, where reading operands bounds them.

    WGMMA of m64nNk16 takes max(N/2, 16 + N/4) clocks (microbenchmarks). Tensor memory spares the reads.
    """
    if gpu.tmem_columns > 0 or gpu.architecture != "sm90":
        return 1.0
    columns = where(found.columns_split, batch.cta_n / 2.0, batch.cta_n)
    return 1.0 + SMEM_CONTENTION * maximum(SMEM_BOUND_COLUMNS / columns - 0.5, 0.0)


def _port_bytes_per_clk(gpu: GpuSpec, p: KernelParameters) -> float:
    """What one SM takes from L2: the calibrated figure, scaled where the GPU's port is known to be wider."""
    known = gpu.l2_read_bytes_per_clk_per_sm
    return p.port_bytes_per_clk * (1.0 if known is None else known / CALIBRATED_PORT_BYTES_PER_CLK)


def _port_bytes(batch: GemmBatch, found: Resources, schedule: TileSchedule) -> Values:
    """Bytes of one stage inside the matrix, whoever asked for them.

    The half of B that a pair of CTAs leaves to the other SM never comes.
    """
    a_bytes = batch.cta_m * (batch.a_bits + batch.a_scale_bits) / 8.0
    b_bytes = batch.cta_n * (batch.b_bits + batch.b_scale_bits) / 8.0
    b_arrives = where(batch.schedule == TWO_CTA, 0.5, 1.0)
    scale_pieces = found.scale_bytes * (ALIGNED_BYTES / SCALE_ROW_BYTES - 1.0)
    outside = a_bytes * (1.0 - schedule.filled_m) + b_bytes * b_arrives * (1.0 - schedule.filled_n)
    return maximum(found.stage_bytes + scale_pieces - outside * found.cta_k, 0.0)


def _requested_bytes(batch: GemmBatch, found: Resources, schedule: TileSchedule) -> Values:
    """Bytes of one stage inside the matrix that the CTA asks for itself: its part of each multicast."""
    a_bytes = batch.cta_m * batch.a_bits / 8.0 * schedule.filled_m / batch.cluster_n
    b_bytes = batch.cta_n * batch.b_bits / 8.0 * schedule.filled_n / batch.cluster_m
    return (a_bytes + b_bytes) * found.cta_k
