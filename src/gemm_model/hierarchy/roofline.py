"""The plain roofline, and the hierarchical one with a roof for every level."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.hierarchy.levels import FLOP_PER_FMA, Machine
from gemm_model.hierarchy.matching import Matching


def elements_intensity(m: float, n: float, k: float) -> float:
    """FMAs over elements moved at least once, m n k / (m k + n k + m n): a third of the side of a cube.

    The text divides these and calls the unit FMA/B; it is FMA per element.
    """
    return m * n * k / (m * k + n * k + m * n)


def byte_intensity(m: float, n: float, k: float, a_bytes: float, b_bytes: float, out_bytes: float) -> float:
    """FMAs over the bytes that must cross DRAM at least once (compulsory traffic), in FMA/B."""
    return m * n * k / (m * k * a_bytes + n * k * b_bytes + m * n * out_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """One level's roof and the kernel's dot under it."""

    level: str
    tb_per_s: float
    """Bandwidth of all SMs together."""
    ridge_flop_per_byte: float
    """Intensity at which this roof meets the datapath's peak."""
    flop_per_byte: float
    """The kernel's intensity: FLOPs for each byte that crosses this level."""
    bound_tflops: float
    """Throughput that this roof allows the kernel [TFLOP/s]."""


def ridge_fma_per_byte(machine: Machine) -> float:
    """FMAs per DRAM byte from which a GEMM is compute-bound: the plain roofline's ridge point."""
    gpu = machine.gpu
    return machine.datapath.fma_per_clk * gpu.sm_count * gpu.sm_clk_mhz / gpu.dram_bytes_per_us


def roofs(machine: Machine, matching: Matching) -> tuple[Roof, ...]:
    """One roof for each stage of the matching but the last, which is the peak itself."""
    path = machine.datapath
    operand_bytes = path.a_bytes + path.b_bytes
    per_second = machine.gpu.sm_count * machine.gpu.sm_clk_mhz * 1e6
    found = []
    for stage in matching.stages[:-1]:
        tb_per_s = stage.bytes_per_clk * per_second / 1e12
        flop_per_byte = FLOP_PER_FMA * stage.amplification / operand_bytes
        found.append(
            Roof(
                level=stage.name,
                tb_per_s=tb_per_s,
                ridge_flop_per_byte=machine.peak_tflops / tb_per_s,
                flop_per_byte=flop_per_byte,
                bound_tflops=min(machine.peak_tflops, tb_per_s * flop_per_byte),
            )
        )
    return tuple(found)
