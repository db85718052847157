"""Registers beyond a thread's budget: at each k tile they go to memory and come back."""

from __future__ import annotations

from gemm_model.core.elementwise import Flags, Values, any_of, sqrt, where
from gemm_model.kernels.feasibility import WARPGROUP_THREADS, Resources
from gemm_model.kernels.mechanisms import Spilling

REGISTER_BYTES = 4.0
"""A register [B]; all GPUs; PTX ISA."""
MMA_ROWS = 64.0
"""Rows of a warpgroup's MMA instruction [rows]; sm90; PTX ISA."""


def spilled_clk(resources: Resources, k_tiles: Values, spilling: Spilling) -> Values:
    """Clocks of a mean k tile of `k_tiles` for storing and loading the registers beyond the budget.

    A narrow instruction costs by the register; a wide one has all its accumulators live at once, so that far
    more goes to memory than the excess. Warpgroups that spill at the same time share the way to memory, the
    wide ones, whose traffic is longer, better.
    """
    if not any_of(resources.spilled_registers > 0.0):
        return 0.0
    narrow = _is_narrow(resources, spilling)
    shared = resources.warpgroups**spilling.sharing
    by_register = resources.spilled_registers * shared
    at_once = spilling.wide_registers * resources.spilled_registers**spilling.wide_growth * sqrt(shared)
    spared = where(k_tiles > 1.0, (1.0 - spilling.first_tile_share) / k_tiles, 0.0)
    at_once = at_once * (1.0 - spared)
    return spilling.register_clk * where(narrow, by_register, at_once)


def spilled_l2_bytes(resources: Resources, spilling: Spilling) -> Values:
    """Work of L2, in bytes, for what one CTA spills at one k tile: of a wide instruction all accumulators.

    Counters: 136 registers of 256 columns, 112 of 224 (h200).
    """
    if not any_of(resources.spilled_registers > 0.0):
        return 0.0
    wide = MMA_ROWS * resources.mma_columns / WARPGROUP_THREADS
    stored = where(_is_narrow(resources, spilling), resources.spilled_registers, wide)
    bytes_per_k_tile = REGISTER_BYTES * WARPGROUP_THREADS * resources.warpgroups * stored
    return where(resources.spilled_registers > 0.0, spilling.l2_bytes_per_byte * bytes_per_k_tile, 0.0)


def _is_narrow(resources: Resources, spilling: Spilling) -> Flags:
    """Whether the MMA instructions of a warpgroup have so few columns that spilling costs by the register."""
    return resources.mma_columns <= spilling.narrow_columns
