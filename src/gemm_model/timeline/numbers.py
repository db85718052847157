"""The empirical numbers of this room: `config/numbers/timeline.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineNumbers:
    """Numbers by which traces of real kernels are judged."""

    launch_us: float = empirical("us", 0.0, 10.0)


@cache
def timeline_numbers() -> TimelineNumbers:
    return room_numbers("timeline", TimelineNumbers)
