"""Registers beyond a thread's budget: at each k tile they go to memory and come back."""

from __future__ import annotations

from gemm_model.core.elementwise import Values, any_of
from gemm_model.kernels.feasibility import WARPGROUP_THREADS, Resources
from gemm_model.kernels.mechanisms import Spilling

REGISTER_BYTES = 4.0
"""A register [B]; all GPUs; PTX ISA."""


def spilled_clk(resources: Resources, k_tiles: Values, spilling: Spilling) -> Values:
    """Clocks of a mean k tile of `k_tiles`: warpgroups share the way to memory and hide each other's waits.

    The first k tile has no sums to wait for; those that it stores the epilogue loads, if no other does.
    """
    if not any_of(resources.spilled_registers > 0.0):
        return 0.0
    moving = spilling.register_clk * resources.moved_registers * resources.warpgroups**spilling.sharing
    return moving + spilling.wait_clk * resources.spill_waits * (1.0 - 1.0 / k_tiles)


def spilled_l2_bytes(resources: Resources, spilling: Spilling) -> Values:
    """Work of L2, in bytes, for what one CTA spills at one k tile.

    Counters agree with what the code moves: 64 registers of a thread (128 columns), 136 (256 columns).
    """
    if not any_of(resources.spilled_registers > 0.0):
        return 0.0
    threads = WARPGROUP_THREADS * resources.warpgroups
    return spilling.l2_bytes_per_byte * REGISTER_BYTES * threads * resources.moved_registers
