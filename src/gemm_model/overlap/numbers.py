"""The empirical numbers of this room: `config/numbers/overlap.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapNumbers:
    """Numbers of the weight-prefetch kernel, its plan and its tuner; none is fitted to chains."""

    fill_bytes_in_flight: int = empirical("B", 1, 2**30, whole=True)
    prefetch_bytes_per_clk: float = empirical("B/clk", 1.0, 1e5)
    access_elements: int = empirical("elements", 1, 2**20, whole=True)
    build_ramp_us: float = empirical("us", 1e-3, 100.0)
    fill_delay_clk: int = empirical("clk", 0, 10**6, whole=True)
    cluster_room: float = empirical("1", 0.0, 1.0)
    eight_k_tiles: int = empirical("k tiles", 1, 1000, whole=True)
    crowded_k_tiles: int = empirical("k tiles", 1, 1000, whole=True)
    four_k_tiles: int = empirical("k tiles", 1, 1000, whole=True)
    few_sms: float = empirical("1", 0.0, 1.0)
    most_sms: float = empirical("1", 0.0, 1.0)
    room_beside: float = empirical("1", 0.0, 1.0)
    few_tokens: float = empirical("1", 0.0, 1.0)
    tiles_worth_it: float = empirical("k tiles", 0.0, 1000.0)
    needed_gain: float = empirical("1", 0.0, 1.0)
    no_difference: float = empirical("1", 0.0, 1.0)
    long_wait_us: float = empirical("us", 0.0, 1000.0)
    large_cluster: int = empirical("CTAs", 1, 16, whole=True)


@cache
def overlap_numbers() -> OverlapNumbers:
    return room_numbers("overlap", OverlapNumbers)
