"""A timeline as a table, as a trace for Perfetto, and as a plot."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.config import read_toml
from gemm_model.core.figures import new_figure, save_figure
from gemm_model.pipeline.machine import PS_PER_US, Workload
from gemm_model.timeline.chrome_trace import TraceCounter, TraceEvent
from gemm_model.timeline.simulator import Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SLICES = 100_000
"""Slices of a trace [slices]; Perfetto; a file of so many takes 15 MB, and no screen shows more."""
TRACK_ORDER: list[str] = read_toml("shown")["tracks"]["order"]
COLORS: dict[str, str] = read_toml("shown")["pipeline_colors"]


def warps_of(timeline: Timeline) -> list[str]:
    """The warps of a timeline in the order of their tracks."""
    return sorted({span.warp for span in timeline.spans}, key=TRACK_ORDER.index)


def event_table(timeline: Timeline, work: Workload | None = None) -> list[dict[str, Any]]:
    """One row for each event and wait of SM 0; times in us from the launch, `cta` counts from 0."""
    return [
        {
            "warp": span.warp,
            "event": span.kind,
            "wave": span.wave,
            "cta": _cta(span, work, 0),
            "step": span.step,
            "slot": span.slot,
            "start_us": span.start / PS_PER_US,
            "end_us": span.end / PS_PER_US,
            "duration_us": span.length_us,
            "reason": span.reason,
        }
        for span in timeline.spans
    ]


def warp_table(timeline: Timeline) -> list[dict[str, Any]]:
    """For each warp and each activity or cause of waiting: count, total time and share."""
    lengths: dict[tuple[str, str], list[float]] = {}
    for span in timeline.spans:
        lengths.setdefault((span.warp, span.what), []).append(span.end - span.start)
    rows = [
        {"warp": warp, "activity": what, "count": len(own), "total_us": sum(own) / PS_PER_US}
        | {"share": sum(own) / timeline.end if timeline.end else 0.0}
        for (warp, what), own in lengths.items()
    ]
    return sorted(rows, key=lambda row: TRACK_ORDER.index(str(row["warp"])))


def thinned(timeline: Timeline, sms: int) -> tuple[Timeline, int, list[str]]:
    """A timeline and a number of SMs small enough for a trace, and a note on what was left out.

    SMs run alike, and so do the waves between the first ones and the last.
    """
    notes = []
    if len(timeline.spans) > MOST_SLICES:
        last = max(span.wave for span in timeline.spans)
        tail = [span for span in timeline.spans if span.wave == last][-MOST_SLICES // 2 :]
        head = [span for span in timeline.spans if span.wave < last][: MOST_SLICES - len(tail)]
        until = head[-1].end if head else 0.0
        occupancy = [
            (time, taken) for time, taken in timeline.occupancy if time <= until or time >= tail[0].start
        ]
        total = len(timeline.spans)
        timeline = replace(timeline, spans=(*head, *tail), occupancy=tuple(occupancy))
        notes.append(
            f"the trace shows the first and the last {len(timeline.spans)} of {total} events: waves repeat"
        )
    shown = max(min(sms, MOST_SLICES // max(len(timeline.spans), 1)), 1)
    if shown < sms:
        notes.append(f"the trace shows {shown} of {sms} SMs: they run alike")
    return timeline, shown, notes


def trace_events(
    timeline: Timeline, work: Workload | None = None, sms: int = 1
) -> tuple[list[TraceEvent], list[TraceCounter]]:
    """The timeline for `chrome_trace`: one process for each of the first `sms` SMs, one track for each warp.

    SMs without a tile in the last wave end with the wave before.
    """
    events, counters = [], []
    ctas = 1.0 if work is None else work.ctas
    for sm in range(min(sms, 1 if work is None else int(min(ctas, work.ctas_per_wave)))):
        process = f"SM {sm}"
        spans = [span for span in timeline.spans if _cta(span, work, sm) < ctas]
        events += [
            TraceEvent(
                process=process,
                track=span.warp,
                name=span.what,
                category="wait" if span.kind == "wait" else "work",
                start_us=span.start / PS_PER_US,
                duration_us=span.length_us,
                args={"wave": span.wave, "cta": _cta(span, work, sm), "step": span.step, "slot": span.slot},
            )
            for span in sorted(spans, key=lambda item: TRACK_ORDER.index(item.warp))
        ]
        end = max((span.end for span in spans), default=0.0)
        counters += [
            TraceCounter(process=process, track="ring stages taken", time_us=time / PS_PER_US, value=taken)
            for time, taken in timeline.occupancy
            if time <= end
        ]
    return events, counters


def _cta(span: Span, work: Workload | None, sm: int) -> int:
    """The CTA of a span; without `work` there is one."""
    return sm if work is None else max(span.wave - 1, 0) * int(work.ctas_per_wave) + sm


def plot_timeline(timeline: Timeline, path: Path, title: str) -> None:
    """Draw one SM over its waves: a bar for each event of each warp, and the ring's stages below."""
    warps = warps_of(timeline)
    figure = new_figure(12, 1.6 + 0.6 * len(warps), layout="constrained")
    tracks, ring = figure.subplots(2, 1, sharex=True, height_ratios=(max(len(warps), 1), 1.2))
    _draw_warps(tracks, timeline, warps)
    times = [time / PS_PER_US for time, _ in timeline.occupancy]
    ring.step(times, [taken for _, taken in timeline.occupancy], where="post", color="#333333", linewidth=0.8)
    ring.set_ylim(0, timeline.stages + 0.3)
    ring.set_ylabel("stages taken")
    ring.set_xlabel("time in us")
    tracks.set_title(title)
    save_figure(figure, path, dpi=130)


def _draw_warps(axes: Axes, timeline: Timeline, warps: list[str]) -> None:
    labelled = set()
    for row, warp in enumerate(warps):
        for kind, color in COLORS.items():
            spans = [span for span in timeline.spans if span.warp == warp and span.kind == kind]
            if not spans:
                continue
            axes.broken_barh(
                [(span.start / PS_PER_US, span.length_us) for span in spans],
                (row - 0.4, 0.8),
                facecolors=color,
                edgecolor="white",
                linewidth=0.2,
                label=None if kind in labelled else kind.replace("_", " "),
            )
            labelled.add(kind)
    ends = sorted({span.end for span in timeline.spans if span.kind == "epilogue"})
    for earlier, _ in pairwise(ends):
        axes.axvline(earlier / PS_PER_US, color="#888888", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(warps)), warps)
    axes.invert_yaxis()
    axes.legend(ncols=len(labelled), loc="lower left", bbox_to_anchor=(0, 1.08), frameon=False)
