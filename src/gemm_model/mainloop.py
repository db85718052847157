"""One k step of the mainloop of one CTA, in SM clocks."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.batch import GemmBatch
from gemm_model.elementwise import Values, maximum, where
from gemm_model.feasibility import TWO_CTA, Resources, accumulates_slowly, columns_split
from gemm_model.gpu import GpuSpec
from gemm_model.kernel_parameters import KernelParameters
from gemm_model.schedule import TileSchedule
from gemm_model.spilling import spilled_step
from gemm_model.traffic import ALIGNED_BYTES, TMA_ALIGNMENT_BYTES, further_pieces, k_tail

ADDS_PER_CLK = 75.0
"""fp32 additions of one warpgroup in a clock: what promoting fp8 sums costs."""
ISSUE_CLK = 28.0
"""Of each k step in the MMA warps beside the MMAs: barriers of a stage and the start of its MMAs."""
CLUSTER_STEP_CLK = 8.0
"""The same in clusters: releasing a stage to the other CTAs."""
SMEM_BOUND_COLUMNS = 32.0
"""An instruction of 64 x N takes max(N/2, 16 + N/4) clocks: reading its operands bounds it below 64."""
SMEM_CONTENTION = 1.5
"""What of that excess is seen beside the writes of the loads."""
PORT_CLK, PAIR_PORT_CLK, FOUR_PORT_CLK = 30.0, 20.0, 55.0
"""Of each k step at the SM's port beside the bytes, in clusters of 1, 2 and more: loads and barriers."""
CALIBRATED_PORT_BYTES_PER_CLK = 64.0
"""What a Hopper SM takes from L2 by its description: `port_bytes_per_clk` counts on that much."""
SCALE_ROW_BYTES = TMA_ALIGNMENT_BYTES
"""Scale factors lie in rows of 16 bytes; each takes the port as long as a piece of 64 bytes."""
DRAIN_CLK = 78.0
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


def k_step(
    batch: GemmBatch,
    gpu: GpuSpec,
    rate: Values,
    found: Resources,
    schedule: TileSchedule,
    p: KernelParameters,
) -> KStep:
    """`rate` is the peak FLOP per clock of one SM for the row's types."""
    flop = 2.0 * batch.cta_m * batch.cta_n * found.cta_k
    ctas = batch.cluster_m * batch.cluster_n
    promotion = _promotion(batch, found)
    spilled = spilled_step(batch, found, schedule.k_steps > 1, p)
    math = flop / (rate * p.mma_efficiency) * _smem_bound(batch, gpu, found) + promotion + spilled.step_clk
    math = math + where(promotion > 0, 0.0, ISSUE_CLK) + where(ctas > 1, CLUSTER_STEP_CLK, 0.0)
    port = _port_bytes(batch, found, schedule, p) / _port_bytes_per_clk(gpu, p)
    pieces = further_pieces(where(batch.a_k_major, batch.k, batch.m) * batch.a_bits / 8.0)
    port = port * (1.0 + p.read_misalignment * pieces)
    port = port + where(ctas > 2, FOUR_PORT_CLK, where(ctas > 1, PAIR_PORT_CLK, PORT_CLK))
    port = port * k_tail(batch, found)
    # A slot is released one k step after its use (one MMA group stays in flight): one stage fewer is free.
    stages = maximum(found.stages - 1.0, 1.0)
    return KStep(
        math_clk=math,
        port_clk=port,
        latency_clk=(p.latency_clk + port + math) / stages,
        tile_clk=spilled.tile_clk,
    )


def _smem_bound(batch: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    """Clocks of the MMA instructions over those at the peak rate, where reading operands bounds them.

    WGMMA of m64nNk16 takes max(N/2, 16 + N/4) clocks (microbenchmarks). Tensor memory spares the reads.
    """
    if gpu.tmem_columns > 0 or gpu.architecture != "sm90":
        return 1.0
    columns = where(columns_split(batch, found.warpgroups), batch.cta_n / 2.0, batch.cta_n)
    return 1.0 + SMEM_CONTENTION * maximum(SMEM_BOUND_COLUMNS / columns - 0.5, 0.0)


def _port_bytes_per_clk(gpu: GpuSpec, p: KernelParameters) -> float:
    """What one SM takes from L2: the calibrated figure, scaled where the GPU's port is known to be wider."""
    known = gpu.l2_bytes_per_clk_per_sm
    return p.port_bytes_per_clk * (1.0 if known is None else known / CALIBRATED_PORT_BYTES_PER_CLK)


def _port_bytes(batch: GemmBatch, found: Resources, schedule: TileSchedule, p: KernelParameters) -> Values:
    """Bytes of one stage inside the matrix, less what the port saves on those that another SM asked for.

    With multicast the CTAs of a cluster row share A, those of a column share B: each asks for its part. The
    half of B that a pair of CTAs leaves to the other SM never comes.
    """
    a_bytes = batch.cta_m * (batch.a_bits + batch.a_scale_bits) / 8.0
    b_bytes = batch.cta_n * (batch.b_bits + batch.b_scale_bits) / 8.0
    b_arrives = where(batch.schedule == TWO_CTA, 0.5, 1.0)
    others = a_bytes * (1.0 - 1.0 / batch.cluster_n) + b_bytes * (b_arrives - 1.0 / batch.cluster_m)
    scale_pieces = found.scale_bytes * (ALIGNED_BYTES / SCALE_ROW_BYTES - 1.0)
    outside = a_bytes * (1.0 - schedule.filled_m) + b_bytes * b_arrives * (1.0 - schedule.filled_n)
    saved = p.multicast_port_saving * others + outside
    return maximum(found.stage_bytes + scale_pieces - saved * found.cta_k, 0.0)


def _promotion(batch: GemmBatch, found: Resources) -> Values:
    """Slow fp8 accumulation: drain the MMA pipe at each k step, add its sums to a second set of registers.

    Two warpgroups on one tile hide each other's drain and adds; one alone (64 rows, or ping-pong) does not.
    """
    adds = batch.cta_m * batch.cta_n / ADDS_PER_CLK
    return where(accumulates_slowly(batch, found) & (found.warpgroups <= 1.0), adds + DRAIN_CLK, 0.0)
