"""The page of `gemm-model model`: where the time of each pass goes, part by part, and what a token costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_model.core.figures import new_figure, save_figure
from gemm_model.report.page.content import Fact, Figure, Listing, Page, bars

Row = Mapping[str, Any]


def model_page(
    title: str, totals: Sequence[Row], parts: Sequence[Sequence[Row]], notes: Sequence[str]
) -> Page:
    """The page of passes: their totals, and the rows of each one's parts, as the verb's document holds them."""
    header = ("layer_us", "total_us", "us_per_token", "tokens_per_s", "usd_per_million_tokens")
    rows = [(_name(each), *(_shown(each[name]) for name in header)) for each in totals]
    return Page(
        title=title,
        subtitle="Time of a pass by part: every product and attention of all layers",
        facts=[Fact(_name(each), f"{_shown(each['tokens_per_s'])} tokens/s") for each in totals],
        figures=[_figure(total, rows) for total, rows in zip(totals, parts, strict=True)],
        listings=[Listing(title="Passes", note="Prices as given.", header=("pass", *header), rows=rows)],
        notes=notes,
    )


def plot_passes(totals: Sequence[Row], parts: Sequence[Sequence[Row]], path: Path) -> None:
    """Write a picture of passes: the time of each part [us], with what limits it."""
    figure = new_figure(9.0, 1.0 + 3.0 * len(totals), layout="constrained")
    panels = figure.subplots(len(totals), squeeze=False)[:, 0]
    for axes, total, rows in zip(panels, totals, parts, strict=True):
        drawn = axes.barh([row["part"] for row in rows], [row["total_us"] for row in rows])
        axes.bar_label(drawn, [row["limiter"].lower() for row in rows], padding=3)
        axes.invert_yaxis()
        axes.set(title=f"{_name(total)}, {_shown(total['total_us'])} us", xlabel="us of a pass")
        axes.margins(x=0.15)
    save_figure(figure, path)


def _figure(total: Row, rows: Sequence[Row]) -> Figure:
    shown = []
    for row in rows:
        words = f"{row['count']} x {_shown(row['call_us'])} us, {row['share']:.1%}, {row['limiter']}"
        shown.append((row["part"], row["total_us"], words))
    band = "" if total["error_band"] is None else f" within {total['error_band']:.1%}"
    note = f"{total['tokens']} tokens, {_shown(total['total_us'])} us in all{band}; hover for calls and limiters."
    return bars(_name(total), note, "us", shown)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def _name(total: Row) -> str:
    return f"{total['phase']} on {total['cards']} x {total['gpu']}"
