"""Empirical numbers of attention kernels: `config/numbers/attention.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from gemm_model.config import read_yaml_mapping
from gemm_model.config.numbers import NUMBERS_DIR, empirical, room_numbers
from gemm_model.core.attention import KERNELS
from gemm_model.core.batch import FloatArray


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
def error_bands(gpu: str) -> FloatArray:
    """Relative error of 90 % of measurements, of each of KERNELS in decode and prefill [1]; NaN where none is."""
    found = read_yaml_mapping(NUMBERS_DIR / "attention.yaml", "numbers of a room")
    known = found["error_band"] if gpu == found["measured_on"] else {}
    kinds = ("decode", "prefill")
    return np.array([[known.get(name, {}).get(kind, np.nan) for kind in kinds] for name in KERNELS])


@cache
def attention_numbers() -> AttentionNumbers:
    return room_numbers("attention", AttentionNumbers)
