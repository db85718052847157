"""What timings of a row are taken with, and what they find."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gemm_model.errors import InputError

Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """Lengths of the timing protocols; times in milliseconds."""

    repeats: int = 40
    min_repeats: int = 6
    placements: int = 40
    """Number of places in memory that a row's launches rotate through, because one place may be unusually
    fast."""
    row_budget_ms: float = 32.0
    """Burst: time budget of a row's repeats, of which there are at least `min_repeats`."""
    spin_ms: float = 0.4
    spin_factor: float = 8.0
    """Burst: the card rests max(spin_ms, spin_factor x kernel time) before each launch."""
    settle_ms: float = 800.0
    sustained_ms: float = 150.0
    """Sustained: time to let clock and power settle, and time to measure."""
    graph_ms: float = 1.2
    graph_rest_factor: float = 2.0
    graph_repeats: int = 5
    """Graph: length of a graph, rest before each replay in lengths of the graph, and number of replays."""
    graph_settled_ms: float = 50.0
    """Graph, settled: time measured after `settle_ms`."""
    pair_error_us: float = 0.1
    pair_budget_ms: float = 600.0
    """Graph, paired: standard error of the mean difference at which replays end, and their time budget."""


def timing_settings(values: Mapping[str, Any]) -> TimingSettings:
    """Settings from the configuration's `timing`; raises InputError for a value that is not above 0."""
    for name, value in values.items():
        whole = name in ("repeats", "min_repeats", "placements", "graph_repeats")
        number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            expected = "a positive whole number" if whole else "a positive number"
            raise InputError(f"timing.{name} is {value!r}; expected {expected}")
    return TimingSettings(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one row in microseconds, and the card's state while they were taken."""

    samples_us: tuple[float, ...]
    count: int
    state: Mapping[str, Any]

    def columns(self) -> dict[str, Any]:
        ordered = sorted(self.samples_us)
        return {
            "runtime_us": round(statistics.median(ordered), 4),
            "min_us": round(ordered[0], 4),
            "p90_us": round(float(np.quantile(ordered, 0.9)), 4),
            "count": self.count,
            **self.state,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTiming:
    """Times of two chains replayed in turn: the first one's time, and its gain over the second."""

    first: Timing
    gains_us: tuple[float, ...]
    second_us: tuple[float, ...]

    @classmethod
    def of(cls, samples_us: Sequence[float], launches: int, state: Mapping[str, Any]) -> PairedTiming:
        """From replays in the order of `in_turn`, each with `launches` launches."""
        pairs = [
            (one, other) if index % 2 == 0 else (other, one)
            for index, (one, other) in enumerate(zip(samples_us[::2], samples_us[1::2], strict=True))
        ]
        first_us, second_us = zip(*pairs, strict=True)
        return cls(
            first=Timing(samples_us=first_us, count=launches * len(pairs), state=state),
            gains_us=tuple(other - one for one, other in pairs),
            second_us=second_us,
        )

    @property
    def error_us(self) -> float:
        """Standard error of the mean gain."""
        return statistics.stdev(self.gains_us) / math.sqrt(len(self.gains_us))

    def columns(self) -> dict[str, Any]:
        return {
            **self.first.columns(),
            "without_pdl_us": round(statistics.median(self.second_us), 4),
            "pdl_gain_us": round(statistics.mean(self.gains_us), 4),
            "pdl_gain_error_us": round(self.error_us, 4),
        }


def in_turn(first: Each, second: Each, pairs: int) -> list[Each]:
    """First, second, second, first, ...: linear drift cancels in the differences of the pairs."""
    return [each for index in range(pairs) for each in (first, second)[:: 1 if index % 2 == 0 else -1]]
