"""The rules of the trace event format that Perfetto holds a JSON trace to."""

import json
from collections import defaultdict

PHASES = {"X", "M", "C"}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def broken_rules(text):
    """Sentences about what in the trace is against the format; none for a good trace."""
    trace = json.loads(text)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["the top is an object with a list named traceEvents"]
    events = trace["traceEvents"]
    found = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit is ms or ns"]
    found += [sentence for event in events for sentence in _of_event(event)]
    named = {(event["pid"], event["tid"]) for event in events if event.get("name") == "thread_name"}
    slices = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            ends = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            slices[event["pid"], event.get("tid")].append(ends)
    found += [f"thread {thread} has no name" for thread in slices if thread not in named]
    return found + [sentence for thread, spans in slices.items() for sentence in _overlaps(thread, spans)]


def _of_event(event):
    phase, arguments = event.get("ph"), event.get("args", {})
    if phase not in PHASES:
        yield f"unknown phase {phase!r}"
    if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int):
        yield f"name or pid missing: {event}"
    if phase == "M":
        if METADATA.get(event["name"], object()) not in arguments:
            yield f"metadata without its argument: {event}"
    elif not isinstance(event.get("ts"), int | float) or event["ts"] < 0:
        yield f"ts missing or negative: {event}"
    if phase == "C" and not all(isinstance(value, int | float) for value in arguments.values()):
        yield f"counter values are numbers: {event}"
    if phase == "X" and not (isinstance(event.get("tid"), int) and event.get("dur", -1) >= 0):
        yield f"tid or dur missing: {event}"


def _overlaps(thread, spans):
    open_ends = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            yield f"slices of thread {thread} overlap in part at {start} ns"
        open_ends.append(end)
