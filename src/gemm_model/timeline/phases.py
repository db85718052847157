"""Phases of a kernel from its trace; comparison of a predicted trace with a measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.timeline.kernel_timeline import DATA, SOURCE_MATRIX, STORE_BUFFER, TURN
from gemm_model.timeline.trace import NS_PER_US, RUNTIME, Trace, tile_spans

COMPUTING = ("consumer 1", "consumer 2", "consumer 3", "MMA warp")
"""Roles whose waits are waits of consumers."""
WITHIN_EPILOGUE = (STORE_BUFFER, SOURCE_MATRIX)
"""Waits that the epilogue's time already includes; the sum of waits leaves them out."""
WARP = ["cta", "role", "warp"]
"""Columns that tell warps apart."""
DIGITS = 6
"""Decimals of sums of waits in us [1]; phases of traces; chosen: a picosecond, so that nothing is 0."""
SHORTEST_SHARE = 0.1
"""Share of waits taken to have found their data ready: the shortest of a kind [1]; measured traces;
chosen."""


def phases_of(trace: Trace) -> dict[str, float]:
    """The phases that a trace shows, by name [us] (`waves` is a count).

    Times start with the first CTA. Medians are over CTAs or tiles. The time of a k tile leaves out a CTA's
    first tile if it has others. Waits are one warp's over the whole kernel. A prediction's runtime includes
    the launch before the first CTA, a trace's does not; "first CTA to end" is comparable. Several launches
    give the median of each phase.
    """
    if trace.info.median_phases:
        return dict(trace.info.median_phases)
    trace = trace.since_first_cta()
    resident, load = trace.of_tiles("resident"), trace.of_tiles("load")
    mma, epilogue = trace.of_tiles("mma"), trace.of_tiles("epilogue")
    found = {RUNTIME: trace.info.runtime_us}
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
    """Number of waves, and the time between the first and the last end of a wave's tiles.

    A prediction draws the tiles of a wave to end together and stores their predicted spread separately.
    """
    tiles = tile_spans(trace)
    if not len(tiles):
        return {}
    waves = float(tiles.groupby("cta")["tiles"].sum().max())
    if trace.info.wave_skew_us is not None:
        return {"waves": waves, "wave skew": trace.info.wave_skew_us}
    number = tiles.groupby("cta").cumcount()
    ends = tiles[tiles["tiles"] == 1].groupby(number)["end_us"]
    complete = ends.count() == ends.count().max()
    spread = (ends.max() - ends.min())[complete]
    return {"waves": waves, "wave skew": float(spread.median())}


def _waits(trace: Trace, mma: pd.DataFrame, load: pd.DataFrame) -> dict[str, float]:
    """Waits of a warp by cause, summed over the kernel: the mean over warps of that kind.

    The tracer's reading of a wait that finds its data ready is subtracted.
    """
    waits = trace.of_tiles("wait")
    waits = waits[waits["role"].isin(COMPUTING)]
    beyond_us = waits["end_us"] - waits["start_us"] - unwaited_us(trace, within_tiles=False)
    total_us = {str(cause): float(us) for cause, us in beyond_us.groupby(waits["detail"]).sum().items()}
    if trace.info.source == "measured" and trace.info.kernel.get("schedule") == "pingpong":
        total_us[TURN] = _turns_us(trace, mma, waits)
    k_tiles = len(mma) * (trace.info.k_tiles - 1)
    within_us = float(mma["waited_us"].sum()) - k_tiles * unwaited_us(trace, within_tiles=True)
    total_us[DATA] = total_us.get(DATA, 0.0) + within_us
    warps = max(len(mma[WARP].drop_duplicates()), 1)
    by_cause = {cause: round(max(us, 0.0) / warps, DIGITS) for cause, us in sorted(total_us.items())}
    found = {f"consumers wait for {cause}": us for cause, us in by_cause.items()}
    found["consumers wait"] = sum(us for cause, us in by_cause.items() if cause not in WITHIN_EPILOGUE)
    if len(load):
        producers = len(load[["cta", "warp"]].drop_duplicates())
        found["producer waits for a free stage"] = float(load["waited_us"].sum()) / producers
    return found


def median_of(launches: Sequence[Trace]) -> Trace:
    """Several launches of one kernel as one trace: each phase's median, the intervals nearest to medians.

    A stall that all SMs meet by chance in one launch then shows in no phase. A wait missing in a launch is 0.
    """
    each = [phases_of(launch) for launch in launches]
    names = dict.fromkeys(name for phases in each for name in phases)
    medians = {name: float(np.median([phases.get(name, 0.0) for phases in each])) for name in names}
    off_us = [sum(abs(phases.get(name, 0.0) - median) for name, median in medians.items()) for phases in each]
    nearest = launches[int(np.argmin(off_us))]
    lost = sum(launch.info.lost_warps for launch in launches)
    info = replace(nearest.info, launches=len(launches), median_phases=medians, lost_warps=lost)
    return replace(nearest, info=info)


def phase_rows(trace: Trace, source: str) -> list[dict[str, Any]]:
    """One row for each phase of a trace, with its unit and its value under `source` (predicted, measured)."""
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
    """Total waits of warps for their turn: the time before each of their tiles that no range explains.

    The tracer has no range for these waits.
    """
    last = mma.groupby(WARP, as_index=False)["start_us"].max()
    first_us = last[WARP].merge(trace.rows, on=WARP).groupby(WARP)["start_us"].min()
    stored = trace.of_tiles("epilogue").merge(last, on=WARP, suffixes=("", "_last"))
    stored_us = stored.loc[stored["start_us"] < stored["start_us_last"], "end_us"]
    until_last = waits[~waits["detail"].isin(WITHIN_EPILOGUE)].merge(last, on=WARP, suffixes=("", "_last"))
    until_last = until_last[until_last["end_us"] <= until_last["start_us_last"]]
    turns_us = until_last["end_us"] - until_last["start_us"]
    return max(float(mma["start_us"].sum() - first_us.sum() - stored_us.sum() - turns_us.sum()), 0.0)


def unwaited_us(trace: Trace, *, within_tiles: bool) -> float:
    """A tracer's reading of a consumer's wait that finds its data ready [us], within tiles or before them.

    The shortest tenth of the waits after a warp's first MMA are taken to find their data ready. A duration
    between two steps of the timer reads as either, so waits one step longer count too; the result is the
    mean. 0 for a prediction, and without any wait.
    """
    if trace.info.source != "measured":
        return 0.0
    rows = trace.rows
    waits = rows[(rows["activity"] == "wait") & rows["role"].isin(COMPUTING)]
    waits = waits[~waits["detail"].isin(WITHIN_EPILOGUE) & ((waits["k_tile"] >= 0) == within_tiles)]
    first = trace.of_tiles("mma").groupby(WARP, as_index=False)["start_us"].min()
    waits = waits.merge(first, on=WARP, suffixes=("", "_first"))
    waits = waits[waits["start_us"] >= waits["start_us_first"]]
    if waits.empty:
        return 0.0
    lengths_ns = np.rint((waits["end_us"] - waits["start_us"]) * NS_PER_US).astype(np.int64).to_numpy()
    shortest_ns = np.quantile(lengths_ns, SHORTEST_SHARE, method="lower")
    step_ns = np.gcd.reduce(lengths_ns)
    return float(lengths_ns[lengths_ns <= shortest_ns + step_ns].mean()) / NS_PER_US


def compared(predicted: Trace, measured: Trace) -> list[dict[str, Any]]:
    """One row for each phase: predicted, measured, and their ratio; None if a trace does not show it."""
    ours, theirs = phases_of(predicted), phases_of(measured)
    rows = []
    for name in {**theirs, **ours}:
        own, other = ours.get(name), theirs.get(name)
        ratio = own / other if own is not None and other is not None and other > 0 else None
        row = {"phase": name, "unit": unit_of(name), "predicted": own, "measured": other, "ratio": ratio}
        rows.append(row)
    return rows
