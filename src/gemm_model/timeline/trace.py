"""The trace of one kernel, predicted or measured: one format for both, as a table and for Perfetto."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.fields import problem_fields
from gemm_model.core.files import atomic_path
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.timeline.chrome_trace import TraceEvent

SCHEMA = "gemm-model-trace/1"
NS_PER_US = 1e3
RUNTIME = "runtime"
"""The phase that is the whole kernel."""
RING = "ring"
"""The role whose rows are the stages of the ring, each on its own track."""
TEXT_COLUMNS = ("role", "activity", "detail")
TIME_COLUMNS = ("start_us", "end_us", "waited_us")
COLUMNS: Sequence[str] = read_toml("columns")["trace"]
"""One row an interval. sm, cta, warp: numbers from 0, -1 for all of them; tile: place of the cluster's tile
in the kernel's order; tiles: how many tiles a row stands for where it is thinned out; k_tile: -1 for a whole
tile, whose k tiles lie inside it; stage: of the ring, or -1; waited_us: what was waiting within the interval;
detail: what a wait was for, the part of an epilogue, an edge tile. A tile's mma begins with its first MMA.

activity: launch (until the first CTA starts), resident (a warp's or a CTA's life), load, mma, epilogue,
store, schedule (finding the next tile), wait, other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """The kernel and the launch that a trace's intervals belong to."""

    source: str
    """predicted or measured."""
    gpu: str
    kernel: Mapping[str, Any]
    """The problem and the kernel, as `kernel_identity` names them."""
    k_tiles: int
    """Of one tile."""
    stages: int
    """Of the ring."""
    runtime_us: float
    """Measured: from the first warp's start to the last one's end, under the tracer."""
    untraced_us: float | None = None
    """The same kernel without the tracer, launch included, as the GPU times kernels."""
    unranged_us: float | None = None
    """From the first warp's start to the last one's end of the same kernel without any range."""
    launches: int = 1
    """Number of measured launches; the intervals are of one of them."""
    median_phases: Mapping[str, float] = field(default_factory=dict)
    """Median of each phase over several measured launches [us]; empty takes phases from the intervals."""
    wave_skew_us: float | None = None
    """Predicted: time between the first and last end of a wave's tiles, which are drawn to end together."""
    lost_warps: int = 0
    """Warps whose events did not fit into the tracer's buffer: they are missing."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        above_0 = [us for us in (self.runtime_us, self.untraced_us, self.unranged_us) if us is not None]
        from_0 = [*self.median_phases.values(), self.wave_skew_us or 0.0]
        if not all(0 < us < math.inf for us in above_0) or not all(0 <= us < math.inf for us in from_0):
            raise InputError("a trace has a time below 0 or without an end; expected microseconds")

    @property
    def ranged_us(self) -> float:
        """The runtime with ranges; the median over several launches."""
        return self.median_phases.get(RUNTIME, self.runtime_us)

    @property
    def overhead(self) -> float | None:
        """Time that tracing adds, as a share of the runtime without ranges.

        If that is unknown, as a share of the untraced runtime; below 0 if the launch outweighs it.
        """
        without_us = self.untraced_us if self.unranged_us is None else self.unranged_us
        return None if without_us is None else self.ranged_us / without_us - 1.0

    def remarks(self) -> list[str]:
        """Sentences about the trace: notes, overhead of tracing, missing warps."""
        found = list(self.notes)
        if self.launches > 1:
            found.append(
                f"phases are medians of {self.launches} launches; intervals are of the one nearest to them"
            )
        if self.unranged_us is not None:
            found.append(
                f"{self.ranged_us:.3f} us with ranges, {self.unranged_us:.3f} us without: "
                f"{self.overhead:+.1%}"
            )
        if self.untraced_us is not None:
            found.append(f"{self.untraced_us:.3f} us without the tracer, launch included")
        if self.unranged_us is not None and self.untraced_us is not None:
            own_us = self.unranged_us + room_numbers("timeline").launch_us
            found.append(
                f"traced less what ranges add, and {room_numbers('timeline').launch_us:g} us of launch: "
                f"{own_us:.3f} us, {own_us / self.untraced_us - 1.0:+.1%} of that"
            )
        if self.lost_warps:
            found.append(f"{self.lost_warps} warps are missing: the tracer had no room for their events")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The intervals of one kernel launch, in us from its launch (predicted) or first warp (measured)."""

    info: TraceInfo
    rows: pd.DataFrame = field(repr=False)
    """Columns COLUMNS."""

    def of_tiles(self, activity: str) -> pd.DataFrame:
        """The rows of one activity that hold whole tiles."""
        rows = self.rows
        return rows[(rows["activity"] == activity) & (rows["k_tile"] < 0) & (rows["role"] != RING)]

    def since_first_cta(self) -> Trace:
        """A copy whose times start with the first CTA, as those of a measured trace do."""
        resident = self.rows[self.rows["activity"] == "resident"]
        zero = float(resident["start_us"].min()) if len(resident) else 0.0
        rows = self.rows[self.rows["activity"] != "launch"].copy()
        rows[["start_us", "end_us"]] -= zero
        return Trace(info=self.info, rows=rows)


def kernel_identity(problem: GemmProblem, config: KernelConfig) -> dict[str, Any]:
    """The identity of a kernel: problem, tile, cluster, schedule and family."""
    known = {**problem_fields(problem), **asdict(config)}
    return {name: known[name] for name in read_toml("columns")["trace_identity"]}


def require_same_kernel(predicted: Trace, measured: Trace, path: Path) -> None:
    """Raise InputError where a measured trace is of another kernel, or of another GPU, than the predicted."""
    ours = {**predicted.info.kernel, "gpu": predicted.info.gpu}
    theirs = {**measured.info.kernel, "gpu": measured.info.gpu}
    differing = [name for name in ours if theirs.get(name) != ours[name]]
    if differing:
        name = differing[0]
        raise InputError(
            f"{path} is of another kernel: {name} is {theirs.get(name)!r}; expected {ours[name]!r}, "
            "as simulated"
        )


def new_rows(count: int, **columns: Any) -> pd.DataFrame:
    """`count` rows; a column that is not given holds -1, '' or 0 us, and one tile for each row."""
    defaults: dict[str, Any] = dict.fromkeys(COLUMNS, -1)
    defaults |= dict.fromkeys(TEXT_COLUMNS, "") | dict.fromkeys(TIME_COLUMNS, 0.0) | {"tiles": 1}
    types = dict.fromkeys(TEXT_COLUMNS, object) | dict.fromkeys(TIME_COLUMNS, np.float64)
    return pd.DataFrame(
        {
            name: value if isinstance(value, np.ndarray) else np.full(count, value, types.get(name, np.int64))
            for name, value in (defaults | columns).items()
        }
    )


def write_trace_table(trace: Trace, path: Path) -> None:
    """Write a trace as a table that `read_trace_table` reads: a line about the kernel, then CSV.

    A name that ends in .gz is compressed. Times have a resolution of a tenth of a nanosecond.
    """
    about = json.dumps({"schema": SCHEMA, **asdict(trace.info)}, allow_nan=False)
    with atomic_path(path) as temporary, _opened(temporary, "wt") as file:
        file.write(f"# {about}\n")
        trace.rows.to_csv(file, index=False, float_format="%.4f", lineterminator="\n")


def read_trace_table(path: Path) -> Trace:
    """A trace from its table. Raises InputError for a file that is none."""
    try:
        with _opened(path, "rt") as file:
            info = _info(path, file.readline())
            rows = pd.read_csv(file, keep_default_na=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the table of a trace") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason}); expected the table of a trace") from None
    missing = [name for name in COLUMNS if name not in rows]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} is missing; expected {', '.join(COLUMNS)}")
    for name in COLUMNS:
        if name not in TEXT_COLUMNS:
            rows[name] = _numbers(path, name, rows[name])
    backwards = np.flatnonzero(rows["end_us"] < rows["start_us"])
    if len(backwards):
        raise InputError(
            f"{path}: line {backwards[0] + 3}, column end_us: {rows['end_us'].iloc[backwards[0]]:g} lies "
            "before start_us; expected a later time"
        )
    return Trace(info=info, rows=rows[list(COLUMNS)])


def _opened(path: Path, mode: str) -> Any:
    import gzip

    if path.suffix == ".gz":
        return gzip.open(path, mode, compresslevel=5, encoding="utf-8", newline="")
    return path.open(mode, encoding="utf-8", newline="")


def _info(path: Path, line: str) -> TraceInfo:
    from msgspec import ValidationError, convert

    try:
        values = json.loads(line.removeprefix("#"))
        if values.pop("schema") != SCHEMA:
            raise ValueError
        return convert(values, TraceInfo)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError, InputError):
        raise InputError(f"{path}: line 1 is not that of a trace; expected '# {{\"schema\": ...'") from None


def _numbers(path: Path, name: str, column: pd.Series) -> pd.Series:
    found = pd.to_numeric(column, errors="coerce")
    bad = np.flatnonzero(~np.isfinite(found.to_numpy(np.float64)))
    if len(bad):
        raise InputError(
            f"{path}: line {bad[0] + 3}, column {name}: {column.iloc[bad[0]]!r}; expected a number"
        )
    return found if name in TIME_COLUMNS else found.astype(np.int64)


def trace_events(trace: Trace, sms: Sequence[int] | None = None) -> list[TraceEvent]:
    """The trace for Perfetto: a process of its own, one track an SM, then one a warp of each SM.

    `sms` are the SMs whose warps are shown, all of them where it is None.
    """
    rows = trace.rows if sms is None else trace.rows[trace.rows["sm"].isin([-1, *sms])]
    rows = rows[rows["activity"] != "resident"].sort_values(["sm", "role", "warp", "stage"], kind="stable")
    columns = (rows[name].tolist() for name in COLUMNS)
    source = trace.info.source
    warps = []
    for sm, _, role, warp, activity, tile, tiles, k_tile, stage, start, end, waited, detail in zip(
        *columns, strict=True
    ):
        warps.append(
            TraceEvent(
                process=source,
                track=_track(sm, role, warp, stage),
                name=_name(activity, tiles, detail),
                category=activity,
                start_us=start,
                duration_us=max(end - start, 0.0),
                args=_arguments(tile, tiles, k_tile, stage, waited, detail),
            )
        )
    return _overview(trace) + warps


def _overview(trace: Trace) -> list[TraceEvent]:
    """One track an SM: its tiles, from the first MMA to the end of the epilogue."""
    tiles = tile_spans(trace)
    process = f"{trace.info.source}, one row an SM"
    columns = (tiles[name].tolist() for name in ("sm", "tile", "tiles", "start_us", "end_us"))
    return [
        TraceEvent(
            process=process,
            track=f"SM {sm}",
            name=_name("tile", count, ""),
            category="tile",
            start_us=start,
            duration_us=end - start,
            args={"tile": tile},
        )
        for sm, tile, count, start, end in zip(*columns, strict=True)
    ]


def tile_spans(trace: Trace) -> pd.DataFrame:
    """One row a tile of a CTA, in time order: sm, cta, tile, tiles, start_us, mma_end_us, end_us."""
    mma, epilogue = trace.of_tiles("mma"), trace.of_tiles("epilogue")
    keys = ["sm", "cta", "tile"]
    spans = mma.groupby(keys, sort=False).agg(
        tiles=("tiles", "max"), start_us=("start_us", "min"), mma_end_us=("end_us", "max")
    )
    ends = epilogue.groupby(keys, sort=False)["end_us"].max().reindex(spans.index)
    spans["end_us"] = np.fmax(ends.to_numpy(), spans["mma_end_us"].to_numpy())
    return spans.reset_index().sort_values(["sm", "start_us"], ignore_index=True)


def _track(sm: int, role: str, warp: int, stage: int) -> str:
    place = "" if sm < 0 else f"SM {sm} "
    if role == RING:
        return f"{place}stage {stage}"
    return f"{place}{role}" if warp < 0 else f"{place}{role}, warp {warp}"


def _name(activity: str, tiles: int, detail: str) -> str:
    if activity == "wait":
        return f"wait for {detail}"
    if activity == "other":
        return detail
    return f"{activity}, {tiles} tiles" if tiles > 1 else activity


def _arguments(tile: int, tiles: int, k_tile: int, stage: int, waited: float, detail: str) -> dict[str, Any]:
    shown = {
        "tile": (tile >= 0, tile),
        "tiles": (tiles > 1, tiles),
        "k_tile": (k_tile >= 0, k_tile),
        "stage": (stage >= 0, stage),
        "waited_us": (waited > 0, round(waited, 4)),
        "detail": (detail != "", detail),
    }
    return {name: value for name, (known, value) in shown.items() if known}
