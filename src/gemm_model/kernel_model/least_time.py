"""A lower bound of a kernel's time, from terms that do not depend on the order of its tiles."""

from __future__ import annotations

from gemm_model.core.elementwise import Values, maximum, where
from gemm_model.kernel_model.clock import clock_without_loads_mhz, highest_clk_mhz
from gemm_model.kernel_model.compose import last_wave_weight
from gemm_model.kernel_model.epilogue import exposed_clk, hidden_clk, tile_period_clk, whole_epilogue_clk
from gemm_model.kernel_model.kernel import KernelWaves
from gemm_model.kernel_model.kernel_time import launches_us
from gemm_model.kernel_model.launch_context import COLD
from gemm_model.kernel_model.mainloop import math_clk
from gemm_model.kernel_model.rates import operands_us
from gemm_model.kernel_model.reduction import exposed_turns, turn_clk, turns_clk


def least_us(kernel: KernelWaves) -> Values:
    """Time of each kernel if it waited only for its MMA warps, or for reading operands once [us].

    These are the terms of launch, MMA warps and DRAM in `kernel_time.kernel_time`, at a tenth of the cost;
    all other terms add to them. A wait for loads raises the clock, but gains less than the wait costs.
    """
    waves = kernel.schedule
    mainloop = waves.k_tiles * math_clk(kernel)
    epilogue, _ = whole_epilogue_clk(kernel)
    hidden = hidden_clk(kernel, mainloop, epilogue)
    tile = tile_period_clk(kernel, mainloop, epilogue, hidden)
    last = last_wave_weight(kernel)
    # A whole last wave is one of the full ones, but no MMAs restart after it.
    whole = where(waves.last_tiles == 0.0, 1.0, 0.0)
    turns = (waves.full_waves - whole) * turns_clk(kernel) + (last + whole) * turns_clk(kernel, last=True)
    waves_clk = (waves.full_waves + last * waves.last_work) * tile + turns
    clk = exposed_clk(kernel, epilogue, hidden) + exposed_turns(kernel) * turn_clk(kernel)
    clk_mhz = highest_clk_mhz(kernel)
    waves_us = waves_clk / clock_without_loads_mhz(kernel, waves_clk)
    from_dram = 1.0 if kernel.l2 == COLD else 0.0
    if kernel.l2 == COLD and not kernel.around.keeps_operands:
        counted = (waves.full_waves * waves.resident + last * waves.last_tiles) / waves.tiles
        waves_us = maximum(waves_us, counted * operands_us(kernel))
    return launches_us(kernel, 0.0, from_dram, clk_mhz) + waves_us + clk / clk_mhz
