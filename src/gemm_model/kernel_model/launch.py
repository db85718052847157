"""What a launch takes beside its waves: descriptors, the ramp of its first loads, the boundary of a chain."""

from __future__ import annotations

from gemm_model.core.elementwise import Flags, Values, maximum, negated, scaled, where
from gemm_model.core.gpu import WITH_CLUSTERS
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernel_model.epilogue import whole_epilogue_clk
from gemm_model.kernel_model.kernel import KernelWaves

MATRIX_FIELDS, BATCHED_FIELDS = 11.0, 15.0
"""Fields of a tensor descriptor of two and of three dimensions [fields]; `tensormap.replace` in kernels that
Triton compiled: extent, stride, box and step for each dimension, and a few common ones."""


def launch_us(kernel: KernelWaves, cold: Values, from_dram: Values) -> Values:
    """Time of a launch beside its waves [us]: all of it after a pause, the exposed part in a chain.

    `cold` is the number of cold starts of DRAM that a launch in a chain pays for; after a pause the first loads of what
    comes `from_dram`, a share of the operands, miss in its row buffers (500 rows with cold and with warm L2).
    """
    schedule, numbers = kernel.schedule, kernel.numbers
    launch, first, chain = numbers.launch, numbers.first_loads, numbers.chain
    clusters_us = where(kernel.cluster_size > 1, launch.clusters_us, 0.0)
    ramp_us = first.ramp_us * schedule.k_tiles / (schedule.k_tiles + first.ramp_k_tiles)
    ramp_us = ramp_us if kernel.around.chained else scaled(ramp_us, from_dram)
    started_us = clusters_us + ramp_us + _table_us(kernel) + _descriptors_us(kernel)
    spread_us = grid_us(kernel)
    if kernel.around.chained:
        # CTAs that start late in a grid start while the first loads of others are still in flight.
        spread_us = maximum(spread_us, numbers.chain.cold_us * cold)
        # A second kernel, which adds up partial sums or clears counters, has a boundary of its own. CuBLAS launches it
        # dependently where there is such a launch, from compute capability 9.0 on: 310 split kernels in graphs on
        # H200 and H100 have a programmatic edge each, of 1,398 others 8. Without one it waits as a cooperative kernel's
        # successor does.
        apart = kernel.family.tile_order.splits == "apart"
        dependent = apart and kernel.gpu.architecture in WITH_CLUSTERS
        late_us = chain.gap_us - apart * chain.cooperative_us
        second_us = where(schedule.sharers > 1.0, chain.boundary_us + (not dependent) * late_us, 0.0)
        return started_us + spread_us + _boundary_us(kernel) + second_us
    if kernel.around.by_events:
        started_us = started_us + maximum(_events_us(kernel) - launch.events_us, 0.0)
    return started_us + spread_us + launch.kernel_us + _scales_us(kernel)


def _events_us(kernel: KernelWaves) -> Values:
    """Reading of an event pair around an empty kernel, less the kernel itself [us].

    An empty kernel takes 0.28 us longer on the H100 than on the H200; a kernel with work does not.
    """
    empty_us, gpu = kernel.batch.empty_kernel_us, kernel.gpu
    return where(empty_us < 0.0, gpu.event_pair_us, empty_us - gpu.graph_launch_us)


def _descriptors_us(kernel: KernelWaves) -> Values:
    """Time to make descriptors, field by field: a batch has a third dimension, groups store without one."""
    batch, each = kernel.batch, where(kernel.batch.batch > 1.0, BATCHED_FIELDS / MATRIX_FIELDS, 1.0)
    return kernel.numbers.device_descriptors.start_us * where(batch.kinds.grouped, 2.0 / 3.0, each)


def _scales_us(kernel: KernelWaves) -> Values:
    """Time to read the scales of operands that have one for a whole matrix; launches back to back find them in L2."""
    batch = kernel.batch
    whole: Flags = (batch.a_bits == 8.0) & (batch.a_scale_bits == 0.0) & negated(batch.kinds.software_scales)
    return where(whole, kernel.numbers.matrix_scales.read_us, 0.0)


def _table_us(kernel: KernelWaves) -> Values:
    """Time to read the table that locates tiles."""
    return where(kernel.batch.kinds.looked_up, kernel.numbers.grouped.start_us, 0.0)


def _boundary_us(kernel: KernelWaves) -> Values:
    """From the end of one kernel of a chain to the start of the next.

    The next grid's start hides under the last store of a kernel that triggers it before (CUTLASS, 36 pairs on an H200).
    """
    chain = kernel.numbers.chain
    stored_us = whole_epilogue_clk(kernel)[0] / kernel.gpu.sm_clk_mhz if kernel.family.triggers_early else 0.0
    shared_us = where(kernel.batch.schedule == PINGPONG, 0.0, maximum(chain.cooperative_us - stored_us, 0.0))
    return chain.boundary_us + where(_dependent(kernel), shared_us, chain.gap_us)


def _dependent(kernel: KernelWaves) -> Flags:
    """Whether launches are dependent: the row's own setting, else the family's default."""
    pdl = kernel.batch.pdl
    dependent: Flags = (pdl > 0.0) | ((pdl < 0.0) & kernel.family.dependent_launch)
    return dependent


def spread_out(kernel: KernelWaves) -> Flags:
    """Whether each grid of a chain is placed beside the previous one, on SMs all over the card.

    The second warpgroup of a ping-pong CTA with one tile is idle and triggers the next grid at once (QuACK
    0.6.5 `gemm_sm90.py`: warpgroups trigger once they have no more tiles). If enough SMs are free, the next
    grid's CTAs wait there. Other launches begin on the same SMs each time.
    """
    if not kernel.around.chained:
        return False
    batch, schedule = kernel.batch, kernel.schedule
    one_tile = (batch.schedule == PINGPONG) & (schedule.tiles <= schedule.resident)
    beside: Flags = one_tile & _dependent(kernel) & (2.0 * kernel.ctas <= kernel.gpu.sm_count)
    return beside


def grid_us(kernel: KernelWaves) -> Values:
    """From the start of a grid's first CTA to that of its last one."""
    return kernel.numbers.launch.full_grid_us * kernel.ctas / kernel.gpu.sm_count
