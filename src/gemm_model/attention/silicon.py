"""Rates and latencies of a card for attention kernels: a view of the numbers that all kernels share."""

from __future__ import annotations

from functools import lru_cache

from gemm_model.config.mechanisms import Record
from gemm_model.config.numbers import Numbers, room_numbers
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernels.registry import family_of

SHARED_FAMILY = {"sm90": "quack", "sm100": "quack"}
"""Family whose calibration holds the card's numbers, by architecture; else the default family."""

DIVISION = ("division_clk", "division_slots", "zero_division_clk", "zero_division_slots")


class Silicon(Numbers):
    """Rates and latencies of one card, for one rate class of its tensor cores; no kernel changes them.

    `flop_per_clk` of an SM's tensor cores; `port_bytes_per_clk` that an SM reads from L2 while its neighbours do;
    `smem_bytes_per_clk`, `exponentials_per_clk`, `copy_clk_per_byte` of threads that copy from L2;
    DIVISION, clocks and instructions of a warp that divides by a constant, and where it divides 0;
    `l2_bytes_per_us`, `dram_bytes_per_us`; `l2_latency_clk`, `dram_latency_us`;
    `drain_clk` for which the tensor cores stand still while a consumer group waits for its MMAs;
    `round_trip_clk`, the least time of a stage: barriers, issue of its MMAs, waiting for them; `cta_start_us` from the
    start of a CTA to its first load; `group_end_us` from its last store to its end, for each consumer group;
    `launch_us` from the end of a kernel in a CUDA graph to the first load of the next one on all SMs; `merging`, the
    share of equal requests of a GPC that merge [1].
    """

    gpu: GpuSpec
    clock: Record
    power: Record


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
        copy_clk_per_byte=1.0 / room_numbers("gpu").copy_bytes_per_clk,
        **{name: getattr(room_numbers("gpu"), name) for name in ("exponentials_per_clk", *DIVISION)},
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
