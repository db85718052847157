"""The SM clock inside a kernel, and its power: a supply that sags with the load, and a power cap."""

from __future__ import annotations

from gemm_model.core.elementwise import Flags, Values, maximum, minimum, sqrt, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.numbers import kernel_model_numbers
from gemm_model.kernels.mechanisms import Clock, Power


def counted_quiet(gpu: GpuSpec, clusters: Values, ctas_per_cluster: Values) -> Flags:
    """Whether so few TPCs (pairs of SMs) work that the clock stays at its boost under a profiler.

    A cluster of one CTA takes a TPC of its own while there are enough.
    """
    return clusters * maximum(ctas_per_cluster / 2.0, 1.0) <= gpu.profiler_quiet_tpcs


def light_load_share(gpu: GpuSpec, clock: Clock) -> float:
    """The clock of a busy card under a light load, over its own; a locked clock holds there."""
    return clock.light_share if gpu.clock_recovery_us is None else 1.0


def burst_clock_mhz(
    gpu: GpuSpec,
    clock: Clock,
    math_share: Values,
    l2_share: Values,
    dram_share: Values,
    waves_us: Values,
) -> Values:
    """The clock inside a kernel on a rested card, from the shares of peak that its three consumers reach.

    `math_share` is what the MMAs draw over the most that they can: their rate times `multiplier_share`.

    The clock of a busy card stands at `light_share` of the boost. Beyond a current that the supply holds
    (`droop_free`), it sags with the current, linear in each rate, within `droop_us`: a short kernel keeps
    more of it, also back to back with its like. Cards of other kinds sag by other amounts under the same
    current: droops count in what MMAs on a quarter of the SMs take off the clock (`mma_clk_share`). A clock
    probe before or after the kernel sees nothing of this; counters do.

    A locked clock far below the boost leaves the supply room to spare: only the MMAs pull it down, at once,
    and `clock_recovery_us` later it is back: longer kernels lose no more.
    """
    unit, lowest = 1.0 - gpu.mma_clk_share, kernel_model_numbers().lowest_clock_share
    if gpu.clock_recovery_us is not None:
        left = minimum(gpu.clock_recovery_us / waves_us, 1.0)
        return gpu.sm_clk_mhz * maximum(1.0 - unit * clock.droop_mma * math_share * left, lowest)
    current = clock.droop_mma * math_share + clock.droop_memory * (l2_share + dram_share)
    sag = unit * maximum(current - clock.droop_free, 0.0)
    settled = waves_us / (waves_us + clock.droop_us)
    return gpu.sm_clk_mhz * maximum(clock.light_share - sag * settled, lowest)


def voltage_squared(power: Power, clock_share: Values) -> Values:
    """Square of the voltage over that at boost: linear in the clock down to a floor."""
    voltage = maximum(clock_share, power.voltage_floor)
    return voltage * voltage


def energy_uj(
    power: Power,
    idle_w: float,
    switched_flop: Values,
    l2_bytes: Values,
    dram_bytes: Values,
    clock_share: Values,
    runtime_us: Values,
) -> Values:
    """Energy of one kernel: idle power over its time, and its work at the voltage of its clock.

    `switched_flop` counts each FLOP by its `multiplier_share`.
    """
    work_pj = power.pj_per_flop * switched_flop + power.pj_per_l2_byte * l2_bytes
    switching = work_pj * voltage_squared(power, clock_share) + power.pj_per_dram_byte * dram_bytes
    return idle_w * runtime_us + switching * 1e-6


def capped_clock_share(
    power: Power, cap_w: float, idle_w: float, clocked_w_at_boost: Values, dram_w: Values
) -> Values:
    """The clock (over boost, at most 1) at which work that scales with the clock meets the power cap.

    idle + dram + clocked x share x voltage(share)^2 = cap. Above the voltage floor that is a cube, below it
    linear.
    """
    floor = power.voltage_floor
    budget = maximum(cap_w - idle_w - dram_w, 1.0) / maximum(clocked_w_at_boost, 1e-9)
    linear = budget / (floor * floor)
    # From a budget of 1 on the share is 1, and no cap at all is a budget without bound.
    cube = _cube_root(minimum(budget, 1.0))
    share = where(linear > floor, maximum(cube, floor), linear)
    return maximum(minimum(share, 1.0), kernel_model_numbers().lowest_clock_share)


def _cube_root(value: Values) -> Values:
    """By Newton's steps from the square root's neighbourhood; exact to 1e-6 between 1e-3 and 10."""
    root = sqrt(sqrt(value)) * sqrt(sqrt(sqrt(sqrt(value)))) + 1e-9
    for _ in range(4):
        root = (2.0 * root + value / (root * root)) / 3.0
    return root
