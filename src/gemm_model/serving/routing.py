"""How many tiles of rows a routing of tokens to experts makes: every expert is padded to whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemm_model.core.routing import Routing
from gemm_model.serving.problem import ServedProduct

SAMPLES = 8
"""Routings drawn of a skewed distribution [1]; chosen: their mean wavers by a percent."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Expected over routings: tiles of `cta_m` rows, experts at work, most tiles of a launch."""

    tiles: float
    active_experts: float
    launched: float
    """Tiles of the grid: the launcher cannot know how many it needs and takes the most; the rest exit."""


def row_tiles(problem: ServedProduct, cta_m: int, routing: str | Sequence[int] = "uniform") -> RowTiles:
    """Tiles of rows of one product; `routing` is uniform, balanced, zipf:EXPONENT or the experts' rows.

    vLLM gives each pair of token and expert a tile of its own where experts are four times as many or more.
    """
    asked = routing if isinstance(routing, str) else tuple(routing)
    return _row_tiles(problem.tokens, problem.topk, problem.experts, problem.experts_total, cta_m, asked)


@lru_cache(maxsize=4096)
def _row_tiles(
    tokens: int, topk: int, experts: int, total: int, cta_m: int, routing: str | tuple[int, ...]
) -> RowTiles:
    pairs = tokens * topk
    if total == 1:
        tiles = float(-(-tokens // cta_m))
        return RowTiles(tiles, 1.0, tiles)
    here = pairs * experts / total
    if pairs * 4 <= total and experts == total:
        return RowTiles(float(pairs), _active(tokens, topk, experts, total, routing), float(pairs))
    launched = most_row_tiles(tokens, topk, experts if total == experts else total, cta_m)
    if routing == "uniform":
        from scipy.stats import binom

        share = topk / total
        starts = np.arange(0, tokens, cta_m)
        tiles = experts * float(binom.sf(starts, tokens, share).sum())
    else:
        counts = _counts(tokens, topk, experts, total, routing)
        tiles = float(np.ceil(counts / cta_m).sum(axis=1).mean())
    return RowTiles(min(tiles, here), _active(tokens, topk, experts, total, routing), launched)


def most_row_tiles(tokens: int, topk: int, experts: int, cta_m: int) -> float:
    """Tiles that the launchers allow for: one row of each expert in a tile of its own at worst."""
    pairs = tokens * topk
    rows = pairs + experts * (cta_m - 1)
    if pairs < experts or tokens < cta_m:
        rows = min(rows, pairs * cta_m)
    return float(-(-rows // cta_m))


def _active(tokens: int, topk: int, experts: int, total: int, routing: str | tuple[int, ...]) -> float:
    """Experts that get a row: each is left out by a token with probability 1 - topk / experts."""
    if routing == "uniform":
        return experts * (1.0 - (1.0 - topk / total) ** tokens)
    counts = _counts(tokens, topk, experts, total, routing)
    return float((counts > 0).sum(axis=1).mean())


@lru_cache(maxsize=64)
def _counts(tokens: int, topk: int, experts: int, total: int, routing: str | tuple[int, ...]) -> np.ndarray:
    """Rows of each expert here, a line a routing."""
    if not isinstance(routing, str):
        return np.array([routing], dtype=np.float64)
    drawn = Routing.parse(routing, experts=total, tokens=tokens, top_k=topk).sample(SAMPLES)
    return drawn[:, :experts].astype(np.float64)
