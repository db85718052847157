"""The page of a timeline: what each warp of one SM does when, and how full its ring of stages is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gemm_model.core.fields import number_text
from gemm_model.pipeline.machine import PS_PER_US
from gemm_model.report.page.content import SHOWN, Fact, Figure, Page, figure
from gemm_model.timeline import simulator
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.simulator import Timeline
from gemm_model.timeline.trace import RING, Trace
from gemm_model.timeline.views import event_table, warps_of

SHOWN_SPANS = 1500
"""Most bars of the timeline [1]; pages; chosen: beyond it the page says that it shows the beginning alone."""
COLOR_OF: dict[str, str] = SHOWN["page_colors"]
"""Colours of what warps do, in the order of the legend."""


def pipeline_page(timeline: Timeline, title: str) -> Page:
    """The page of `simulate`."""
    events = pd.DataFrame(event_table(replace(timeline, spans=timeline.spans[:SHOWN_SPANS])))
    events = events.rename(columns={"warp": "role", "event": "activity", "reason": "detail"})
    events["where"] = [
        f"wave {wave}, step {step}" for wave, step in zip(events.wave, events.step, strict=True)
    ]
    waiting = timeline.consumer_wait() / timeline.end if timeline.end else 0.0
    cut = len(timeline.spans) > SHOWN_SPANS
    shown = f"the first {SHOWN_SPANS:,} of {len(timeline.spans):,} events" if cut else "every event"
    taken = [(time / PS_PER_US, stages) for time, stages in timeline.occupancy[:SHOWN_SPANS]]
    return Page(
        title=title,
        subtitle=f"One SM's producer/consumer pipeline, {shown}",
        facts=[
            Fact("Runtime", f"{number_text(timeline.runtime_us)} us"),
            Fact("Ring", f"{timeline.stages} stages"),
            Fact("Consumers wait", f"{waiting:.0%}", "of the time"),
        ],
        figures=[_track_figure(events, warps_of(timeline)), _ring_figure(taken)],
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
    shown = shown.assign(where=[_where(row) for row in shown.to_dict("records")])
    return Page(
        title=title,
        subtitle=f"CTA {cta}: its warps, their waits and the ring of stages",
        facts=[
            Fact("Runtime", f"{number_text(trace.info.runtime_us)} us"),
            Fact("Ring", f"{trace.info.stages} stages"),
            Fact("Consumers wait", f"{phases['consumers wait']:.3g} us", "each, in all"),
            Fact("A k tile", f"{phases['k tile']:.3g} us"),
        ],
        figures=[
            _track_figure(shown, list(dict.fromkeys(shown["role"]))),
            _ring_figure(stages_taken(ring)[:SHOWN_SPANS]),
        ],
        notes=[
            *trace.info.notes,
            *([f"The timeline shows the first {SHOWN_SPANS} events of {len(warps):,}."] if cut else []),
        ],
    )


def stages_taken(ring: pd.DataFrame) -> list[tuple[float, int]]:
    """Times [us] at which stages of a ring are taken or freed, and how many are taken from then on."""
    taken, freed = (
        ring.loc[ring["activity"] == activity, column].round(DIGITS_OF_US)
        for activity, column in (("load", "start_us"), ("mma", "end_us"))
    )
    return simulator.stages_taken(taken, freed)


def _where(row: Mapping[Any, Any]) -> str:
    where = f"tile {row['tile']}" + (f", k tile {row['k_tile']}" if row["k_tile"] >= 0 else "")
    return where + (f", stage {row['stage']}" if row["stage"] >= 0 else "")


def _track_figure(rows: pd.DataFrame, warps: list[str]) -> Figure:
    """A track for each of the warps, from rows of a trace."""
    bars = [
        _bars(activity.replace("_", " "), color, own)
        for activity, color in COLOR_OF.items()
        if len(own := rows[rows["activity"] == activity])
    ]
    axes = {"yaxis": {"categoryarray": warps[::-1]}}
    return figure("timeline", bars, axes, height_px=150 + 54 * len(warps), min_width_px=700, wide=True)


def _bars(name: str, color: str, rows: pd.DataFrame) -> dict[str, Any]:
    lengths_us = rows["end_us"] - rows["start_us"]
    return {
        **SHOWN["traces"]["bars"],
        "orientation": "h",
        "name": name,
        "y": rows["role"].tolist(),
        "base": rows["start_us"].tolist(),
        "x": lengths_us.tolist(),
        "marker": {"color": color, "line": {"color": "@surface", "width": 0.5}},
        "text": [
            f"<b>{row.role}: {name}{f' for {row.detail}' if name == 'wait' else ''}</b><br>"
            f"{number_text(length_us)} us from {number_text(start_us)} us<br>{row.where}"
            for row, start_us, length_us in zip(rows.itertuples(), rows["start_us"], lengths_us, strict=True)
        ],
    }


def _ring_figure(taken: Sequence[tuple[float, float]]) -> Figure:
    """Stages taken, from each time [us] on."""
    times_us, stages = zip(*taken, strict=True) if taken else ((), ())
    trace = {**SHOWN["traces"]["steps"], "x": times_us, "y": stages}
    return figure("ring", [trace], height_px=260, wide=True)
