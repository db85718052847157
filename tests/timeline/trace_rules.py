"""The rules of the trace event format that Perfetto holds a JSON trace to."""

import json
from collections import defaultdict

PHASES = {"X", "M", "C"}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def broken_rules(text):
    """Sentences about what in the trace is against the format; none for a good trace."""
    trace = json.loads(text)
    found = []
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["the top is an object with a list named traceEvents"]
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        found.append("displayTimeUnit is ms or ns")
    slices, named = defaultdict(list), set()
    for event in trace["traceEvents"]:
        phase = event.get("ph")
        if phase not in PHASES:
            found.append(f"unknown phase {phase!r}")
        if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int):
            found.append(f"name or pid missing: {event}")
        if phase == "M":
            key = METADATA.get(event["name"])
            if key is None or key not in event.get("args", {}):
                found.append(f"metadata without its argument: {event}")
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
        elif not isinstance(event.get("ts"), int | float) or event["ts"] < 0:
            found.append(f"ts missing or negative: {event}")
        if phase == "C" and not all(isinstance(v, int | float) for v in event.get("args", {}).values()):
            found.append(f"counter values are numbers: {event}")
        if phase == "X":
            if not isinstance(event.get("tid"), int) or not event.get("dur", -1) >= 0:
                found.append(f"tid or dur missing: {event}")
            slices[event["pid"], event.get("tid")].append(
                (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
            )
    for thread, spans in slices.items():
        if thread not in named:
            found.append(f"thread {thread} has no name")
        open_ends = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                found.append(f"slices of thread {thread} overlap in part at {start} ns")
            open_ends.append(end)
    return found
