"""Numbers for all cards and families: `config/numbers/kernel_model.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModelNumbers:
    """Of the search for the clock, the dealing of k tiles, rows that start off a line, short rings and trees."""

    lowest_clock_share: float = empirical("1", 0.0, 1.0)
    first_clock_share: float = empirical("1", 0.1, 1.0)
    steepest_clock_slope: float = empirical("1", 0.0, 0.999)
    fewest_stream_k_tiles: float = empirical("k tiles", 1.0, 1000.0)
    l2_piece_bytes: float = empirical("B", 32.0, 128.0)
    settled_within: float = empirical("1", 0.0, 0.1)
    held_math_share: float = empirical("1", 0.0, 1.0)
    trees_whole_clk_share: float = empirical("1", 0.0, 1.0)
    trees_least_clk_share: float = empirical("1", 0.0, 1.0)


@cache
def kernel_model_numbers() -> KernelModelNumbers:
    return room_numbers("kernel_model", KernelModelNumbers)
