"""The SM clock inside a kernel, and its power: a supply that sags with the load, and a power cap."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gemm_model.core.elementwise import Values, maximum, minimum, sqrt, where
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.kernel_parameters import KernelParameters

LOWEST_SHARE = 0.4
"""Of the boost clock; no kernel was seen below it."""
FEW_SMS_SHARE, FEW_SMS = 0.05, 0.28
"""How much more of the boost clock a rested card keeps with hardly an SM at work, and the share of them from
which on it keeps no more. Tensor-bound timings on eleven cards: 1.90 GHz up to 16 CTAs, 1.86 with 32, 1.83
with 64."""
COUNTED_QUIET_CLUSTERS, COUNTED_QUIET_LARGE_CLUSTERS = 11.0, 7.0
"""Clusters of one or two CTAs, and of four, that run at the boost clock under a profiler.

Counters of four H200: 1.97 GHz up to there, 1.83 GHz from there on, without exception.
"""
VOLTAGE_FLOOR = 0.62
"""Voltage over its boost value towards low clocks: power then falls with the clock alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Power = idle + energy of the work per second, the work's energy growing with the voltage squared."""

    idle_w: float
    pj_per_flop: float
    """Of the widest type of a rate class; others take their `multiplier_share` of it."""
    pj_per_l2_byte: float
    pj_per_dram_byte: float
    sustained_launch_us: float
    """Fixed time of a launch that follows another without a gap."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e4:
                raise InputError(f"power parameter {spec.name} is {value!r}; expected 0 to 10000")


def counted_quiet(slots: Values, ctas_per_cluster: Values) -> Values:
    """Whether so few clusters run that the clock stays at its boost under a profiler."""
    return slots <= where(ctas_per_cluster > 2, COUNTED_QUIET_LARGE_CLUSTERS, COUNTED_QUIET_CLUSTERS)


def few_sms_share(gpu: GpuSpec, busy: Values) -> Values:
    """What a rested card's clock gains, over its boost clock, where a share `busy` of the SMs is at work.

    A locked clock gains nothing.
    """
    rested = FEW_SMS_SHARE if gpu.clock_recovery_us is None else 0.0
    return rested * maximum(1.0 - busy / FEW_SMS, 0.0)


def light_load_share(gpu: GpuSpec, p: KernelParameters) -> float:
    """The clock of a busy card under a light load, over its own; a locked clock holds there."""
    return p.clock_share if gpu.clock_recovery_us is None else 1.0


def burst_clock_mhz(
    gpu: GpuSpec,
    p: KernelParameters,
    math_share: Values,
    l2_share: Values,
    dram_share: Values,
    waves_us: Values,
) -> Values:
    """The clock inside a kernel on a rested card, from the shares of peak that its three consumers reach.

    `math_share` is what the MMAs draw over the most that they can: their rate times `multiplier_share`.

    The clock of a busy card stands at `clock_share` of the boost. Beyond a current that the supply holds
    (`droop_free`), it sags with the current, linear in each rate, within `droop_us`: a short kernel keeps
    more of it. A clock probe before or after the kernel sees nothing of this; counters do.

    A locked clock far below the boost leaves the supply room to spare: only the MMAs pull it down, at once,
    and it comes back within some `clock_recovery_us`: the time lost levels off with the kernel's length.
    """
    if gpu.clock_recovery_us is not None:
        lasting = gpu.clock_recovery_us / (waves_us + gpu.clock_recovery_us)
        return gpu.sm_clk_mhz * maximum(1.0 - p.droop_mma * math_share * lasting, LOWEST_SHARE)
    current = p.droop_mma * math_share + p.droop_l2 * l2_share + p.droop_dram * dram_share
    sag = maximum(current - p.droop_free, 0.0)
    settled = waves_us / (waves_us + p.droop_us)
    return gpu.sm_clk_mhz * maximum(p.clock_share - sag * settled, LOWEST_SHARE)


def voltage_squared(clock_share: Values) -> Values:
    """Square of the voltage over that at boost: linear in the clock down to a floor."""
    voltage = maximum(clock_share, VOLTAGE_FLOOR)
    return voltage * voltage


def energy_uj(
    power: PowerModel,
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
    switching = work_pj * voltage_squared(clock_share) + power.pj_per_dram_byte * dram_bytes
    return power.idle_w * runtime_us + switching * 1e-6


def capped_clock_share(power: PowerModel, cap_w: float, clocked_w_at_boost: Values, dram_w: Values) -> Values:
    """The clock (over boost, at most 1) at which work that scales with the clock meets the power cap.

    idle + dram + clocked x share x voltage(share)^2 = cap. Above the voltage floor that is a cube, below it
    linear.
    """
    budget = maximum(cap_w - power.idle_w - dram_w, 1.0) / maximum(clocked_w_at_boost, 1e-9)
    linear = budget / (VOLTAGE_FLOOR * VOLTAGE_FLOOR)
    cube = _cube_root(budget)
    share = maximum(minimum(linear, VOLTAGE_FLOOR), cube * (linear > VOLTAGE_FLOOR))
    return maximum(minimum(share, 1.0), LOWEST_SHARE)


def _cube_root(value: Values) -> Values:
    """By Newton's steps from the square root's neighbourhood; exact to 1e-6 between 1e-3 and 10."""
    root = sqrt(sqrt(value)) * sqrt(sqrt(sqrt(sqrt(value)))) + 1e-9
    for _ in range(4):
        root = (2.0 * root + value / (root * root)) / 3.0
    return root
