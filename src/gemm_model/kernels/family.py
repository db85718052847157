"""What is known of a library's kernels before any measurement: offers, needs, tile order, tile period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TileOrder:
    """In which order a grid walks the tiles; a panel is a row or a column of clusters.

    Panels of one extent are walked together in groups of `swizzle`; within a group consecutive clusters run
    over the group's panels first, then advance along the other extent.
    """

    name: str
    grouped: Literal["shorter", "longer", "m"]
    """The extent whose panels are grouped where the raster is 'heuristic'."""
    whole_extent: bool = False
    """Whether a group is all panels of its extent, whatever the swizzle."""
    serpentine: bool = True
    """Whether every other group is walked backwards."""
    dynamic: bool = False
    """Whether a cluster fetches its next tile when it is free, so that no static stride assigns tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePeriod:
    """How the mainloop and the epilogue of consecutive tiles share the MMA warps and their accumulators."""

    accumulators: Literal["registers", "tensor_memory"]
    persistent: bool = True
    """Whether a CTA goes on to further tiles; else each CTA takes one, and the grid comes in waves."""

    @property
    def in_tensor_memory(self) -> bool:
        return self.accumulators == "tensor_memory"
