"""The time of a persistent kernel from its mechanisms: waves as long as their slowest resource."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, is_number, maximum, minimum, smooth_maximum, sqrt, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernels.feasibility import Resources, resources
from gemm_model.persistent.clock import (
    PowerModel,
    burst_clock_mhz,
    capped_clock_share,
    counted_quiet,
    few_sms_share,
    light_load_share,
)
from gemm_model.persistent.edge_tiles import OutsideRows, crowding, outside_rows
from gemm_model.persistent.epilogue import (
    chain_beside_stores,
    epilogue_clk,
    exposed_clk,
    math_chain_clk,
    port_store_clk,
)
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.mainloop import KStep, k_step
from gemm_model.persistent.tile_schedule import TileSchedule, tile_schedule
from gemm_model.persistent.traffic import Traffic, out_of_step, traffic

REGIMES = ("burst", "sustained", "counters")
"""burst: one launch on a rested card, timed by events; sustained: back to back until clock and power settle;
counters: the kernel's own duration, as a profiler reads it."""

MECHANISMS = ("tensor", "epilogue", "port", "latency", "l2", "dram", "waves", "clock", "launch")
"""What `without` can leave out, for what-if tables and ablation."""

EMPTY_KERNEL_OWN_US = 2.0
"""Of what a pair of events reads around an empty kernel, that kernel's own: bursts on hosts that read 4.15
lie 2.15 us above counters of the same rows."""
FIRST_CLOCK_SHARE = 0.85
"""Of the boost clock: where the search for the clock begins."""
GRID_US = 0.35
"""Launching a grid that fills the GPU, over one of a single CTA."""
L2_SMS = 0.38
"""Share of the SMs that would reach L2's bandwidth, were it not for its own bound: 1 to 132 SMs at work."""
FILL_SMS = 0.2
"""Share of the SMs up to which fills from DRAM take as long as on so many."""
RAMP_US, RAMP_STEPS = 0.69, 4.0
"""What the first loads take longer than later ones (no translations, no open pages) in a kernel of many
k steps, and after how many it has taken half of that. Kernels of a single wave."""
FILL_STEPS = 1.5
"""k steps at the port until the MMAs of a kernel begin: one, and cold ones take longer. Kernels of few steps,
whose larger tiles take longer than their MMAs and epilogues explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    tensor_us: Values
    """Each mechanism's own time over all waves, as if it were alone; they overlap."""
    epilogue_us: Values
    port_us: Values
    latency_us: Values
    l2_us: Values
    dram_us: Values
    sm_clk_mhz: Values
    """Inside the kernel, as counters read it."""
    set_clk_mhz: Values
    """What the card is set to, as its driver reports it: the boost clock unless power caps it."""
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a kernel's time needs of the problem and the kernel alone; a fit computes it once."""

    batch: GemmBatch
    rate: Values
    """Peak FLOP per clock of one SM."""
    resources: Resources
    schedule: TileSchedule
    outside: OutsideRows


def geometry(
    batch: GemmBatch,
    rate: Values,
    gpu: GpuSpec,
    without: Collection[str] = (),
    found: Resources | None = None,
) -> Geometry:
    """The geometry of each row; `found` are its resources where they are known already."""
    if found is None:
        found = resources(batch, gpu)
    schedule = tile_schedule(batch, gpu, found, whole_waves="waves" not in without)
    return Geometry(batch, rate, found, schedule, outside_rows(batch, schedule, found))


def l2_bytes_per_us(gpu: GpuSpec, p: KernelParameters) -> float:
    return gpu.l2_read_gb_per_s * 1e3 * p.l2_efficiency


@dataclass(slots=True)
class _Memory:
    """Times of one wave."""

    l2_us: Values
    zeros_us: Values
    """Filling rows outside the matrix, in the slots that have most of them."""
    dram_us: Values
    stores_us: Values
    """Writing the outputs to L2, as far as the MMA warps wait for it."""
    unhidden_us: Values
    """What L2 and DRAM do not hide of each other."""


@dataclass(slots=True)
class _Work:
    """What a tile and the waves of a kernel wait for, before the clock is known."""

    math_clk: Values
    """The MMA warps on one tile."""
    beside_stores_clk: Values
    """The same without the epilogue."""
    port_clk: Values
    """The loads of one tile at the port of its SM, or their latency over the stages."""
    full: _Memory
    """A wave in which every slot has a tile."""
    last: _Memory
    """The last one, whose fewer tiles share L2 and DRAM."""
    l2_us: Values
    """Of all waves together."""
    dram_us: Values
    outside: OutsideRows
    schedule: TileSchedule

    def waves_us(self, sm_clk_mhz: Values) -> Values:
        """All waves at a clock: the full ones, then the partial one."""
        schedule = self.schedule
        full_us = schedule.full_waves * self._wave_us(self.full, sm_clk_mhz)
        if is_number(schedule.last_tiles) and schedule.last_tiles == 0.0:
            return full_us
        return full_us + where(schedule.last_tiles > 0, self._wave_us(self.last, sm_clk_mhz), 0.0)

    def _wave_us(self, memory: _Memory, sm_clk_mhz: Values) -> Values:
        """The MMA warps, or the loads: those wait in turn at the port and at L2, and for zeros after them.

        Queues in a row: the root of the sum of squares fits better than any sharper norm, on 26,000 timings.
        """
        port_us = self.port_clk / sm_clk_mhz
        loads_us = sqrt(port_us * port_us + memory.l2_us * memory.l2_us)
        slow_us, zeros_us = loads_us * self.outside.slow_load, memory.zeros_us
        hidden_us = self.outside.hidden * slow_us * zeros_us / (slow_us + zeros_us + 1e-30)
        slowest_us = slow_us + zeros_us - hidden_us
        loads_us = maximum(slowest_us, loads_us * self.outside.fast_load)
        math_us = maximum(self.math_clk, self.beside_stores_clk + memory.stores_us * sm_clk_mhz) / sm_clk_mhz
        return maximum(math_us, smooth_maximum(loads_us, memory.dram_us)) + memory.unhidden_us


def kernel_time(
    shape: Geometry,
    gpu: GpuSpec,
    p: KernelParameters,
    *,
    regime: str = "burst",
    power: PowerModel | None = None,
    warm: bool = False,
    without: Collection[str] = (),
) -> KernelTime:
    """The time of each row; the sustained regime needs the power model."""
    batch, schedule, found = shape.batch, shape.schedule, shape.resources
    bytes_moved = traffic(batch, gpu, found, schedule, shape.outside, p, warm=warm)
    step = k_step(batch, gpu, shape.rate, found, schedule, p)
    l2_us = bytes_moved.l2_load_bytes / l2_bytes_per_us(gpu, p)
    rounds = schedule.full_waves + where(schedule.last_tiles > 0, 1.0, 0.0)
    steps = rounds * schedule.k_steps
    bytes_moved = out_of_step(bytes_moved, l2_us, gpu, p)
    work, epilogue, exposed = _work(shape, gpu, p, bytes_moved, step, without)
    clock = _clock_rule(shape, gpu, p, bytes_moved, regime, power, without)
    sm_clk_mhz = _settle(work, clock.inside, gpu)

    waves_us = work.waves_us(sm_clk_mhz)
    first_load_us = FILL_STEPS * step.port_clk / sm_clk_mhz
    exposed_us = exposed / sm_clk_mhz
    launch_us = _launch_us(shape, gpu, p, regime, power, without) + 0.0 * waves_us
    floor_us = _speed_of_light_us(shape, gpu, bytes_moved)
    return KernelTime(
        runtime_us=maximum(launch_us + first_load_us + waves_us + exposed_us, floor_us),
        floor_us=floor_us,
        launch_us=launch_us,
        waves_us=waves_us,
        first_load_us=first_load_us,
        exposed_us=exposed_us,
        tensor_us=steps * step.math_clk / sm_clk_mhz,
        epilogue_us=rounds * epilogue / sm_clk_mhz,
        port_us=(steps * step.port_clk + rounds * (step.tail_clk + port_store_clk(batch, gpu))) / sm_clk_mhz,
        latency_us=steps * step.latency_clk / sm_clk_mhz,
        l2_us=work.l2_us,
        dram_us=work.dram_us,
        sm_clk_mhz=sm_clk_mhz,
        set_clk_mhz=clock.card(waves_us, sm_clk_mhz),
        traffic=bytes_moved,
    )


def _work(
    shape: Geometry,
    gpu: GpuSpec,
    p: KernelParameters,
    bytes_moved: Traffic,
    step: KStep,
    without: Collection[str],
) -> tuple[_Work, Values, Values]:
    """The work of the waves, and the clocks of one epilogue and of what is exposed of the last one."""
    batch, schedule = shape.batch, shape.schedule
    epilogue = epilogue_clk(batch, gpu, shape.resources, p) * ("epilogue" not in without)
    stores = port_store_clk(batch, gpu) * ("epilogue" not in without)
    mainloop = (schedule.k_steps * step.math_clk + step.tile_clk) * ("tensor" not in without)
    port = (schedule.k_steps * step.port_clk + step.tail_clk) * ("port" not in without) + stores
    latency = schedule.k_steps * step.latency_clk * ("latency" not in without)
    busy = schedule.slots * batch.cluster_m * batch.cluster_n / gpu.sm_count
    l2_peak = l2_bytes_per_us(gpu, p)
    l2_us = _l2_us(bytes_moved, busy, l2_peak, p) * ("l2" not in without)
    zeros_us = p.out_of_range_weight * shape.outside.bytes_per_wave / l2_peak * ("l2" not in without)
    dram_peak = gpu.dram_read_gb_per_s * 1e3 * p.dram_efficiency
    dram_us = bytes_moved.dram_bytes / dram_peak * ("dram" not in without)
    beside_stores, epilogues = chain_beside_stores(batch, gpu, shape.resources, mainloop)
    stores_us = epilogues * bytes_moved.l2_store_bytes / l2_peak * ("epilogue" not in without)

    def memory(tiles: Values) -> _Memory:
        share = tiles / schedule.tiles
        crowded = crowding(maximum(tiles, 1.0), batch, gpu, shape.outside.fixed)
        return _Memory(
            l2_us=l2_us * share,
            zeros_us=zeros_us * tiles / schedule.slots * crowded,
            dram_us=dram_us * share,
            stores_us=stores_us * share,
            unhidden_us=p.memory_overlap_loss * minimum(l2_us, dram_us) * share,
        )

    work = _Work(
        math_clk=math_chain_clk(batch, gpu, shape.resources, mainloop, epilogue),
        beside_stores_clk=beside_stores,
        port_clk=maximum(port, latency),
        full=memory(schedule.slots),
        last=memory(schedule.last_tiles),
        l2_us=l2_us + zeros_us * schedule.tiles / schedule.slots,
        dram_us=dram_us,
        outside=shape.outside,
        schedule=schedule,
    )
    return work, epilogue, exposed_clk(batch, gpu, shape.resources, mainloop, epilogue)


def _l2_us(moved: Traffic, busy: Values, l2_peak: float, p: KernelParameters) -> Values:
    """L2 time of all waves, or that of few busy SMs at their own pace: the norm of order 4 of the two.

    Merging does not help their own pace. Fills, which they share, hold up a few SMs less.
    """
    fills = p.fill_share * moved.dram_read_bytes
    asked_bytes = moved.l2_load_bytes + moved.merged_bytes - fills
    own_bytes = L2_SMS * (asked_bytes / busy + fills / maximum(busy, FILL_SMS))
    device, own = moved.l2_load_bytes * moved.l2_load_bytes, own_bytes * own_bytes
    return sqrt(sqrt(device * device + own * own)) / l2_peak


_ClockRule = Callable[[Values, Values], Values]
"""The clock in MHz of a kernel whose waves take so many us at such a clock."""


@dataclass(frozen=True, slots=True)
class _ClockRules:
    card: _ClockRule
    """What the card is set to: its boost clock unless power caps it."""
    inside: _ClockRule
    """Inside the kernel: the card's, or less where the supply sags."""


def _clock_rule(
    shape: Geometry,
    gpu: GpuSpec,
    p: KernelParameters,
    bytes_moved: Traffic,
    regime: str,
    power: PowerModel | None,
    without: Collection[str],
) -> _ClockRules:
    multipliers = shape.batch.multiplier_share
    switched = shape.batch.flop * multipliers
    l2_bytes = bytes_moved.l2_request_bytes
    dram_bytes = bytes_moved.dram_bytes
    flop_per_clk = shape.rate * gpu.sm_count
    l2_peak = l2_bytes_per_us(gpu, p)
    light = light_load_share(gpu, p)

    def burst(waves_us: Values, sm_clk_mhz: Values) -> Values:
        math_share = switched / (flop_per_clk * sm_clk_mhz * waves_us)
        l2_share = l2_bytes / (l2_peak * waves_us)
        dram_share = dram_bytes / (gpu.dram_bytes_per_us * waves_us)
        return burst_clock_mhz(
            gpu,
            p,
            minimum(math_share, multipliers),
            minimum(l2_share, 1.0),
            minimum(dram_share, 1.0),
            waves_us,
        )

    ctas = shape.batch.cluster_m * shape.batch.cluster_n
    rested_mhz = gpu.sm_clk_mhz * few_sms_share(gpu, shape.schedule.slots * ctas / gpu.sm_count)

    def at_boost(waves_us: Values, sm_clk_mhz: Values) -> Values:
        loaded = burst(waves_us, sm_clk_mhz)
        if regime == "counters":
            return where(counted_quiet(shape.schedule.slots, ctas), gpu.sm_clk_mhz, loaded)
        return loaded + rested_mhz

    def boost(_waves_us: Values, sm_clk_mhz: Values) -> Values:
        return gpu.sm_clk_mhz + 0.0 * sm_clk_mhz

    def capped(waves_us: Values, sm_clk_mhz: Values) -> Values:
        assert power is not None
        work_uj = (power.pj_per_flop * switched + power.pj_per_l2_byte * l2_bytes) * 1e-6
        cap_w = gpu.power_cap_w or float("inf")
        # Power is controlled over many launches: the gap between two of them counts.
        period_us = waves_us + power.sustained_launch_us
        dram_w = power.pj_per_dram_byte * dram_bytes * 1e-6 / period_us
        work_w_at_boost = work_uj / period_us * gpu.sm_clk_mhz / sm_clk_mhz
        share = capped_clock_share(power, cap_w, work_w_at_boost, dram_w)
        return gpu.sm_clk_mhz * share

    def sustained(waves_us: Values, sm_clk_mhz: Values) -> Values:
        # At the lower voltage of a capped clock the supply does not sag beyond the share of a light load.
        return minimum(light * capped(waves_us, sm_clk_mhz), at_boost(waves_us, sm_clk_mhz))

    if "clock" in without:
        return _ClockRules(boost, lambda _waves_us, clk_mhz: gpu.sm_clk_mhz * light + 0.0 * clk_mhz)
    return _ClockRules(capped, sustained) if regime == "sustained" else _ClockRules(boost, at_boost)


def _settle(work: _Work, clock: _ClockRule, gpu: GpuSpec) -> Values:
    """The clock at which a kernel's intensity calls for that same clock.

    A slower clock makes a kernel less intense, so the rule is a falling function of the clock and has one
    fixed point; two steps and Aitken's extrapolation find it to a few parts in 10^5.
    """
    first = gpu.sm_clk_mhz * FIRST_CLOCK_SHARE
    second = clock(work.waves_us(first), first)
    third = clock(work.waves_us(second), second)
    change = second - first
    # The slope of the rule lies between -1 and 1; a change of zero is settled already.
    slope = (third - second) / where(change * change > 1e-9, change, 1.0)
    slope = maximum(minimum(slope, 0.9), -0.9)
    return first + change / (1.0 - slope)


def _launch_us(
    shape: Geometry,
    gpu: GpuSpec,
    p: KernelParameters,
    regime: str,
    power: PowerModel | None,
    without: Collection[str],
) -> Values:
    if "launch" in without:
        return 0.0
    if regime == "sustained" and power is not None:
        return power.sustained_launch_us
    ctas_per_cluster = shape.batch.cluster_m * shape.batch.cluster_n
    clusters_us = where(ctas_per_cluster > 1, p.cluster_launch_us, 0.0)
    grid_us = GRID_US * shape.schedule.slots * ctas_per_cluster / gpu.sm_count
    events_us = maximum(shape.batch.empty_kernel_us - EMPTY_KERNEL_OWN_US, 0.0) if regime == "burst" else 0.0
    ramp_us = RAMP_US * shape.schedule.k_steps / (shape.schedule.k_steps + RAMP_STEPS)
    return p.launch_us + clusters_us + grid_us + events_us + ramp_us


def _speed_of_light_us(shape: Geometry, gpu: GpuSpec, bytes_moved: Traffic) -> Values:
    """No kernel is faster than its FLOP at the peak rate, or its bytes at the DRAM's (classic SOL model)."""
    math_us = shape.batch.flop / (shape.rate * gpu.sm_count * gpu.sm_clk_mhz)
    dram_us = (bytes_moved.operand_bytes + bytes_moved.output_bytes) / gpu.dram_bytes_per_us
    return maximum(math_us, dram_us)
