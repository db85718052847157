"""Empirical numbers of attention kernels: `config/numbers/attention.yaml`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from gemm_model.config import read_yaml_mapping
from gemm_model.config.numbers import NUMBERS_DIR, empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNumbers:
    """Costs of the instructions of attention kernels; all other numbers are the card's."""

    exponentials_per_clk: float = empirical("1/clk", 1.0, 256.0)
    score_slots: float = empirical("instructions", 0.0, 32.0)
    output_slots: float = empirical("instructions", 0.0, 32.0)
    masked_slots: float = empirical("instructions", 0.0, 64.0)
    page_slots: float = empirical("instructions", 0.0, 2000.0)
    length_clk: float = empirical("clk", 0.0, 20000.0)
    store_bytes_per_clk: float = empirical("B/clk", 1.0, 1024.0)
    overlap_order: float = empirical("1", 1.0, 64.0)
    mma_current: float = empirical("1", 0.0, 2.0)
    mma_sync_share: float = empirical("1", 0.1, 1.0)
    memset_share: float = empirical("1", 0.0, 2.0)
    l2_latency_clk: float = empirical("clk", 50.0, 2000.0)


MOST_DECODED = 256
"""Most queries of a sequence in a decode step [1]; error bands; chosen: more queries have prefill's band."""


@cache
def error_bands(kernel: str, gpu: str) -> tuple[float, float]:
    """Relative error of 90 % of a kernel's measurements in decode and in prefill [1]; NaN without measurements."""
    found = read_yaml_mapping(NUMBERS_DIR / "attention.yaml", "numbers of a room")
    if gpu != found["measured_on"]:
        return math.nan, math.nan
    bands = found["error_band"][kernel]
    return float(bands["decode"]), float(bands["prefill"])


@cache
def attention_numbers() -> AttentionNumbers:
    return room_numbers("attention", AttentionNumbers)
