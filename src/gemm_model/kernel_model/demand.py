"""What a kernel's code asks of each resource: bytes, requests, clocks of a k tile and of a tile."""

from __future__ import annotations

from gemm_model.core.elementwise import Values
from gemm_model.core.records import formula_record
from gemm_model.kernel_model import epilogue as stores
from gemm_model.kernel_model.edge_tiles import EdgeFill, edge_fill
from gemm_model.kernel_model.kernel import Kernel
from gemm_model.kernel_model.mainloop import KTile, k_tile
from gemm_model.kernel_model.reduction import turns_clk
from gemm_model.kernel_model.traffic import Traffic, fresh_share, traffic


@formula_record
class TileDemand:
    """Clocks of one tile in the SM that computes it."""

    epilogue_clk: Values
    hidden_clk: Values
    """What epilogue and next mainloop hide of each other."""
    period_clk: Values
    """From one tile to the next in the MMA warps, if operands are always there."""
    beside_stores_clk: Values
    """The same without the epilogues, of which there are so many."""
    epilogues: Values
    between_clk: Values
    """Between the loads of two tiles; 0 where nothing is."""
    turns_clk: Values
    """Adding up partial sums: a turn outlasts the ring, so that loads wait too."""
    last_turns_clk: Values
    """The same in the last wave."""
    stall: stores.Stall
    """How the loads wait for epilogues."""


@formula_record
class Demand:
    """All that a kernel asks for; each part of numbers or of arrays."""

    traffic: Traffic
    edge: EdgeFill
    step: KTile
    tile: TileDemand


def demand_of(kernel: Kernel) -> Demand:
    """The demand of each kernel. Bytes of all launches, clocks of one k tile and of one tile."""
    edge = edge_fill(kernel)
    moved = traffic(kernel)
    # Scale factors lie by rows: those of rows that L2 does not hold come from DRAM.
    step = k_tile(kernel, moved.from_dram * moved.rows_missed, fresh_share(kernel, moved))
    return Demand(traffic=moved, edge=edge, step=step, tile=_tile(kernel, step))


def _tile(kernel: Kernel, step: KTile) -> TileDemand:
    mainloop = kernel.schedule.k_tiles * step.math_clk
    epilogue, fused = stores.whole_epilogue_clk(kernel)
    hidden = stores.hidden_clk(kernel, mainloop, epilogue, step.load_clk)
    beside, epilogues = stores.period_beside_stores(kernel, mainloop)
    return TileDemand(
        epilogue_clk=epilogue,
        hidden_clk=hidden,
        period_clk=stores.tile_period_clk(kernel, mainloop, epilogue, hidden),
        beside_stores_clk=beside,
        epilogues=epilogues,
        between_clk=stores.between_loads_clk(kernel),
        turns_clk=turns_clk(kernel),
        last_turns_clk=turns_clk(kernel, last=True),
        stall=stores.stall_of(kernel, mainloop, epilogue, fused),
    )
