"""What limits a kernel: the share of its time that a faster resource would take off.

A resource's elasticity is the share of a 1 % speed-up that reaches the runtime, at the kernel's own clock and
bytes. Times are sums, maxima and norms of times, which all grow by 1 % where their parts do: so the
elasticities of all resources add up to 1 (Euler's theorem), and each is a weight times a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemm_model.config import mechanisms as mech
from gemm_model.core.elementwise import Values, maximum, minimum, power, root, smooth_maximum, where
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernel_model.compose import Wave, port_tile_clk
from gemm_model.kernel_model.epilogue import hidden_clk
from gemm_model.kernel_model.kernel import Kernel
from gemm_model.kernel_model.kernel_time import KernelTime
from gemm_model.kernel_model.mainloop import beside_held, unspilled_clk

LIMITERS = tuple(mech.RESOURCES)
NOTHING = 1e-30
"""Time of what takes none [us, clk]; mechanisms that are off; a guard against dividing by zero."""
SMALL = 1e-4
"""By how much a faster rate of MMAs is tried [1]; shares of a k tile; chosen."""
ROUNDING = 1.0 + 1e-9
"""Rounding of a sum [1]; what is longer by less is no longer; chosen."""

Parts = dict[str, Values]


@dataclass(frozen=True, slots=True)
class Composed:
    """What the times of one kernel, or of several, were composed of, and they."""

    kernel: Kernel
    times: KernelTime

    def elasticities(self) -> Mapping[str, Any]:
        """The elasticity of each of LIMITERS [1]: numbers of one kernel, arrays of several; they add up to 1."""
        times, clk_us = self.times, 1.0 / self.times.sm_clk_mhz
        parts: Parts = dict.fromkeys(LIMITERS, 0.0)
        parts[mech.LAUNCH] = times.launch_us - times.added_up_us
        parts[mech.EPILOGUE] = times.exposed_us + times.added_up_us
        fills = times.step.arriving_clk > times.step.port_clk
        parts[mech.SMEM] = where(fills, times.first_load_us, 0.0)
        parts[mech.SM_INGRESS] = where(fills, 0.0, times.first_load_us)
        for wave in (times.full, times.last):
            _add_wave(parts, self, wave, clk_us)
        parts |= _of_k_tile(self, parts[mech.TENSOR])
        total = maximum(sum(parts.values()), NOTHING)
        shares = {name: part / total for name, part in parts.items()}
        at_floor = times.runtime_us <= times.floor_us
        if at_floor is False:
            return shares
        # At the speed of light only the peak counts whose bound it is.
        math = times.floor_us > times.dram_floor_us * ROUNDING
        floor = {mech.TENSOR: where(math, 1.0, 0.0), mech.DRAM: where(math, 0.0, 1.0)}
        return {name: where(at_floor, floor.get(name, 0.0), share) for name, share in shares.items()}


def _of_k_tile(found: Composed, math_us: Values) -> Parts:
    """What MMAs, the MMA warps' other work and spilled registers have of k tiles that take so long."""
    kernel, step = found.kernel, found.times.step
    own = unspilled_clk(kernel, kernel.rate, 0.0)
    faster = unspilled_clk(kernel, kernel.rate * (1.0 + SMALL), 0.0)
    mma = minimum((1.0 - faster / maximum(own, NOTHING)) * (1.0 + SMALL) / SMALL, 1.0)
    spilled = step.spilled_clk / maximum(step.math_clk, NOTHING)
    beside_us = math_us * (1.0 - spilled)
    return {
        mech.TENSOR: beside_us * mma,
        mech.MMA_WARPS: beside_us * (1.0 - mma),
        mech.SPILLING: math_us * spilled,
    }


def _add_wave(parts: Parts, found: Composed, wave: Wave, clk_us: Values) -> None:
    """What waves like this one add to each resource's part."""
    kernel, times, overlap = found.kernel, found.times, found.kernel.numbers.overlap
    loads, fill_us, fetching_us = _loads(kernel, times, wave, clk_us)
    # The round trips of a short ring beside the loads, then DRAM and the latency beside both.
    order = overlap.loads_dram_order
    trips_us = wave.round_trips_clk * clk_us
    fetched_us = root(power(fetching_us, order) + power(trips_us, order) + wave.dram_power, order)
    of_trips, of_dram = _share(trips_us, fetched_us, order), _share(wave.dram_us, fetched_us, order)
    waits_us = wave.stall.waits_us(fetched_us, clk_us)
    stores_us = wave.beside_stores_clk * clk_us + wave.stores_us
    math_us = maximum(wave.period_clk * clk_us, stores_us)
    slowest_us = smooth_maximum(math_us, fetched_us + waits_us, overlap.math_loads_order)
    of_math = _share(math_us, slowest_us, overlap.math_loads_order)
    mathed_us, fetched_part = wave.count * of_math * slowest_us, wave.count * (1.0 - of_math) * slowest_us
    fetched = fetched_part / maximum(fetched_us + waits_us, NOTHING)
    asked = wave.next_us > slowest_us
    parts[mech.LAUNCH] = parts[mech.LAUNCH] + where(asked, wave.count * wave.next_us, 0.0)
    mathed_us, fetched = where(asked, 0.0, mathed_us), where(asked, 0.0, fetched)
    _add_math(parts, found, wave, mathed_us)
    weight = fetched * fetched_us
    _add_round_trips(parts, kernel, times, weight * of_trips, 1.0)
    _add_dram(parts, found, wave, weight * of_dram)
    weight = weight * (1.0 - of_trips - of_dram)
    fill = minimum(fill_us / maximum(fetching_us, NOTHING), 1.0)
    parts[mech.FILL] = parts[mech.FILL] + weight * fill
    weight = weight * (1.0 - fill)
    for name, part in loads.items():
        if name == mech.LATENCY:
            _add_round_trips(parts, kernel, times, weight * part, _waits_for_load(kernel, times))
        else:
            parts[name] = parts[name] + weight * part
    parts[mech.EPILOGUE] = parts[mech.EPILOGUE] + fetched * waits_us + wave.count * wave.turns_clk * clk_us


def _waits_for_load(kernel: Kernel, times: KernelTime) -> Values:
    """1 where loads wait for whole round trips of the ring, 0 where for stages that are taken."""
    step, resources = times.step, kernel.resources
    if resources.short_ring is not False:
        return 0.0
    trips = step.latency_clk * (1.0 - resources.math_in_round_trip)
    return where(trips > step.taken_clk, 1.0, 0.0)


def _add_round_trips(
    parts: Parts, kernel: Kernel, times: KernelTime, weight: Values, with_load: Values
) -> None:
    """A stage's round trip: the latency of its load, the load itself, and the MMAs that hold the stage."""
    step, resources = times.step, kernel.resources
    behind = step.math_clk * resources.math_in_round_trip * beside_held(kernel)
    load = maximum(step.latency_clk * resources.loads_under_way - step.port_clk - behind, 0.0) * with_load
    each = weight / maximum(load + step.port_clk + behind, NOTHING)
    parts[mech.LATENCY] = parts[mech.LATENCY] + each * load
    parts[mech.SM_INGRESS] = parts[mech.SM_INGRESS] + each * step.port_clk
    parts[mech.TENSOR] = parts[mech.TENSOR] + each * behind


def _share(part_us: Values, whole_us: Values, order: float) -> Values:
    """The weight of one time in a norm of several."""
    return power(part_us / maximum(whole_us, NOTHING), order)


def _loads(kernel: Kernel, times: KernelTime, wave: Wave, clk_us: Values) -> tuple[Parts, Values, Values]:
    """Shares of the loads of a wave by resource, the fill's part of what clusters wait for, and that [us]."""
    step, port_us, overlap = times.step, wave.port_clk * clk_us, kernel.numbers.overlap
    queued_us = smooth_maximum(port_us, wave.l2_us, overlap.port_l2_order)
    loads_us = smooth_maximum(queued_us, wave.gpc_us, overlap.loads_dram_order)
    gpc = _share(wave.gpc_us, loads_us, overlap.loads_dram_order)
    port = _share(port_us, queued_us, overlap.port_l2_order) * (1.0 - gpc)
    arriving_us = wave.arriving_clk * clk_us
    arrives = where(arriving_us > loads_us, 1.0, 0.0)
    loads_us = maximum(loads_us, arriving_us)
    l2, gpc = (1.0 - port - gpc) * (1.0 - arrives), gpc * (1.0 - arrives)
    port = port * (1.0 - arrives)
    tile_clk = port_tile_clk(kernel, step)
    held = tile_clk > (kernel.schedule.k_tiles * step.port_clk + step.tail_clk) * ROUNDING
    between: Values = 0.0
    if kernel.family.tile_period.in_tensor_memory:
        # The stores and the next tile's number come between the loads of two tiles.
        paced = minimum(tile_clk / maximum(times.full.port_clk, NOTHING), 1.0)
        between, port = port * (1.0 - paced), port * paced
        filling = kernel.schedule.k_tiles * step.arriving_clk / maximum(times.full.arriving_clk, NOTHING)
        between, arrives = between + arrives * (1.0 - filling), arrives * filling
    waits, way_in = {mech.EPILOGUE: between, mech.LATENCY: where(held, port, 0.0)}, where(held, 0.0, port)
    shares = {mech.SM_INGRESS: way_in, mech.GPC_INGRESS: gpc, mech.L2: l2, mech.SMEM: arrives, **waits}
    in_turn_us = loads_us + wave.fill_us
    hidden_us = wave.hidden_fill_us * loads_us / in_turn_us
    return shares, wave.fill_us - hidden_us * loads_us / in_turn_us, in_turn_us - hidden_us


def _add_math(parts: Parts, found: Composed, wave: Wave, math_us: Values) -> None:
    """What the MMA warps wait for: mainloops, epilogues, or stores that L2 holds up."""
    kernel, times, numbers = found.kernel, found.times, found.kernel.numbers
    schedule, period_clk = kernel.schedule, times.full.period_clk
    mainloop = schedule.k_tiles * times.step.math_clk
    epilogue = times.epilogue_us * times.sm_clk_mhz / schedule.waves
    if kernel.family.tile_period.in_tensor_memory:
        buffered = period_clk < mainloop + epilogue
        tensor = where(buffered, where(mainloop >= epilogue, mainloop, 0.0), mainloop)
    else:
        shorter = mainloop < epilogue
        in_turn = kernel.batch.schedule == PINGPONG
        hidden = hidden_clk(kernel, mainloop, epilogue)
        alone = mainloop - where(shorter, hidden, 0.0)
        tensor = where(in_turn, where(shorter, mainloop / 2.0, mainloop), alone)
    tensor_share = minimum(tensor / maximum(period_clk, NOTHING), 1.0)
    refill = (not kernel.family.tile_period.persistent) * times.step.load_clk / maximum(period_clk, NOTHING)
    held_up = wave.beside_stores_clk + wave.stores_us * times.sm_clk_mhz > wave.period_clk
    if held_up is not False:
        stores_clk = wave.stores_us * times.sm_clk_mhz
        stores = where(held_up, stores_clk / maximum(wave.beside_stores_clk + stores_clk, NOTHING), 0.0)
        parts[mech.L2] = parts[mech.L2] + math_us * stores
        math_us = math_us * (1.0 - stores)
        beside = mainloop / maximum(mainloop + numbers.epilogue.tile_clk, NOTHING)
        tensor_share, refill = where(held_up, beside, tensor_share), where(held_up, 0.0, refill)
    parts[mech.TENSOR] = parts[mech.TENSOR] + math_us * tensor_share
    parts[mech.LATENCY] = parts[mech.LATENCY] + math_us * refill
    parts[mech.EPILOGUE] = parts[mech.EPILOGUE] + math_us * (1.0 - tensor_share - refill)


def _add_dram(parts: Parts, found: Composed, wave: Wave, weight: Values) -> None:
    """DRAM, and the round trips of what is in flight."""
    order = found.kernel.numbers.overlap.port_l2_order
    own = minimum(_share(found.times.dram_us * wave.share, wave.dram_us, order), 1.0)
    _add_round_trips(parts, found.kernel, found.times, weight * (1.0 - own), 1.0)
    parts[mech.DRAM] = parts[mech.DRAM] + weight * own
