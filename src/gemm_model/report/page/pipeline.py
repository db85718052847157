"""The page of a simulated pipeline: what each warp does when, and how full the ring is."""

from __future__ import annotations

from gemm_model.pipeline.machine import PS_PER_US
from gemm_model.report.page.content import Fact, Figure, Page
from gemm_model.timeline.simulator import Span, Timeline
from gemm_model.timeline.views import TRACK_ORDER

SHOWN_SPANS = 1500
"""Bars in the timeline: beyond this the page says that it shows the beginning alone."""
COLOR_OF_KIND = {
    "init": "@gray",
    "load_a": "@blue",
    "load_b": "@teal",
    "math": "@olive",
    "epilogue": "@orange",
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


def _tracks(timeline: Timeline, warps: list[str]) -> Figure:
    spans = timeline.spans[:SHOWN_SPANS]
    traces = []
    for kind, color in COLOR_OF_KIND.items():
        own = [span for span in spans if span.kind == kind]
        if not own:
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": kind.replace("_", " "),
                "y": [span.warp for span in own],
                "base": [span.start / PS_PER_US for span in own],
                "x": [(span.end - span.start) / PS_PER_US for span in own],
                "marker": {"color": color, "line": {"color": "@surface", "width": 0.5}},
                "text": [_description(span) for span in own],
                "textposition": "none",
                "hoverinfo": "text",
            }
        )
    return Figure(
        title="Timeline",
        note="What each warp does, and what it waits for.",
        traces=traces,
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
    return Figure(
        title="Ring stages taken",
        note="How many stages of the ring buffer hold data or wait for it.",
        traces=[
            {
                "type": "scatter",
                "mode": "lines",
                "x": [time / PS_PER_US for time, _ in occupancy],
                "y": [taken for _, taken in occupancy],
                "line": {"color": "@blue", "width": 1.5, "shape": "hv"},
                "hovertemplate": "%{y} stages from %{x:.4g} us<extra></extra>",
            }
        ],
        layout={"xaxis": {"title": "us"}, "yaxis": {"title": "stages", "rangemode": "tozero"}},
        height_px=260,
        wide=True,
    )
