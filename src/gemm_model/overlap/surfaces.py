"""Measured time per layer over the grid of both parameters, and the fit of the model's constants to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError
from gemm_model.overlap.config import KernelBuild, OverlapSetting
from gemm_model.overlap.model import PARAMETERS, LayerCase, OverlapParameters, chains_of, timeline
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
SPREAD = 0.35
"""Standard deviation of the logarithm of random starts around the first one [1]; fits of the overlap model;
chosen."""
MAX_EVALUATIONS = 150
"""Most evaluations of a search [1]; fits of the overlap model; chosen."""
CONTRAST_WEIGHT = 0.5
"""Weight of a setting's residual relative to its surface's best one [1]; fits of the overlap model;
chosen."""
MISLED_WEIGHT = 4.0
"""Weight of the shortfall if a setting is not predicted slower by `MARGIN` [1]; settings slower than the best
by more than `RESOLVED`; chosen."""
RESOLVED = 0.01
"""Relative difference of two measured times below which settings tie [1]; all surfaces; chosen."""
MARGIN = 0.02
"""Relative difference demanded of two predicted times [1]; settings that are slower; chosen."""


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


def fit_parameters(table: pd.DataFrame, gpu: GpuSpec, *, starts: int = 3, seed: int = 0) -> OverlapParameters:
    """Constants that fit the measured layers best: robust least squares on log(predicted / measured).

    Tries `starts` points: the guesses and random ones around them.
    """
    from scipy.optimize import least_squares

    low, guess, high = np.array([each["bounds"] for each in PARAMETERS.values()]).T
    chains = chains_of(cases_of(table, gpu), gpu)
    measured = np.log(table["layer_us"].to_numpy())
    overlapped = np.flatnonzero(table["serialized"].to_numpy() == 0)
    best = _best_rows(table)[overlapped]
    slower = measured[overlapped] - measured[best]
    margin = np.clip(slower - RESOLVED, 0.0, MARGIN)

    def residuals(values: FloatArray) -> FloatArray:
        parameters = OverlapParameters(**dict(zip(PARAMETERS, values.tolist(), strict=True)))
        error = np.log(timeline(chains, parameters, gpu.l2_bytes, LAYERS).layer_us) - measured
        contrast = error[overlapped] - error[best]
        misled = np.minimum(contrast + slower - margin, 0.0)
        return np.concatenate([error, CONTRAST_WEIGHT * contrast, MISLED_WEIGHT * misled])

    random, inside = np.random.default_rng(seed), 1e-3 * (high - low)
    factors = [1.0, *(np.exp(random.normal(0.0, SPREAD, len(PARAMETERS))) for _ in range(starts - 1))]
    results = [
        least_squares(
            residuals,
            np.clip(guess * factor, low + inside, high - inside),
            bounds=(low, high),
            x_scale=np.maximum(np.abs(guess), 0.05),
            loss="soft_l1",
            f_scale=0.05,
            max_nfev=MAX_EVALUATIONS,
        )
        for factor in factors
    ]
    found = min(results, key=lambda result: float(result.cost))
    return OverlapParameters(**dict(zip(PARAMETERS, found.x.tolist(), strict=True)))


def _best_rows(table: pd.DataFrame) -> np.ndarray:
    """For each row the position of the fastest overlapped row of its surface."""
    positions = pd.Series(range(len(table)), index=table.index)
    overlapped = table[table["serialized"] == 0]
    best = positions[overlapped.groupby("surface")["layer_us"].idxmin()].to_numpy()
    of_surface = dict(zip(table.loc[table.index[best], "surface"], best, strict=True))
    return table["surface"].map(of_surface).to_numpy()
