"""Plots as files, without a window whatever backend the environment names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.core.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATES = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What savefig leaves out by the file's ending, so that equal input gives an equal file."""


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """A figure of that size in inches; `options` are those of matplotlib's Figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure in the format of the file's ending, all of it or nothing."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=dpi, metadata=DATES.get(path.suffix.lower(), {}))
