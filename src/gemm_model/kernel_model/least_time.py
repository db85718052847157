"""A lower bound of a kernel's time, from terms that do not depend on the order of its tiles."""

from __future__ import annotations

from gemm_model.core.elementwise import Values, is_zero, maximum
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.clock import clock_without_loads_mhz, highest_clk_mhz
from gemm_model.kernel_model.compose import last_wave_weight
from gemm_model.kernel_model.epilogue import exposed_clk, hidden_clk, tile_period_clk, whole_epilogue_clk
from gemm_model.kernel_model.kernel_time import launches_us
from gemm_model.kernel_model.launch_context import COLD, REGIMES
from gemm_model.kernel_model.mainloop import math_clk
from gemm_model.kernel_model.rates import operands_us
from gemm_model.kernel_model.reduction import exposed_turns, turn_clk, turns_clk
from gemm_model.kernel_model.tile_schedule import tile_waves
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import Grid
from gemm_model.kernels.mechanisms import KernelNumbers


def least_us(
    grid: Grid,
    gpu: GpuSpec,
    rate: float,
    family: KernelFamily,
    numbers: KernelNumbers,
    *,
    regime: str,
    l2: str,
) -> Values:
    """Time of each kernel if it waited only for its MMA warps, or for reading operands once [us].

    These are the terms of launch, MMA warps and DRAM in `kernel_time.kernel_time`, at a tenth of the cost;
    all other terms add to them. A wait for loads raises the clock, but gains less than the wait costs. `rate`
    is the peak FLOP per clock of one SM, `l2` the state of L2 at the start.
    """
    batch, resources = grid.batch, grid.resources
    around, order, period = REGIMES[regime], family.tile_order, family.tile_period
    waves = tile_waves(batch, resources, order)
    mainloop = waves.k_tiles * math_clk(batch, rate, resources, waves.k_tiles, numbers, 0.0)
    epilogue, _ = whole_epilogue_clk(batch, gpu, period, resources, numbers)
    hidden = hidden_clk(resources, numbers.epilogue, mainloop, epilogue)
    tile = tile_period_clk(batch, gpu, family, resources, numbers, mainloop, epilogue, hidden)
    turns = turns_clk(batch, resources, order, numbers)
    last = last_wave_weight(waves, numbers)
    waves_clk = waves.full_waves * (tile + turns) + last * (waves.last_work * tile + turns)
    clk = exposed_clk(batch, gpu, period, resources, epilogue, hidden)
    behind = exposed_turns(batch, waves, order)
    if not is_zero(behind):
        clk = clk + behind * turn_clk(batch, numbers.split_k)
    clk_mhz = highest_clk_mhz(gpu, numbers.clock, around)
    mma_clk = batch.flop * batch.multiplier_share / (rate * gpu.sm_count)
    waves_us = waves_clk / clock_without_loads_mhz(gpu, numbers.clock, around, mma_clk, waves_clk)
    if l2 == COLD and not around.keeps_operands:
        counted = (waves.full_waves * waves.resident + last * waves.last_tiles) / waves.tiles
        waves_us = maximum(waves_us, counted * operands_us(batch, gpu, numbers))
    started_us = launches_us(batch, waves, gpu, family, numbers, around, 0.0, clk_mhz)
    return started_us + waves_us + clk / clk_mhz
