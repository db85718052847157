"""Output of `gemm-model overlap`: traces, predicted and measured, sensitivity table, plots."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gemm_model.core.figures import new_figure, save_figure
from gemm_model.overlap.config import TILE_M, TRACE_EVENTS, KernelBuild
from gemm_model.overlap.model import LayerCase, OverlapModel, Timeline
from gemm_model.overlap.tuner import cases_of_grid
from gemm_model.timeline.chrome_trace import TraceEvent
from gemm_model.timeline.trace import NS_PER_US, Trace, TraceInfo, new_rows

PREVIOUS_KERNEL = "the previous kernel"
"""Cause of the wait of activation loads."""


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


def trace_of_events(
    events: NDArray[np.int64], size: tuple[int, int, int], build: KernelBuild, gpu: str
) -> Trace:
    """The trace of one GEMM D[n, m] = B[n, k] A[m, k]^T from its events (CTAs x TRACE_EVENTS), in us.

    A CTA shows its life, its loads, and the wait for the previous kernel; tiles and k tiles have no events.
    """
    m, n, k = size
    start, previous_done, loaded, end, sm, _ = (events[:, TRACE_EVENTS.index(name)] for name in TRACE_EVENTS)
    zero = int(start.min())

    def us(times: NDArray[np.int64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (times - zero) / NS_PER_US
        return found

    cta = np.arange(len(events))

    def until(times: NDArray[np.int64], **texts: Any) -> pd.DataFrame:
        """Rows of all CTAs, from their start on."""
        return new_rows(len(events), sm=sm, cta=cta, start_us=us(start), end_us=us(times), **texts)

    rows = [
        until(end, role="CTA", activity="resident"),
        until(loaded, role="producer", activity="load", tile=cta),
        until(previous_done, role="B producer", activity="wait", detail=PREVIOUS_KERNEL),
    ]
    info = TraceInfo(
        source="measured",
        gpu=gpu,
        kernel={
            **{"m": m, "n": n, "k": k, "batch": 1, "a_dtype": build.a_type, "b_dtype": build.b_type},
            **{"out_dtype": "bf16", "cta_m": TILE_M, "cta_n": build.tile_n, "split_k": build.split_k},
            "kernel": "overlap",
        },
        k_tiles=-(-k // (build.tile_k * build.split_k)),
        stages=build.stages,
        runtime_us=float((end.max() - zero) / NS_PER_US),
    )
    return Trace(info=info, rows=pd.concat(rows, ignore_index=True))


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
