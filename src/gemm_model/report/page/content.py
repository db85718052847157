"""Content of a page: facts, figures, listings, and the columns of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from gemm_model.config import read_toml
from gemm_model.core.prediction import Prediction

COLORS = ("@blue", "@orange", "@teal", "@purple", "@pink", "@olive", "@gray", "@red")
"""Names of colours, in the order in which the parts of a figure take them; the page's script puts the
colour of the current mode (light or dark) in their place."""
SHOWN = read_toml("shown")


@dataclass(frozen=True, slots=True)
class Fact:
    """One number at the top of a page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot with its heading: Plotly traces and layout, colours by name.

    A plot of a `kind` (s_curve, predicted_measured, ratio_by_time, throughput, error_map or speed_map) is drawn
    by the page's script, with its settings, from the rows that the filters leave.
    """

    title: str
    note: str
    """A sentence on what the plot shows, which also serves as its alternative text."""
    traces: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    height_px: int = 380
    min_width_px: int = 0
    """Width below which the plot scrolls sideways [pixels]."""
    wide: bool = False


def figure(
    name: str,
    traces: Sequence[Mapping[str, Any]],
    axes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    words: Mapping[str, Any] = MappingProxyType({}),
    **size: Any,
) -> Figure:
    """The figure that `config/shown.toml` describes: `axes` add to its layout, its note holds `words`."""
    described = SHOWN["figures"][name]
    layout = {**described["layout"], **{axis: described["layout"][axis] | own for axis, own in axes.items()}}
    return Figure(
        title=described["title"], note=described["note"].format(**words), traces=traces, layout=layout, **size
    )


def points(
    name: str, x: Sequence[Any], y: Sequence[Any], marker: Mapping[str, Any], texts: Sequence[str] = ()
) -> dict[str, Any]:
    """A trace of points; hovering shows their texts, if they have some."""
    trace = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker}
    return {**trace, "text": texts, "hoverinfo": "text" if texts else "skip"}


def band_text(prediction: Prediction) -> str:
    """The error band of a prediction; nothing where it has none."""
    return "" if prediction.error_band is None else f"+- {prediction.error_band:.1%}"


def bars(
    title: str, note: str, axis: str, shown: Sequence[tuple[str, float, str]], starts: Sequence[float] = ()
) -> Figure:
    """Horizontal bars of (name, value, what hovering shows), the first on top; each may `start` off 0."""
    names, values, texts = zip(*shown, strict=True) if shown else ((), (), ())
    colors = ["@blue" if value >= 0 else "@red" for value in values]
    trace = {**SHOWN["traces"]["bars"], "orientation": "h", "x": values, "y": names, "text": texts}
    trace |= {"marker": {"color": colors}, **({"base": starts} if starts else {})}
    layout = {"xaxis": {"title": axis}, "yaxis": {"autorange": "reversed"}}
    return Figure(title=title, note=note, traces=[trace], layout=layout, height_px=100 + 26 * len(shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A table's columns, all of one length; texts are filters or shown, numbers are drawn."""

    numbers: Mapping[str, NDArray[Any]]
    texts: Mapping[str, Sequence[str]]
    filters: Mapping[str, str]
    """Text columns that the reader filters by, with their headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A small table, shown as it is."""

    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that one page shows, in its order."""

    title: str
    subtitle: str
    facts: Sequence[Fact] = ()
    figures: Sequence[Figure] = ()
    listings: Sequence[Listing] = ()
    notes: Sequence[str] = ()
    columns: Columns | None = None
