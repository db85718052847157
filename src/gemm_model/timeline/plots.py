"""A picture of one trace, or of several on one time axis: all CTAs over the kernel, and one CTA's ring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gemm_model.config import read_toml
from gemm_model.core.figures import new_figure, save_figure
from gemm_model.timeline.trace import RING, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

COLORS: dict[str, str] = read_toml("shown")["trace_colors"]
OVERVIEW = ("resident", "wait", "epilogue", "mma")
"""Activities in the overview, drawn in this order: one consumer may wait while another works."""
PIXELS = 2000
"""Columns of the overview [pixels]; plots; chosen: an interval shorter than a column may be hidden by a
neighbour."""
ZOOMED_TILES = 2
"""Tiles of the CTA drawn in detail, from its start on [tiles]; plots; chosen."""


def plot_traces(traces: Sequence[Trace], path: Path, title: str, cta: int = 0) -> None:
    """Draw each trace's CTAs over the whole kernel, and one CTA's warps and ring over its first tiles.

    All share one time axis in us, from the start of the first CTA where there are several traces.
    """
    if len(traces) > 1:
        traces = [trace.since_first_cta() for trace in traces]
    zooms = [_zoomed(trace, cta) for trace in traces]
    lanes = [max(len(zoom.groupby(["role", "stage_row"])), 1) for zoom in zooms]
    heights = [3.0] * len(traces) + [0.5 + 0.22 * count for count in lanes]
    figure = new_figure(12, sum(heights) + 1.0, layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(heights), 1, height_ratios=heights))
    end_us = max(float(trace.rows["end_us"].max()) for trace in traces)
    for place, trace in zip(axes, traces, strict=False):
        _draw_overview(place, trace, end_us)
    tiles = pd.concat([zoom[zoom["activity"].isin(["mma", "epilogue"])] for zoom in zooms])
    started = min((float(zoom["start_us"].min()) for zoom in zooms if len(zoom)), default=0.0)
    for place, trace, zoom in zip(axes[len(traces) :], traces, zooms, strict=True):
        _draw_zoom(place, zoom, f"{trace.info.source}, CTA {cta}")
        place.set_xlim(started, float(tiles["end_us"].max()) if len(tiles) else end_us)
    axes[-1].set_xlabel("time in us")
    axes[0].set_title(title)
    _legend(axes[0])
    save_figure(figure, path, dpi=130)


def overview_pixels(trace: Trace, end_us: float) -> NDArray[np.int64]:
    """Position in COLORS of the consumers' activity, of shape (CTAs, pixels)."""
    names = list(COLORS)
    rows = trace.rows[(trace.rows["k_tile"] < 0) & trace.rows["activity"].isin(OVERVIEW)]
    rows = rows[~rows["role"].isin(["producer", "scheduler", RING])]
    order = rows["activity"].map({name: place for place, name in enumerate(OVERVIEW)})
    rows = rows.iloc[np.argsort(order.to_numpy(), kind="stable")]
    first = np.floor(rows["start_us"].to_numpy() / end_us * PIXELS).astype(int)
    last = np.ceil(rows["end_us"].to_numpy() / end_us * PIXELS).astype(int)
    picture = np.zeros((int(trace.rows["cta"].max()) + 1, PIXELS), dtype=np.int64)
    codes = rows["activity"].map(names.index).to_numpy()
    for cta, start, stop, code in zip(rows["cta"].to_numpy(), first, last, codes, strict=True):
        picture[cta, max(start, 0) : stop] = code
    return picture


def _draw_overview(axes: Axes, trace: Trace, end_us: float) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    picture = overview_pixels(trace, end_us)
    axes.imshow(
        picture,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(list(COLORS.values())),
        norm=BoundaryNorm(np.arange(len(COLORS) + 1) - 0.5, len(COLORS)),
        extent=(0.0, end_us, len(picture) - 0.5, -0.5),
    )
    axes.set_ylabel(f"{trace.info.source}\nCTA")


def _zoomed(trace: Trace, cta: int) -> pd.DataFrame:
    """The k tiles of one CTA's first tiles: its warps, one of each role, and the stages of its ring."""
    rows = trace.rows[(trace.rows["cta"] == cta) & (trace.rows["activity"] != "resident")]
    starts = rows[rows["activity"] == "mma"].groupby("tile")["start_us"].min().sort_values()
    until = next(iter(starts[ZOOMED_TILES:]), np.inf)
    rows = rows[rows["start_us"] < until]
    leading = rows.groupby("role")["warp"].transform("min")
    rows = rows[rows["warp"] == leading]
    return rows.assign(stage_row=np.where(rows["role"] == RING, rows["stage"], -1))


def _draw_zoom(axes: Axes, rows: pd.DataFrame, label: str) -> None:
    names = []
    for place, ((role, stage), own) in enumerate(rows.groupby(["role", "stage_row"])):
        names.append(f"stage {stage}" if role == RING else str(role))
        # Whole tiles first, their k tiles and waits over them.
        for activity in COLORS:
            for whole in (True, False):
                some = own[(own["activity"] == activity) & ((own["k_tile"] < 0) == whole)]
                spans = list(zip(some["start_us"], some["end_us"] - some["start_us"], strict=True))
                height = 0.8 if whole else 0.55
                axes.broken_barh(
                    spans,
                    (place - height / 2, height),
                    facecolors=COLORS[activity],
                    edgecolor="white",
                    linewidth=0.2,
                )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_ylabel(label)


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    shown = [Patch(facecolor=color, label=name) for name, color in COLORS.items() if name]
    axes.legend(handles=shown, ncols=len(shown), loc="lower left", bbox_to_anchor=(0, 1.12), frameon=False)
