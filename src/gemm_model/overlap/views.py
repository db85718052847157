"""Output of `gemm-model overlap`: trace, sensitivity table, plots."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.core.figures import new_figure, save_figure
from gemm_model.overlap.model import LayerCase, OverlapModel, Timeline
from gemm_model.overlap.tuner import cases_of_grid
from gemm_model.timeline.chrome_trace import TraceEvent


def sensitivity(model: OverlapModel, case: LayerCase) -> pd.DataFrame:
    """Predicted time of a layer: `overlap_ratio`, `prefetch_ratio`, `predicted_us` of each pair of them."""
    cases = cases_of_grid(case)
    return pd.DataFrame([asdict(each.setting) for each in cases]).assign(predicted_us=model.layer_us(cases))


def crossed(table: pd.DataFrame) -> pd.DataFrame:
    """The table crossed for reading: one row for each overlap ratio, one column for each prefetch ratio."""
    wide = table.pivot(index="overlap_ratio", columns="prefetch_ratio", values="predicted_us")
    return wide.rename(columns="p={:g}".format).reset_index()


def trace_events(line: Timeline, chain: int = 0) -> list[TraceEvent]:
    """Slices of one chain for Perfetto: each kernel's wait and work, a track per kernel of a layer."""
    events = []
    for layer in range(len(line.gemm_end)):
        at = {spec.name: float(getattr(line, spec.name)[layer, chain]) for spec in fields(line)}
        parity = "even" if layer % 2 == 0 else "odd"
        for track, name, start, end in (
            ("previous kernel", "wait", at["previous_start"], at["previous_waited"]),
            ("previous kernel", "norm", at["previous_waited"], at["previous_end"]),
            (f"GEMM, {parity} layers", "fill rings and L2", at["gemm_start"], at["gemm_waited"]),
            (f"GEMM, {parity} layers", "stream weights", at["gemm_waited"], at["streamed"]),
            (f"GEMM, {parity} layers", "tail", at["streamed"], at["gemm_end"]),
        ):
            if end > start:
                events.append(
                    TraceEvent(
                        track=track,
                        name=name,
                        start_us=start,
                        duration_us=end - start,
                        process="GPU",
                        args={"layer": layer},
                    )
                )
    return events


def plot_surfaces(table: pd.DataFrame, path: Path) -> None:
    """Predicted against measured time per layer, one panel per surface.

    `table` has the columns surface, title, overlap_ratio, prefetch_ratio, layer_us and predicted.
    """
    from matplotlib import colormaps

    surfaces = table["surface"].unique()
    columns = 4
    rows = -(-len(surfaces) // columns)
    figure = new_figure(15, 2.9 * rows, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, surface in zip(axes.flat, surfaces, strict=False):
        grid = table[table["surface"] == surface]
        for color, (prefetch, part) in zip(
            colormaps["viridis"](np.linspace(0, 0.9, grid["prefetch_ratio"].nunique())),
            grid.groupby("prefetch_ratio"),
            strict=True,
        ):
            panel.plot(part["overlap_ratio"], part["layer_us"], "o", color=color, label=f"{prefetch:g}", ms=4)
            panel.plot(part["overlap_ratio"], part["predicted"], "-", color=color, lw=1)
        panel.set_ylim(0.8 * grid["layer_us"].min(), 1.15 * grid["layer_us"].max())
        panel.set_title(grid["title"].iloc[0], fontsize=7)
        panel.set_xlabel("overlap ratio", fontsize=7)
        panel.set_ylabel("us per layer", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
    for panel in axes.flat[len(surfaces) :]:
        panel.set_visible(False)
    axes.flat[0].legend(title="prefetch ratio", fontsize=6, title_fontsize=6)
    figure.suptitle("Time per layer: points measured, lines predicted", fontsize=10)
    save_figure(figure, path, dpi=80)
