"""The empirical numbers of this room: `config/numbers/hierarchy.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyNumbers:
    """Instruction counts of kernels on CUDA cores, and the text's measurements."""

    busy_share: float = empirical("1", 0.0, 1.0)
    clocks_between_issues: float = empirical("clk", 1.0, 16.0)
    half_warp_clocks: float = empirical("clk", 1.0, 32.0)
    quarter_warp_clocks: float = empirical("clk", 1.0, 32.0)
    copy_write_wavefronts: float = empirical("wavefronts", 0.0, 32.0)
    register_address_instructions: float = empirical("instructions", 0.0, 100.0)
    asynchronous_address_instructions: float = empirical("instructions", 0.0, 100.0)
    register_loop_instructions: float = empirical("instructions", 0.0, 1000.0)
    asynchronous_loop_instructions: float = empirical("instructions", 0.0, 1000.0)
    naive_loop_instructions: float = empirical("instructions", 0.0, 100.0)
    working_registers: int = empirical("registers", 0, 255, whole=True)
    mma_working_registers: int = empirical("registers", 0, 255, whole=True)
    text_naive_tflops: float = empirical("TFLOP/s", 0.1, 1000.0)
    text_tiled_tflops: float = empirical("TFLOP/s", 0.1, 1000.0)
    text_register_tflops: float = empirical("TFLOP/s", 0.1, 1000.0)
    text_cublas_tflops: float = empirical("TFLOP/s", 0.1, 1000.0)


@cache
def hierarchy_numbers() -> HierarchyNumbers:
    return room_numbers("hierarchy", HierarchyNumbers)
