"""The `counters` regime: NVIDIA's profiler `ncu` around a worker, and its CSV read back.

Each row is one launch from a card that rested while the profiler worked on the row before; caches are flushed
and clocks left alone. The SM clock inside the kernel is its SM cycles over its duration.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_model.bench.rows import Outcome, Row
from gemm_model.config import read_toml
from gemm_model.errors import MissingExtraError

METRICS: Mapping[str, str] = read_toml("other_names")["ncu"]
"""ncu's metric -> column of the table."""

TEXT_COLUMNS = {"Grid Size": "grid", "Block Size": "block"}
METRIC = "Metric Name"
LABEL = re.compile(r"gemm-row-(\d+)")
NS_PER_US = 1e3


def profiler_path() -> str:
    """Where ncu is; MissingExtraError without it."""
    found = shutil.which("ncu")
    if found is None:
        raise MissingExtraError("the counters regime needs NVIDIA's profiler: no 'ncu' on the PATH")
    return found


def label(index: int) -> str:
    """The NVTX range around row `index`, by which its kernels are found in ncu's output."""
    return f"gemm-row-{index}"


def profiler_command(ncu: str, requests: Path, replies: Path, device: str) -> list[str]:
    """The command that runs ncu around a worker that launches the rows of `requests` in order."""
    options = ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS)]
    options += ["--clock-control", "none", "--cache-control", "all", "--replay-mode", "kernel"]
    options += ["--nvtx", "--nvtx-include", "regex:gemm-row-[0-9]+/", "--print-nvtx-rename", "kernel"]
    worker = [sys.executable, "-m", "gemm_model.bench.worker", "--device", device]
    return [ncu, *options, *worker, "--requests", str(requests), "--replies", str(replies)]


def profile_rows(rows: Sequence[Row], device: str, limit_s: float) -> list[Outcome]:
    """Outcomes of these rows, in their order, from one profiler process."""
    with tempfile.TemporaryDirectory(prefix="gemm-ncu-") as directory:
        requests, replies, output = (Path(directory) / name for name in ("requests", "replies", "ncu.csv"))
        requests.write_text(
            "".join(
                json.dumps({"operation": "profile", "row": row.columns(), "label": label(index)}) + "\n"
                for index, row in enumerate(rows)
            )
        )
        # ncu processes exclude each other through a lock file in TMPDIR; each card gets a TMPDIR of its own.
        environment = {**os.environ, "TMPDIR": directory}
        command = profiler_command(profiler_path(), requests, replies, device)
        with output.open("w") as stdout:
            options: dict[str, Any] = {"stdout": stdout, "stderr": subprocess.PIPE, "env": environment}
            options |= {"text": True, "errors": "replace", "start_new_session": True, "check": False}
            try:
                done = subprocess.run(command, timeout=limit_s, **options)
                ending = ("crashed", f"ncu ended with code {done.returncode}: {last_line(done.stderr)}")
            except subprocess.TimeoutExpired:
                ending = ("hung", f"no end within {limit_s:.0f} s")
        answered = [json.loads(line) for line in replies.read_text().splitlines()] if replies.exists() else []
        counters = parse_profiler_csv(output.read_text(errors="replace").splitlines())
    return merge_outcomes(len(rows), answered, counters, ending)


def merge_outcomes(
    count: int,
    replies: Sequence[Mapping[str, Any]],
    counters: Mapping[int, Mapping[str, Any]],
    ending: tuple[str, str],
) -> list[Outcome]:
    """One outcome for each row: its counters, or the reason why there are none."""
    outcomes = []
    for index in range(count):
        if index >= len(replies):
            # The first row without a reply was in flight; later rows never ran.
            outcomes.append(Outcome(disposition=ending[0], detail=ending[1]))
            break
        reply = replies[index]
        if reply["disposition"] != "ok":
            outcomes.append(Outcome(disposition=reply["disposition"], detail=reply.get("detail", "")))
        elif index in counters:
            values = {**reply.get("values", {}), **counters[index]}
            outcomes.append(Outcome(disposition="ok", values=values))
        else:
            outcomes.append(Outcome(disposition="launch_failed", detail="the profiler saw no kernel"))
    return outcomes


def parse_profiler_csv(lines: Iterable[str]) -> dict[int, dict[str, Any]]:
    """Row index -> counters from ncu's raw CSV page (base units: nanoseconds, bytes, cycles)."""
    found: dict[int, dict[str, Any]] = {}
    for cells, _ in launches(lines):
        match = LABEL.search(" ".join(str(cell) for cell in cells.values()))
        if match:
            index = int(match.group(1))
            values = _values(cells)
            found[index] = _added(found[index], values) if index in found else values
    for values in found.values():
        values["sm_mhz"] = round(values["sm_cycles"] / values["duration_us"], 2)
        values["runtime_us"] = values["duration_us"]
    return found


def launches(lines: Iterable[str]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Cells and units of each kernel in ncu's CSV: a row each, or without `--page raw` one for each metric."""
    reader = csv.DictReader([line for line in lines if line.startswith('"')])
    if METRIC not in (reader.fieldnames or ()):
        units = next(reader, {})
        return [(cells, units) for cells in reader]
    found: dict[str | None, tuple[dict[str, str], dict[str, str]]] = {}
    for line in reader:
        cells, units = found.setdefault(line.get("ID"), ({}, {}))
        cells |= {**line, line[METRIC]: line.get("Metric Value", "")}
        units |= {line[METRIC]: line.get("Metric Unit", "")}
    return list(found.values())


def _values(cells: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for metric, column in METRICS.items():
        text = (cells.get(metric) or "").replace(",", "")
        if text:
            number = float(text)
            values[column] = number / NS_PER_US if column == "duration_us" else _shortest(number)
    for name, column in TEXT_COLUMNS.items():
        values[column] = (cells.get(name) or "").replace(",", "")
    return values


def _added(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Counters of a row that launches several kernels: sums, and the longest kernel's values for the rest."""
    longest = second if second["duration_us"] > first["duration_us"] else first
    summed = [name for name in read_toml("columns")["summed_counters"] if name in first and name in second]
    return {**longest, **{name: first[name] + second[name] for name in summed}}


def _shortest(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def last_line(text: str) -> str:
    """The last line of what a process printed, of at most 300 characters."""
    return (text.strip().splitlines() or ["nothing was printed"])[-1][-300:]
