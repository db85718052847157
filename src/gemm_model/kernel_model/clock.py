"""The SM clock inside a kernel: it sags with the current that the kernel draws, and a power cap limits it."""

from __future__ import annotations

from collections.abc import Callable

from gemm_model.config.mechanisms import Record
from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import Flags, Values, maximum, minimum, sqrt, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.kernel import Geometry, Kernel, KernelWaves
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.traffic import Traffic


def counted_quiet(gpu: GpuSpec, clusters: Values, ctas_per_cluster: Values) -> Flags:
    """Whether so few TPCs (pairs of SMs) work that the profiled clock stays at boost.

    Single CTAs take one TPC each while TPCs remain.
    """
    return clusters * maximum(ctas_per_cluster / 2.0, 1.0) <= gpu.profiler_quiet_tpcs


def light_load_share(gpu: GpuSpec, clock: Record) -> float:
    """The clock of a busy card under a light load over the boost clock [1]; 1 if the clock is locked."""
    return clock.light_share if gpu.clock_recovery_us is None else 1.0


def burst_clock_mhz(
    gpu: GpuSpec, clock: Record, math_share: Values, memory_share: Values, waves_us: Values
) -> Values:
    """The clock [MHz] inside a kernel on a rested card.

    Shares are rates over peak [1]; `math_share` is the MMA rate times `multiplier_share`, `memory_share` that of
    L2 and that of DRAM together.

    A busy card runs at `light_share` of the boost clock. The clock sags in proportion to each rate and settles
    within `droop_us`, so a short kernel loses less, also back to back. The unit of a droop is the share of the
    clock that MMAs on a quarter of the SMs cost (`mma_clk_share`), which differs by card. Counters see this sag;
    a clock probe before or after the kernel does not.

    A clock locked far below boost has voltage to spare: only MMAs lower it, at once, and it recovers after
    `clock_recovery_us`, so longer kernels lose no more.
    """
    unit, lowest = 1.0 - gpu.mma_clk_share, room_numbers("kernel_model").lowest_clock_share
    if gpu.clock_recovery_us is not None:
        left = minimum(gpu.clock_recovery_us / waves_us, 1.0)
        return gpu.sm_clk_mhz * maximum(1.0 - unit * clock.droop_mma * math_share * left, lowest)
    current = clock.droop_mma * math_share + clock.droop_memory * memory_share
    sag = unit * current
    settled = waves_us / (waves_us + clock.droop_us)
    return gpu.sm_clk_mhz * maximum(clock.light_share - sag * settled, lowest)


def voltage_squared(power: Record, clock_share: Values) -> Values:
    """Square of the voltage over that at boost [1]; the voltage is linear in the clock down to a floor."""
    voltage = maximum(clock_share, power.voltage_floor)
    return voltage * voltage


@formula_record
class Work:
    """What a kernel switches; each field is a number or an array."""

    flop: Values
    """FLOP, each weighted by its `multiplier_share`."""
    l2_bytes: Values
    dram_bytes: Values

    def clocked_pj(self, power: Record) -> Values:
        """Energy at boost of what runs at the SM clock's voltage [pJ]."""
        return power.pj_per_flop * self.flop + power.pj_per_l2_byte * self.l2_bytes


def work_of(kernel: Geometry | Kernel, moved: Traffic) -> Work:
    return Work(kernel.flop * kernel.batch.multiplier_share, moved.l2_request_bytes, moved.dram_bytes)


def energy_uj(power: Record, idle_w: float, work: Work, clock_share: Values, runtime_us: Values) -> Values:
    """Energy of one kernel [uJ]: idle power times its time, plus its work at the voltage of its clock."""
    switching = work.clocked_pj(power) * voltage_squared(power, clock_share)
    return idle_w * runtime_us + (switching + power.pj_per_dram_byte * work.dram_bytes) * 1e-6


def capped_clock_share(
    power: Record, cap_w: float, idle_w: float, clocked_w_at_boost: Values, dram_w: Values
) -> Values:
    """The clock over boost [1], at most 1, at which work that scales with the clock meets the power cap.

    It solves idle + dram + clocked x share x voltage(share)^2 = steady_share x cap, which is cubic in the share
    above the voltage floor and linear below it.
    """
    floor = power.voltage_floor
    budget = maximum(power.steady_share * cap_w - idle_w - dram_w, 1.0) / maximum(clocked_w_at_boost, 1e-9)
    linear = budget / (floor * floor)
    # A budget of 1 or more gives a share of 1; without a cap the budget is infinite.
    cube = _cube_root(minimum(budget, 1.0))
    share = where(linear > floor, maximum(cube, floor), linear)
    return maximum(minimum(share, 1.0), room_numbers("kernel_model").lowest_clock_share)


def _cube_root(value: Values) -> Values:
    """Cube root by Newton's method; exact to 1e-6 between 1e-3 and 10."""
    root = sqrt(sqrt(value)) * sqrt(sqrt(sqrt(sqrt(value)))) + 1e-9
    for _ in range(4):
        root = (2.0 * root + value / (root * root)) / 3.0
    return root


SHORTEST_WAVES_US = 1e-6
"""Least time of all waves [us]; rates in a kernel without mechanisms; a guard against division by zero."""
ClockRule = Callable[[Values, Values], Values]
"""The clock [MHz] of a kernel, or another time [us], from the time of its waves [us] and the clock [MHz] at which they
take it."""


@formula_record
class ClockRules:
    """Rules for the clock of the card and for the clock inside the kernel."""

    card: ClockRule
    """The clock that the card is set to: boost, unless the power cap lowers it."""
    inside: ClockRule
    """The clock inside the kernel: the card's, or less as it sags."""


def clock_rules(kernel: Kernel, bytes_moved: Traffic, beside_us: ClockRule) -> ClockRules:
    """The clock rules of each kernel, of whose time `beside_us` [us] passes before and after its waves."""
    gpu, work = kernel.gpu, work_of(kernel, bytes_moved)
    at_boost = _rule_at_boost(kernel, work)
    if not kernel.around.settled:
        return ClockRules(lambda _waves_us, _sm_clk_mhz: gpu.sm_clk_mhz, at_boost)
    light, capped = light_load_share(gpu, kernel.numbers.clock), _capped_rule(kernel, work, beside_us)

    def sustained(waves_us: Values, sm_clk_mhz: Values) -> Values:
        # At the lower voltage of a capped clock the clock sags no further than under a light load.
        return minimum(light * capped(waves_us, sm_clk_mhz), at_boost(waves_us, sm_clk_mhz))

    return ClockRules(capped, sustained)


def _rule_at_boost(kernel: Kernel, work: Work) -> ClockRule:
    """The clock inside a kernel on a rested card."""
    gpu, clock, multipliers = kernel.gpu, kernel.numbers.clock, kernel.batch.multiplier_share
    math_clk = work.flop / (kernel.rate * gpu.sm_count)
    l2_us = work.l2_bytes / l2_bytes_per_us(gpu, kernel.numbers)
    dram_us = work.dram_bytes / gpu.dram_bytes_per_us

    def burst(waves_us: Values, sm_clk_mhz: Values) -> Values:
        waves_us = maximum(waves_us, SHORTEST_WAVES_US)
        per_us = 1.0 / waves_us
        math_share = minimum(math_clk * per_us / sm_clk_mhz, multipliers)
        memory_share = minimum(l2_us * per_us, 1.0) + minimum(dram_us * per_us, 1.0)
        return burst_clock_mhz(gpu, clock, math_share, memory_share, waves_us)

    if not kernel.around.profiled:
        return burst
    quiet = counted_quiet(gpu, kernel.schedule.resident, kernel.cluster_size)
    return lambda waves_us, sm_clk_mhz: where(quiet, gpu.sm_clk_mhz, burst(waves_us, sm_clk_mhz))


def _capped_rule(kernel: Kernel, work: Work, beside_us: ClockRule) -> ClockRule:
    """The clock that a card is set to under its power cap."""
    gpu, power, boundary_us = kernel.gpu, kernel.numbers.power, kernel.numbers.chain.boundary_us
    work_uj, cap_w = work.clocked_pj(power) * 1e-6, gpu.power_cap_w or float("inf")

    def capped(waves_us: Values, sm_clk_mhz: Values) -> Values:
        # The card averages power over many launches: what lies between the waves of two is part of the period.
        period_us = waves_us + beside_us(waves_us, sm_clk_mhz) + boundary_us
        dram_w = power.pj_per_dram_byte * work.dram_bytes * 1e-6 / period_us
        work_w_at_boost = work_uj / period_us * gpu.sm_clk_mhz / sm_clk_mhz
        share = capped_clock_share(power, cap_w, gpu.resting_w, work_w_at_boost, dram_w)
        return gpu.sm_clk_mhz * share

    return capped


def highest_clk_mhz(kernel: KernelWaves) -> float:
    """Upper bound [MHz] of the clock that the search finds for any kernel.

    No rule asks for more than the clock of a light load, at a distance C from the first clock of the search: this
    bound lies C / (1 - slope^2) above that, as a secant cut short may. Under a
    power cap the clock of a light load is the highest.
    """
    gpu, clock, numbers = kernel.gpu, kernel.numbers.clock, room_numbers("kernel_model")
    first, steepest = numbers.first_clock_share, numbers.steepest_clock_slope
    if kernel.around.settled:
        return gpu.sm_clk_mhz * light_load_share(gpu, clock) * (1.0 + numbers.settled_within)
    above = max(light_load_share(gpu, clock) - first, 0.0)
    sag = (1.0 - gpu.mma_clk_share) * clock.droop_mma
    slope = min((sag + above) / first, steepest)
    share = first + above / (1.0 - slope * slope)
    return gpu.sm_clk_mhz * (max(share, 1.0) if kernel.around.profiled else share)


def clock_without_loads_mhz(kernel: KernelWaves, waves_clk: Values) -> Values:
    """Upper bound [MHz] of the clock of a kernel whose waves wait for no load, with the search's error.

    MMAs run during a part of the `waves_clk` (`burst_clock_mhz`). A kernel that waits for loads may run at a
    higher clock, but it waits longer than the clock saves, since the sag falls as the total of clocks grows.
    A power cap may only lower the clock. A locked clock recovers during long waves.
    """
    gpu, highest = kernel.gpu, highest_clk_mhz(kernel)
    if kernel.around.profiled:
        return highest
    found: Values = gpu.sm_clk_mhz
    if gpu.clock_recovery_us is None:
        waves_us = maximum(waves_clk / highest, SHORTEST_WAVES_US)
        mma_clk = kernel.flop * kernel.batch.multiplier_share / (kernel.rate * gpu.sm_count)
        found = burst_clock_mhz(gpu, kernel.numbers.clock, mma_clk / (waves_us * highest), 0.0, waves_us)
    return minimum(found * (1.0 + room_numbers("kernel_model").settled_within), highest)
