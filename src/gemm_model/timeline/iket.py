"""Traces of NVIDIA's in-kernel tracer IKET (nvidia-cutlass-dsl 4.8), read into this package's format.

`iket ... profile --postprocess json` writes one document: `stringTable`, `locationTable` (SM, CTA and warp of
each warp) and `launches`, each with `ranges` (name, two locations, start and end) and `warpLifetimes`. Times
are nanoseconds of the GPU's global timer, which all SMs share: there is no clock to convert, and no skew.
Its documentation shows the same with names and locations in place of their positions; both are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import pandas as pd

from gemm_model.config import read_toml
from gemm_model.errors import InputError
from gemm_model.timeline import WAIT_DATA, WAIT_STAGE
from gemm_model.timeline.trace import NS_PER_US, Trace, TraceInfo, new_rows

Each = TypeVar("Each")

WARPS_PER_GROUP = 4
TILE_RANGES = {"tma_load": "load", "mma": "mma", "epilogue": "epilogue"}
"""Ranges that hold one tile of their warp, with the activity of each."""
PARTS: dict[str, tuple[str, str]] = {
    name: (what, detail) for name, (what, detail) in read_toml("iket").items()
}
"""Ranges of QuACK 0.6.5 inside or between those, with activity and detail; any other range is 'other'."""
LOST = re.compile(r"Trace incomplete: (\d+) warp record")
"""The tracer's message about warps whose events did not fit."""


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of the tracer's file: arrays can hold it."""


class WarpPlace(msgspec.Struct, frozen=True, rename={"sm": "smId", "cta": "ctaId", "warp": "warpId"}):
    """Where a warp runs: its SM, the CTA's position in the grid, the warp's position in the CTA."""

    sm: Whole
    cta: tuple[Whole, Whole, Whole]
    warp: Whole


Span = tuple[str, int, int]
"""Name, start and end in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IketLaunch:
    """One launch of an instrumented kernel."""

    kernel_name: str
    grid: tuple[int, int, int]
    block_threads: int
    ranges: Mapping[WarpPlace, Sequence[Span]]
    """In the order of their start, the longer first."""
    lifetimes: Mapping[WarpPlace, tuple[int, int]]

    @property
    def missing_warps(self) -> int:
        """Warps of the grid without a recorded lifetime."""
        ctas = self.grid[0] * self.grid[1] * self.grid[2]
        return ctas * -(-self.block_threads // 32) - len(self.lifetimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """The facts about a kernel that name the tiles of its trace."""

    gpu: str
    identity: Mapping[str, Any]
    """As `trace.kernel_identity` gives it."""
    k_tiles: int
    stages: int
    untraced_us: float | None = None
    unranged_us: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchedInTurns:
    """How often each kernel was launched: `turns`, each with one launch that does not count before those that
    do.
    """

    turns: int
    counted: int

    @property
    def launches(self) -> int:
        """All launches of each kernel."""
        return self.turns * (self.counted + 1)

    def of_each(self, launches: Sequence[Each]) -> list[list[Each]]:
        """The launches that count, kernel by kernel."""
        counted = [launch for place, launch in enumerate(launches) if place % (self.counted + 1)]
        size = self.turns * self.counted
        return [counted[first : first + size] for first in range(0, len(counted), size)]


class _Timed(msgspec.Struct, rename="camel", gc=False):
    """Times [ns]; a place by its position in the document's table, or itself."""

    start_ts: Whole
    end_ts: Whole


class _Range(_Timed, gc=False):
    range_name_idx: int | None = None
    range_name: str = ""
    warp_loc_idxs: list[int] = []
    warp_locs: list[WarpPlace] = []


class _Life(_Timed, gc=False):
    loc_idx: int = 0
    warp_location: WarpPlace | None = None


class _Launch(msgspec.Struct, rename="camel"):
    kernel_name: str
    ranges: list[_Range]
    grid_dim_x: Whole
    grid_dim_y: Whole
    grid_dim_z: Whole
    block_dim_x: Whole
    block_dim_y: Whole
    block_dim_z: Whole
    warp_lifetimes: list[_Life] = []


class _Document(msgspec.Struct, rename="camel"):
    launches: list[_Launch]
    string_table: list[str] = []
    location_table: list[WarpPlace] = []


def read_iket(path: Path) -> list[IketLaunch]:
    """The launches of a JSON trace that hold ranges. Raises InputError for a file that is none."""
    launches = _read(path, lambda document: [_launch(document, each) for each in document.launches])
    return [launch for launch in launches if launch.ranges]


def counted_launches(
    launches: Sequence[IketLaunch], kernels: int, in_turns: LaunchedInTurns
) -> list[list[IketLaunch]]:
    """For each of several kernels launched one by one, the launches that count.

    Earlier launches, which prepared them, are left out. Raises InputError if there are too few.
    """
    expected = in_turns.launches * kernels
    if len(launches) < expected:
        raise InputError(
            f"the tracer saw {len(launches)} launches of instrumented kernels; expected at least {expected}"
        )
    return in_turns.of_each(launches[len(launches) - expected :])


def lifetimes_us(path: Path, kernel_names: Sequence[str], in_turns: LaunchedInTurns) -> list[float]:
    """Time from the first warp's start to the last warp's end [us]: the median over each kernel's counted
    launches.

    `kernel_names` names the kernels in the order of their launches. Raises InputError for a file with other
    launches.
    """
    launches = _read(path, partial(_lifetimes_ns, kernel_names))
    asked = [name for name in kernel_names for _ in range(in_turns.launches)]
    last = launches[len(launches) - len(asked) :] if len(asked) <= len(launches) else []
    if [name for name, _ in last] != asked:
        expected = f"{in_turns.launches} of each of the traced kernels"
        raise InputError(f"{path}: shows other launches; expected {expected}")
    each = in_turns.of_each([lifetime_ns for _, lifetime_ns in last])
    return [float(np.median(own)) / NS_PER_US for own in each]


def _read(path: Path, decode: Callable[[_Document], list[Each]]) -> list[Each]:
    """The decoded content of a JSON trace. Raises InputError for any other file."""
    try:
        return decode(msgspec.json.decode(path.read_bytes(), type=_Document))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a JSON trace of IKET") from None
    except (msgspec.ValidationError, TypeError, IndexError) as error:
        raise InputError(f"{path}: is no JSON trace of IKET ({error}); expected its launches") from None
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected a JSON trace of IKET") from None


def _lifetimes_ns(kernel_names: Sequence[str], document: _Document) -> list[tuple[str, int]]:
    """The launches of some kernels, and the time from the first warp's start to the last one's end.

    Most warps of a trace are of other kernels, which rest the card and flush its L2.
    """
    named = [(launch.kernel_name, launch.warp_lifetimes) for launch in document.launches]
    return [
        (name, max(life.end_ts for life in lives) - min(life.start_ts for life in lives))
        for name, lives in named
        if name in kernel_names
    ]


def _launch(document: _Document, launch: _Launch) -> IketLaunch:
    names, places = document.string_table, document.location_table
    ranges: dict[WarpPlace, list[Span]] = defaultdict(list)
    for found in launch.ranges:
        name = found.range_name if found.range_name_idx is None else names[found.range_name_idx]
        place = found.warp_locs[0] if found.warp_locs else places[found.warp_loc_idxs[0]]
        ranges[place].append((name, found.start_ts, found.end_ts))
    lifetimes = {
        life.warp_location or places[life.loc_idx]: (life.start_ts, life.end_ts)
        for life in launch.warp_lifetimes
    }
    return IketLaunch(
        kernel_name=launch.kernel_name,
        grid=(launch.grid_dim_x, launch.grid_dim_y, launch.grid_dim_z),
        block_threads=launch.block_dim_x * launch.block_dim_y * launch.block_dim_z,
        ranges={place: sorted(spans, key=lambda s: (s[1], -s[2])) for place, spans in ranges.items()},
        lifetimes=lifetimes,
    )


def lost_warps(words: str) -> int:
    """Number of warps that the tracer dropped because their events did not fit, from its output."""
    return sum(int(count) for count in LOST.findall(words))


def trace_of(launch: IketLaunch, kernel: TracedKernel, *, every_warp: bool = False) -> Trace:
    """The trace of one launch, in us from the start of its first warp.

    The first warp of an MMA warpgroup represents all four, which run in step, unless `every_warp`. Raises
    InputError if the launch cannot be of that kernel.
    """
    grid = _Grid(launch, kernel)
    zero, end = _ends(launch)
    consumers = _consumer_groups(launch)
    rows: list[_Row] = []
    for place, spans in launch.ranges.items():
        role = _role(place, spans, consumers)
        if every_warp or not role.startswith("consumer") or place.warp % WARPS_PER_GROUP == 0:
            rows += _warp_rows(_Warp(place, role, grid), spans, zero)
    info = TraceInfo(
        source="measured",
        gpu=kernel.gpu,
        kernel=dict(kernel.identity),
        k_tiles=kernel.k_tiles,
        stages=kernel.stages,
        runtime_us=(end - zero) / NS_PER_US,
        untraced_us=kernel.untraced_us,
        unranged_us=kernel.unranged_us,
        lost_warps=launch.missing_warps if launch.lifetimes else 0,
        notes=(f"times of the GPU's global timer, the same on all SMs, in steps of {_step_ns(launch)} ns",),
    )
    return Trace(
        info=info, rows=pd.concat([_lifetime_rows(launch, grid, zero), _table(rows)], ignore_index=True)
    )


class _Grid:
    """How CTAs of a launch belong to clusters and tiles."""

    def __init__(self, launch: IketLaunch, kernel: TracedKernel) -> None:
        self.cluster = (int(kernel.identity["cluster_m"]), int(kernel.identity["cluster_n"]))
        x, y, z = launch.grid
        if x % self.cluster[0] or y % self.cluster[1]:
            raise InputError(
                f"a grid of {x}x{y}x{z} CTAs has no whole clusters of "
                f"{self.cluster[0]}x{self.cluster[1]}; expected a trace of another kernel"
            )
        self.clusters_x, self.clusters_y = x // self.cluster[0], y // self.cluster[1]
        self.clusters = self.clusters_x * self.clusters_y * z
        self.turns = 2 if kernel.identity["schedule"] == "pingpong" else 1
        self.k_tiles, self.stages = kernel.k_tiles, kernel.stages

    def cluster_of(self, cta: tuple[int, int, int]) -> int:
        return cta[0] // self.cluster[0] + self.clusters_x * (
            cta[1] // self.cluster[1] + self.clusters_y * cta[2]
        )

    def number(self, cta: tuple[int, int, int]) -> int:
        """CTAs counted cluster by cluster, along m first."""
        rank = cta[0] % self.cluster[0] + self.cluster[0] * (cta[1] % self.cluster[1])
        return self.cluster_of(cta) * self.cluster[0] * self.cluster[1] + rank


def _ends(launch: IketLaunch) -> tuple[int, int]:
    """First start and last end of all warps, in ns."""
    lives = list(launch.lifetimes.values())
    lives += [(start, end) for spans in launch.ranges.values() for _, start, end in spans]
    return min(start for start, _ in lives), max(end for _, end in lives)


def _step_ns(launch: IketLaunch) -> int:
    """The timer's resolution [ns]: all times of the launch are multiples of it."""
    zero, _ = _ends(launch)
    times = [time - zero for spans in launch.ranges.values() for span in spans for time in span[1:]]
    return int(np.gcd.reduce(times))


def _consumer_groups(launch: IketLaunch) -> list[int]:
    """Warpgroups of a CTA that compute, in order."""
    return sorted(
        {
            place.warp // WARPS_PER_GROUP
            for place, spans in launch.ranges.items()
            if any(name == "mma" for name, *_ in spans)
        }
    )


def _role(place: WarpPlace, spans: Sequence[Span], consumers: Sequence[int]) -> str:
    names = {name for name, *_ in spans}
    if "tma_load" in names:
        return "producer"
    if "mma" in names:
        both = "epilogue" in names
        return f"consumer {consumers.index(place.warp // WARPS_PER_GROUP) + 1}" if both else "MMA warp"
    return "epilogue warps" if "epilogue" in names else "scheduler"


def _lifetime_rows(launch: IketLaunch, grid: _Grid, zero: int) -> pd.DataFrame:
    """One row a CTA: from the start of its first warp to the end of its last one."""
    lives: dict[tuple[int, tuple[int, int, int]], list[int]] = {}
    for place, life in launch.lifetimes.items():
        known = lives.setdefault((place.sm, place.cta), [*life])
        known[0], known[1] = min(known[0], life[0]), max(known[1], life[1])
    return new_rows(
        len(lives),
        sm=np.array([sm for sm, _ in lives], dtype=np.int64),
        cta=np.array([grid.number(cta) for _, cta in lives], dtype=np.int64),
        role="CTA",
        activity="resident",
        start_us=np.array([start - zero for start, _ in lives.values()]) / NS_PER_US,
        end_us=np.array([end - zero for _, end in lives.values()]) / NS_PER_US,
    )


class _Warp:
    """A warp with ranges: where it runs, and which tiles it computes."""

    def __init__(self, place: WarpPlace, role: str, grid: _Grid) -> None:
        self.sm, self.cta, self.role, self.warp = place.sm, grid.number(place.cta), role, place.warp
        self.grid, self.cluster = grid, grid.cluster_of(place.cta)
        # Of two warpgroups that alternate, the first to compute has the even tiles.
        self.turns = grid.turns if role.startswith("consumer") else 1
        self.first = int(role.split()[-1]) - 1 if self.turns > 1 else 0

    def tile(self, number: int) -> int:
        """The place in the kernel's order of a tile of its CTA."""
        return self.cluster + number * self.grid.clusters

    def stage(self, number: int, k_tile: int) -> int:
        return (number * self.grid.k_tiles + k_tile) % self.grid.stages


@dataclass(slots=True)
class _Row:
    """An interval of one warp; times in ns since the launch's first warp."""

    place: _Warp
    activity: str
    start: int
    end: int
    tile: int = -1
    k_tile: int = -1
    stage: int = -1
    waited: int = 0
    detail: str = ""


def _warp_rows(warp: _Warp, spans: Sequence[Span], zero: int) -> list[_Row]:
    """All rows of one warp, in the order of their start."""
    counts = dict.fromkeys(TILE_RANGES, 0)
    rows: list[_Row] = []
    tile, number, waits = _Row(warp, "other", 0, 0), 0, 0
    for name, start, end in spans:
        row = _Row(warp, "other", start - zero, end - zero, detail=name)
        rows.append(row)
        if name in TILE_RANGES:
            number = warp.first + warp.turns * counts[name]
            counts[name] += 1
            row.activity, row.detail, row.tile = TILE_RANGES[name], "", warp.tile(number)
            tile, waits = row, 0
            continue
        row.activity, row.detail = PARTS.get(name, (row.activity, row.detail))
        if row.start >= tile.end:
            continue
        row.tile = tile.tile
        if name in (WAIT_DATA, WAIT_STAGE):
            row.k_tile, row.stage = waits, warp.stage(number, waits)
            waits += 1
            if name == WAIT_DATA:
                rows.append(_mma_after(row, tile, rows))
            else:
                tile.waited += row.end - row.start
    return rows


def _mma_after(wait: _Row, tile: _Row, rows: Sequence[_Row]) -> _Row:
    """The MMAs of the k tile behind a wait: up to the next wait, or to the tile's end.

    A tile's MMAs begin with its first MMA, so that the wait before belongs to the tile but not to its MMAs.
    """
    mma = _Row(wait.place, "mma", wait.end, tile.end, wait.tile, wait.k_tile, wait.stage)
    if wait.k_tile == 0:
        tile.start, wait.k_tile = wait.end, -1
    else:
        tile.waited += wait.end - wait.start
        before = next((row for row in reversed(rows) if row.activity == "mma" and row.k_tile >= 0), None)
        if before is None:
            raise InputError("a warp that computes waits for free stages; expected a trace of another kernel")
        before.end = wait.start
    return mma


def _table(rows: Sequence[_Row]) -> pd.DataFrame:
    def column(name: str, kind: type = np.int64) -> np.ndarray:
        return np.fromiter(map(attrgetter(name), rows), dtype=kind, count=len(rows))

    return new_rows(
        len(rows),
        role=column("place.role", object),
        **{name: column(f"place.{name}") for name in ("sm", "cta", "warp")},
        **{name: column(name) for name in ("tile", "k_tile", "stage")},
        **{name: column(name, object) for name in ("activity", "detail")},
        **{f"{name}_us": column(name) / NS_PER_US for name in ("start", "end", "waited")},
    )
