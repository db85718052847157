"""The epilogue of a tile, and how it and the mainloop share the MMA warps: the tile period."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import Flags, Values, exp, maximum, minimum, power, scaled, sqrt, where
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.kernel import Kernel, KernelWaves
from gemm_model.kernel_model.tile_schedule import fullest_tile
from gemm_model.kernels.feasibility import WARPGROUP_THREADS

LOWEST_SIGMOID = -87.34
"""Sum from which down 1 / (1 + exp(-sum)) is less than the smallest normal number, 2^-126 [1]; fp32; IEEE
754."""
ROWS_OF_A_REGISTER, COLUMNS_OF_A_REGISTER = 8.0, 4.0
"""Outputs whose sums one accumulator register of a warp holds [rows, columns]; sm90; wgmma's fragment D in
the PTX ISA."""
LARGEST_EXPONENT = 50.0
"""Largest exponent in a share of sums [1]; sums of random operands; chosen: exp(-50) of a matrix is
nothing."""


def epilogue_clk(kernel: KernelWaves) -> Values:
    """Clocks from the last MMA of a tile to its last store: convert, write to shared memory, store by TMA.

    One warpgroup takes as long as two or three, because the stores set the pace and not the threads.
    """
    batch, resources, stores = kernel.batch, kernel.resources, kernel.numbers.epilogue
    output_clk = batch.stored_bits / 8.0 / stores.store_bytes_per_clk
    each_clk = stores.store_clk / resources.store_elements
    return batch.cta_m * batch.cta_n * (output_clk / resources.stored_sector_share + each_clk)


def stored_clk(kernel: KernelWaves) -> Values:
    """Clocks of a tile's outputs on the SM's way to L2."""
    batch, share = kernel.batch, kernel.resources.stored_sector_share
    stored = batch.cta_m * batch.cta_n * batch.stored_bits / 8.0 / share
    return stored / kernel.gpu.known("l2_write_bytes_per_clk_per_sm")


def whole_epilogue_clk(kernel: KernelWaves) -> tuple[Values, Values]:
    """Clocks of a tile's epilogue including its fused part, and of the fused part alone."""
    fused = fused_clk(kernel) + tile_by_tile_clk(kernel)
    if kernel.family.tile_period.in_tensor_memory:
        return stored_clk(kernel) + fused, fused
    return epilogue_clk(kernel) * stored_together(kernel) + fused, fused


def stored_together(kernel: KernelWaves) -> Values:
    """Time of an epilogue beside those of all SMs, over that on an H200 [1]; at least 1; CTAs of one tile each.

    Such CTAs start and end together, so that all SMs store at once: L2 writes less for each SM of other cards.
    """
    gpu, batch, schedule = kernel.gpu, kernel.batch, kernel.schedule
    if gpu.l2_write_gb_per_s is None or kernel.family.tile_period.persistent:
        return 1.0
    stored_share = batch.output_bytes * 8.0 / (batch.stored_bits * batch.m * batch.n * batch.batch)
    full_m, full_n = fullest_tile(batch)
    stored_tiles = schedule.resident * full_m * full_n * minimum(stored_share, 1.0)
    at_once = minimum(stored_tiles, float(gpu.sm_count))
    slower = room_numbers("gpu").stored_bytes_per_clk * gpu.sm_clk_mhz / (gpu.l2_write_gb_per_s * 1e3)
    return maximum(at_once * slower, 1.0)


def fused_clk(kernel: KernelWaves) -> Values:
    """Clocks of a tile's fused epilogue: activations, reductions, source matrices, vectors.

    They include finding the tile's group, because the storing warps switch tensor maps first.
    """
    batch, kinds, numbers = kernel.batch, kernel.batch.kinds, kernel.numbers
    fused = numbers.fused_epilogue
    each = kinds.tangents * fused.tangent_clk + kinds.sigmoids * fused.sigmoid_clk
    each = each + kinds.gated * fused.gate_clk + kinds.quantized * numbers.scaled_outputs.scale_clk
    each = each * where(kernel.resources.warpgroups > 1.0, 1.0, fused.alone)
    each = (each + kinds.reductions * fused.reduction_clk) / 1000.0
    each = each + batch.source_bits / 8.0 / fused.source_bytes_per_clk
    waits = kinds.vectors * fused.vector_clk + where(kinds.source_share > 0.0, fused.source_clk, 0.0)
    of_group = where(kinds.looked_up, numbers.grouped.tile_clk, 0.0)
    return batch.cta_m * batch.cta_n * each + waits + of_group + slow_division_clk(kernel)


def slow_division_clk(kernel: KernelWaves) -> Values:
    """Extra clocks of a tile's sigmoids because of sums below LOWEST_SIGMOID.

    A warp divides for 8 rows of 4 columns at once and takes the slow path if one of these sums needs it. The
    first warp, with 16 rows, is the slowest; rows outside the matrix never need it.
    """
    batch, warp_clk = kernel.batch, kernel.numbers.slow_division.warp_clk
    if warp_clk == 0.0:
        return 0.0
    normal = 1.0 - share_below(LOWEST_SIGMOID, batch.k)
    rows = minimum(minimum(batch.m, batch.cta_m), 2.0 * ROWS_OF_A_REGISTER)
    upper = minimum(rows, ROWS_OF_A_REGISTER)
    upper_share = 1.0 - normal ** (COLUMNS_OF_A_REGISTER * upper)
    lower_share = 1.0 - normal ** (COLUMNS_OF_A_REGISTER * (rows - upper))
    accumulators = batch.cta_m * batch.cta_n / (WARPGROUP_THREADS * kernel.resources.warpgroups)
    return batch.kinds.sigmoids * accumulators * warp_clk * (upper_share + lower_share) / 2.0


def share_below(lowest: float, k: Values) -> Values:
    """Share of sums below a negative number for operands of unit variance, whose sums spread by sqrt(k).

    Bowling et al. (2009), the normal distribution by a logistic one: within 0.00014.
    """
    spreads = -lowest / sqrt(k)
    return 1.0 / (1.0 + exp(minimum(1.5976 * spreads + 0.07056 * power(spreads, 3.0), LARGEST_EXPONENT)))


def tile_by_tile_clk(kernel: KernelWaves) -> Values:
    """Extra clocks of a grouped tile if the ring is refilled for each tile: stores, and a load's latency.

    Addresses of the outputs spill registers, which go to memory and return once for each tile.
    """
    if not kernel.family.tile_period.groups_tile_by_tile:
        return 0.0
    batch, resources, numbers = kernel.batch, kernel.resources, kernel.numbers
    stores = numbers.pointer_stores
    outputs = batch.cta_m * batch.cta_n * batch.kinds.output_share
    spills = resources.accumulator_registers > room_numbers("kernels").grouped_accumulators
    spilled = where(spills, stores.spilled_registers * resources.warpgroups, 0.0)
    stored = outputs / 1000.0 * stores.output_clk + spilled * stores.spill_clk
    return where(batch.kinds.grouped, stored + numbers.latency.load_clk, 0.0)


@formula_record
class Stall:
    """How fused epilogues stall the loads of tiles; each field is a number or an array."""

    epilogue_clk: Values
    """Clocks during which no stage of the ring becomes free for the next tile's loads."""
    plain_clk: Values
    """The same for a plain GEMM."""
    room: Values
    """Share of a tile's loads that fits into the ring meanwhile [1]."""
    last_clk: Values
    """Fused clocks of the last tile, whose loads are over, beyond those in `exposed_clk`."""
    fused: Flags
    """Whether anything is fused."""
    last_share: Values = 0.0
    """Share of the last wave among these waves [1]."""

    def waits_us(self, fetched_us: Values, clk_us: Values) -> Values:
        """Extra wait of a wave's loads, which take `fetched_us`, over those of a plain GEMM [us].

        Loads go on at their own pace during an epilogue until the ring is full.
        """
        room_us = self.room * fetched_us
        waits = maximum(self.epilogue_clk * clk_us - room_us, 0.0)
        waits = waits - maximum(self.plain_clk * clk_us - room_us, 0.0)
        return waits + self.last_share * (self.last_clk * clk_us - waits)

    def of_waves(self, work: Values, last_share: Values) -> Stall:
        """The stall of waves with `work` tiles each, of which `last_share` is the last wave."""
        epilogue, plain, last = (
            scaled(each, work) for each in (self.epilogue_clk, self.plain_clk, self.last_clk)
        )
        return Stall(epilogue, plain, self.room, last, self.fused, last_share)


def stall_of(kernel: Kernel, mainloop: Values, whole: Values, fused: Values) -> Stall:
    """How loads wait for the `fused` part of the `whole` epilogue.

    In ping-pong kernels the other warpgroup's tile drains the ring during the epilogue, in kernels with two
    accumulators the next accumulator's tile does, so that loads do not wait. If the ring is refilled for each
    tile, loads wait for the whole epilogue.
    """
    batch, resources, period = kernel.batch, kernel.resources, kernel.family.tile_period
    plain = whole - fused
    exposed, exposed_plain = (
        exposed_clk(kernel, each, hidden_clk(kernel, mainloop, each)) for each in (whole, plain)
    )
    last = fused - (exposed - exposed_plain)
    emptied = _double_buffered(kernel) if period.in_tensor_memory else batch.schedule == PINGPONG
    in_flight = kernel.numbers.fused_epilogue.ring_share * resources.loads_under_way
    room = minimum(in_flight / kernel.schedule.k_tiles, 1.0)
    waits, before = where(emptied, 0.0, whole), where(emptied, 0.0, plain)
    if period.groups_tile_by_tile:
        anew = batch.kinds.grouped
        waits, last = where(anew, whole, waits), where(anew, whole, last)
        before, room = where(anew, 0.0, before), where(anew, 0.0, room)
    return Stall(waits, before, room, last, fused > 0.0)


def between_loads_clk(kernel: KernelWaves) -> Values:
    """Clocks between the loads of two tiles: the stores on the SM's way to L2, and asking for the next tile.

    Only with tensor memory, where MMAs go on under the epilogue; otherwise MMAs wait for both in turn.
    """
    if not kernel.family.tile_period.in_tensor_memory:
        return 0.0
    return stored_clk(kernel) + asking_clk(kernel)


def asking_clk(kernel: KernelWaves) -> float:
    """Fixed clocks of a tile in tensor memory: asking for the next one; by a static stride it is a sum away."""
    return kernel.numbers.epilogue.tile_clk if kernel.family.tile_order.scheduler.evens_out else 0.0


def tile_period_clk(kernel: KernelWaves, mainloop: Values, epilogue: Values, hidden: Values) -> Values:
    """Clocks between tiles in the MMA warps, if operands are always there.

    Cooperative: mainloop, then epilogue, less the `hidden` part (`hidden_clk`). Ping-pong: two consumers
    alternate mainloops, so that a tile takes the longer of one mainloop with its handover and half of one
    consumer's round; a handover takes the fixed clocks of a tile. In tensor memory accumulators are
    double-buffered if two fit beside the scale factors: the longer of mainloop and epilogue; otherwise both in
    turn, and asking for the next tile.
    """
    serial = mainloop + epilogue
    if kernel.family.tile_period.in_tensor_memory:
        return where(_double_buffered(kernel), maximum(mainloop, epilogue), serial + asking_clk(kernel))
    tile = kernel.numbers.epilogue.tile_clk
    turns = maximum(mainloop + tile, serial / 2.0 + tile)
    return where(kernel.batch.schedule == PINGPONG, turns, serial - hidden + tile)


def period_beside_stores(kernel: KernelWaves, mainloop: Values) -> tuple[Values, Values]:
    """Clocks of the tile period without epilogues, and its number of epilogues, for stores that L2 delays."""
    if kernel.family.tile_period.in_tensor_memory:
        return where(_double_buffered(kernel), 0.0, mainloop), 1.0
    share = where(kernel.batch.schedule == PINGPONG, 0.5, 1.0)
    return share * (mainloop + kernel.numbers.epilogue.tile_clk), share


def exposed_clk(kernel: KernelWaves, epilogue: Values, hidden: Values) -> Values:
    """Clocks of the last epilogue that nothing hides and the tile period does not include."""
    if kernel.family.tile_period.in_tensor_memory:
        return where(_double_buffered(kernel), epilogue, 0.0)
    return where(kernel.batch.schedule == PINGPONG, epilogue, maximum(hidden, 0.0))


def hidden_clk(kernel: KernelWaves, mainloop: Values, epilogue: Values, load_clk: Values = 0.0) -> Values:
    """Clocks that cooperative warpgroups hide of a tile's epilogue and the next tile's mainloop.

    They begin in step and drift apart from tile to tile. Negative where each CTA computes one tile: it hides
    nothing, and waits `load_clk` for its first load.
    """
    if not kernel.family.tile_period.persistent:
        return -load_clk
    tiles = kernel.schedule.waves
    apart = kernel.numbers.epilogue.apart * tiles / (tiles + room_numbers("kernel_model").apart_tiles)
    return where(kernel.resources.warpgroups > 1.0, apart * minimum(mainloop, epilogue), 0.0)


def _double_buffered(kernel: KernelWaves) -> Flags:
    resources = kernel.resources
    return 2.0 * resources.tmem_columns + resources.scale_columns <= kernel.gpu.tmem_columns
