"""Plots of the memory hierarchy: rooflines, the frontier of tiles, the ladder of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemm_model.core.figures import new_figure, save_figure
from gemm_model.hierarchy.levels import Machine
from gemm_model.hierarchy.matching import Matching
from gemm_model.hierarchy.roofline import roofs

if TYPE_CHECKING:
    import pandas as pd

    from gemm_model.hierarchy.solve import Solution

COLOURS = ("tab:blue", "tab:green", "tab:orange", "tab:purple", "tab:brown")


def plot_roofline(machine: Machine, matching: Matching, path: Path) -> None:
    """One roof per level, the kernel's dot under each, and the datapath's peak above all."""
    figure = new_figure(7.5, 5, layout="constrained")
    axes = figure.subplots()
    found = roofs(machine, matching)
    peak = machine.peak_tflops
    reached = matching.fraction_of_peak * peak
    low = min(min(roof.flop_per_byte, roof.ridge_flop_per_byte) for roof in found) / 4
    high = max(max(roof.flop_per_byte, roof.ridge_flop_per_byte) for roof in found) * 4
    intensity = np.geomspace(low, high, 200)
    for position, (colour, roof) in enumerate(zip(COLOURS, found, strict=False)):
        axes.plot(intensity, np.minimum(peak, roof.tb_per_s * intensity), color=colour, linewidth=1.2)
        axes.plot(
            roof.flop_per_byte,
            reached,
            "o",
            # Levels with equal tiles have equal intensity: rings of different size show each.
            markersize=6 + 4 * position,
            markerfacecolor="none",
            markeredgewidth=2,
            color=colour,
            label=f"{roof.level}: {roof.tb_per_s:.3g} TB/s, {roof.flop_per_byte:.3g} FLOP/B",
        )
    axes.axhline(reached, color="black", linestyle=":", linewidth=1)
    axes.annotate(
        f"{reached:.1f} TFLOP/s: {matching.limiting.name}",
        (high, reached),
        xytext=(-4, -14),
        textcoords="offset points",
        horizontalalignment="right",
    )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte that crosses the level", ylabel="TFLOP/s")
    axes.set_title(f"{machine.gpu.name}, {machine.datapath.name}, peak {peak:.1f} TFLOP/s")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(True, which="both", alpha=0.2)
    save_figure(figure, path)


def plot_frontier(machine: Machine, solution: Solution, path: Path) -> None:
    """Fraction of peak over the size of the CTA tile, for the tiles that no smaller one beats."""
    figure = new_figure(7.5, 4.5, layout="constrained")
    axes = figure.subplots()
    sizes = [candidate.tile_size for candidate in solution.frontier]
    fractions = [candidate.fraction_of_peak for candidate in solution.frontier]
    axes.step(sizes, fractions, where="post", color="tab:blue")
    axes.plot(sizes, fractions, "o", color="tab:blue")
    for candidate in solution.frontier:
        tile = candidate.blocking
        inner = f"{tile.thread_m or tile.mma_m}x{tile.thread_n or tile.mma_n}"
        axes.annotate(
            f"{tile.cta_m}x{tile.cta_n}x{tile.cta_k}\n{inner}",
            (candidate.tile_size, candidate.fraction_of_peak),
            xytext=(4, -22),
            textcoords="offset points",
            fontsize=7,
        )
    axes.axhline(solution.target, color="black", linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set(xlim=(sizes[0] / 1.5, sizes[-1] * 2.5), ylim=(0, 1.05))
    axes.set(xlabel="outputs of the CTA tile", ylabel="fraction of peak")
    axes.set_title(f"tiles that fit {machine.gpu.name}, {machine.datapath.name}")
    axes.grid(True, alpha=0.2)
    save_figure(figure, path)


def plot_ladder(joined: pd.DataFrame, path: Path) -> None:
    """Measured and predicted throughput of every kernel of the ladder, coloured by rung."""
    figure = new_figure(9, 7.5, layout="constrained")
    axes = figure.subplots()
    rungs = list(dict.fromkeys(joined.rung))
    positions = np.arange(len(joined))[::-1]
    for colour, rung in zip(COLOURS, rungs, strict=False):
        chosen = (joined.rung == rung).to_numpy()
        axes.barh(
            positions[chosen], joined.tflops[chosen], color=colour, alpha=0.55, label=f"{rung}, measured"
        )
    axes.plot(joined.predicted_tflops, positions, "k|", markersize=8, label="predicted")
    axes.set_yticks(positions, joined.kernel, fontsize=6)
    axes.set_xlabel("TFLOP/s")
    first = joined.iloc[0]
    axes.set_title(f"fp32 on CUDA cores, {first.m:.0f} x {first.n:.0f} x {first.k:.0f}")
    axes.legend(fontsize=8, loc="upper right")
    axes.grid(True, axis="x", alpha=0.2)
    save_figure(figure, path)
