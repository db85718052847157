"""The page of a ranking: the fastest kernels with their bands and ties, and tile against cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gemm_model.choice.selection import Choice, Ranking
from gemm_model.core.fields import KIND_COLUMNS, number_text, problem_fields
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.candidates import Candidate
from gemm_model.report.page import content

MOST_SHOWN = 16
"""Kernels in the plot and the list [1]; rankings; chosen: the map of tiles and clusters holds all that were
ranked."""
Cells = Sequence[Sequence[Choice | None]]
"""The fastest choice of each cluster (a row) and tile; None where the ranking has none."""


def ranking_page(ranking: Ranking, limited_by: str = "") -> content.Page:
    """The page of `rank`; the map is as complete as the ranking is long."""
    return content.Page(
        title=gemm_title(ranking.problem),
        subtitle=f"The fastest of {ranking.kernels:,} kernels on {ranking.gpu.name}, by prediction",
        facts=ranking_facts(ranking, limited_by),
        figures=[ranking_figure(ranking), tile_map(ranking)],
        listings=[ranking_list(ranking)],
        notes=ranking.best.prediction.caveats,
    )


def gemm_title(problem: GemmProblem) -> str:
    """A problem as the title of a page: type, sizes, and what makes it more than a plain GEMM."""
    fields = problem_fields(problem)
    beyond = [
        f"{name} {fields[name]!s:.120}" for name in ("batch", *KIND_COLUMNS) if fields.get(name, 1) != 1
    ]
    return ", ".join([f"{problem.a_dtype.name} GEMM {problem.m} x {problem.n} x {problem.k}", *beyond])


def kernel_name(candidate: Candidate) -> str:
    """Name of a kernel: family, tile, cluster, schedule and other distinguishing parts."""
    config = candidate.config
    words = [config.kernel, f"{config.cta_m}x{config.cta_n}", f"{config.cluster_m}x{config.cluster_n}"]
    words.append(config.schedule)
    if config.split_k > 1:
        words.append(f"split-K {config.split_k}")
    if candidate.swap_ab:
        words.append("swapped")
    return " ".join(words)


def ranking_facts(ranking: Ranking, limited_by: str) -> list[content.Fact]:
    """The best kernel, its time and speed, and how many tie with it."""
    best, problem = ranking.best.prediction, ranking.problem
    family, tile, others = kernel_name(ranking.best.candidate).split(" ", 2)
    return [
        content.Fact("Best kernel", tile, f"{family}, cluster {others}"),
        content.Fact("Predicted", f"{number_text(best.runtime_us)} us", content.band_text(best)),
        content.Fact("Speed", f"{problem.flop / best.runtime_us / 1e6:.4g}", "TFLOP/s"),
        content.Fact("Limiter", limited_by or best.limiter, "of the best kernel"),
        content.Fact("Tied with it", f"{ranking.tied_with_best - 1}", f"of {ranking.kernels:,} kernels"),
    ]


def ranking_figure(ranking: Ranking) -> content.Figure:
    """The fastest kernels with their error bands; those tied with the first in their own colour."""
    shown = ranking.choices[:MOST_SHOWN]
    traces = []
    for name, color, choices in (
        ("tied with the first", "@blue", [each for each in shown if each.tie_group == 1]),
        ("slower by more than the band", "@gray", [each for each in shown if each.tie_group != 1]),
    ):
        times_us = [each.prediction.runtime_us for each in choices]
        around_us = [each.prediction.runtime_us * (each.prediction.error_band or 0.0) for each in choices]
        error = {"type": "data", "array": around_us, "color": color, "thickness": 1.5, "width": 4}
        texts = [_description(each, ranking) for each in choices]
        trace = content.points(
            name, times_us, [_label(each) for each in choices], {"color": color, "size": 10}, texts
        )
        traces.append(trace | ({"error_x": error} if any(around_us) else {}))
    traces = [trace for trace in traces if trace["x"]]
    axes = {"yaxis": {"categoryarray": [_label(each) for each in shown]}}
    words = {"count": len(shown), "reason": ranking.reason}
    return content.figure("ranking", traces, axes, words, height_px=120 + 36 * len(shown), wide=True)


def _label(choice: Choice) -> str:
    """Rank and name on two lines, which leave room for the times on a phone."""
    family, tile, others = kernel_name(choice.candidate).split(" ", 2)
    return f"{choice.rank}. {family} {tile}<br>{others}"


def tile_map(ranking: Ranking) -> content.Figure:
    """The fastest kernel of each tile and cluster: its time over the best one's, and its limiter as a dot."""
    fastest: dict[tuple[str, str], Choice] = {}
    for choice in ranking.choices:
        config = choice.candidate.config
        key = (f"{config.cta_m}x{config.cta_n}", f"{config.cluster_m}x{config.cluster_n}")
        fastest.setdefault(key, choice)
    tiles = sorted({tile for tile, _ in fastest}, key=_extents)
    clusters = sorted({cluster for _, cluster in fastest}, key=_extents)
    cells = [[fastest.get((tile, cluster)) for tile in tiles] for cluster in clusters]
    names = {"xaxis": tiles, "yaxis": clusters}
    axes = {axis: {"tickvals": list(range(len(own))), "ticktext": own} for axis, own in names.items()}
    size: dict[str, Any] = {
        "height_px": 160 + 44 * len(clusters),
        "min_width_px": 110 + 42 * len(tiles),
        "wide": True,
    }
    return content.figure("tile_map", [_heat(cells, ranking), *_limiter_dots(cells)], axes, **size)


def _heat(cells: Cells, ranking: Ranking) -> dict[str, Any]:
    """How much slower each cell's kernel is than the best, as colour and text."""

    def grid(value: Callable[[Choice], Any], missing: str | None = None) -> list[list[Any]]:
        return [[missing if choice is None else value(choice) for choice in row] for row in cells]

    return {
        **content.SHOWN["traces"]["heat"],
        "x": list(range(len(cells[0]))),
        "y": list(range(len(cells))),
        "z": grid(lambda choice: min(_slower(choice, ranking), 1.0)),
        "text": grid(lambda choice: f"{_slower(choice, ranking):.0%}", ""),
        "hovertext": grid(lambda choice: _description(choice, ranking), ""),
    }


def _limiter_dots(cells: Cells) -> list[dict[str, Any]]:
    """A dot in each cell, in the colour of its limiter."""
    places: dict[str, list[tuple[int, float]]] = {}
    for y, row in enumerate(cells):
        for x, choice in enumerate(row):
            if choice is not None:
                places.setdefault(choice.prediction.limiter, []).append((x, y - 0.32))
    dots = []
    for code, limiter in enumerate(sorted(places)):
        columns, rows = zip(*places[limiter], strict=True)
        color, line = content.COLORS[code % len(content.COLORS)], {"color": "@surface", "width": 1}
        dots.append(content.points(limiter, columns, rows, {"color": color, "size": 7, "line": line}))
    return dots


def ranking_list(ranking: Ranking) -> content.Listing:
    """The fastest kernels as a table."""
    rows = []
    for choice in ranking.choices[:MOST_SHOWN]:
        config, prediction = choice.candidate.config, choice.prediction
        band = "" if prediction.error_band is None else f"{prediction.error_band:.1%}"
        speed = f"{ranking.problem.flop / prediction.runtime_us / 1e6:.4g}"
        times = (f"{prediction.runtime_us:.4g}", band, speed, prediction.limiter)
        name, places = kernel_name(choice.candidate), (str(choice.rank), str(choice.tie_group))
        rows.append((name, *places, *times, f"{config.raster} {config.swizzle}"))
    return content.Listing(**content.SHOWN["listings"]["ranking"], rows=rows)


def _extents(name: str) -> tuple[int, int]:
    """A tile's or cluster's place: by area, then by rows."""
    rows, columns = (int(extent) for extent in name.split("x"))
    return rows * columns, rows


def _slower(choice: Choice, ranking: Ranking) -> float:
    """Its time over that of the first, less 1."""
    return choice.prediction.runtime_us / ranking.best.prediction.runtime_us - 1.0


def _description(choice: Choice, ranking: Ranking) -> str:
    prediction = choice.prediction
    time = f"{number_text(prediction.runtime_us)} us {content.band_text(prediction)}"
    return (
        f"<b>{kernel_name(choice.candidate)}</b><br>{time}<br>{_slower(choice, ranking):.1%} slower than the "
        f"first<br>limited by {prediction.limiter}<br>rank {choice.rank}"
    )
