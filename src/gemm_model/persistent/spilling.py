"""Registers beyond a thread's budget: at each k step they go to memory and come back, by way of L2."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, sqrt, three_eighth_power, three_quarter_power, where
from gemm_model.kernels.feasibility import WARPGROUP_THREADS, Resources
from gemm_model.persistent.kernel_parameters import KernelParameters

NARROW_INSTRUCTION = 128.0
"""Columns of an MMA instruction up to which spilling costs by the register."""
WIDE_SPILL = 25.5
"""A wide instruction has all its accumulators live at once: far more goes to memory than the excess."""
ALONE = 1.055
"""Such spilling without a cluster, over that in one (slow accumulation)."""
FIRST_STEP_SPILL = -0.5
"""Of a wide instruction's spilling that the first of several steps does not have: there are no sums to add to
yet (slow accumulation)."""
TILE_SPILL = 0.25
"""Of a step's spilling: what narrow instructions spill between two tiles."""
REGISTER_BYTES = 4.0
NARROW_STORED = 1.37
"""Registers that a narrow instruction stores for each beyond the budget: 64 for 46, 40 for 30 (counters)."""
WIDE_STORED_PER_COLUMN = 0.53
"""What a wide instruction stores: 136 registers of 256 columns, 112 of 224 (counters)."""
SWAPS = 4.0
"""How often it does so at a k step without slow accumulation, at each of four MMAs: 470 of 224 (counters)."""
L2_BYTES_PER_BYTE = 2.5
"""Work of L2 for a byte that is spilled: read once, and written, which counts one and a half times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledStep:
    """What one k step of one CTA spills; each field a number or an array."""

    step_clk: Values
    """Clocks of the MMA warps."""
    tile_clk: Values
    """Clocks once for each tile (less than nothing where its first step spills less)."""


def spilled_step(
    batch: GemmBatch, found: Resources, several_steps: Values, p: KernelParameters
) -> SpilledStep:
    """Storing and loading the registers beyond the budget.

    Warpgroups that spill at the same time share the way to memory. Powers as timings of seven spilling fp8
    kernels have them. `several_steps`: whether K has more than one k step.
    """
    narrow = _is_narrow(batch)
    by_register = found.spilled_registers * three_quarter_power(found.warpgroups)
    at_once = WIDE_SPILL * sqrt(found.spilled_registers) * three_eighth_power(found.warpgroups)
    slow = found.slow_sums
    at_once = at_once * where(slow & (batch.cluster_m * batch.cluster_n <= 1), ALONE, 1.0)
    step_clk = p.spill_clk * where(narrow, by_register, at_once)
    first_step = where(slow & several_steps, FIRST_STEP_SPILL, 0.0)
    return SpilledStep(step_clk=step_clk, tile_clk=step_clk * where(narrow, TILE_SPILL, first_step))


def spilled_l2_bytes(batch: GemmBatch, found: Resources) -> Values:
    """Work of L2, in bytes, for what one CTA spills at one k step."""
    excess = NARROW_STORED * found.spilled_registers
    swaps = where(found.slow_sums, 1.0, SWAPS)
    stored = where(_is_narrow(batch), excess, WIDE_STORED_PER_COLUMN * batch.cta_n * swaps)
    threads = WARPGROUP_THREADS * found.warpgroups
    return where(found.spilled_registers > 0, L2_BYTES_PER_BYTE * REGISTER_BYTES * threads * stored, 0.0)


def _is_narrow(batch: GemmBatch) -> Values:
    """Tiles of 192 rows share their columns between two warpgroups: instructions are half as wide."""
    halves = (batch.cta_m == 192) & (batch.cta_n <= 2.0 * NARROW_INSTRUCTION)
    return (batch.cta_n <= NARROW_INSTRUCTION) | halves
