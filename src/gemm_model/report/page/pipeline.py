"""The page of a timeline: what each warp of one SM does when, and how full its ring of stages is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.pipeline.machine import PS_PER_US
from gemm_model.report.page.content import Fact, Figure, Page
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.simulator import Span, Timeline
from gemm_model.timeline.trace import RING, Trace
from gemm_model.timeline.views import TRACK_ORDER

SHOWN_SPANS = 1500
"""Most bars of the timeline [1]; pages; chosen: beyond it the page says that it shows the beginning alone."""
COLOR_OF_KIND = {
    "init": "@gray",
    "load_a": "@blue",
    "load_b": "@teal",
    "math": "@olive",
    "epilogue": "@orange",
    "wait": "@control",
}
COLOR_OF_ACTIVITY = {
    "load": "@blue",
    "mma": "@olive",
    "epilogue": "@orange",
    "store": "@purple",
    "wait": "@control",
}


def pipeline_page(timeline: Timeline, title: str) -> Page:
    """The page of `simulate`."""
    warps = [warp for warp in TRACK_ORDER if any(span.warp == warp for span in timeline.spans)]
    waiting = timeline.consumer_wait() / timeline.end if timeline.end else 0.0
    cut = len(timeline.spans) > SHOWN_SPANS
    shown = f"the first {SHOWN_SPANS:,} of {len(timeline.spans):,} events" if cut else "every event"
    return Page(
        title=title,
        subtitle=f"One SM's producer/consumer pipeline, {shown}",
        facts=[
            Fact(label="Runtime", value=f"{timeline.runtime_us:.4g} us"),
            Fact(label="Ring", value=f"{timeline.stages} stages"),
            Fact(label="Consumers wait", value=f"{waiting:.0%}", note="of the time"),
        ],
        figures=[_tracks(timeline, warps), _ring(timeline)],
        notes=[f"The timeline shows {shown}; `--trace` writes all of them for Perfetto."] if cut else (),
    )


DIGITS_OF_US = 6
"""Digits of a time in us [1] that tell events apart; chosen: picoseconds, the simulator's unit."""


def trace_page(trace: Trace, title: str, cta: int) -> Page:
    """The page of a kernel's timeline: the warps of one CTA, k tile by k tile."""
    rows = trace.rows[(trace.rows["cta"] == cta) & (trace.rows["activity"] != "resident")]
    ring = rows[rows["role"] == RING].sort_values("start_us")
    warps = rows[rows["role"] != RING].sort_values(["start_us", "k_tile"])
    shown = warps[:SHOWN_SPANS]
    cut = len(shown) < len(warps)
    phases = phases_of(trace)
    bars = [
        _bars(
            activity.replace("_", " "),
            color,
            own["role"].tolist(),
            own["start_us"].to_numpy(),
            own["end_us"].to_numpy(),
            [_row_description(row) for row in own.to_dict("records")],
        )
        for activity, color in COLOR_OF_ACTIVITY.items()
        if len(own := shown[shown["activity"] == activity])
    ]
    times_us, taken = stages_taken(ring)
    return Page(
        title=title,
        subtitle=f"CTA {cta}: its warps, their waits and the ring of stages",
        facts=[
            Fact(label="Runtime", value=f"{trace.info.runtime_us:.4g} us"),
            Fact(label="Ring", value=f"{trace.info.stages} stages"),
            Fact(label="Consumers wait", value=f"{phases['consumers wait']:.3g} us", note="each, in all"),
            Fact(label="A k tile", value=f"{phases['k tile']:.3g} us"),
        ],
        figures=[
            _track_figure(bars, list(dict.fromkeys(shown["role"]))),
            _ring_figure(times_us[:SHOWN_SPANS], taken[:SHOWN_SPANS]),
        ],
        notes=[
            *trace.info.notes,
            *([f"The timeline shows the first {SHOWN_SPANS} events of {len(warps):,}."] if cut else []),
        ],
    )


def stages_taken(ring: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Times [us] at which stages of a ring are taken or freed, and how many are taken from then on."""
    changes = np.concatenate([np.ones(len(ring) // 2), -np.ones(len(ring) // 2)])
    times = np.concatenate(
        [ring[ring["activity"] == "load"]["start_us"], ring[ring["activity"] == "mma"]["end_us"]]
    )
    # A stage that is freed and taken at one time counts once: releases go first.
    order = np.lexsort((changes, np.round(times, DIGITS_OF_US)))
    return times[order].tolist(), np.cumsum(changes[order]).tolist()


def _row_description(row: Mapping[Any, Any]) -> str:
    what = f"wait for {row['detail']}" if row["activity"] == "wait" else row["activity"]
    where = f"tile {row['tile']}" + (f", k tile {row['k_tile']}" if row["k_tile"] >= 0 else "")
    where += f", stage {row['stage']}" if row["stage"] >= 0 else ""
    return (
        f"<b>{row['role']}: {what}</b><br>{row['end_us'] - row['start_us']:.4g} us from "
        f"{row['start_us']:.4g} us<br>{where}"
    )


def _tracks(timeline: Timeline, warps: list[str]) -> Figure:
    spans = timeline.spans[:SHOWN_SPANS]
    bars = []
    for kind, color in COLOR_OF_KIND.items():
        own = [span for span in spans if span.kind == kind]
        if own:
            starts = np.array([span.start for span in own]) / PS_PER_US
            ends = np.array([span.end for span in own]) / PS_PER_US
            texts = [_description(span) for span in own]
            bars.append(
                _bars(kind.replace("_", " "), color, [span.warp for span in own], starts, ends, texts)
            )
    return _track_figure(bars, warps)


def _bars(
    name: str, color: str, tracks: list[str], starts_us: FloatArray, ends_us: FloatArray, texts: list[str]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": tracks,
        "base": starts_us.tolist(),
        "x": (ends_us - starts_us).tolist(),
        "marker": {"color": color, "line": {"color": "@surface", "width": 0.5}},
        "text": texts,
        "textposition": "none",
        "hoverinfo": "text",
    }


def _track_figure(bars: list[dict[str, Any]], warps: list[str]) -> Figure:
    return Figure(
        title="Timeline",
        note="What each warp does, and what it waits for.",
        traces=bars,
        layout={
            "showlegend": True,
            "barmode": "overlay",
            "xaxis": {"title": "us"},
            "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": warps[::-1]},
        },
        height_px=150 + 54 * len(warps),
        min_width_px=700,
        wide=True,
    )


def _description(span: Span) -> str:
    reason = f" for {span.reason}" if span.reason else ""
    return (
        f"<b>{span.warp}: {span.kind.replace('_', ' ')}{reason}</b><br>"
        f"{(span.end - span.start) / PS_PER_US:.4g} us from {span.start / PS_PER_US:.4g} us<br>"
        f"wave {span.wave}, step {span.step}"
    )


def _ring(timeline: Timeline) -> Figure:
    occupancy = timeline.occupancy[:SHOWN_SPANS]
    return _ring_figure([time / PS_PER_US for time, _ in occupancy], [taken for _, taken in occupancy])


def _ring_figure(times_us: Sequence[float], taken: Sequence[float]) -> Figure:
    return Figure(
        title="Ring stages taken",
        note="How many stages of the ring buffer hold data or wait for it.",
        traces=[
            {
                "type": "scatter",
                "mode": "lines",
                "x": list(times_us),
                "y": list(taken),
                "line": {"color": "@blue", "width": 1.5, "shape": "hv"},
                "hovertemplate": "%{y} stages from %{x:.4g} us<extra></extra>",
            }
        ],
        layout={"xaxis": {"title": "us"}, "yaxis": {"title": "stages", "rangemode": "tozero"}},
        height_px=260,
        wide=True,
    )
