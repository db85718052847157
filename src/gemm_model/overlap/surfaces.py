"""Measured time per layer over the grid of both parameters: the table that the model is fitted to."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.overlap.config import KernelBuild, OverlapSetting
from gemm_model.overlap.model import LayerCase, OverlapParameters, chains_of, timeline
from gemm_model.tables.columns import COUNT, SIZE, TIME, NumberColumn, read_columns

BUILD_COLUMNS = ("a_type", "b_type", "split_k", "stages", "clusters", "fill_delay_clocks")
CASE_COLUMNS = (
    *("m", "n", "k", *BUILD_COLUMNS),
    *("extra_clocks", "serialized", "overlap_ratio", "prefetch_ratio", "layer_us"),
)
CASE_NUMBERS = {
    **dict.fromkeys(("m", "n", "k", "split_k", "stages", "clusters"), SIZE),
    **dict.fromkeys(("fill_delay_clocks", "extra_clocks"), COUNT),
    "serialized": NumberColumn(low=0, high=1, whole=True),
    **{name: NumberColumn(low=-1, high=1) for name in ("overlap_ratio", "prefetch_ratio")},
    "layer_us": TIME,
}
"""Types of the columns of CASE_COLUMNS that hold no text."""
SURFACE_COLUMNS = ["m", "n", "k", "a_type", "b_type", "split_k", "stages", "clusters", "extra_clocks"]
"""Columns that are constant over a surface."""
LAYERS = 16
"""Layers of the measured chains [1]; all surfaces; chosen."""


def read_surfaces(*paths: Path, campaigns: Sequence[str] = ()) -> pd.DataFrame:
    """The measured layers with the number of their surface in the column `surface`.

    Several tables, or several `campaigns` of one, are runs of the same cases: `layer_us` is their mean. The
    best of 56 noisy cells of one run is partly the luckiest.
    """
    read = (read_columns(path, CASE_NUMBERS, texts=("a_type", "b_type")) for path in paths)
    tables = [part for table in read for part in _runs(table, campaigns)]
    first, case = tables[0], list(CASE_COLUMNS[:-1])
    for table in tables[1:]:
        if not table[case].equals(first[case]):
            other = first.attrs["path"]
            raise InputError(
                f"{table.attrs['path']}: expected the same cases in the same order as in {other}"
            )
    apart = [*(["campaign"] if "campaign" in first else []), *SURFACE_COLUMNS]
    return first.assign(
        layer_us=np.mean([table["layer_us"] for table in tables], axis=0),
        surface=first.groupby(apart, sort=False).ngroup(),
    )


def _runs(table: pd.DataFrame, campaigns: Sequence[str]) -> Iterator[pd.DataFrame]:
    """The rows of each campaign, or all of them where none is asked for."""
    for name in campaigns:
        rows = table[table["campaign"] == name] if "campaign" in table else table.head(0)
        if rows.empty:
            raise InputError(
                f"{table.attrs['path']}: no row of campaign {name!r}; expected one of its column campaign"
            )
        yield rows.reset_index(drop=True)
    if not campaigns:
        yield table


def cases_of(table: pd.DataFrame, gpu: GpuSpec) -> list[LayerCase]:
    """The cases of a table of layers measured on a GPU, row by row."""
    return [_case(row, gpu) for row in table[list(CASE_COLUMNS)].to_dict("records")]


def _case(row: dict[Hashable, Any], gpu: GpuSpec) -> LayerCase:
    build = KernelBuild(
        **{name: row[name] for name in BUILD_COLUMNS},
        tile_n=-(-row["n"] // 8) * 8,
        dependent_launch=not row["serialized"],
    )
    return LayerCase(
        **{name: row[name] for name in ("m", "n", "k")},
        build=build,
        setting=OverlapSetting(overlap_ratio=row["overlap_ratio"], prefetch_ratio=row["prefetch_ratio"]),
        extra_us=row["extra_clocks"] / gpu.sm_clk_mhz,
        serialized=bool(row["serialized"]),
    )


def titles(table: pd.DataFrame, gpu: GpuSpec) -> list[str]:
    """What the surface of each row is of, for a plot."""
    names = ("m", "k", "split_k", "clusters", "stages", "extra_clocks")
    return [
        f"{m} x {k}, split {split_k}, {clusters} clusters, {stages} stages"
        + (f", norm {extra_clocks / gpu.sm_clk_mhz:.0f} us longer" if extra_clocks else "")
        for m, k, split_k, clusters, stages, extra_clocks in table[[*names]].to_numpy()
    ]


def accuracy(table: pd.DataFrame, gpu: GpuSpec, parameters: OverlapParameters) -> pd.DataFrame:
    """Per surface: mean error, measured best, the tuner's pick and how much slower than the best it is.

    Serialized rows count for the error only.
    """
    from gemm_model.overlap.tuner import choose, grid_of

    cases = cases_of(table, gpu)
    predicted = timeline(chains_of(cases, gpu), parameters, gpu.l2_bytes, LAYERS).layer_us
    rows: list[dict[str, Any]] = []
    known = table.assign(predicted=predicted, position=range(len(table)))
    for surface, part in known.groupby("surface"):
        grid = part[part["serialized"] == 0]
        if len(grid) == 0:
            raise InputError(f"surface {surface} has no row with serialized 0; expected its grid of settings")
        measured = grid["layer_us"].to_numpy(dtype=np.float64)
        overlap = grid["overlap_ratio"].to_numpy(dtype=np.float64)
        prefetch = grid["prefetch_ratio"].to_numpy(dtype=np.float64)
        own = [cases[position] for position in grid["position"]]
        chains = chains_of(own, gpu)
        lines = timeline(chains, parameters, gpu.l2_bytes, LAYERS)
        pick = choose(grid_of([case.setting for case in own], chains, lines))
        best = int(measured.argmin())
        serialized = part.loc[part["serialized"] == 1, "layer_us"].to_numpy(dtype=np.float64)
        error = part["predicted"].to_numpy() / part["layer_us"].to_numpy() - 1
        first = grid.iloc[0]
        rows.append(
            {
                "surface": surface,
                **{name: first[name] for name in SURFACE_COLUMNS if not name.endswith("_type")},
                "settings": len(grid),
                "mean_error": float(np.abs(error).mean()),
                "best_us": measured[best],
                "best_overlap": overlap[best],
                "best_prefetch": prefetch[best],
                "pick_us": measured[pick],
                "pick_overlap": overlap[pick],
                "pick_prefetch": prefetch[pick],
                "regret": measured[pick] / measured[best] - 1,
                "serialized_us": serialized[0] if len(serialized) else np.nan,
            }
        )
    return pd.DataFrame(rows)
