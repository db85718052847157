"""Bytes that a kernel moves: DRAM, L2, and into the shared memory of one SM."""

from __future__ import annotations

import math

from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import (
    Flags,
    Values,
    ceil,
    in_order,
    maximum,
    minimum,
    power,
    power_of_two_divisor,
    remainder,
    scaled,
    smooth_maximum,
    sqrt,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.alignment import further_pieces
from gemm_model.kernel_model.kernel import Kernel
from gemm_model.kernel_model.launch_context import WRITTEN, footprint_bytes
from gemm_model.kernel_model.placement import ORDERED_SIZES, requests_in_order
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.reduction import workspace_bytes
from gemm_model.kernel_model.spilling import spilled_bytes, spilled_l2_bytes

L2_WRITES = 1.5
"""L2 bytes for a byte written [1]; all writes; counters (h200, four families: 1.500 to 1.508 in the median): half
of the writes cross to the other half of L2."""
FILLED_ROW_BYTES = 128
"""A row of a k tile [B]; out-of-bounds fill; the width of TMA's swizzle."""
SECTOR_OF_LINE = 0.25
"""Share of a row outside the matrix that L2 reads [1]; loads without multicast (1 with); counters (h200, quack,
cutlass and triton: 0.25 to 0.26, with multicast 1.00): one of a line's four sectors."""


@formula_record
class Traffic:
    """Bytes of the whole kernel; each field is a number or an array."""

    operand_bytes: Values
    """A, B and the other matrices of an epilogue, each once."""
    wave_bytes: Values
    """Bytes of A and B that a full wave touches."""
    output_bytes: Values
    dram_read_bytes: Values
    dram_write_bytes: Values
    l2_request_bytes: Values
    """Bytes that SMs request from L2 after multicast and coalescing, plus the bytes that they write."""
    crossing_bytes: Values
    """Bytes that one half of L2 reads from the other for its SMs."""
    l2_load_bytes: Values
    """Bytes that L2 reads and writes: requests, rows outside the matrix, crossings, and writes, half of which
    cross too."""
    l2_store_bytes: Values
    """The writes among l2_load_bytes."""
    l2_uncounted_bytes: Values
    """The work on rows stored in several pieces that no counter shows, among l2_store_bytes."""
    l2_launch_bytes: Values
    """What a counter shows beside l2_load_bytes: code, parameters, descriptors."""
    merged_bytes: Values
    """Bytes that coalescing saves L2, which tiles lose as they drift apart."""
    rows_missed: Values
    """Share of a wave's row panels that come from DRAM [1]: new panels and evicted ones."""
    from_dram: Values
    """Share of the operands that L2 does not hold at the start; of B alone if the kernel before wrote A."""

    @property
    def dram_bytes(self) -> Values:
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def l2_counted_bytes(self) -> Values:
        """What `lts__t_bytes` counts."""
        return self.l2_load_bytes - self.l2_uncounted_bytes + self.l2_launch_bytes


def traffic(kernel: Kernel) -> Traffic:
    """The bytes of a kernel by level of memory; in a chain, its outputs evict those of the one before."""
    batch, gpu, schedule = kernel.batch, kernel.gpu, kernel.schedule
    output, operands, sources = batch.output_bytes, batch.operand_bytes, batch.source_bytes
    read_once = operands + sources
    kept = _operands_kept(kernel, read_once + output)
    panels, asked = _wave_panels(kernel), _requests(kernel)
    fresh = _fresh_panels(kernel, panels)
    k_tiles = schedule.tiles * batch.cluster_m * batch.cluster_n * schedule.k_tiles
    k_bytes = k_tiles * kernel.resources.cta_k
    in_step = k_bytes * (asked.bytes - _merged_bytes(kernel, asked, panels.new, 0.0))
    reads = scaled(_dram_reads(kernel, operands, in_step, panels, fresh) + sources, 1.0 - kept)
    from_dram = minimum(reads / read_once, 1.0)
    workspace = workspace_bytes(kernel)
    reads = _reads_beside_others(kernel, reads, kept, workspace) + scaled(gpu.dram_launch_bytes, 1.0 - kept)
    writes = output + workspace
    crossing = _crossing_share(kernel, panels, asked.equal) * reads
    stored, uncounted = _l2_stores(kernel, writes)
    beside = asked.outside * k_bytes + crossing + stored + sources
    beside = beside + spilled_l2_bytes(kernel) * k_tiles
    l2_us = (in_step + beside) / l2_bytes_per_us(gpu, kernel.numbers)
    merged = k_bytes * _merged_bytes(kernel, asked, panels.new, l2_us)
    requests = k_bytes * asked.bytes - merged
    return Traffic(
        operand_bytes=read_once,
        wave_bytes=panels.bytes,
        output_bytes=output,
        dram_read_bytes=reads,
        dram_write_bytes=_written(kernel, output, reads, kept) + _spilled_written(kernel, output, reads),
        l2_request_bytes=requests + (writes + sources),
        crossing_bytes=crossing,
        l2_load_bytes=requests + beside,
        l2_store_bytes=stored,
        l2_uncounted_bytes=uncounted,
        l2_launch_bytes=_l2_launch_bytes(kernel),
        merged_bytes=merged,
        rows_missed=in_order(schedule.minor_is_m, *fresh)[0],
        from_dram=from_dram,
    )


def _l2_stores(kernel: Kernel, written: Values) -> tuple[Values, Values]:
    """Bytes of L2's work for what is written, and those among them that no counter shows."""
    in_pieces = L2_WRITES * _misaligned_bytes(kernel)
    uncounted = scaled(in_pieces, 1.0 - room_numbers("kernel_model").misaligned_counted_share)
    return L2_WRITES * written + in_pieces, uncounted


def _l2_launch_bytes(kernel: Kernel) -> Values:
    """Bytes that a counter of L2 shows of the launch itself."""
    of_ctas = room_numbers("kernel_model").l2_bytes_per_cta * kernel.ctas
    return kernel.gpu.l2_launch_bytes + of_ctas


def _operands_kept(kernel: Kernel, own_bytes: Values) -> Values:
    """Share of the operands that L2 holds from an earlier launch, each of which touches `own_bytes` [1]."""
    gpu = kernel.gpu
    between = footprint_bytes(kernel, own_bytes)
    return kept_share(between, gpu.l2_kept_share * gpu.l2_bytes, gpu.l2_kept_order)


def _reads_beside_others(kernel: Kernel, reads: Values, kept: Values, workspace: Values) -> Values:
    """DRAM reads, given those of a kernel alone: of an A that was just written, and by a second kernel."""
    gpu = kernel.gpu
    if kernel.l2 == WRITTEN and gpu.l2_unwritten_share > 0.0:
        a_bytes = kernel.batch.a_once_bytes
        reads = reads - (1.0 - kept) * a_bytes * kept_share(a_bytes, gpu.l2_unwritten_share * gpu.l2_bytes)
    if kernel.around.profiled and kernel.family.tile_order.splits == "apart":
        # A profiler empties L2 before the second kernel, which then reads the partial sums from DRAM.
        reads = reads + 0.5 * workspace
    return reads


@formula_record
class _Requests:
    """Bytes that one CTA requests from L2 for each element of K; each field is a number or an array."""

    bytes: Values
    """Bytes after multicast."""
    outside: Values
    """Bytes of rows outside the matrix."""
    equal_bytes: tuple[Values, Values]
    """Bytes of requests for A, and for B, that equal an earlier one of the same GPC and may merge with it."""
    equal: tuple[Values, Values]
    """Shares of the requests for A, and for B, that another one of the same GPC equals [1]."""


def _requests(kernel: Kernel) -> _Requests:
    """The requests of one CTA: by multicast, the CTAs of a cluster row share A, those of a column share B.

    A pair of CTAs on one MMA shares B without multicast: each CTA requests its half.
    """
    batch, schedule, holders = kernel.batch, kernel.schedule, kernel.resources.b_holders
    a_asked = batch.cta_m * batch.a_bytes_per_element / batch.cluster_n * schedule.filled_m
    b_asked = batch.cta_n * batch.b_bytes_per_element / batch.cluster_m * schedule.filled_n
    a_pieces = further_pieces(batch.a_pitch_bytes)
    b_pieces = further_pieces(batch.b_pitch_bytes)
    # Multicast requests do not merge; rows in pieces, which share sectors with their neighbours, merge less.
    merge_loss = room_numbers("kernel_model").piece_merge_loss
    a_alone = (batch.cluster_n < 2) * maximum(1.0 - merge_loss * a_pieces, 0.0)
    b_alone = (batch.cluster_m / holders < 2) * maximum(1.0 - merge_loss * b_pieces, 0.0)
    a_matrices, b_matrices = matrices_touched(kernel)
    a_panels, b_panels = in_order(schedule.minor_is_m, schedule.minor_panels, schedule.major_panels)
    a_panels, b_panels = scaled(a_panels, a_matrices), scaled(b_panels, b_matrices)
    a_equal, b_equal = _equal_shares(kernel, (a_panels, b_panels))
    equal_bytes = a_alone * a_asked * a_equal, b_alone * b_asked * b_equal
    a_outside = batch.cta_m * batch.a_bytes_per_element / batch.cluster_n * (1.0 - schedule.filled_m)
    b_outside = batch.cta_n * batch.b_bytes_per_element / batch.cluster_m * (1.0 - schedule.filled_n)
    outside = a_outside * where(batch.cluster_n > 1, 1.0, SECTOR_OF_LINE) + b_outside * where(
        batch.cluster_m / holders > 1, 1.0, SECTOR_OF_LINE
    )
    return _Requests(a_asked + b_asked, outside, equal_bytes, (a_equal, b_equal))


def _equal_shares(kernel: Kernel, panels: tuple[Values, Values]) -> tuple[Values, Values]:
    """Share of the requests for A, and for B, that equal another request of the same GPC [1].

    For clusters of one, two and four the launch order determines it, if known; else chance among `panels` does.
    """
    gpu, schedule, cluster_size = kernel.gpu, kernel.schedule, kernel.cluster_size
    by_chance = tuple(merged_share(each, cluster_size, gpu) for each in panels)
    launched = requests_in_order(kernel, _shared(kernel))
    if launched is None:
        return by_chance[0], by_chance[1]
    small = cluster_size <= ORDERED_SIZES[-1]
    seen_a, seen_b = in_order(schedule.minor_is_m, *launched)
    return where(small, 1.0 - seen_a, by_chance[0]), where(small, 1.0 - seen_b, by_chance[1])


def _shared(kernel: Kernel) -> tuple[Flags, Flags]:
    """Whether all matrices of a batch have the same A, or B."""
    return kernel.batch.kinds.a_shared, kernel.batch.kinds.b_shared


def matrices_touched(kernel: Kernel) -> tuple[Values, Values]:
    """Matrices of A and of B that one wave touches."""
    matrices = kernel.schedule.matrices
    a_shared, b_shared = _shared(kernel)
    return where(a_shared, 1.0, matrices), where(b_shared, 1.0, matrices)


def merged_share(panels: Values, cluster_size: Values, gpu: GpuSpec) -> Values:
    """Share of requests that merge [1] if each cluster of a GPC reads one of `panels` at random.

    The clusters then read panels (1 - (1 - 1/panels)^clusters) distinct panels on average.
    """
    clusters = gpu.l2_merging_sms / cluster_size
    miss = 1.0 - 1.0 / maximum(panels, 1.0)
    distinct = panels * (1.0 - miss**clusters)
    return maximum(1.0 - distinct / clusters, 0.0) * where(clusters > 1.5, 1.0, 0.0)


def _written(kernel: Kernel, output: Values, reads: Values, kept: Values) -> Values:
    """Bytes of output that reach DRAM before the kernel ends, because later bytes evict them from L2.

    In a chain, outputs that L2 keeps until a later launch overwrites them never do. A profiler leaves bytes of its
    own in L2, which go as panels do. Source: DRAM writes by counters of kernels of 3 to 300 MB of outputs.
    """
    if kernel.around.chained:
        return scaled(output, 1.0 - kept)
    gpu, passed, order = kernel.gpu, output + reads, room_numbers("kernel_model").l2_panel_order
    held_back = maximum(gpu.l2_unwritten_share * gpu.l2_bytes - _spilled_held(kernel), 0.0)
    # A tile's outputs come at its end: in the mean half a tile's time after its share of what passes.
    until_stored = 1.0 - 0.5 * kernel.schedule.resident / kernel.schedule.tiles
    written = output * (1.0 - held_back / smooth_maximum(passed * until_stored, held_back, order))
    if not kernel.around.profiled:
        return written
    return written + gpu.profiler_left_bytes * (1.0 - _panels_kept(passed, _capacity(kernel)))


def _misaligned_bytes(kernel: Kernel) -> Values:
    """L2's work beyond the output itself, in bytes, for rows that are stored in several pieces."""
    batch, pieces = kernel.batch, further_pieces(kernel.batch.output_pitch_bytes)
    piece_bytes = room_numbers("kernel_model").l2_piece_bytes
    stored_row = minimum(power_of_two_divisor(batch.cta_n) * batch.out_bits / 8.0, piece_bytes)
    return kernel.numbers.misalignment.write_cost * batch.output_bytes * pieces * piece_bytes / stored_row


def kept_share(needed_bytes: Values, capacity_bytes: Values, order: float = 4.0) -> Values:
    """Share of data that L2 still holds at its next use [1]: a smooth step at the capacity."""
    return 1.0 / (1.0 + power(needed_bytes / capacity_bytes, order))


def _dram_reads(
    kernel: Kernel, operands: Values, requests: Values, panels: _WavePanels, fresh: tuple[Values, Values]
) -> Values:
    """Bytes of `operands` that come from DRAM, given the bytes that SMs request.

    DRAM delivers each wave's distinct panels, less those that L2 kept. Within a wave the tiles advance together,
    so L2 serves the repeated uses of a panel, except by tiles that lag too far behind. The next wave of a group
    reads its minor panels again, the next group the major operand: from L2, if it kept them meanwhile.
    """
    waves = maximum(kernel.schedule.tiles / kernel.schedule.resident, 1.0)
    streamed = waves * (panels.minor_bytes * fresh[0] + panels.major_bytes * fresh[1])
    late = maximum(requests - streamed, 0.0) * _late_share(kernel, streamed, requests)
    # Operands that fit in L2 together stay, however far apart the tiles are.
    lost = (1.0 - _panels_kept(operands, _capacity(kernel))) * late
    return maximum(streamed + lost, operands) + _edge_reads(kernel, streamed)


def _capacity(kernel: Kernel) -> Values:
    """Bytes of L2 that keep panels: spilled registers, which return at each k tile, stay there too."""
    capacity = kernel.numbers.l2_capacity.share * kernel.gpu.l2_bytes
    return capacity / (1.0 + _spilled_held(kernel) / capacity)


def _spilled_at_once(kernel: Kernel) -> Values:
    """Bytes of spilled registers of all CTAs that run."""
    return kernel.ctas * spilled_bytes(kernel)


def _spilled_held(kernel: Kernel) -> Values:
    """Bytes of L2 that spilled registers take: in ping-pong also those of the warpgroup that does not multiply."""
    return _spilled_at_once(kernel) * where(kernel.batch.schedule == PINGPONG, 2.0, 1.0)


def _spilled_written(kernel: Kernel, output: Values, reads: Values) -> Values:
    """Bytes of spilled registers that reach DRAM before they are overwritten in L2.

    Within a tile the next k tile overwrites them. From tile to tile they rest while the CTAs store their outputs, in
    ping-pong while the other warpgroup multiplies.
    """
    gpu, schedule, order = kernel.gpu, kernel.schedule, kernel.gpu.l2_spilled_order
    held_back, half = gpu.l2_unwritten_share * gpu.l2_bytes, gpu.l2_spilled_share * gpu.l2_bytes
    if not (held_back and half):
        return 0.0
    passed = output + where(kernel.batch.schedule == PINGPONG, reads, 0.0)
    resting = kept_share(
        _spilled_held(kernel) + passed * schedule.resident / schedule.tiles, held_back, order
    )
    used = kept_share(_spilled_at_once(kernel), half, order)
    times = schedule.tiles * schedule.k_tiles * (1.0 - used)
    times = times + (schedule.tiles - schedule.resident) * (1.0 - resting)
    return kernel.cluster_size * spilled_bytes(kernel) * times


def _panels_kept(passed_bytes: Values, capacity: Values) -> Values:
    """Share of panels that L2 still holds once so many bytes have passed [1]."""
    return kept_share(passed_bytes, capacity, room_numbers("kernel_model").l2_panel_order)


def _fresh_panels(kernel: Kernel, panels: _WavePanels) -> tuple[Values, Values]:
    """Shares of a wave's minor and major panels that come from DRAM [1]: new ones and evicted ones."""
    schedule, capacity = kernel.schedule, _capacity(kernel)
    minor_new, major_new = panels.new
    across = minimum((schedule.groups - 1.0) * major_new, 1.0 - major_new)
    next_wave = _panels_kept(panels.until_minor_bytes, capacity)
    if kernel.family.tile_order.serpentine:
        next_group = _kept_by_turn(kernel, panels)
    else:
        next_group = _panels_kept(panels.until_major_bytes, capacity)
    # Waves that begin within a step share its major panel with the wave before.
    within = 1.0 - major_new - across
    return 1.0 - (1.0 - minor_new) * next_wave, 1.0 - across * next_group - within * next_wave


def _kept_by_turn(kernel: Kernel, panels: _WavePanels) -> Values:
    """Share of the major panels that L2 keeps until the next group walks back over them [1].

    The first ones come after a wave, the last ones after two groups: Gauss's three points between them.
    """
    schedule, capacity = kernel.schedule, _capacity(kernel)
    near = minimum(panels.until_minor_bytes, panels.until_last_bytes)
    far = where(schedule.group * schedule.group_steps > schedule.resident, panels.until_last_bytes, near)
    middle, reach = 0.5 * (far + near), 0.5 * math.sqrt(0.6) * (far - near)
    ends = _panels_kept(middle - reach, capacity) + _panels_kept(middle + reach, capacity)
    return (5.0 * ends + 8.0 * _panels_kept(middle, capacity)) / 18.0


def _late_share(kernel: Kernel, streamed: Values, requests: Values) -> Values:
    """Share of the repeated requests for a panel that miss in L2 [1], because their tile fell behind.

    L2 serves tiles unevenly. Where it delays MMAs at their peak rate and the additions of slow sums, tiles fall
    behind by `coalescing.drift` of its work, which is counted in the times that the `streamed` bytes fill L2. No
    barrier holds CTAs together: like a random walk, they drift apart with the root of the k tiles. A panel that one
    tile alone needs is never late.
    """
    schedule, gpu, numbers = kernel.schedule, kernel.gpu, kernel.numbers
    spilled = kernel.ctas * spilled_l2_bytes(kernel)
    asked = requests * schedule.resident / (schedule.tiles * schedule.k_tiles) + spilled
    in_step = _math_clk(kernel) * room_numbers("kernel_model").bytes_in_step * gpu.sm_count
    delayed = kept_share(in_step, asked)
    shared = 1.0 - 1.0 / maximum(minimum(schedule.minor_panels, schedule.major_panels), 1.0)
    drift = numbers.coalescing.drift * sqrt(schedule.k_tiles / numbers.edge_tiles.drift_k_tiles)
    behind = drift * streamed / _capacity(kernel) * delayed * shared
    return behind / (1.0 + behind)


def _math_clk(kernel: Kernel) -> Values:
    """Clocks of a k tile's MMAs at their peak rate, and of the additions of slow sums.

    MMAs of half the bytes take half the time. Faster ones, or clocks, leave the bytes as they are.
    """
    gpu, resources = kernel.gpu, kernel.resources
    slow_adds = where(resources.slow_sums, 1.0 / gpu.cuda_core_fma_per_clk_per_sm, 0.0)
    mma_clk = resources.cta_k * kernel.batch.a_bytes_per_element / gpu.flop_per_clk_per_sm.get("fp16", 1.0)
    return kernel.batch.cta_m * kernel.batch.cta_n * (mma_clk + slow_adds)


def _edge_reads(kernel: Kernel, streamed: Values) -> Values:
    """Bytes that DRAM delivers again because clusters over an edge of the matrix fall behind the others.

    TMA fills rows outside more slowly than it reads rows inside. Where that outlasts a k tile's MMAs, the cluster falls
    behind: in one tile, or in all if a wave is whole rows of tiles, so that the same clusters have the edge. In the end
    L2 has lost what the others read. Source: DRAM counters of kernels with k of 4,000 and more.
    """
    batch, schedule, known = kernel.batch, kernel.schedule, kernel.numbers.edge_tiles
    row_bytes = kernel.resources.cta_k * batch.a_bytes_per_element
    a_rows, b_rows = batch.cta_m / batch.cluster_n, batch.cta_n / batch.cluster_m
    inside_clk = _math_clk(kernel)
    # Reads that outlast the MMAs hold up all clusters alike.
    row_clk = row_bytes / kernel.gpu.known("l2_read_bytes_per_clk_per_sm")
    read_clk = minimum((a_rows + b_rows) * row_clk, inside_clk)
    filled_clk = row_bytes / FILLED_ROW_BYTES * known.row_clk / (1.0 + known.further_sm)
    more_clk = filled_clk - read_clk / (a_rows + b_rows)
    same = (schedule.groups <= 1.0) & (remainder(schedule.resident, schedule.group) == 0.0)
    all_tiles = streamed * (1.0 - kernel.resources.in_step)
    one_tile = all_tiles * schedule.resident / schedule.tiles
    apart = in_order(schedule.minor_is_m, where(same & (batch.split_k < 2.0), all_tiles, one_tile), one_tile)
    capacity, a_bytes = _capacity(kernel), batch.a_once_bytes
    b_bytes = batch.operand_bytes - a_bytes
    again: Values = 0.0
    for filled, extent, along, rows, passed, shared in (
        (schedule.filled_m, batch.m / batch.cta_m, batch.cluster_m, a_rows, apart[0], b_bytes),
        (schedule.filled_n, batch.n / batch.cta_n, batch.cluster_n, b_rows, apart[1], a_bytes),
    ):
        outside = minimum((1.0 - filled) * ceil(extent / along) * along, 1.0) * rows
        behind = maximum(passed * (1.0 - inside_clk / (read_clk + outside * more_clk)), 1.0)
        again = again + where(extent > along, shared * maximum(1.0 - capacity / behind, 0.0), 0.0)
    return again


def fresh_share(kernel: Kernel, moved: Traffic) -> Values:
    """Share of a wave's panels that come from DRAM [1]; all CTAs that request such a panel wait for DRAM."""
    schedule = kernel.schedule
    touched_bytes = maximum(schedule.tiles / schedule.resident, 1.0) * moved.wave_bytes
    return minimum(moved.dram_read_bytes / touched_bytes, 1.0)


@formula_record
class _WavePanels:
    """Bytes of the minor and the major operand that one wave touches; each field is a number or an array."""

    minor_bytes: Values
    major_bytes: Values
    until_minor_bytes: Values
    """Bytes that L2 takes in until the next wave of a group reads the minor panels again."""
    until_major_bytes: Values
    """Bytes that L2 takes in until the next group reads the major panels again."""
    until_last_bytes: Values
    """The same for the panels that a group walks back to last."""
    new: tuple[Values, Values]
    """Shares of a wave's minor and major panels that no wave before has read [1]."""

    @property
    def bytes(self) -> Values:
        return self.minor_bytes + self.major_bytes


def _wave_panels(kernel: Kernel) -> _WavePanels:
    """The panels of a wave, and what L2 takes in until they are read again.

    The next wave of a group reads the same minor panels, the next group the whole major operand of the matrix.
    """
    batch, schedule = kernel.batch, kernel.schedule
    a_bytes, b_bytes = batch.a_bytes_per_element, batch.b_bytes_per_element
    m_panel: Values = batch.cluster_m * batch.cta_m * a_bytes * batch.k * schedule.filled_m
    n_panel: Values = batch.cluster_n * batch.cta_n * b_bytes * batch.k * schedule.filled_n
    k_share = schedule.splits_at_once / batch.split_k
    m_panel = scaled(m_panel, k_share) * where(batch.kinds.a_shared, 1.0, batch.kinds.a_distinct)
    n_panel = scaled(n_panel, k_share) * where(batch.kinds.b_shared, 1.0, batch.kinds.b_distinct)
    minor_panel, major_panel = in_order(schedule.minor_is_m, m_panel, n_panel)
    minor_matrices, major_matrices = in_order(schedule.minor_is_m, *matrices_touched(kernel))
    minor = schedule.minor_panels * minor_panel * minor_matrices
    major = schedule.major_panels * major_panel * major_matrices
    # Outputs take lines of L2 as well.
    tile_output = batch.output_bytes * schedule.sharers / schedule.tiles
    until_minor = where(schedule.group > schedule.resident, schedule.group * minor_panel, minor + major)
    until_minor = until_minor + schedule.resident * tile_output
    group_tiles = maximum(schedule.group * schedule.group_steps, schedule.resident)
    until_major = minor + schedule.group_steps * major_panel * major_matrices + group_tiles * tile_output
    until_last = until_major + minor + group_tiles * tile_output
    operands = in_order(schedule.minor_is_m, batch.a_once_bytes, batch.operand_bytes - batch.a_once_bytes)
    waves = maximum(schedule.tiles / schedule.resident, 1.0)
    new = minimum(operands[0] / (waves * minor), 1.0), minimum(operands[1] / (waves * major), 1.0)
    return _WavePanels(minor, major, until_minor, until_major, until_last, new)


def _crossing_share(kernel: Kernel, panels: _WavePanels, equal: tuple[Values, Values]) -> Values:
    """Share of a wave's bytes that cross from one half of L2 to the other [1].

    A line that several GPCs read crosses once, unless all of them happen to be on the line's own side. A GPC
    counts once: `equal` are the shares of requests for A, and for B, that another one of their GPC equals.
    """
    schedule = kernel.schedule
    # Splits of a tile want other lines of its panels.
    clusters = minimum(schedule.resident, schedule.tiles) / schedule.splits_at_once
    minor_equal, major_equal = in_order(schedule.minor_is_m, *equal)
    minor_gpcs = clusters / maximum(schedule.minor_panels, 1.0) * (1.0 - minor_equal)
    major_gpcs = clusters / maximum(schedule.major_panels, 1.0) * (1.0 - major_equal)
    minor_cross, major_cross = 1.0 - 0.5**minor_gpcs, 1.0 - 0.5**major_gpcs
    return (panels.minor_bytes * minor_cross + panels.major_bytes * major_cross) / panels.bytes


def _merged_bytes(kernel: Kernel, asked: _Requests, new: tuple[Values, Values], l2_us: Values) -> Values:
    """Bytes of equal requests that merge; `new` are the shares of minor and major panels that L2 never held.

    Evicted panels are left out: with them a larger L2, which evicts less, would merge less and serve more.
    A request merges if it comes while an earlier one waits. CTAs are apart by 1 / share - 1 times DRAM's latency,
    and by more the longer L2 works, as it serves tiles unevenly. A wait for L2 alone is shorter by the ratio of
    the card's latencies. The first load of a k tile begins when its stage is free, the second one queues behind it.
    """
    gpu, coalescing, schedule = kernel.gpu, kernel.numbers.coalescing, kernel.schedule
    share = coalescing.share
    apart = 1.0 - share + share * (coalescing.loss_per_ms * 1e-3) * l2_us
    longer = 1.0
    if gpu.dram_latency_ns is not None and gpu.l2_latency_clk is not None:
        longer = gpu.dram_latency_ns * 1e-3 * gpu.sm_clk_mhz / gpu.l2_latency_clk
    merged: Values = 0.0
    of_a = coalescing.first_load, 1.0
    for equal, late, factor in zip(
        asked.equal_bytes,
        in_order(schedule.minor_is_m, *new),
        of_a[::-1] if kernel.family.loads_b_first else of_a,
        strict=True,
    ):
        behind = factor * apart
        merged = merged + equal * share * (late / (share + behind) + (1.0 - late) / (share + longer * behind))
    return merged
