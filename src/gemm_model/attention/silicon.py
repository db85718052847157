"""Rates and latencies of a card for attention kernels: a view of the numbers that all kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gemm_model.config.numbers import room_numbers
from gemm_model.core.elementwise import Values, maximum, minimum
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.clock import burst_clock_mhz, capped_clock_share
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernels.mechanisms import Record
from gemm_model.kernels.registry import family_of

SHARED_FAMILY = {"sm90": "quack", "sm100": "quack"}
"""Family whose calibration holds the card's numbers, by architecture; else the default family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """Rates and latencies of one card, for one rate class of its tensor cores; no kernel changes them."""

    gpu: GpuSpec
    flop_per_clk: float
    """Rate of one SM's tensor cores."""
    port_bytes_per_clk: float
    """Rate at which one SM reads from L2 while its neighbours do."""
    smem_bytes_per_clk: float
    exponentials_per_clk: float
    l2_bytes_per_us: float
    dram_bytes_per_us: float
    l2_latency_clk: float
    dram_latency_us: float
    drain_clk: float
    """Time for which the tensor cores stand still while a consumer group waits for its MMAs."""
    round_trip_clk: float
    """Least time of a stage: barriers, issue of its MMAs, waiting for them."""
    cta_start_us: float
    """Time from the start of a CTA to its first load."""
    group_end_us: float
    """Time from the last store of a CTA to its end, for each consumer group."""
    launch_us: float
    """Time from the end of a kernel in a CUDA graph to the first load of the next one on all SMs."""
    merging: float
    """Share of equal requests of a GPC that merge [1]."""
    clock: Record
    power: Record

    def clock_mhz(self, math_share: Values, l2_share: Values, dram_share: Values, busy_us: Values) -> Values:
        """The SM clock inside a kernel [MHz], from the shares of its time in which its units are busy [1]."""
        math, l2, dram = (minimum(each, 1.0) for each in (math_share, l2_share, dram_share))
        return burst_clock_mhz(self.gpu, self.clock, math, l2 + dram, maximum(busy_us, 1.0))

    def capped_clock_mhz(
        self, flop_per_us: Values, l2_bytes_per_us: Values, dram_bytes_per_us: Values, clock_mhz: Values
    ) -> Values:
        """The settled clock [MHz] at which work with these rates at `clock_mhz` meets the power cap."""
        power, gpu = self.power, self.gpu
        switched_w = (power.pj_per_flop * flop_per_us + power.pj_per_l2_byte * l2_bytes_per_us) * 1e-6
        at_boost_w, cap_w = switched_w * gpu.sm_clk_mhz / clock_mhz, gpu.power_cap_w or float("inf")
        dram_w = power.pj_per_dram_byte * dram_bytes_per_us * 1e-6
        share = capped_clock_share(power, cap_w, gpu.resting_w, at_boost_w, dram_w)
        return share * gpu.sm_clk_mhz * self.clock.light_share


@lru_cache(maxsize=64)
def silicon_of(gpu: GpuSpec, math_kind: str) -> Silicon:
    """The card's numbers for a rate class; raises InputError if the GPU lacks it."""
    gpu.flop_per_us(math_kind)  # raises
    family = family_of(SHARED_FAMILY.get(gpu.kernel_architecture, "auto"), gpu)
    calibration, _ = calibration_for(gpu, family.name)
    numbers = calibration.numbers_on(gpu, math_kind, family)
    port = gpu.l2_read_bytes_per_clk_of_eight or gpu.l2_read_bytes_per_clk_per_sm or float("inf")
    return Silicon(
        gpu=gpu,
        flop_per_clk=gpu.flop_per_clk_per_sm[math_kind] * numbers.tensor.efficiency,
        port_bytes_per_clk=port,
        exponentials_per_clk=room_numbers("gpu").exponentials_per_clk,
        smem_bytes_per_clk=gpu.smem_bytes_per_clk_per_sm,
        l2_bytes_per_us=l2_bytes_per_us(gpu, numbers),
        dram_bytes_per_us=gpu.dram_read_bytes_per_us * numbers.dram.efficiency,
        l2_latency_clk=gpu.l2_latency_clk or room_numbers("gpu").published_l2_latency_clk,
        dram_latency_us=(gpu.dram_latency_ns or 0.0) * 1e-3,
        drain_clk=numbers.promotion.drain_clk,
        round_trip_clk=numbers.round_trip.single_clk,
        cta_start_us=calibration.within_phases.prologue_us,
        group_end_us=calibration.within_phases.drain_us,
        # Kernels of flash-attn-4 follow each other as cooperative GEMMs do, without the gap of other launches.
        launch_us=numbers.chain.boundary_us + numbers.chain.cooperative_us + numbers.launch.full_grid_us,
        merging=numbers.coalescing.share,
        clock=numbers.clock,
        power=numbers.power,
    )
