"""The empirical numbers of this room: `config/numbers/serving.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNumbers:
    """What Triton's code of these kernels costs, beside the card's own numbers."""

    mma_share: float = empirical("1", 0.2, 1.0)
    load_latency_clk: float = empirical("clk", 200.0, 4000.0)
    operand_clk: float = empirical("clk", 0.0, 100.0)
    tile_us: float = empirical("us", 0.0, 10.0)
    dense_tile_us: float = empirical("us", 0.0, 10.0)
    launch_us: float = empirical("us", 0.0, 10.0)
    empty_us: float = empirical("us", 0.0, 10.0)
    access_clk: float = empirical("clk", 0.0, 100.0)
    l2_merged: float = empirical("1", 0.5, 4.0)
    half_line_share: float = empirical("1", 0.3, 1.0)
    hbm_activation_bytes: float = empirical("B", 0.0, 512.0)
    gddr_activation_ns: float = empirical("ns", 0.0, 20.0)
    promote_clk: float = empirical("clk", 0.0, 20.0)
    scale_wait_clk: float = empirical("clk", 0.0, 2000.0)
    scale_row_clk: float = empirical("clk", 0.0, 20.0)
    spill_cost: float = empirical("1", 0.0, 100.0)
    trees_margin: float = empirical("1", 0.0, 1.0)
    formulas_margin: float = empirical("1", 0.0, 1.0)
    attention_beside_us: float = empirical("us", 0.0, 50.0)
    token_write_us: float = empirical("us", 0.0, 20.0)
    experts_beside_us: float = empirical("us", 0.0, 100.0)
    small_kernel_us: float = empirical("us", 0.0, 50.0)


@cache
def serving_numbers() -> ServingNumbers:
    return room_numbers("serving", ServingNumbers)
