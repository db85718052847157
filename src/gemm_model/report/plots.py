"""Plots of a predicted table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.core.figures import new_figure, save_figure

MARGINS = {"left": 0.11, "right": 0.97, "bottom": 0.12, "top": 0.92}
"""Fixed: letting matplotlib fit them to logarithmic labels takes longer than drawing the plot."""


def _title(frame: pd.DataFrame) -> str:
    if "in_dtype" not in frame:
        return "all rows"
    kinds = frame.groupby("in_dtype", observed=True)["out_dtype"].unique() if "out_dtype" in frame else None
    if kinds is None:
        return ", ".join(map(str, frame["in_dtype"].unique()))
    return ", ".join(f"{name}_{out}" for name, outs in kinds.items() for out in outs)


def s_curve(frame: pd.DataFrame, model: str, gpu: str, path: Path) -> None:
    """The ratio predicted / measured of every kernel, sorted: 1 is right, above 1 is pessimistic."""
    ratio = np.sort(frame["ratio"].to_numpy())
    figure = new_figure(9, 4.5)
    axes = figure.subplots(gridspec_kw=MARGINS)
    axes.fill_between(np.arange(len(ratio)), 1, ratio, step="mid", color="tab:blue", alpha=0.35, linewidth=0)
    axes.step(np.arange(len(ratio)), ratio, where="mid", color="tab:blue", linewidth=1.2)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    ticks = (0.125, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8)
    inside = [value for value in ticks if ratio[0] * 0.9 <= value <= ratio[-1] * 1.1]
    axes.set_yticks(inside, [f"{value:g}x" for value in inside])
    axes.minorticks_off()
    axes.set(
        xlim=(0, max(len(ratio) - 1, 1)), xlabel="kernel, sorted by ratio", ylabel="predicted / measured"
    )
    axes.set_title(f"{model} on {gpu}: {_title(frame)}, {len(ratio)} kernels")
    axes.grid(axis="y", alpha=0.3)
    save_figure(figure, path)


def predicted_against_measured(frame: pd.DataFrame, model: str, gpu: str, path: Path) -> None:
    """Every kernel's predicted runtime over its measured one, coloured by limiter."""
    figure = new_figure(6, 6)
    axes = figure.subplots(gridspec_kw=MARGINS)
    for limiter, rows in frame.groupby("limiter", observed=True):
        axes.scatter(rows["runtime_us"], rows["predicted_us"], s=5, alpha=0.5, label=str(limiter))
    low = min(frame["runtime_us"].min(), frame["predicted_us"].min())
    high = max(frame["runtime_us"].max(), frame["predicted_us"].max())
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted (us)")
    axes.set_title(f"{model} on {gpu}")
    axes.legend(title="limiter", markerscale=2)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def swept(rows: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Time and TFLOP/s of every card over the number that was swept, each with its error band."""
    figure = new_figure(11, 4.5, layout="constrained")
    axes = figure.subplots(1, 2)
    values = sorted({row[name] for row in rows})
    # Steps that grow are factors.
    factors = len(values) > 2 and values[-1] - values[-2] > 1.5 * (values[1] - values[0])
    titles = {"predicted_us": "predicted time (us)", "tflops": "TFLOP/s"}
    for side, column in zip(axes, titles, strict=True):
        for gpu, table in pd.DataFrame(rows).groupby(lambda place: rows[place].get("gpu", ""), sort=False):
            at, value = table[name], table[column].astype(float)
            line = side.plot(at, value, marker="o", markersize=3, label=gpu)[0]
            band = 1.0 + table["error_band"].astype(float).fillna(0.0)
            side.fill_between(at, value / band, value * band, color=line.get_color(), alpha=0.2)
        side.set(xlabel=name, ylabel=titles[column], yscale="linear" if column == "tflops" else "log")
        side.set_xscale("log" if factors else "linear")
        for axis in (side.xaxis, side.yaxis):
            axis.set_major_formatter("{x:.6g}")
        side.grid(alpha=0.3)
    if "gpu" in rows[0]:
        axes[0].legend()
    save_figure(figure, path)
