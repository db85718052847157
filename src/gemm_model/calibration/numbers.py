"""The empirical numbers of this room: `config/numbers/calibration.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationNumbers:
    """Assumptions about timing errors and other cards' numbers, and weights of rows."""

    log_noise: float = empirical("1", 1e-6, 1.0)
    unknown_share: float = empirical("1", 1e-6, 10.0)
    donor_spread: float = empirical("1", 1e-6, 10.0)
    fastest_over_sol: float = empirical("1", 0.1, 1.0)
    fast_row_power: float = empirical("1", 0.0, 10.0)
    slow_row_speed: float = empirical("1", 0.0, 1.0)
    other_l2_bytes: float = empirical("B", 0.0, 1e7)
    l2_bytes_per_cta: float = empirical("B", 0.0, 1e5)


@cache
def calibration_numbers() -> CalibrationNumbers:
    return room_numbers("calibration", CalibrationNumbers)
