"""The runtime of a persistent kernel: launch, first load, waves of tiles, last epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm_model.config.mechanisms import KernelNumbers
from gemm_model.core.elementwise import Values, maximum, minimum, power
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.clock import SHORTEST_WAVES_US, ClockRules, clock_rules
from gemm_model.kernel_model.compose import Wave, Waves, settled_mhz, waves_of
from gemm_model.kernel_model.demand import Demand, demand_of
from gemm_model.kernel_model.edge_tiles import EdgeFill
from gemm_model.kernel_model.epilogue import exposed_clk
from gemm_model.kernel_model.kernel import Geometry, Kernel, KernelWaves, kernel_on
from gemm_model.kernel_model.launch import grid_us, launch_us
from gemm_model.kernel_model.launch_context import COLD
from gemm_model.kernel_model.mainloop import KTile
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.reduction import (
    added_up_us,
    exposed_turns_us,
    profiled_second_us,
    second_kernel_us,
    turn_clk,
)
from gemm_model.kernel_model.traffic import Traffic


@formula_record
class KernelTime:
    """Times of a kernel; each field is a number or an array."""

    runtime_us: Values
    floor_us: Values
    """Lower bound of the runtime from peak math and DRAM rates (speed of light)."""
    launch_us: Values
    waves_us: Values
    """All waves of tiles, from the end of the first loads to the last epilogue."""
    first_load_us: Values
    """Fill of the pipeline, before the first MMA."""
    exposed_us: Values
    """The part of the last epilogue that nothing hides."""
    tensor_us: Values
    """MMA time of all waves as if alone; like the five below, it overlaps with the others."""
    epilogue_us: Values
    port_us: Values
    latency_us: Values
    l2_us: Values
    dram_us: Values
    sm_clk_mhz: Values
    """SM clock inside the kernel, as counters read it."""
    set_clk_mhz: Values
    """SM clock that the driver reports: boost, unless the power cap lowers it."""
    traffic: Traffic
    edge: EdgeFill
    step: KTile
    full: Wave
    last: Wave
    dram_floor_us: Values
    """Lower bound of the runtime from DRAM's peak rate alone."""
    added_up_us: Values
    """The part of `launch_us` in which a second kernel adds up the sums of splits."""


@formula_record
class _Composed:
    """A kernel's demand, its waves, and the clock at which they run."""

    asked: Demand
    work: Waves
    clock: ClockRules
    sm_clk_mhz: Values
    exposed_clk: Values
    """The last epilogue, as far as nothing hides it."""


def _composed(kernel: Kernel) -> _Composed:
    asked = demand_of(kernel)
    work = waves_of(kernel, asked)
    exposed = exposed_clk(kernel, asked.tile.epilogue_clk, asked.tile.hidden_clk)

    def beside_us(waves_us: Values, sm_clk_mhz: Values) -> Values:
        turns_us = _turns_us(kernel, work, waves_us, 1.0 / sm_clk_mhz)
        # Of the launch, what shorter waves make longer.
        cold_us = _cold(kernel, work, waves_us, asked.traffic) * kernel.numbers.chain.cold_us
        beside_grid_us = maximum(cold_us - grid_us(kernel), 0.0) + second_kernel_us(kernel, sm_clk_mhz)
        return (asked.step.loads_clk + exposed) / sm_clk_mhz + turns_us + beside_grid_us

    clock = clock_rules(kernel, asked.traffic, beside_us)
    return _Composed(
        asked=asked,
        work=work,
        clock=clock,
        sm_clk_mhz=settled_mhz(kernel, work, clock.inside),
        exposed_clk=exposed,
    )


def kernel_time(
    geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, *, regime: str = "burst", l2: str = COLD
) -> KernelTime:
    """The times of each row in `regime` (one of REGIMES) with the L2 state `l2` (one of L2_STATES)."""
    return time_of(kernel_on(geometry, gpu, numbers, regime=regime, l2=l2))


def time_of(kernel: Kernel) -> KernelTime:
    """The times of each kernel: launch, first load, waves and the last epilogue."""
    schedule, found = kernel.schedule, _composed(kernel)
    asked, work, sm_clk_mhz = found.asked, found.work, found.sm_clk_mhz
    step, tile = asked.step, asked.tile
    steps = schedule.waves * schedule.k_tiles
    waves_us = work.waves_us(sm_clk_mhz)
    clk_us = 1.0 / sm_clk_mhz
    first_load_us = step.loads_clk * clk_us
    exposed_us = found.exposed_clk * clk_us + _turns_us(kernel, work, waves_us, clk_us)
    started_us = _started_us(kernel, found, waves_us)
    dram_floor_us = _dram_floor_us(kernel, asked.traffic)
    floor_us = maximum(_math_floor_us(kernel), dram_floor_us)
    held_up = maximum(schedule.waves - 1.0, 0.0) * tile.between_clk
    return KernelTime(
        runtime_us=maximum(started_us + first_load_us + waves_us + exposed_us, floor_us),
        floor_us=floor_us,
        launch_us=started_us,
        waves_us=waves_us,
        first_load_us=first_load_us,
        exposed_us=exposed_us,
        tensor_us=steps * step.math_clk * clk_us,
        epilogue_us=schedule.waves * tile.epilogue_clk * clk_us,
        port_us=(steps * step.loads_clk + schedule.waves * step.tail_clk + held_up) * clk_us,
        latency_us=steps * step.latency_clk * clk_us,
        l2_us=work.l2_us,
        dram_us=work.dram_us,
        sm_clk_mhz=sm_clk_mhz,
        set_clk_mhz=found.clock.card(waves_us, sm_clk_mhz),
        traffic=asked.traffic,
        edge=asked.edge,
        step=step,
        full=work.full,
        last=work.last,
        dram_floor_us=dram_floor_us,
        added_up_us=added_up_us(kernel, sm_clk_mhz),
    )


def _turns_us(kernel: Kernel, work: Waves, waves_us: Values, clk_us: Values) -> Values:
    """The exposed part of the splits' turns beside the waves [us]."""
    turn_us, alone_us = turn_clk(kernel) * clk_us, work.alone_clk * clk_us
    return exposed_turns_us(kernel, waves_us, turn_us, minimum(alone_us, waves_us))


def _started_us(kernel: Kernel, found: _Composed, waves_us: Values) -> Values:
    cold = _cold(kernel, found.work, waves_us, found.asked.traffic)
    return launches_us(kernel, cold, found.asked.traffic.from_dram, found.sm_clk_mhz)


def launches_us(kernel: KernelWaves, cold: Values, from_dram: Values, sm_clk_mhz: Values) -> Values:
    """The launch and the second kernel of splits [us]; `cold` and `from_dram` are those of `launch_us`."""
    second_us = second_kernel_us(kernel, sm_clk_mhz)
    if kernel.around.profiled:
        second_us = profiled_second_us(kernel, second_us)
    return launch_us(kernel, cold, from_dram) + second_us


def _cold(kernel: Kernel, work: Waves, waves_us: Values, moved: Traffic) -> Values:
    """Cold starts of a launch in a chain [1]: one for its first loads, if operands come from DRAM.

    A DRAM-bound kernel has a second one: DRAM, busy at the end of the launch before, idles until this one's
    first loads. It grows as waves get shorter, down to where it would grow by more than they save.
    """
    if not kernel.around.chained:
        return 0.0
    cold_us, dram_us = kernel.numbers.chain.cold_us, work.dram_us
    shortest_us = power(2.0 * cold_us * moved.from_dram * dram_us * dram_us, 1.0 / 3.0)
    busy = minimum(dram_us / maximum(maximum(waves_us, shortest_us), SHORTEST_WAVES_US), 1.0)
    return moved.from_dram * (1.0 + busy * busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTimes:
    """Times of one tile at the kernel's clock, from which a timeline is drawn."""

    full_wave_us: float
    """From one tile to the next in a full wave."""
    load_us: float
    """Loads of one k tile at the L2-to-SM bandwidth."""
    latency_us: float
    """From the request of a k tile to its first byte."""
    epilogue_us: float
    period_us: float
    """Time of the MMA warps on one tile if operands never delay them."""
    mma_us: float
    """The MMAs of one k tile."""
    turns_us: float
    """The part of period_us in which splits add partial sums."""
    k_tile_us: float
    """One k tile for each SM at L2's bandwidth."""
    operands_us: float
    """Loads of one tile on each SM of a full wave, without output writes."""
    grid_us: float
    """From the start of the first CTA to the start of the last one."""
    loads_us: Mapping[str, float]
    """Time of each limiter alone to load one tile on each SM of a full wave."""


def tile_times(kernel: Kernel) -> TileTimes:
    """The times of a tile of one kernel of scalars."""
    gpu, numbers, schedule, found = kernel.gpu, kernel.numbers, kernel.schedule, _composed(kernel)
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
        load_us=float(step.loads_clk / clk),
        latency_us=float(numbers.latency.load_clk / clk),
        epilogue_us=float(found.asked.tile.epilogue_clk / clk),
        period_us=float((full.period_clk + full.turns_clk) / clk),
        mma_us=float(step.math_clk / clk),
        turns_us=float(full.turns_clk / clk),
        k_tile_us=float(kernel.resources.stage_bytes * gpu.sm_count / l2_bytes_per_us(gpu, numbers)),
        operands_us=max(time_us * read_shares.get(name, 1.0) for name, time_us in loads_us.items()),
        grid_us=float(grid_us(kernel)),
        loads_us=loads_us,
    )


def _math_floor_us(kernel: Kernel) -> Values:
    """Time of a kernel's FLOP at the peak rate [us] (classic SOL model)."""
    return kernel.flop / (kernel.rate * kernel.gpu.sm_count * kernel.gpu.sm_clk_mhz)


def _dram_floor_us(kernel: Kernel, moved: Traffic) -> Values:
    """Time of a kernel's bytes at DRAM's peak rate [us], without operands that L2 holds at the start and, in a
    chain, outputs that it keeps until they are overwritten.
    """
    written = moved.dram_write_bytes if kernel.around.chained else moved.output_bytes
    return (moved.operand_bytes * moved.from_dram + written) / kernel.gpu.dram_bytes_per_us
