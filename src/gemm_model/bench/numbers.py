"""The empirical numbers of this room: `config/numbers/bench.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchNumbers:
    """Rough rates for estimates of a benchmark's time, and limits by which a card's readings are judged."""

    assumed_flop_per_us: float = empirical("FLOP/us", 1e3, 1e12)
    assumed_bytes_per_us: float = empirical("B/us", 1e3, 1e9)
    assumed_launch_us: float = empirical("us", 0.0, 1e3)
    row_overhead_ms: float = empirical("ms", 0.0, 1e5)
    counters_row_ms: float = empirical("ms", 0.0, 1e5)
    compile_s: float = empirical("s", 0.0, 1e4)
    capture_launch_ms: float = empirical("ms", 0.0, 1e3)
    granted_clock_share: float = empirical("1", 0.0, 1.0)
    known_l2_share: float = empirical("1", 1.0, 10.0)
    cudnn_cluster_ctas: int = empirical("CTAs", 1, 1024, whole=True)
    card_difference: float = empirical("1", 0.0, 1.0)


@cache
def bench_numbers() -> BenchNumbers:
    return room_numbers("bench", BenchNumbers)
