"""Demand over rate: how long each wave of tiles takes each resource, what hides what, and the clock it calls for."""

from __future__ import annotations

from gemm_model.config.mechanisms import Record
from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import (
    Flags,
    Values,
    is_one,
    maximum,
    minimum,
    power,
    repeated,
    root,
    scaled,
    smooth_maximum,
    where,
)
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.clock import ClockRule
from gemm_model.kernel_model.demand import Demand
from gemm_model.kernel_model.edge_tiles import EdgeFill, crowding, drifted_apart
from gemm_model.kernel_model.epilogue import Stall
from gemm_model.kernel_model.kernel import Kernel, KernelWaves
from gemm_model.kernel_model.launch import spread_out
from gemm_model.kernel_model.mainloop import KTile
from gemm_model.kernel_model.placement import SMS_PER_TPC, ctas_of_fullest_gpc
from gemm_model.kernel_model.rates import dram_us_of, gpcs_to_saturate_l2, l2_bytes_per_us
from gemm_model.kernel_model.traffic import FILLED_ROW_BYTES, Traffic

NEXT_TO_NOTHING_US = 1e-30
"""Time of no fill [us]; every wave; a guard against dividing by zero."""
CLOCK_STEPS, CAPPED_CLOCK_STEPS = 4, 10
"""Steps of the search for the clock [1]; all kernels, and where the power cap holds; chosen: times are within
1e-9 then."""


@formula_record
class Wave:
    """What each resident cluster waits for in one wave, before the clock is known."""

    count: Values
    """Waves like this one; of the partial last one the part that counts."""
    share: Values
    """What it asks for of what all tiles ask for [1]."""
    period_clk: Values
    """The MMA warps."""
    beside_stores_clk: Values
    """The same without the epilogue."""
    port_clk: Values
    """The loads at the L2-to-SM bandwidth, or in stages that MMAs hold."""
    arriving_clk: Values
    """Filling shared memory, which takes what L2 sends as it comes: beside the port and L2, not in turn."""
    round_trips_clk: Values
    """Stages' round trips, as far as the ring does not hide them; 0 where they bound nothing."""
    stall: Stall
    """How the loads wait for epilogues."""
    l2_us: Values
    gpc_us: Values
    """The way into the fullest GPC, which is the ports' own queue: beside the port and L2, not after them."""
    fill_us: Values
    """Out-of-bounds fill; above 0 where there is none, since shares of
    it are formed."""
    hidden_fill_us: Values
    """The part of it that the loads hide if they last long."""
    dram_us: Values
    """DRAM, and after it the latency of what is under way: queues in a row."""
    stores_us: Values
    """Writing the outputs to L2, as far as the MMA warps wait for it."""
    evened_out: bool
    """Whether fast clusters compute tiles in slow ones' place: it lasts as long as the mean one then."""
    next_us: Values
    """Asking for the next tile: it lasts as long at least; 0 where nobody is asked."""
    turns_clk: Values
    """Adding up partial sums: a turn outlasts the ring, so that loads wait too."""
    l2_power: Values
    """`l2_us`, `gpc_us` and `dram_us` to the orders in which they overlap others, which no clock changes."""
    gpc_power: Values
    dram_power: Values


@formula_record
class Waves:
    """What the waves of a kernel wait for, before the clock is known."""

    full: Wave
    """A wave in which every resident cluster has a tile."""
    last: Wave
    """The last one, whose fewer tiles share L2 and DRAM."""
    l2_us: Values
    """Of all waves together."""
    dram_us: Values
    overlap: Record

    def waves_us(self, sm_clk_mhz: Values) -> Values:
        """All waves at a clock: the full ones, then the partial one."""
        clk_us = 1.0 / sm_clk_mhz
        waves_us: Values = 0.0
        for wave in (self.full, self.last):
            waves_us = waves_us + wave.count * self.wave_us(wave, clk_us)
        return waves_us

    @property
    def alone_clk(self) -> Values:
        """All waves of a cluster for which L2, DRAM and fill take no time."""
        clk: Values = 0.0
        for wave in (self.full, self.last):
            slowest = maximum(wave.period_clk, maximum(wave.port_clk, wave.round_trips_clk))
            clk = clk + wave.count * (slowest + wave.turns_clk)
        return clk

    def wave_us(self, wave: Wave, clk_us: Values) -> Values:
        """The MMA warps beside the loads: the L2-to-SM bandwidth and L2 in turn, and fill after them.

        `clk_us` is the length of a clock.
        """
        overlap = self.overlap
        port = power(wave.port_clk * clk_us, overlap.port_l2_order)
        loads_us = root(port + wave.l2_power, overlap.port_l2_order)
        order = overlap.loads_dram_order
        loads_us = root(power(loads_us, order) + wave.gpc_power, order)
        loads_us = maximum(loads_us, wave.arriving_clk * clk_us)
        in_turn_us = loads_us + wave.fill_us
        loads_us = in_turn_us - wave.hidden_fill_us * loads_us / in_turn_us
        stores_us = wave.beside_stores_clk * clk_us + wave.stores_us
        math_us = maximum(wave.period_clk * clk_us, stores_us)
        ring = power(loads_us, order) + power(wave.round_trips_clk * clk_us, order)
        fetched, last = ring + wave.dram_power, overlap.math_loads_order
        fetched_us = root(fetched, order)
        waited = power(fetched_us + wave.stall.waits_us(fetched_us, clk_us), order)
        fetched = where(wave.stall.fused, waited, fetched)
        slowest_us = root(power(math_us, last) + power(fetched, last / order), last)
        return maximum(slowest_us, wave.next_us) + wave.turns_clk * clk_us


@formula_record
class _TileTimes:
    """What one tile takes of each resource; `gpc_us` of the slowest cluster, `mean_gpc_us` of the mean one."""

    l2_us: Values
    gpc_us: Values
    mean_gpc_us: Values
    fill_us: Values
    dram_us: Values
    stores_us: Values
    latency_us: Values
    port_clk: Values
    arriving_clk: Values
    trips_clk: Values


@formula_record
class _Share:
    """Waves alike: `count` of them, of so many tiles, at most `work` of them for a cluster."""

    count: Values
    tiles: Values
    filled: Values
    """Tiles of mean demand that ask for as much: tiles partly outside the matrix come last."""
    work: Values
    of_last: float
    """Which part of them is the last wave: all or nothing."""
    evened_out: bool


def waves_of(kernel: Kernel, asked: Demand) -> Waves:
    """The waves of a kernel: full ones, and the last one, whose fewer tiles share L2 and DRAM.

    By a static stride all waves last as long as the slowest cluster, else the last one alone.
    """
    schedule = kernel.schedule
    each = _tile_times(kernel, asked)
    evens_out = kernel.family.tile_order.scheduler.evens_out
    waves, last_tiles = schedule.full_waves, schedule.last_tiles
    last_weight = last_wave_weight(kernel)
    # No next tile comes after the last wave, even where it is as full as the others.
    whole = last_tiles == 0.0
    waves, last_weight = where(whole, waves - 1.0, waves), where(whole, 1.0, last_weight)
    last_tiles = where(whole, schedule.resident, last_tiles)
    before = waves * schedule.resident
    mean = (schedule.filled_m / schedule.fullest_m + schedule.filled_n / schedule.fullest_n) / 2.0
    filled = minimum(before / mean, schedule.tiles)
    each_full = where(before > 0.0, filled / maximum(before, 1.0), 1.0) * schedule.resident
    full = _Share(waves, schedule.resident, each_full, 1.0, 0.0, evens_out)
    last = _Share(last_weight, last_tiles, schedule.tiles - filled, schedule.last_work, 1.0, False)
    return Waves(
        full=_wave(kernel, asked, each, full),
        last=_wave(kernel, asked, each, last),
        l2_us=(each.l2_us + each.fill_us) * schedule.tiles,
        dram_us=each.dram_us * schedule.tiles,
        overlap=kernel.numbers.overlap,
    )


def _tile_times(kernel: Kernel, asked: Demand) -> _TileTimes:
    """Demand over rate, tile by tile."""
    gpu, numbers, schedule = kernel.gpu, kernel.numbers, kernel.schedule
    moved, step = asked.traffic, asked.step
    gpc_us = mean_gpc_us = _gpc_tile_us(kernel, moved, spread_out(kernel))
    if kernel.family.tile_order.scheduler.evens_out:
        mean_gpc_us = _gpc_tile_us(kernel, moved, True)
    rows_filled = asked.edge.bytes_per_wave / FILLED_ROW_BYTES
    row_us = numbers.edge_tiles.row_clk / (gpu.sm_count * gpu.sm_clk_mhz)
    l2_rate = l2_bytes_per_us(gpu, numbers)
    return _TileTimes(
        l2_us=moved.l2_load_bytes / (l2_rate * schedule.tiles),
        gpc_us=gpc_us,
        mean_gpc_us=mean_gpc_us,
        fill_us=row_us * rows_filled / schedule.resident,
        dram_us=dram_us_of(kernel, moved) / schedule.tiles,
        stores_us=asked.tile.epilogues * moved.l2_store_bytes / (l2_rate * schedule.tiles),
        latency_us=schedule.k_tiles * step.latency_clk / gpu.sm_clk_mhz,
        port_clk=port_tile_clk(kernel, step),
        arriving_clk=schedule.k_tiles * step.arriving_clk,
        trips_clk=_round_trips_clk(kernel, step),
    )


def _wave(kernel: Kernel, asked: Demand, each: _TileTimes, share: _Share) -> Wave:
    """One of the waves that are alike, before the clock is known."""
    overlap, tile, work, tiles = kernel.numbers.overlap, asked.tile, share.work, share.filled
    filled_us = _filled_us(kernel, asked.edge, each.fill_us, share)
    l2_us, gpc_us = each.l2_us * tiles, (each.mean_gpc_us if share.evened_out else each.gpc_us) * tiles
    dram_us = smooth_maximum(each.dram_us * tiles, scaled(each.latency_us, work), overlap.port_l2_order)
    return Wave(
        count=share.count,
        share=tiles / kernel.schedule.tiles,
        period_clk=scaled(tile.period_clk, work),
        beside_stores_clk=scaled(tile.beside_stores_clk, work),
        port_clk=scaled(_held_up(each.port_clk, tile.between_clk, share.of_last), work),
        arriving_clk=scaled(_held_up(each.arriving_clk, tile.between_clk, share.of_last), work),
        round_trips_clk=scaled(each.trips_clk, work),
        stall=tile.stall.of_waves(work, share.of_last),
        l2_us=l2_us,
        gpc_us=gpc_us,
        fill_us=filled_us,
        hidden_fill_us=asked.edge.hidden * filled_us,
        dram_us=dram_us,
        stores_us=each.stores_us * tiles,
        evened_out=share.evened_out,
        next_us=(kernel.gpu.next_cluster_us or 0.0) if share.evened_out else 0.0,
        turns_clk=tile.last_turns_clk if share.of_last else tile.turns_clk,
        l2_power=power(l2_us, overlap.port_l2_order),
        gpc_power=power(gpc_us, overlap.loads_dram_order),
        dram_power=power(dram_us, overlap.loads_dram_order),
    )


def _filled_us(kernel: Kernel, edge: EdgeFill, fill_us: Values, share: _Share) -> Values:
    """Out-of-bounds fill of a wave; above 0 where there is none."""
    clusters = maximum(share.tiles if is_one(share.work) else share.tiles / share.work, 1.0)
    # CTAs go to one SM of each TPC first: a TPC's second SM reads the same box if more CTAs than TPCs do.
    same_box = minimum(maximum(edge.readers * SMS_PER_TPC / kernel.gpu.sm_count - 1.0, 0.0), 1.0)
    together = kernel.resources.in_step * same_box
    crowded = crowding(kernel, together)(clusters)
    return fill_us * (share.tiles * crowded * drifted_apart(kernel)) + NEXT_TO_NOTHING_US


def _held_up(load_clk: Values, between_clk: Values, of_last: float) -> Values:
    """The loads of a tile, and what comes before those of the next one: the last wave has none."""
    return load_clk + between_clk * (1.0 - of_last)


def port_tile_clk(kernel: Kernel, step: KTile) -> Values:
    """Clocks of a tile's loads at the L2-to-SM bandwidth, or in stages that MMAs hold.

    Warps that multiply ask for a load once they have consumed another: it waits in turn with L2, where it is
    unknown how a ring of few stages turns.
    """
    resources, schedule = kernel.resources, kernel.schedule
    port = schedule.k_tiles * step.port_clk + step.tail_clk
    if resources.short_ring is False and not is_one(resources.math_in_round_trip):
        port = maximum(port, schedule.k_tiles * step.latency_clk * (1.0 - resources.math_in_round_trip))
    return maximum(port, schedule.k_tiles * step.taken_clk)


def _round_trips_clk(kernel: Kernel, step: KTile) -> Values:
    """Clocks of a tile's stages one after another, over those under way; 0 in rings of more stages."""
    if kernel.resources.short_ring is False:
        return 0.0
    return where(kernel.resources.short_ring, kernel.schedule.k_tiles * step.latency_clk, 0.0)


def last_wave_weight(kernel: KernelWaves) -> Values:
    """How much of a wave the partial last one counts for; nothing where waves come out whole."""
    schedule, quantized = kernel.schedule, kernel.numbers.whole_waves.quantized
    share = minimum(schedule.last_tiles / schedule.resident, 1.0)
    return where(schedule.last_tiles > 0.0, quantized + (1.0 - quantized) * share, 0.0)


def _gpc_tile_us(kernel: Kernel, moved: Traffic, spread: Flags) -> Values:
    """The way into the GPC on which most CTAs lie, unless they are `spread` evenly, for a mean tile.

    Stores do not pass it, nor what one half of L2 reads from the other.
    """
    gpu, on_gpc = kernel.gpu, ctas_of_fullest_gpc(kernel, spread)
    in_bytes = (moved.l2_load_bytes - moved.l2_store_bytes - moved.crossing_bytes) / kernel.schedule.tiles
    gpcs = gpcs_to_saturate_l2(gpu) / kernel.numbers.l2.gpc_efficiency
    return in_bytes * (gpcs * on_gpc / kernel.ctas) / (gpu.l2_read_bytes_per_us * gpu.tensor_load_gain)


def settled_mhz(kernel: Kernel, work: Waves, clock: ClockRule) -> Values:
    """The clock at which a kernel's intensity calls for that same clock.

    A slower clock makes a kernel less intense, so the rule less the clock falls and has one root. Secants find
    it, between bounds: under a power cap the rule has kinks, and rises where memory paces the waves.
    """
    gpu, numbers = kernel.gpu, room_numbers("kernel_model")
    steps = CAPPED_CLOCK_STEPS if kernel.around.settled else CLOCK_STEPS
    first: Values = gpu.sm_clk_mhz * numbers.first_clock_share
    lowest: Values = gpu.sm_clk_mhz * numbers.lowest_clock_share / 2.0
    found = clock(work.waves_us(first), first)

    def step(
        low: Values, high: Values, before: Values, beyond_before: Values, found: Values
    ) -> tuple[tuple[Values, ...], Flags]:
        beyond = clock(work.waves_us(found), found) - found
        low, high = where(beyond > 0.0, found, low), where(beyond < 0.0, found, high)
        fall = beyond_before - beyond
        secant = found + beyond * (found - before) / where(fall * fall > 1e-18, fall, 1.0)
        inside = (secant >= low) & (secant <= high)
        settled: Flags = beyond * beyond < 1e-14
        after = where(settled, found, where(inside, secant, (low + high) / 2.0))
        return (low, high, found, beyond, after), settled

    return repeated(step, (lowest, gpu.sm_clk_mhz, first, found - first, found), steps)[-1]
