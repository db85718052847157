"""The time of a persistent kernel from its mechanisms: waves as long as their slowest resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gemm_model.core.batch import GemmBatch, GridRows, picked
from gemm_model.core.elementwise import (
    Flags,
    Values,
    any_of,
    is_one,
    is_zero,
    maximum,
    minimum,
    power,
    root,
    scaled,
    smooth_maximum,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import constructor, formula_record
from gemm_model.kernel_model.clock import (
    burst_clock_mhz,
    capped_clock_share,
    counted_quiet,
    light_load_share,
)
from gemm_model.kernel_model.edge_tiles import NO_EDGE, EdgeFill, crowding, edge_fill
from gemm_model.kernel_model.epilogue import (
    Stall,
    between_loads_clk,
    exposed_clk,
    hidden_clk,
    period_beside_stores,
    stall_of,
    tile_period_clk,
    whole_epilogue_clk,
)
from gemm_model.kernel_model.launch_context import (
    COLD,
    REGIMES,
    WRITTEN,
    LaunchContext,
    footprint_bytes,
    grid_us,
    launch_us,
    spread_out,
)
from gemm_model.kernel_model.mainloop import KTile, k_tile
from gemm_model.kernel_model.numbers import kernel_model_numbers
from gemm_model.kernel_model.placement import ctas_of_fullest_gpc
from gemm_model.kernel_model.reduction import (
    exposed_turns_us,
    profiled_second_us,
    second_kernel_us,
    turn_clk,
    turns_clk,
)
from gemm_model.kernel_model.tile_schedule import TileSchedule, TileWaves, tile_schedule
from gemm_model.kernel_model.traffic import Traffic, fresh_share, out_of_step, rows_missed_share, traffic
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import Resources, resources_of
from gemm_model.kernels.mechanisms import Clock, KernelNumbers, Overlap

SHORTEST_WAVES_US = 1e-6
"""Of a kernel without mechanisms [us]; rates in it; a guard against dividing by zero."""
NEXT_TO_NOTHING_US = 1e-30
"""Time of no fill [us]; every wave; a guard against dividing by zero."""
EIGHT_SMS = 8.0
"""SMs that share one GPC's way in [SMs]; `l2_read_bytes_per_clk_of_eight`; by the microbenchmark."""
FILLED_ROW_BYTES = 128
"""A row of a k tile [B]; out-of-bounds fill; the width of TMA's swizzle."""


@formula_record
class KernelTime:
    """Times in us unless named otherwise; each field a number or an array."""

    runtime_us: Values
    floor_us: Values
    """The speed of light: no runtime is below it."""
    launch_us: Values
    waves_us: Values
    """All waves of tiles: what is between the first loads and the last epilogue."""
    first_load_us: Values
    """Filling the pipeline, while the MMAs have nothing to do."""
    exposed_us: Values
    """The last epilogue where nothing hides it."""
    tensor_clk: Values
    """Each mechanism's own time over all waves, as if it were alone; they overlap."""
    epilogue_clk: Values
    port_clk: Values
    latency_clk: Values
    l2_us: Values
    dram_us: Values
    sm_clk_mhz: Values
    """Inside the kernel, as counters read it."""
    set_clk_mhz: Values
    """What the card is set to, as its driver reports it: the boost clock unless power caps it."""
    traffic: Traffic
    edge: EdgeFill
    step: KTile
    full: Wave
    last: Wave
    turns_clk: Values
    service: L2Service
    dram_floor_us: Values
    """The part of the speed of light that is DRAM's."""

    # A search for the fastest kernels asks for these of few.
    @property
    def tensor_us(self) -> Values:
        return self.tensor_clk * (1.0 / self.sm_clk_mhz)

    @property
    def epilogue_us(self) -> Values:
        return self.epilogue_clk * (1.0 / self.sm_clk_mhz)

    @property
    def port_us(self) -> Values:
        return self.port_clk * (1.0 / self.sm_clk_mhz)

    @property
    def latency_us(self) -> Values:
        return self.latency_clk * (1.0 / self.sm_clk_mhz)


_new_time = constructor(KernelTime)


@formula_record
class Geometry:
    """What a kernel's time needs of the problem and the kernel alone; a fit computes it once."""

    batch: GemmBatch
    family: KernelFamily
    rate: Values
    """Peak FLOP per clock of one SM."""
    flop: Values
    resources: Resources
    schedule: TileSchedule

    def picked(self, rows: GridRows) -> Geometry:
        """Some rows of a grid's geometry."""
        return Geometry(
            picked(self.batch, rows),
            self.family,
            picked(self.rate, rows),
            picked(self.flop, rows),
            picked(self.resources, rows),
            picked(self.schedule, rows),
        )


def geometry_of(
    batch: GemmBatch, rate: Values, gpu: GpuSpec, family: KernelFamily, resources: Resources | None = None
) -> Geometry:
    """The geometry of each row of a family's kernels; `resources` are taken where they are known."""
    if resources is None:
        resources = resources_of(batch, gpu, family)
    schedule = tile_schedule(batch, resources, family.tile_order)
    return Geometry(batch, family, rate, batch.flop, resources, schedule)


def l2_bytes_per_us(gpu: GpuSpec, numbers: KernelNumbers) -> float:
    return gpu.l2_read_bytes_per_us * numbers.l2.efficiency


@formula_record
class Wave:
    """What each resident cluster waits for in one wave, before the clock is known."""

    count: Values
    """Waves like this one; of the partial last one the part that counts."""
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
    stall: Stall | None
    """How the loads wait for epilogues; None where nothing is fused."""
    l2_us: Values
    fill_us: Values
    """Out-of-bounds fill of the clusters that have most of it; above 0 where there is none, since shares of
    it are formed."""
    hidden_fill_us: Values
    """The part of it that the loads hide if they last long."""
    dram_us: Values
    """DRAM, and after it the latency of what is under way: queues in a row."""
    stores_us: Values
    """Writing the outputs to L2, as far as the MMA warps wait for it."""
    unhidden_us: Values
    """What L2 and DRAM do not hide of each other."""
    evened_out: bool
    """Whether fast clusters compute tiles in slow ones' place: it lasts as long as the mean one then."""
    next_us: Values
    """Asking for the next tile: it lasts as long at least; 0 where nobody is asked."""
    l2_power: Values
    """`l2_us` and `dram_us` to the orders in which they overlap others, which no clock changes."""
    dram_power: Values


_new_wave = constructor(Wave)


@formula_record
class L2Service:
    """What bounds L2's time of a mean tile, in bytes at its bandwidth: their norm is the time."""

    all_power: Values
    """Of all SMs, to the order of the norm."""
    own_power: Values
    """Of few busy SMs, each at the pace of its own way in."""
    gpc_power: Values
    """Of those of one GPC at the pace of its way in."""

    @property
    def shares(self) -> tuple[Values, Values]:
        """The weights of the SMs' ways in and of the GPC's."""
        total = maximum(self.all_power + self.own_power + self.gpc_power, NEXT_TO_NOTHING_US)
        return self.own_power / total, self.gpc_power / total


_new_service = constructor(L2Service)


@formula_record
class Work:
    """What the waves of a kernel wait for, before the clock is known."""

    full: Wave
    """A wave in which every resident cluster has a tile."""
    last: Wave
    """The last one, whose fewer tiles share L2 and DRAM."""
    turns_clk: Values
    """Adding up partial sums: a turn outlasts the ring, so that loads wait too."""
    l2_us: Values
    """Of all waves together."""
    dram_us: Values
    edge: EdgeFill
    overlap: Overlap
    service: L2Service

    def waves_us(self, sm_clk_mhz: Values) -> Values:
        """All waves at a clock: the full ones, then the partial one."""
        clk_us = 1.0 / sm_clk_mhz
        waves_us: Values = 0.0
        for wave in (self.full, self.last):
            if not is_zero(wave.count):
                waves_us = waves_us + wave.count * self.wave_us(wave, clk_us)
        return waves_us

    def wave_us(self, wave: Wave, clk_us: Values) -> Values:
        """The MMA warps, or the loads: the L2-to-SM bandwidth and L2 in turn, and fill after them.

        `clk_us` is the length of a clock.
        """
        overlap, edge = self.overlap, self.edge
        port = power(wave.port_clk * clk_us, overlap.port_l2_order)
        loads_us = root(port + wave.l2_power, overlap.port_l2_order)
        if not is_zero(wave.arriving_clk):
            loads_us = maximum(loads_us, wave.arriving_clk * clk_us)
        if edge is not NO_EDGE:
            slow_us = loads_us * edge.slow_load
            in_turn_us = slow_us + wave.fill_us
            hidden_us = wave.hidden_fill_us * slow_us / in_turn_us
            loads_us = _among_clusters(in_turn_us - hidden_us, loads_us * edge.fast_load, edge, wave)
        if not is_zero(wave.round_trips_clk):
            loads_us = smooth_maximum(loads_us, wave.round_trips_clk * clk_us, overlap.loads_dram_order)
        stores_us = wave.beside_stores_clk * clk_us + wave.stores_us
        math_us = maximum(wave.period_clk * clk_us, stores_us)
        fetched = power(loads_us, overlap.loads_dram_order) + wave.dram_power
        fetched_us = root(fetched, overlap.loads_dram_order)
        if wave.stall is not None:
            fetched_us = fetched_us + wave.stall.waits_us(fetched_us, clk_us)
        slowest_us = maximum(math_us, fetched_us) + wave.unhidden_us
        if not is_zero(wave.next_us):
            slowest_us = maximum(slowest_us, wave.next_us)
        return slowest_us if is_zero(self.turns_clk) else slowest_us + self.turns_clk * clk_us


_new_work = constructor(Work)


def _among_clusters(slow_us: Values, fast_us: Values, edge: EdgeFill, wave: Wave) -> Values:
    """The loads that a wave waits for, of clusters with fill and of those without."""
    if wave.evened_out:
        return fast_us + edge.slow_share * (slow_us - fast_us)
    return maximum(slow_us, fast_us)


@formula_record
class _Parts:
    """What a kernel's time is put together from, once its clock is known."""

    traffic: Traffic
    edge: EdgeFill
    step: KTile
    epilogue_clk: Values
    hidden_clk: Values
    work: Work
    clock: _ClockRules
    sm_clk_mhz: Values


_new_parts = constructor(_Parts)


def _parts(
    geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, around: LaunchContext, *, l2: str
) -> _Parts:
    batch, schedule, resources = geometry.batch, geometry.schedule, geometry.resources
    edge = edge_fill(batch, schedule, resources, numbers)
    between = partial(footprint_bytes, batch, around, l2=l2)
    order = geometry.family.tile_order
    bytes_moved = traffic(
        batch, gpu, resources, schedule, edge, numbers, order, between, around.chained, l2 == WRITTEN
    )
    misses = _scale_misses(geometry, gpu, numbers, bytes_moved)
    fresh = fresh_share(bytes_moved, schedule)
    step = k_tile(batch, gpu, geometry.rate, resources, schedule, numbers, misses, fresh)
    l2_us = bytes_moved.l2_load_bytes / l2_bytes_per_us(gpu, numbers)
    bytes_moved = out_of_step(bytes_moved, l2_us, numbers)
    period = geometry.family.tile_period
    epilogue, fused = whole_epilogue_clk(batch, period, resources, numbers)
    mainloop = schedule.k_tiles * step.math_clk
    stall = stall_of(batch, gpu, period, resources, numbers, mainloop, schedule.k_tiles, epilogue, fused)
    hidden = hidden_clk(resources, numbers.epilogue, mainloop, epilogue)
    period_clk = tile_period_clk(batch, gpu, period, resources, numbers, mainloop, epilogue, hidden)
    work = _work(geometry, gpu, numbers, around, bytes_moved, edge, step, mainloop, period_clk, stall)
    clock = _clock_rule(geometry, gpu, numbers, bytes_moved, around)
    return _new_parts(
        traffic=bytes_moved,
        edge=edge,
        step=step,
        epilogue_clk=epilogue,
        hidden_clk=hidden,
        work=work,
        clock=clock,
        sm_clk_mhz=_settle(work, clock.inside, gpu),
    )


def _scale_misses(geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, moved: Traffic) -> Values:
    """Share of k tiles whose scale factors come from DRAM: of rows that L2 does not hold."""
    further = geometry.batch.further
    if further is None or not any_of(further.software_scales):
        return 0.0
    return moved.from_dram * rows_missed_share(geometry.batch, gpu, geometry.schedule, numbers)


def kernel_time(
    geometry: Geometry,
    gpu: GpuSpec,
    numbers: KernelNumbers,
    *,
    regime: str = "burst",
    l2: str = COLD,
) -> KernelTime:
    """The time of each row in a regime (one of REGIMES), with L2 in a state (one of L2_STATES)."""
    batch, schedule, period = geometry.batch, geometry.schedule, geometry.family.tile_period
    around = REGIMES[regime]
    parts = _parts(geometry, gpu, numbers, around, l2=l2)
    step, work, sm_clk_mhz, bytes_moved = parts.step, parts.work, parts.sm_clk_mhz, parts.traffic
    rounds, steps = schedule.waves, schedule.waves * schedule.k_tiles
    clk_us, waves_us = 1.0 / sm_clk_mhz, work.waves_us(sm_clk_mhz)
    first_load_us = step.loads_clk * clk_us
    exposed = exposed_clk(batch, gpu, period, geometry.resources, parts.epilogue_clk, parts.hidden_clk)
    turn_us = turn_clk(batch, numbers.split_k) * clk_us if any_of(schedule.sharers > 1.0) else 0.0
    turns_us = exposed_turns_us(batch, schedule, geometry.family.tile_order, waves_us, turn_us)
    exposed_us = exposed * clk_us + turns_us
    cold = _cold(work, waves_us, bytes_moved) if around.chained else 0.0
    started_us = launches_us(batch, schedule, gpu, geometry.family, numbers, around, cold, sm_clk_mhz)
    dram_floor_us = _dram_floor_us(gpu, bytes_moved)
    floor_us = maximum(_math_floor_us(geometry, gpu), dram_floor_us)
    between = between_loads_clk(batch, gpu, period, geometry.resources, numbers.epilogue)
    held_up = between if is_zero(between) else maximum(rounds - 1.0, 0.0) * between
    return _new_time(
        runtime_us=maximum(started_us + first_load_us + waves_us + exposed_us, floor_us),
        floor_us=floor_us,
        launch_us=started_us,
        waves_us=waves_us,
        first_load_us=first_load_us,
        exposed_us=exposed_us,
        tensor_clk=steps * step.math_clk,
        epilogue_clk=rounds * parts.epilogue_clk,
        port_clk=steps * step.loads_clk + rounds * step.tail_clk + held_up,
        latency_clk=steps * step.latency_clk,
        l2_us=work.l2_us,
        dram_us=work.dram_us,
        sm_clk_mhz=sm_clk_mhz,
        set_clk_mhz=parts.clock.card(waves_us, sm_clk_mhz),
        traffic=bytes_moved,
        edge=parts.edge,
        step=step,
        full=work.full,
        last=work.last,
        turns_clk=work.turns_clk,
        service=work.service,
        dram_floor_us=dram_floor_us,
    )


def launches_us(
    batch: GemmBatch,
    schedule: TileWaves,
    gpu: GpuSpec,
    family: KernelFamily,
    numbers: KernelNumbers,
    around: LaunchContext,
    cold: Values,
    sm_clk_mhz: Values,
) -> Values:
    """The launch, which pays for so many `cold` starts, and the second kernel of splits."""
    order = family.tile_order
    second_us = second_kernel_us(batch, schedule, order, numbers.split_k, gpu.sm_count, sm_clk_mhz)
    if around.profiled:
        second_us = profiled_second_us(second_us, schedule, order, numbers.launch.kernel_us)
    return launch_us(batch, schedule, gpu, family, numbers, around, cold) + second_us


def _cold(work: Work, waves_us: Values, moved: Traffic) -> Values:
    """Cold starts that a launch of a chain pays for: that of its first loads, if operands are in DRAM.

    And a second one as far as DRAM is busy both at the end of the launch before and at the start of this one:
    it idles in between.
    """
    busy = minimum(work.dram_us / maximum(waves_us, SHORTEST_WAVES_US), 1.0)
    return moved.from_dram * (1.0 + busy * busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTimes:
    """Times in us of one tile of a kernel, at the kernel's clock: what its timeline is drawn from."""

    full_wave_us: float
    """From a tile to the next where every resident cluster has one."""
    unhidden_us: float
    """Of that, what L2 and DRAM do not hide of each other."""
    load_us: float
    """Bringing the operands of one k tile through the SM's port."""
    latency_us: float
    """From asking for a k tile to its first byte."""
    epilogue_us: float
    period_us: float
    """The MMA warps on one tile, if operands are always there."""
    mma_us: float
    """The MMAs of one k tile."""
    turns_us: float
    """Of the period, adding up partial sums."""
    k_tile_us: float
    """One k tile for each SM out of L2."""
    operands_us: float
    """Loading one tile on each SM of a full wave, before any output is written."""
    grid_us: float
    """From the start of the first CTA to that of the last one."""
    loads_us: Mapping[str, float]
    """By limiter: how long that alone would take to load one tile on each SM of a full wave."""


def tile_times(
    geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, *, regime: str, l2: str
) -> TileTimes:
    """The times of a tile; the geometry is of one row, as numbers. Regime and `l2` as in `kernel_time`."""
    schedule = geometry.schedule
    parts = _parts(geometry, gpu, numbers, REGIMES[regime], l2=l2)
    clk, step, full, moved = parts.sm_clk_mhz, parts.step, parts.work.full, parts.traffic
    loads_us = {
        "PORT": float(schedule.k_tiles * step.loads_clk / clk),
        "LATENCY": float(schedule.k_tiles * step.latency_clk / clk),
        "L2": float(full.l2_us + full.fill_us),
        "DRAM": float(full.dram_us),
    }
    read_shares = {
        "L2": 1.0 - float(moved.l2_store_bytes / moved.l2_load_bytes),
        "DRAM": float(moved.dram_read_bytes / moved.dram_bytes),
    }
    return TileTimes(
        full_wave_us=float(parts.work.wave_us(full, 1.0 / clk)),
        unhidden_us=float(full.unhidden_us),
        load_us=float(step.loads_clk / clk),
        latency_us=float(numbers.latency.load_clk / clk),
        epilogue_us=float(parts.epilogue_clk / clk),
        period_us=float((full.period_clk + parts.work.turns_clk) / clk),
        mma_us=float(step.math_clk / clk),
        turns_us=float(parts.work.turns_clk / clk),
        k_tile_us=float(geometry.resources.stage_bytes * gpu.sm_count / l2_bytes_per_us(gpu, numbers)),
        operands_us=max(time_us * read_shares.get(name, 1.0) for name, time_us in loads_us.items()),
        grid_us=float(grid_us(geometry.batch, schedule, gpu, numbers)),
        loads_us=loads_us,
    )


def _work(
    geometry: Geometry,
    gpu: GpuSpec,
    numbers: KernelNumbers,
    around: LaunchContext,
    bytes_moved: Traffic,
    edge: EdgeFill,
    step: KTile,
    mainloop: Values,
    period_clk: Values,
    stall: Stall | None,
) -> Work:
    """The work of the waves."""
    batch, schedule, resources = geometry.batch, geometry.schedule, geometry.resources
    period = geometry.family.tile_period
    between = between_loads_clk(batch, gpu, period, geometry.resources, numbers.epilogue)
    port_clk = _port_tile_clk(step, schedule, resources)
    trips_clk = _round_trips_clk(step, schedule, resources)
    arriving = 0.0 if is_zero(step.arriving_clk) else schedule.k_tiles * step.arriving_clk
    # By a static stride all waves last as long as the slowest cluster, else the last one alone.
    evens_out = geometry.family.tile_order.scheduler.evens_out
    spread = spread_out(batch, schedule, gpu, geometry.family, around)
    service = _l2_service(geometry, bytes_moved, gpu, numbers, spread)
    l2_us = mean_l2_us = _l2_tile_us(service, gpu, numbers)
    if evens_out:
        mean_l2_us = _l2_tile_us(_l2_service(geometry, bytes_moved, gpu, numbers, True), gpu, numbers)
    rows_filled = edge.bytes_per_wave / FILLED_ROW_BYTES
    fill_us = numbers.edge_tiles.row_clk / (gpu.sm_count * gpu.sm_clk_mhz) * rows_filled / schedule.resident
    dram_us = _dram_us(bytes_moved, gpu, numbers)
    beside, epilogues = period_beside_stores(batch, gpu, period, resources, numbers, mainloop)
    stores_us = epilogues * bytes_moved.l2_store_bytes / (l2_bytes_per_us(gpu, numbers) * schedule.tiles)
    dram_tile_us = dram_us / schedule.tiles
    overlap, latency_us = numbers.overlap, schedule.k_tiles * step.latency_clk / gpu.sm_clk_mhz
    crowded = None if edge is NO_EDGE else crowding(batch, gpu, numbers)
    of_full, of_last = (0.0, 1.0) if stall is None and is_zero(between) else _last_shares(schedule)

    def held_up(load_clk: Values, last_share: Values) -> Values:
        """The loads of a tile, and what comes before those of the next one: the last wave has none."""
        return load_clk if is_zero(between) else load_clk + between * (1.0 - last_share)

    def wave(count: Values, tiles: Values, work: Values, last_share: Values, evened_out: bool) -> Wave:
        """Of so many tiles, at most `work` of them for a cluster; `last_share` of them are the last wave."""
        l2_tile_us = mean_l2_us if evened_out else l2_us
        clusters = maximum(tiles if is_one(work) else tiles / work, 1.0)
        filled_us = 0.0 if crowded is None else fill_us * (tiles * crowded(clusters))
        filled_us = filled_us + NEXT_TO_NOTHING_US
        l2_share_us = l2_tile_us * tiles
        dram_share_us = smooth_maximum(dram_tile_us * tiles, scaled(latency_us, work), overlap.port_l2_order)
        return _new_wave(
            count=count,
            period_clk=scaled(period_clk, work),
            beside_stores_clk=scaled(beside, work),
            port_clk=scaled(held_up(port_clk, last_share), work),
            arriving_clk=0.0 if is_zero(arriving) else scaled(held_up(arriving, last_share), work),
            round_trips_clk=0.0 if is_zero(trips_clk) else scaled(trips_clk, work),
            stall=None if stall is None else stall.of_waves(work, last_share),
            l2_us=l2_share_us,
            fill_us=filled_us,
            hidden_fill_us=edge.hidden * filled_us,
            dram_us=dram_share_us,
            stores_us=stores_us * tiles,
            unhidden_us=overlap.l2_dram_loss * minimum(l2_tile_us, dram_tile_us) * tiles,
            evened_out=evened_out,
            next_us=(gpu.next_cluster_us or 0.0) if evened_out else 0.0,
            l2_power=power(l2_share_us, overlap.port_l2_order),
            dram_power=power(dram_share_us, overlap.loads_dram_order),
        )

    last_wave = schedule.last_tiles, schedule.last_work
    return _new_work(
        full=wave(schedule.full_waves, schedule.resident, 1.0, of_full, evens_out),
        last=wave(last_wave_weight(schedule, numbers), *last_wave, of_last, False),
        turns_clk=turns_clk(batch, resources, geometry.family.tile_order, numbers),
        l2_us=(mean_l2_us + fill_us) * schedule.tiles,
        dram_us=dram_us,
        edge=edge,
        overlap=overlap,
        service=service,
    )


def _port_tile_clk(step: KTile, schedule: TileSchedule, resources: Resources) -> Values:
    """Clocks of a tile's loads at the L2-to-SM bandwidth, or in stages that MMAs hold.

    Warps that multiply ask for a load once they have consumed another: it waits in turn with L2, where it is
    not told how a ring of few stages turns.
    """
    port = schedule.k_tiles * step.port_clk + step.tail_clk
    if resources.short_ring is False and not is_one(resources.math_in_round_trip):
        port = maximum(port, schedule.k_tiles * step.latency_clk * (1.0 - resources.math_in_round_trip))
    return maximum(port, schedule.k_tiles * step.taken_clk)


def _round_trips_clk(step: KTile, schedule: TileSchedule, resources: Resources) -> Values:
    """Clocks of a tile's stages one after another, over those under way; 0 in rings of more stages."""
    if resources.short_ring is False:
        return 0.0
    return where(resources.short_ring, schedule.k_tiles * step.latency_clk, 0.0)


def _last_shares(schedule: TileSchedule) -> tuple[Values, Values]:
    """How much of a full wave, and of the one told apart, is the last: an equal share where all are full."""
    alike = (schedule.last_tiles == 0.0) | (schedule.last_tiles == schedule.resident)
    share = 1.0 / maximum(schedule.waves, 1.0)
    return where(alike, share, 0.0), where(alike, share, 1.0)


def last_wave_weight(schedule: TileWaves, numbers: KernelNumbers) -> Values:
    """How much of a wave the partial last one counts for; nothing where waves come out whole."""
    quantized = numbers.whole_waves.quantized
    share = minimum(schedule.last_tiles / schedule.resident, 1.0)
    return where(schedule.last_tiles > 0.0, quantized + (1.0 - quantized) * share, 0.0)


def _l2_tile_us(service: L2Service, gpu: GpuSpec, numbers: KernelNumbers) -> Values:
    """L2 time of a mean tile."""
    total = service.all_power + service.own_power + service.gpc_power
    return root(total, numbers.overlap.loads_dram_order) / l2_bytes_per_us(gpu, numbers)


def _l2_service(
    geometry: Geometry, moved: Traffic, gpu: GpuSpec, numbers: KernelNumbers, spread: Flags
) -> L2Service:
    """What L2 does for a mean tile; that of few busy SMs at the pace of their own ways in, or of their GPC's.

    Merging does not help an SM's own pace, but that of the GPC on which most lie, unless they are `spread`
    evenly. Stores pass neither; what waits for DRAM counts at a GPC's way in as it does at L2.
    """
    cluster_size, tiles = geometry.batch.cluster_m * geometry.batch.cluster_n, geometry.schedule.tiles
    ctas = geometry.schedule.resident * cluster_size
    on_gpc = ctas_of_fullest_gpc(ctas, cluster_size, gpu, geometry.family.tile_order, spread)
    order = numbers.overlap.loads_dram_order
    fills = numbers.l2.fill_share * moved.dram_read_bytes
    # Of one tile, whose bytes have finite powers whatever the sizes.
    in_bytes = (moved.l2_load_bytes - moved.l2_store_bytes) / tiles
    own_bytes = in_bytes + (moved.merged_bytes - fills) / tiles
    own_bytes = own_bytes * (sms_to_saturate_l2(gpu) * gpu.sm_count / ctas)
    gpc_bytes = in_bytes * (gpcs_to_saturate_l2(gpu) / numbers.l2.gpc_efficiency * on_gpc / ctas)
    load_bytes = moved.l2_load_bytes / tiles
    return _new_service(power(load_bytes, order), power(own_bytes, order), power(gpc_bytes, order))


def _dram_us(moved: Traffic, gpu: GpuSpec, numbers: KernelNumbers) -> Values:
    """What DRAM reads and writes take, or the same bytes on their way into L2: fills and outputs.

    Source: bulk stores to L2; kernels of many outputs, which L2 holds back, are not faster than that.
    """
    dram_us = moved.dram_bytes / _dram_bytes_per_us(gpu, numbers)
    if gpu.l2_write_gb_per_s is None:
        return dram_us
    return maximum(dram_us, (moved.dram_read_bytes + moved.output_bytes) / (gpu.l2_write_gb_per_s * 1e3))


def _dram_bytes_per_us(gpu: GpuSpec, numbers: KernelNumbers) -> float:
    return gpu.dram_read_bytes_per_us * numbers.dram.efficiency


def operands_us(batch: GemmBatch, gpu: GpuSpec, numbers: KernelNumbers) -> Values:
    """What DRAM takes to read the operands once."""
    return batch.operand_bytes / _dram_bytes_per_us(gpu, numbers)


def sms_to_saturate_l2(gpu: GpuSpec) -> float:
    """Share of the SMs whose bulk reads, each as fast as one SM alone, add up to L2's bandwidth."""
    alone = gpu.known("l2_read_bytes_per_clk_per_sm")
    return gpu.l2_read_bytes_per_us / (alone * gpu.sm_clk_mhz * gpu.sm_count)


def gpcs_to_saturate_l2(gpu: GpuSpec) -> float:
    """GPCs whose ways in add up to L2's bandwidth; 0 where no such bound is known.

    The first eight SMs that a launch takes are of one GPC, and its way in is what they read together: further
    CTAs there share it. Source: bulk reads of 8 to 48 CTAs (h200, three cards).
    """
    of_eight = gpu.l2_read_bytes_per_clk_of_eight
    if of_eight is None:
        return 0.0
    return gpu.l2_read_bytes_per_us / (EIGHT_SMS * of_eight * gpu.sm_clk_mhz)


_ClockRule = Callable[[Values, Values], Values]
"""The clock in MHz of a kernel whose waves take so many us at such a clock."""


@formula_record
class _ClockRules:
    card: _ClockRule
    """What the card is set to: its boost clock unless power caps it."""
    inside: _ClockRule
    """Inside the kernel: the card's, or less where the supply sags."""


def _clock_rule(
    geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, bytes_moved: Traffic, around: LaunchContext
) -> _ClockRules:
    multipliers = geometry.batch.multiplier_share
    switched = geometry.flop * multipliers
    l2_bytes = bytes_moved.l2_request_bytes
    dram_bytes = bytes_moved.dram_bytes
    math_clk = switched / (geometry.rate * gpu.sm_count)
    l2_us = l2_bytes / l2_bytes_per_us(gpu, numbers)
    dram_us = dram_bytes / gpu.dram_bytes_per_us
    light, power = light_load_share(gpu, numbers.clock), numbers.power

    def burst(waves_us: Values, sm_clk_mhz: Values) -> Values:
        waves_us = maximum(waves_us, SHORTEST_WAVES_US)
        per_us = 1.0 / waves_us
        return burst_clock_mhz(
            gpu,
            numbers.clock,
            minimum(math_clk * per_us / sm_clk_mhz, multipliers),
            minimum(l2_us * per_us, 1.0),
            minimum(dram_us * per_us, 1.0),
            waves_us,
        )

    def at_boost(waves_us: Values, sm_clk_mhz: Values) -> Values:
        loaded = burst(waves_us, sm_clk_mhz)
        if around.profiled:
            ctas = geometry.batch.cluster_m * geometry.batch.cluster_n
            return where(counted_quiet(gpu, geometry.schedule.resident, ctas), gpu.sm_clk_mhz, loaded)
        return loaded

    def boost(_waves_us: Values, _sm_clk_mhz: Values) -> Values:
        return gpu.sm_clk_mhz

    def capped(waves_us: Values, sm_clk_mhz: Values) -> Values:
        work_uj = (power.pj_per_flop * switched + power.pj_per_l2_byte * l2_bytes) * 1e-6
        cap_w = gpu.power_cap_w or float("inf")
        # Power is controlled over many launches: the gap between two of them counts.
        period_us = waves_us + numbers.chain.boundary_us
        dram_w = power.pj_per_dram_byte * dram_bytes * 1e-6 / period_us
        work_w_at_boost = work_uj / period_us * gpu.sm_clk_mhz / sm_clk_mhz
        share = capped_clock_share(power, cap_w, gpu.resting_w, work_w_at_boost, dram_w)
        return gpu.sm_clk_mhz * share

    def sustained(waves_us: Values, sm_clk_mhz: Values) -> Values:
        # At the lower voltage of a capped clock the supply does not sag beyond the share of a light load.
        return minimum(light * capped(waves_us, sm_clk_mhz), at_boost(waves_us, sm_clk_mhz))

    return _ClockRules(capped, sustained) if around.settled else _ClockRules(boost, at_boost)


def _settle(work: Work, clock: _ClockRule, gpu: GpuSpec) -> Values:
    """The clock at which a kernel's intensity calls for that same clock.

    A slower clock makes a kernel less intense, so the rule is a falling function of the clock and has one
    fixed point; two steps and Aitken's extrapolation find it to a few parts in 10^5.
    """
    numbers = kernel_model_numbers()
    first, steepest = gpu.sm_clk_mhz * numbers.first_clock_share, numbers.steepest_clock_slope
    second = clock(work.waves_us(first), first)
    third = clock(work.waves_us(second), second)
    change = second - first
    # A change of zero is settled already.
    slope = (third - second) / where(change * change > 1e-9, change, 1.0)
    slope = maximum(minimum(slope, steepest), -steepest)
    return first + change / (1.0 - slope)


def highest_clk_mhz(gpu: GpuSpec, clock: Clock, around: LaunchContext) -> float:
    """No kernel's clock is found above this.

    With C from where the search begins to the clock of a light load, it ends up to C / (1 - slope^2) above
    its beginning: steps a and b of a slope b / a, a + b up to C, are extrapolated to a / (1 - b / a). The
    rule itself rises with the clock as far as the MMAs' share of the clocks falls and the waves get short: by
    the part that each takes off the clock, for a clock that is so much higher. A power cap may lower it.
    """
    numbers = kernel_model_numbers()
    first, steepest = numbers.first_clock_share, numbers.steepest_clock_slope
    above = max(light_load_share(gpu, clock) - first, 0.0)
    sag = (1.0 - gpu.mma_clk_share) * clock.droop_mma
    slope = steepest if around.settled else min((sag + above) / first, steepest)
    share = first + above / (1.0 - slope * slope)
    return gpu.sm_clk_mhz * (max(share, 1.0) if around.profiled else share)


def clock_without_loads_mhz(
    gpu: GpuSpec, clock: Clock, around: LaunchContext, mma_clk: Values, waves_clk: Values
) -> Values:
    """No kernel whose waves wait for no load is found at a higher clock, the search's error included.

    MMAs are at work in `mma_clk` of the `waves_clk` (`burst_clock_mhz`). A kernel that waits may run at a
    higher clock, but its wait takes longer than that clock saves: the sag is a share of the clock, and falls
    as the clocks in all grow. A power cap may lower it. A locked clock is back where it was if waves last.
    """
    highest = highest_clk_mhz(gpu, clock, around)
    if around.profiled:
        return highest
    found: Values = gpu.sm_clk_mhz
    if gpu.clock_recovery_us is None:
        waves_us = maximum(waves_clk / highest, SHORTEST_WAVES_US)
        found = burst_clock_mhz(gpu, clock, mma_clk / (waves_us * highest), 0.0, 0.0, waves_us)
    return minimum(found * (1.0 + kernel_model_numbers().settled_within), highest)


def _math_floor_us(geometry: Geometry, gpu: GpuSpec) -> Values:
    """No kernel is faster than its FLOP at the peak rate (classic SOL model)."""
    return geometry.flop / (geometry.rate * gpu.sm_count * gpu.sm_clk_mhz)


def _dram_floor_us(gpu: GpuSpec, bytes_moved: Traffic) -> Values:
    """Nor than its bytes at the DRAM's; operands that L2 holds at the start do not come from there."""
    operand_bytes = bytes_moved.operand_bytes * bytes_moved.from_dram
    return (operand_bytes + bytes_moved.output_bytes) / gpu.dram_bytes_per_us
