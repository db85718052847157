"""The time of a persistent kernel from its mechanisms: waves as long as their slowest resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, any_of, is_zero, maximum, minimum
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import constructor, formula_record
from gemm_model.kernel_model.clock import SHORTEST_WAVES_US, ClockRules, clock_rules
from gemm_model.kernel_model.compose import L2Service, Wave, Waves, settled_mhz, waves_of
from gemm_model.kernel_model.demand import Demand, demand_of
from gemm_model.kernel_model.edge_tiles import EdgeFill
from gemm_model.kernel_model.epilogue import exposed_clk
from gemm_model.kernel_model.kernel import Geometry, Kernel, kernel_on
from gemm_model.kernel_model.launch_context import COLD, LaunchContext, grid_us, launch_us
from gemm_model.kernel_model.mainloop import KTile
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.reduction import exposed_turns_us, profiled_second_us, second_kernel_us, turn_clk
from gemm_model.kernel_model.tile_schedule import TileWaves
from gemm_model.kernel_model.traffic import Traffic
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.mechanisms import KernelNumbers


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
class _Composed:
    """A kernel's demand, the waves that it makes, and the clock that these call for."""

    asked: Demand
    work: Waves
    clock: ClockRules
    sm_clk_mhz: Values


_new_composed = constructor(_Composed)


def _composed(kernel: Kernel) -> _Composed:
    asked = demand_of(kernel)
    work = waves_of(kernel, asked)
    clock = clock_rules(kernel, asked.traffic)
    return _new_composed(
        asked=asked, work=work, clock=clock, sm_clk_mhz=settled_mhz(work, clock.inside, kernel.gpu)
    )


def kernel_time(
    geometry: Geometry,
    gpu: GpuSpec,
    numbers: KernelNumbers,
    *,
    regime: str = "burst",
    l2: str = COLD,
) -> KernelTime:
    """The time of each row in a regime (one of REGIMES), with L2 in a state (one of L2_STATES)."""
    return time_of(kernel_on(geometry, gpu, numbers, regime=regime, l2=l2))


def time_of(kernel: Kernel) -> KernelTime:
    """The time of each kernel: launch, first load, waves, and the last epilogue."""
    schedule, found = kernel.schedule, _composed(kernel)
    asked, work, sm_clk_mhz = found.asked, found.work, found.sm_clk_mhz
    step, tile = asked.step, asked.tile
    steps = schedule.waves * schedule.k_tiles
    waves_us = work.waves_us(sm_clk_mhz)
    first_load_us = step.loads_clk * (1.0 / sm_clk_mhz)
    exposed_us = _exposed_us(kernel, asked, waves_us, sm_clk_mhz)
    started_us = _started_us(kernel, found, waves_us)
    dram_floor_us = _dram_floor_us(kernel.gpu, asked.traffic)
    floor_us = maximum(_math_floor_us(kernel.geometry, kernel.gpu), dram_floor_us)
    between = tile.between_clk
    held_up = between if is_zero(between) else maximum(schedule.waves - 1.0, 0.0) * between
    return _new_time(
        runtime_us=maximum(started_us + first_load_us + waves_us + exposed_us, floor_us),
        floor_us=floor_us,
        launch_us=started_us,
        waves_us=waves_us,
        first_load_us=first_load_us,
        exposed_us=exposed_us,
        tensor_clk=steps * step.math_clk,
        epilogue_clk=schedule.waves * tile.epilogue_clk,
        port_clk=steps * step.loads_clk + schedule.waves * step.tail_clk + held_up,
        latency_clk=steps * step.latency_clk,
        l2_us=work.l2_us,
        dram_us=work.dram_us,
        sm_clk_mhz=sm_clk_mhz,
        set_clk_mhz=found.clock.card(waves_us, sm_clk_mhz),
        traffic=asked.traffic,
        edge=asked.edge,
        step=step,
        full=work.full,
        last=work.last,
        turns_clk=work.turns_clk,
        service=work.service,
        dram_floor_us=dram_floor_us,
    )


def _exposed_us(kernel: Kernel, asked: Demand, waves_us: Values, sm_clk_mhz: Values) -> Values:
    """The last epilogue where nothing hides it, and the turns of splits behind it."""
    family, batch, clk_us = kernel.geometry.family, kernel.batch, 1.0 / sm_clk_mhz
    tile = asked.tile
    exposed = exposed_clk(
        batch, kernel.gpu, family.tile_period, kernel.resources, tile.epilogue_clk, tile.hidden_clk
    )
    splits = any_of(kernel.schedule.sharers > 1.0)
    turn_us = turn_clk(batch, kernel.numbers.split_k) * clk_us if splits else 0.0
    return exposed * clk_us + exposed_turns_us(batch, kernel.schedule, family.tile_order, waves_us, turn_us)


def _started_us(kernel: Kernel, found: _Composed, waves_us: Values) -> Values:
    cold = _cold(found.work, waves_us, found.asked.traffic) if kernel.around.chained else 0.0
    return launches_us(
        kernel.batch,
        kernel.schedule,
        kernel.gpu,
        kernel.geometry.family,
        kernel.numbers,
        kernel.around,
        cold,
        found.sm_clk_mhz,
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


def _cold(work: Waves, waves_us: Values, moved: Traffic) -> Values:
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
    kernel = kernel_on(geometry, gpu, numbers, regime=regime, l2=l2)
    schedule, found = geometry.schedule, _composed(kernel)
    clk, step, full, moved = found.sm_clk_mhz, found.asked.step, found.work.full, found.asked.traffic
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
        full_wave_us=float(found.work.wave_us(full, 1.0 / clk)),
        unhidden_us=float(full.unhidden_us),
        load_us=float(step.loads_clk / clk),
        latency_us=float(numbers.latency.load_clk / clk),
        epilogue_us=float(found.asked.tile.epilogue_clk / clk),
        period_us=float((full.period_clk + found.work.turns_clk) / clk),
        mma_us=float(step.math_clk / clk),
        turns_us=float(found.work.turns_clk / clk),
        k_tile_us=float(geometry.resources.stage_bytes * gpu.sm_count / l2_bytes_per_us(gpu, numbers)),
        operands_us=max(time_us * read_shares.get(name, 1.0) for name, time_us in loads_us.items()),
        grid_us=float(grid_us(geometry.batch, schedule, gpu, numbers)),
        loads_us=loads_us,
    )


def _math_floor_us(geometry: Geometry, gpu: GpuSpec) -> Values:
    """No kernel is faster than its FLOP at the peak rate (classic SOL model)."""
    return geometry.flop / (geometry.rate * gpu.sm_count * gpu.sm_clk_mhz)


def _dram_floor_us(gpu: GpuSpec, bytes_moved: Traffic) -> Values:
    """Nor than its bytes at the DRAM's; operands that L2 holds at the start do not come from there."""
    operand_bytes = bytes_moved.operand_bytes * bytes_moved.from_dram
    return (operand_bytes + bytes_moved.output_bytes) / gpu.dram_bytes_per_us
