"""The phases of a kernel by its trace, and a predicted trace against a measured one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.timeline.kernel_timeline import DATA, FURTHER_MATRIX, STORE_BUFFER, TURN
from gemm_model.timeline.trace import Trace, tile_spans

COMPUTING = ("consumer 1", "consumer 2", "consumer 3", "MMA warp")
"""Roles whose waits are the consumers'."""
WITHIN_EPILOGUE = (STORE_BUFFER, FURTHER_MATRIX)
"""Waits that the epilogue's time holds already: they are no part of the sum of waits."""
SHORTEST_SHARE = 0.1
"""Share of a trace's waits that are taken to find what they wait for [1]; chosen."""


def phases_of(trace: Trace) -> dict[str, float]:
    """By name the phases of a trace in us (`waves` is a number), those that it shows.

    Times count from the start of the first CTA. A median is over CTAs, or over tiles; a k tile's time leaves
    out the first tile of a CTA where it has others; waits are those of one warp over the whole kernel. The
    runtime of a prediction holds the launch before the first CTA, that of a trace does not: "first CTA to
    end" is the same of both.
    """
    trace = trace.since_first_cta()
    resident, load = trace.of_tiles("resident"), trace.of_tiles("load")
    mma, epilogue = trace.of_tiles("mma"), trace.of_tiles("epilogue")
    found = {"runtime": trace.info.runtime_us}
    if len(resident):
        found["first CTA to end"] = float(resident["end_us"].max() - resident["start_us"].min())
        found["start skew"] = float(resident["start_us"].max() - resident["start_us"].min())
    if len(load):
        found["first CTA to first load"] = float(load.groupby("cta")["start_us"].min().median())
    if len(mma):
        first_mma = mma.groupby("cta")["start_us"].min()
        if len(load):
            since = first_mma - load.groupby("cta")["start_us"].min()
            found["first load to first MMA"] = float(since.median())
        found["k tile"] = _k_tile_us(mma, trace.info.k_tiles)
    if len(epilogue):
        found["epilogue"] = float((epilogue["end_us"] - epilogue["start_us"]).median())
    if len(mma) and len(resident):
        found["tail"] = float(resident["end_us"].max() - mma["end_us"].max())
    return found | _wave_phases(trace) | _waits(trace, mma, load)


def _k_tile_us(mma: pd.DataFrame, k_tiles: int) -> float:
    """Median over tiles in steady state of their MMAs' time, over their k tiles."""
    one = mma[mma["tiles"] == 1]
    later = one[one["start_us"] > one.groupby("cta")["start_us"].transform("min")]
    steady = later if len(later) else one
    return float((steady["end_us"] - steady["start_us"]).median() / k_tiles)


def _wave_phases(trace: Trace) -> dict[str, float]:
    """How many waves there are, and how far apart in time the tiles of one end."""
    tiles = tile_spans(trace)
    if not len(tiles):
        return {}
    waves = tiles.groupby("cta")["tiles"].sum().max()
    number = tiles.groupby("cta").cumcount()
    ends = tiles[tiles["tiles"] == 1].groupby(number)["end_us"]
    complete = ends.count() == ends.count().max()
    spread = (ends.max() - ends.min())[complete]
    return {"waves": float(waves), "wave skew": float(spread.median())}


def _waits(trace: Trace, mma: pd.DataFrame, load: pd.DataFrame) -> dict[str, float]:
    """What a warp waits for, summed over the kernel: the mean of the warps of that kind.

    A tracer's shortest wait is a step of its timer, which it reads where nothing is waited for: of each k
    tile's wait, so much is not counted.
    """
    waits = trace.of_tiles("wait")
    waits = waits[waits["role"].isin(COMPUTING)]
    warps = max(len(mma[["cta", "role", "warp"]].drop_duplicates()), 1)
    total = (waits["end_us"] - waits["start_us"]).groupby(waits["detail"]).sum() / warps
    by_cause = {str(cause): float(us) for cause, us in total.items()}
    if trace.info.source == "measured" and trace.info.kernel.get("schedule") == "pingpong":
        by_cause[TURN] = _turns_us(trace, mma, waits) / warps
    within_us = mma["waited_us"] - _shortest_wait_us(trace) * (trace.info.k_tiles - 1)
    by_cause[DATA] = by_cause.get(DATA, 0.0) + float(within_us.clip(lower=0.0).sum()) / warps
    found = {f"consumers wait for {cause}": us for cause, us in sorted(by_cause.items())}
    found["consumers wait"] = sum(us for cause, us in by_cause.items() if cause not in WITHIN_EPILOGUE)
    if len(load):
        producers = max(len(load[["cta", "warp"]].drop_duplicates()), 1)
        found["producer waits for a free stage"] = float(load["waited_us"].sum()) / producers
    return found


def phase_rows(trace: Trace, source: str) -> list[dict[str, Any]]:
    """The phases of a trace, each with its unit, and under `source` (predicted, measured) what it takes."""
    return [{"phase": name, "unit": unit_of(name), source: value} for name, value in phases_of(trace).items()]


def phase_columns(trace: Trace) -> dict[str, float]:
    """The phases of a trace as cells of a table's row, with the units in the names."""
    return {
        f"{name} {unit_of(name)}".rstrip().replace(" ", "_"): value
        for name, value in phases_of(trace).items()
    }


def unit_of(phase: str) -> str:
    return "" if phase == "waves" else "us"


def _turns_us(trace: Trace, mma: pd.DataFrame, waits: pd.DataFrame) -> float:
    """What warps wait for their turn, all together: between two of their tiles, where no range says why.

    A tracer has no range for it.
    """
    warp = ["cta", "role", "warp"]
    epilogue = trace.of_tiles("epilogue")
    stored = epilogue.assign(number=epilogue.sort_values("start_us").groupby(warp).cumcount() + 1)
    begun = mma.assign(number=mma.sort_values("start_us").groupby(warp).cumcount())
    between = begun.merge(stored, on=[*warp, "number"], suffixes=("", "_before"))
    told = waits.merge(stored[stored["number"] == 1][[*warp, "end_us"]], on=warp, suffixes=("", "_first"))
    told = told[told["start_us"] >= told["end_us_first"]]
    idle_us = (between["start_us"] - between["end_us_before"]).sum()
    return max(float(idle_us - (told["end_us"] - told["start_us"]).sum()), 0.0)


def _shortest_wait_us(trace: Trace) -> float:
    """What the shortest tenth of the waits of k tiles take at most; 0 of a prediction, or without any."""
    rows = trace.rows
    waits = rows[(rows["activity"] == "wait") & (rows["k_tile"] >= 0) & rows["role"].isin(COMPUTING)]
    lengths = (waits["end_us"] - waits["start_us"]).to_numpy()
    measured = trace.info.source == "measured" and len(lengths) > 0
    return float(np.quantile(lengths, SHORTEST_SHARE, method="lower")) if measured else 0.0


def compared(predicted: Trace, measured: Trace) -> list[dict[str, Any]]:
    """Phase by phase: predicted, measured, and their ratio; None where a trace does not show it."""
    ours, theirs = phases_of(predicted), phases_of(measured)
    return [_row(name, ours, theirs) for name in {**theirs, **ours}]


def _row(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, Any]:
    predicted, measured = ours.get(name), theirs.get(name)
    known = predicted is not None and measured is not None and measured > 0
    return {
        "phase": name,
        "unit": unit_of(name),
        "predicted": predicted,
        "measured": measured,
        "ratio": predicted / measured if known and predicted is not None and measured is not None else None,
    }
