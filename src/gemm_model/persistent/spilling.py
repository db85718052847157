"""Registers beyond a thread's budget: at each k tile they go to memory and come back."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, sqrt, where
from gemm_model.kernels.feasibility import Resources
from gemm_model.kernels.mechanisms import Spilling


def spilled_clk(batch: GemmBatch, found: Resources, k_tiles: Values, spilling: Spilling) -> Values:
    """Clocks of a mean k tile of `k_tiles` for storing and loading the registers beyond the budget.

    A narrow instruction costs by the register; a wide one has all its accumulators live at once, so that far
    more goes to memory than the excess. Warpgroups that spill at the same time share the way to memory, the
    wide ones, whose traffic is longer, better.
    """
    columns = where(found.columns_split, batch.cta_n / 2.0, batch.cta_n)
    shared = found.warpgroups**spilling.sharing
    by_register = found.spilled_registers * shared
    at_once = spilling.wide_registers * sqrt(found.spilled_registers * shared)
    spared = where(k_tiles > 1.0, (1.0 - spilling.first_tile_share) / k_tiles, 0.0)
    at_once = at_once * (1.0 - spared)
    return spilling.register_clk * where(columns <= spilling.narrow_columns, by_register, at_once)
