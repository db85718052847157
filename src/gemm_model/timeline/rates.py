"""A pipeline machine's rates and latencies, read off the traces of kernels.

Equations 4 to 7 of Liu and Grover take throughput and startup latency from two timed operations of different
size; here the operations are seen: the MMAs of k tiles, loads that MMAs wait for, epilogues. Traces of
several tiles tell rate and startup apart; one trace gives the rate with no startup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.core.dtypes import element_type
from gemm_model.errors import InputError
from gemm_model.pipeline.estimation import ParameterEstimate, two_point_estimate
from gemm_model.pipeline.machine import PipelineMachine, with_parameters
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.trace import RING, Trace

LOAD_BOUND = 0.1
"""Share of waiting in the MMAs' time from which loads bound a kernel [1]; traces; chosen."""
SPREAD = 1.96
"""Standard deviations of a 95 % interval [1]; fitted rates; normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Operations of one size: their median time in us, and the 95 % interval of that median."""

    size: float
    time_us: float
    low_us: float
    high_us: float


def observed(size: float, times_us: FloatArray) -> Observed | None:
    """The median of some times with its interval by order statistics; None without times."""
    if not len(times_us):
        return None
    ordered, count = np.sort(times_us), len(times_us)
    half = SPREAD * math.sqrt(count) / 2
    # Ranks from 1: n/2 - half rounded down, and as far from the other end (Campbell and Gardner, BMJ 1988).
    low = max(math.floor(count / 2 - half) - 1, 0)
    high = count - 1 - low
    return Observed(
        size=size, time_us=float(np.median(ordered)), low_us=float(ordered[low]), high_us=float(ordered[high])
    )


def machine_of_traces(traces: Sequence[Trace]) -> tuple[PipelineMachine, list[ParameterEstimate]]:
    """The machine whose rates the traced kernels show, and its parameters with their intervals.

    Raises InputError where no trace shows MMAs.
    """
    if not traces:
        raise InputError("no trace is given; expected at least one")
    seen = [phases_of(trace) for trace in traces]
    found = [
        *_rate("mac_per_us", "math_startup_us", [_math(trace) for trace in traces]),
        *_rate("load_bytes_per_us", "load_startup_us", [_loads(trace) for trace in traces]),
        *_rate("epilogue_elements_per_us", "epilogue_us", [_epilogues(trace) for trace in traces]),
        *_times("load_latency_us", [phases.get("first load to first MMA") for phases in seen]),
        *_times("init_us", [phases.get("first CTA to first load") for phases in seen]),
    ]
    if not any(estimate.name == "mac_per_us" for estimate in found):
        raise InputError("the traces show no MMAs; expected those of a GEMM kernel")
    first = traces[0]
    machine = PipelineMachine(
        name=f"{first.info.gpu} by {len(traces)} traces",
        sm_count=first.rows.loc[first.rows["sm"] >= 0, "sm"].nunique(),
        a_element_bytes=_element_bytes(first, "a_dtype"),
        b_element_bytes=_element_bytes(first, "b_dtype"),
        consumers="pingpong" if first.info.kernel.get("schedule") == "pingpong" else "cooperative",
        pads_k=True,
        sources={"parameters": "read off traces of kernels"},
    )
    return with_parameters(machine, {estimate.name: estimate.value for estimate in found}), found


def _math(trace: Trace) -> Observed | None:
    """Multiply-adds and times of the MMAs of a k tile, without waits."""
    steps, tiles = _k_tiles(trace), _tiles(trace)
    if len(steps):
        times_us = steps["end_us"] - steps["start_us"]
    else:
        times_us = (tiles["end_us"] - tiles["start_us"] - tiles["waited_us"]) / trace.info.k_tiles
    macs = _extent(trace, "cta_m") * _extent(trace, "cta_n") * _k_depth(trace)
    return observed(macs, times_us.to_numpy())


def _loads(trace: Trace) -> Observed | None:
    """Bytes and times of the loads of a k tile, of a kernel whose MMAs wait for them."""
    steps, tiles = _k_tiles(trace), _tiles(trace)
    tile_us = tiles["end_us"] - tiles["start_us"]
    if not len(tiles) or tiles["waited_us"].sum() < LOAD_BOUND * tile_us.sum():
        return None
    # From the MMAs of one k tile to those of the next, within a tile.
    of_one_tile = steps.sort_values("k_tile").groupby(["cta", "role", "warp", "tile"])["start_us"]
    times_us = of_one_tile.diff().dropna() if len(steps) else tile_us / trace.info.k_tiles
    row_bytes = _extent(trace, "cta_m") * _element_bytes(trace, "a_dtype")
    row_bytes += _extent(trace, "cta_n") * _element_bytes(trace, "b_dtype")
    return observed(row_bytes * _k_depth(trace), times_us.to_numpy())


def _epilogues(trace: Trace) -> Observed | None:
    rows = trace.of_tiles("epilogue")
    size = _extent(trace, "cta_m") * _extent(trace, "cta_n")
    return observed(size, (rows["end_us"] - rows["start_us"]).to_numpy())


def _k_tiles(trace: Trace) -> pd.DataFrame:
    rows = trace.rows
    return rows[(rows["activity"] == "mma") & (rows["k_tile"] >= 0) & (rows["role"] != RING)]


def _tiles(trace: Trace) -> pd.DataFrame:
    mma = trace.of_tiles("mma")
    return mma[mma["tiles"] == 1]


def _extent(trace: Trace, name: str) -> float:
    return float(trace.info.kernel[name])


def _k_depth(trace: Trace) -> float:
    """Elements of K of one k tile; the last of a tile may hold fewer."""
    return _extent(trace, "k") / float(trace.info.kernel.get("split_k", 1)) / trace.info.k_tiles


def _element_bytes(trace: Trace, operand: str) -> float:
    return element_type(str(trace.info.kernel[operand])).bits / 8.0


def _rate(rate: str, startup: str, seen: Sequence[Observed | None]) -> list[ParameterEstimate]:
    """Throughput and startup from the smallest and the largest operation; the rate alone from one size."""
    known = sorted((one for one in seen if one is not None and one.time_us > 0), key=lambda one: one.size)
    if not known:
        return []
    small, large = known[0], known[-1]
    if large.size == small.size or large.time_us <= small.time_us:
        ends = (large.size / large.high_us, large.size / max(large.low_us, 1e-9))
        return [
            _estimate(rate, large.size / large.time_us, *ends),
            _estimate(startup, 0.0, 0.0, 0.0, known=False),
        ]
    cost = two_point_estimate(small.size, small.time_us, large.size, large.time_us)
    # The steepest and the flattest line through both intervals.
    slope_low = max(large.low_us - small.high_us, 1e-12) / (large.size - small.size)
    slope_high = (large.high_us - small.low_us) / (large.size - small.size)
    startup_us = max(cost.startup_us, 0.0)
    return [
        _estimate(rate, cost.throughput_per_us, 1.0 / slope_high, 1.0 / slope_low),
        _estimate(
            startup,
            startup_us,
            min(max(small.low_us - slope_high * small.size, 0.0), startup_us),
            max(small.high_us - slope_low * small.size, startup_us),
        ),
    ]


def _times(name: str, seen: Sequence[float | None]) -> list[ParameterEstimate]:
    """The median of the traces, and their range."""
    known = [time_us for time_us in seen if time_us is not None]
    return [_estimate(name, float(np.median(known)), min(known), max(known))] if known else []


def _estimate(name: str, value: float, low: float, high: float, *, known: bool = True) -> ParameterEstimate:
    return ParameterEstimate(name=name, value=value, low=low, high=high, identified=known, at_bound=False)
