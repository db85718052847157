"""Launch contexts: what runs before and after a launch, and what it finds in L2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, maximum, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernel_model.tile_schedule import TileWaves
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.mechanisms import Chain, KernelNumbers

MATRIX_FIELDS, BATCHED_FIELDS = 11.0, 15.0
"""Fields of a tensor descriptor of two and of three dimensions [fields]; `tensormap.replace` in kernels that
Triton compiled: extent, stride, box and step for each dimension, and a few common ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """One regime; formulas read these facts and never its name."""

    name: str
    by_events: bool = False
    """Whether a pair of events around the launch reads its time, including their own."""
    chained: bool = False
    """Whether launches follow each other without a gap, so that launching hides under the previous kernel."""
    settled: bool = False
    """Whether clock and power have settled, so that the power cap holds."""
    profiled: bool = False
    """Whether a profiler has the kernel alone on the card."""
    keeps_operands: bool = False
    """Whether every launch uses the same operands, of which L2 keeps what it can."""


REGIMES: Mapping[str, LaunchContext] = {
    found.name: found
    for found in (
        LaunchContext(name="burst", by_events=True),
        LaunchContext(name="graph", chained=True),
        LaunchContext(name="sustained", chained=True, settled=True, keeps_operands=True),
        LaunchContext(name="counters", profiled=True),
    )
}
"""burst: one launch on a rested card, timed by events; graph: back to back in a CUDA graph, new operands for
each launch, on a rested card; sustained: back to back with the same operands until clock and power settle;
counters: the kernel's own duration, as a profiler reads it."""


def launch_us(
    batch: GemmBatch,
    schedule: TileWaves,
    gpu: GpuSpec,
    family: KernelFamily,
    numbers: KernelNumbers,
    around: LaunchContext,
    cold: Values,
) -> Values:
    """Time of a launch beside its waves [us]: all of it after a pause, the exposed part in a chain.

    `cold` is the number of cold starts of DRAM that a launch in a chain pays for.
    """
    launch, first = numbers.launch, numbers.first_loads
    ctas_per_cluster = batch.cluster_m * batch.cluster_n
    clusters_us = where(ctas_per_cluster > 1, launch.clusters_us, 0.0)
    ramp_us = first.ramp_us * schedule.k_tiles / (schedule.k_tiles + first.ramp_k_tiles)
    started_us = clusters_us + ramp_us + _table_us(batch, numbers) + _descriptors_us(batch, numbers)
    spread_us = grid_us(batch, schedule, gpu, numbers)
    if around.chained:
        # CTAs that start late in a grid start while the first loads of others are still in flight.
        spread_us = maximum(spread_us, numbers.chain.cold_us * cold)
        # A second kernel, which adds up partial sums or clears counters, has a boundary of its own, without PDL.
        second_us = where(schedule.sharers > 1.0, numbers.chain.boundary_us + numbers.chain.gap_us, 0.0)
        return started_us + spread_us + _boundary_us(batch, family, numbers.chain) + second_us
    started_us = started_us + spread_us
    if around.by_events:
        started_us = started_us + maximum(_events_us(batch, gpu) - launch.events_us, 0.0)
    return started_us + launch.kernel_us


def _events_us(batch: GemmBatch, gpu: GpuSpec) -> Values:
    """Reading of an event pair around an empty kernel, less the kernel itself [us].

    An empty kernel takes 0.28 us longer on the H100 than on the H200; a kernel with work does not.
    """
    measured = batch.empty_kernel_us - gpu.graph_launch_us
    return where(batch.empty_kernel_us < 0.0, gpu.event_pair_us, measured)


def _descriptors_us(batch: GemmBatch, numbers: KernelNumbers) -> Values:
    """Time to make descriptors, field by field: a batch has a third dimension, groups store without one."""
    each = where(batch.batch > 1.0, BATCHED_FIELDS / MATRIX_FIELDS, 1.0)
    if batch.kinds is not None:
        each = where(batch.kinds.grouped, 2.0 / 3.0, each)
    return numbers.device_descriptors.start_us * each


def _table_us(batch: GemmBatch, numbers: KernelNumbers) -> Values:
    """Time to read the table that locates tiles."""
    return 0.0 if batch.kinds is None else where(batch.kinds.looked_up, numbers.grouped.start_us, 0.0)


def _boundary_us(batch: GemmBatch, family: KernelFamily, chain: Chain) -> Values:
    """From the end of one kernel of a chain to the start of the next."""
    shared_us = where(batch.schedule == PINGPONG, 0.0, chain.cooperative_us)
    return chain.boundary_us + where(_dependent(batch, family), shared_us, chain.gap_us)


def _dependent(batch: GemmBatch, family: KernelFamily) -> Flags:
    """Whether launches are dependent: the row's own setting, else the family's default."""
    dependent: Flags = (batch.pdl > 0.0) | ((batch.pdl < 0.0) & family.dependent_launch)
    return dependent


def spread_out(
    batch: GemmBatch, schedule: TileWaves, gpu: GpuSpec, family: KernelFamily, around: LaunchContext
) -> Flags:
    """Whether each grid of a chain is placed beside the previous one, on SMs all over the card.

    The second warpgroup of a ping-pong CTA with one tile is idle and triggers the next grid at once (QuACK
    0.6.5 `gemm_sm90.py`: warpgroups trigger once they have no more tiles). If enough SMs are free, the next
    grid's CTAs wait there. Other launches begin on the same SMs each time.
    """
    if not around.chained:
        return False
    ctas = schedule.resident * batch.cluster_m * batch.cluster_n
    one_tile = (batch.schedule == PINGPONG) & (schedule.tiles <= schedule.resident)
    beside: Flags = one_tile & _dependent(batch, family) & (2.0 * ctas <= gpu.sm_count)
    return beside


def grid_us(batch: GemmBatch, schedule: TileWaves, gpu: GpuSpec, numbers: KernelNumbers) -> Values:
    """From the start of a grid's first CTA to that of its last one."""
    ctas = schedule.resident * batch.cluster_m * batch.cluster_n
    return numbers.launch.full_grid_us * ctas / gpu.sm_count


COLD, WARM, WRITTEN = L2_STATES = ("cold", "warm", "written")
"""Operands that L2 has just seen before a launch: none, all, or only A, written by the kernel before."""


def footprint_bytes(batch: GemmBatch, around: LaunchContext, own_bytes: Values, *, l2: str) -> Values:
    """Bytes touched between two uses of the same operands; infinite without a second use.

    Where the kernel before wrote A, launches are those of a model, whose weights differ.
    """
    repeated = l2 == WARM or (around.keeps_operands and l2 != WRITTEN)
    return where(
        batch.footprint_bytes < float("inf"), batch.footprint_bytes, own_bytes if repeated else float("inf")
    )
