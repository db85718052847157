"""Chrome-trace JSON, the trace event format that Perfetto and chrome://tracing open.

Only two kinds of event are written: complete events (`"ph": "X"`, a slice with a duration) and counters
(`"ph": "C"`), besides the metadata that names processes and threads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_model.core.files import atomic_write
from gemm_model.errors import InputError

NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One slice of a track: `name` from `start_us` on, `duration_us` long.

    `process` groups tracks (one SM, one kernel, ...); `args` is shown when the slice is selected.
    """

    track: str
    name: str
    start_us: float
    duration_us: float
    process: str = "GPU"
    category: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A chain of comparisons and no loop, because traces have 100,000 events.
        if 0 <= self.start_us < math.inf and 0 <= self.duration_us < math.inf:
            return
        label = "duration_us" if 0 <= self.start_us < math.inf else "start_us"
        value = getattr(self, label)
        raise InputError(f"trace event {self.name!r}: {label} is {value!r}; expected a number of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCounter:
    """The value of a counter track from `time_us` on."""

    track: str
    time_us: float
    value: float
    process: str = "GPU"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_us) and self.time_us >= 0 and math.isfinite(self.value)):
            raise InputError(
                f"trace counter {self.track!r}: {self.value!r} at {self.time_us!r} us; "
                "expected finite numbers and a time of at least 0"
            )


def write_chrome_trace(
    path: Path | str, events: Iterable[TraceEvent], counters: Iterable[TraceCounter] = ()
) -> None:
    """Write a trace that Perfetto opens; raises InputError where the file cannot be written.

    Tracks appear in the order of their first event. Slices of one track may touch or nest; one that overlaps
    another in part goes to a track of its own beside it, because viewers drop such slices.
    """
    atomic_write(Path(path), chrome_trace_json(list(events), list(counters)))


def chrome_trace_json(events: Sequence[TraceEvent], counters: Sequence[TraceCounter] = ()) -> str:
    """The text of the trace file."""
    names = [event.process for event in events] + [counter.process for counter in counters]
    processes = {name: pid for pid, name in enumerate(dict.fromkeys(names), start=1)}
    lines = [_metadata("process_name", pid, 0, {"name": name}) for name, pid in processes.items()]

    by_track: dict[tuple[str, str], list[TraceEvent]] = {}
    for event in events:
        by_track.setdefault((event.process, event.track), []).append(event)
    tid = 0
    for (process, track), members in by_track.items():
        for number, lane in enumerate(_lanes(members), start=1):
            tid += 1
            pid = processes[process]
            name = track if number == 1 else f"{track} ({number})"
            lines.append(_metadata("thread_name", pid, tid, {"name": name}))
            lines.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
            lines.extend(_slice(*span, pid, tid) for span in lane)
    lines.extend(_counter(counter, processes[counter.process]) for counter in counters)
    # All events at once, because encoding them one by one takes five times as long.
    body = json.dumps(lines, allow_nan=False, separators=(",", ":"))
    return f'{{"displayTimeUnit": "ns", "traceEvents": {body}}}\n'


def _ns(time_us: float) -> int:
    # Whole nanoseconds, the viewers' resolution: slices that touch before rounding still touch after it.
    return round(time_us * NS_PER_US)


_SpanNs = tuple[int, int, TraceEvent]


def _lanes(events: Sequence[TraceEvent]) -> list[list[_SpanNs]]:
    """The events in as few lanes as it takes for every lane to nest properly, each in time order."""
    lanes: list[tuple[list[_SpanNs], list[int]]] = []
    spans = [(_ns(each.start_us), _ns(each.start_us + each.duration_us), each) for each in events]
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        start, end, _ = span
        for members, open_ends in lanes:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1]:
                members.append(span)
                open_ends.append(end)
                break
        else:
            lanes.append(([span], [end]))
    return [members for members, _ in lanes]


def _slice(start_ns: int, end_ns: int, event: TraceEvent, pid: int, tid: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category or event.track,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / NS_PER_US,
        "dur": (end_ns - start_ns) / NS_PER_US,
        "args": dict(event.args),
    }


def _counter(counter: TraceCounter, pid: int) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": counter.track,
        "pid": pid,
        "ts": _ns(counter.time_us) / NS_PER_US,
        "args": {"value": counter.value},
    }


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
