"""Adding up partial sums where several clusters share the K of a tile (split-K, stream-K)."""

from __future__ import annotations

from gemm_model.core.elementwise import Values, ceil, floor, maximum, minimum, sqrt, where
from gemm_model.kernel_model.kernel import Kernel, KernelWaves

PARTIAL_SUM_BYTES = 4.0
"""Size of a partial sum in the workspace [B]; split-K; fp32 accumulation."""


def turn_clk(kernel: KernelWaves) -> Values:
    """Clocks in which one split adds its sums to those of the splits before it."""
    return kernel.numbers.split_k.turn_clk + _sums_clk(kernel)


def fold_clk(kernel: KernelWaves) -> Values:
    """Clocks of the last split's turn, in which it reads the sums back beside storing the tile.

    Each warpgroup waits for the sums of one epilogue buffer after another, so that two warpgroups read twice
    as fast as one. Adding waits for nothing and is as fast for one as for two. Source: QuACK 0.6.5
    `epilogue_split_k`, which adds by `red.add` and reads by `load_add`; kernels of one wave (h200 splits).
    """
    return kernel.numbers.split_k.turn_clk + _sums_clk(kernel) / kernel.resources.warpgroups


def _sums_clk(kernel: KernelWaves) -> Values:
    sums = kernel.batch.cta_m * kernel.batch.cta_n
    return sums * PARTIAL_SUM_BYTES / kernel.numbers.split_k.bytes_per_clk


def turns_clk(kernel: KernelWaves, *, last: bool = False) -> Values:
    """Clocks of a cluster's own turn in each wave, or in the `last`: MMAs restart after it, but after the last.

    There is none without splits, nor in the whole waves of stream-K, whose last wave has one where its tiles have
    equally many clusters: that is split-K. In rounds it is the cluster's own turn, because earlier turns were
    taken before. With moving positions it is the last split's turn; waits for other turns are exposed.
    """
    splits = kernel.family.tile_order.splits
    if splits == "apart":
        return 0.0
    own = fold_clk(kernel) if splits == "move" else turn_clk(kernel)
    splits_k = kernel.batch.split_k > 1.0
    if not last:
        return where(splits_k, own + kernel.numbers.epilogue.tile_clk, 0.0)
    schedule = kernel.schedule
    alike = (schedule.sharers > 1.0) & (schedule.sharers * schedule.last_tiles == schedule.resident)
    return where(splits_k | alike, own, 0.0)


def moved_turns(kernel: KernelWaves) -> Values:
    """Turns that a wave waits for beside its own with moving positions; 0 if its clusters are whole tiles.

    Otherwise a cluster's position shifts by the remainder in each wave, and the last split in the order waits
    for those that it was moved ahead of.
    """
    resident, splits = kernel.schedule.resident, kernel.batch.split_k
    return splits * ceil(resident / splits) - resident


def exposed_turns_us(kernel: KernelWaves, waves_us: Values, turn_us: Values, alone_us: Values) -> Values:
    """Time of turns beside the waves [us]; `waves_us` includes those of `turns_clk`.

    `alone_us` is the waves' time if L2, DRAM and fill were free: that of moving positions alone.

    In rounds, the chain of all turns of a tile behind one mainloop counts if it is longer than the last
    wave's wait (`exposed_turns`).
    """
    batch, schedule, splits = kernel.batch, kernel.schedule, kernel.family.tile_order.splits
    if splits == "apart":
        return 0.0
    if splits == "move":
        chain_us = _longest_chain_us(kernel, waves_us, turn_us, alone_us)
        return where(batch.split_k > 1.0, chain_us - waves_us, 0.0)
    mainloop_us = waves_us / schedule.waves - where(batch.split_k > 1.0, turn_us, 0.0)
    chain_us = where(batch.split_k > 1.0, mainloop_us + schedule.sharers * turn_us - waves_us, 0.0)
    return maximum(exposed_turns(kernel) * turn_us, chain_us)


def _longest_chain_us(kernel: KernelWaves, waves_us: Values, turn_us: Values, alone_us: Values) -> Values:
    """The longest chain of waits with moving positions: for the cluster's previous wave, or for a turn.

    A piece of K waits for the piece before it in its tile, and for its cluster's piece in the wave before. A
    chain through several waves waits for all turns from the first split to the last, and in each wave for the
    turns of `moved_turns`; there are no more turns than pieces. Clusters that wait leave L2, DRAM and fill to
    the others: what these take beyond `alone_us` shrinks by the share of the chain in which clusters load.
    """
    batch, schedule, moved = kernel.batch, kernel.schedule, moved_turns(kernel)

    def chain_us(steps: Values) -> Values:
        pieces = schedule.tiles - 1.0 - steps * schedule.resident
        turns = minimum(batch.split_k - 1.0 + steps * moved, pieces)
        share = (steps + 1.0) / schedule.waves
        alone = share * alone_us + turns * turn_us
        # The chain is `alone` and the rest of its waves, times their time over the chain's.
        shared = share * share * (waves_us - alone_us) * waves_us
        return (alone + sqrt(alone * alone + 4.0 * shared)) / 2.0

    whole = floor((schedule.tiles - batch.split_k) / (schedule.resident + moved))
    chains = maximum(chain_us(whole), chain_us(minimum(whole + 1.0, schedule.waves - 1.0)))
    return maximum(chains, waves_us)


def exposed_turns(kernel: KernelWaves) -> Values:
    """Lower bound of the turns behind the last wave.

    In rounds, splits of a tile that run at once in the last wave wait for each other, and so do shares of
    stream-K. Side by side, all splits of a tile do, unless clusters have moved.
    """
    batch, schedule, splits = kernel.batch, kernel.schedule, kernel.family.tile_order.splits
    if splits == "apart":
        return 0.0
    if splits == "move":
        return where(moved_turns(kernel) > 0.0, 0.0, batch.split_k - 1.0)
    last = schedule.splits_at_once * schedule.last_tiles / schedule.resident
    at_once = ceil(where(schedule.last_tiles > 0.0, last, schedule.splits_at_once))
    return maximum(where(batch.split_k > 1.0, at_once, schedule.sharers) - 1.0, 0.0)


def second_kernel_us(kernel: KernelWaves, sm_clk_mhz: Values) -> Values:
    """Time of the second kernel if clusters share tiles: it clears their counters first, or adds up
    afterwards.

    `added_up_us` is a part of it.
    """
    second_us = kernel.numbers.split_k.second_kernel_us + added_up_us(kernel, sm_clk_mhz)
    return where(kernel.schedule.sharers > 1.0, second_us, 0.0)


def added_up_us(kernel: KernelWaves, sm_clk_mhz: Values) -> Values:
    """Time in which a second kernel reads the partial sums of all splits, each SM at `bytes_per_clk` [us]."""
    if kernel.family.tile_order.splits != "apart":
        return 0.0
    batch, schedule = kernel.batch, kernel.schedule
    sums_bytes = batch.m * batch.n * batch.batch * schedule.partial_sums * PARTIAL_SUM_BYTES
    bytes_per_us = kernel.numbers.split_k.bytes_per_clk * kernel.gpu.sm_count * sm_clk_mhz
    return where(schedule.sharers > 1.0, sums_bytes / bytes_per_us, 0.0)


def profiled_second_us(kernel: KernelWaves, second_us: Values) -> Values:
    """Time of the second kernel under a profiler, which times each kernel separately.

    A kernel that adds up is launched anew on an idle card. Splits in rounds are prepared by a memset, which
    is no kernel: the profiler's rows begin with the GEMM's own grid.
    """
    splits = kernel.family.tile_order.splits
    if splits == "rounds":
        return 0.0
    if splits == "move":
        return second_us
    return second_us + where(kernel.schedule.sharers > 1.0, kernel.numbers.launch.kernel_us, 0.0)


def workspace_bytes(kernel: Kernel) -> Values:
    """Bytes of partial sums written to L2 and read again.

    A second kernel reads all that was written. Otherwise splits add their sums in L2 by atomic operations, which
    cover whole tiles, including rows and columns outside the matrix, and the last split reads the total once
    (QuACK 0.6.5 `epilogue_split_k`, CUTLASS `BlockStripedReduce`; L2 counters of 500 kernels on h200).
    """
    batch, schedule = kernel.batch, kernel.schedule
    sums = batch.m * batch.n * batch.batch * PARTIAL_SUM_BYTES
    if kernel.family.tile_order.splits == "apart":
        return 2.0 * schedule.partial_sums * sums
    read_once = where(schedule.partial_sums > 0.0, 1.0, 0.0)
    return (schedule.partial_sums + read_once) * sums / (schedule.filled_m * schedule.filled_n)
