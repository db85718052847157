"""Spilling: registers beyond a thread's budget go to memory and return at each k tile."""

from __future__ import annotations

from gemm_model.core.elementwise import Values
from gemm_model.kernel_model.kernel import KernelWaves
from gemm_model.kernels.feasibility import WARPGROUP_THREADS

REGISTER_BYTES = 4.0
"""Size of a register [B]; all GPUs; PTX ISA."""


def spilled_clk(kernel: KernelWaves) -> Values:
    """Spilling clocks of a k tile, averaged over those of a tile; warpgroups hide part of each other's waits.

    The first k tile loads no spilled sums; the sums stored by the last one are loaded in the epilogue.
    """
    resources, spilling = kernel.resources, kernel.numbers.spilling
    moving = spilling.register_clk * resources.moved_registers * resources.warpgroups**spilling.sharing
    return moving + spilling.wait_clk * resources.spill_waits * (1.0 - 1.0 / kernel.schedule.k_tiles)


def spilled_l2_bytes(kernel: KernelWaves) -> Values:
    """L2 bytes for the registers that one CTA spills at one k tile.

    Counters agree with the code: 64 registers of a thread (128 columns), 136 (256 columns).
    """
    return kernel.numbers.spilling.l2_bytes_per_byte * spilled_bytes(kernel)


def spilled_bytes(kernel: KernelWaves) -> Values:
    """Bytes of the registers that one CTA spills."""
    resources = kernel.resources
    return REGISTER_BYTES * WARPGROUP_THREADS * resources.warpgroups * resources.moved_registers
