"""How many tiles of rows a routing of tokens to experts makes: every expert is padded to whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gemm_model.core.routing import Routing
from gemm_model.errors import InputError
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.tile_config import CTA_M

SAMPLES = 8
"""Routings drawn of a skewed distribution [1]; chosen: their mean wavers by a percent."""
WORST = ":worst"
"""Ending of a routing that asks for the worst of those drawn: most of the smallest tiles."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Expected over routings: tiles of `cta_m` rows, experts at work, most tiles of a launch."""

    tiles: float
    active_experts: float
    launched: float
    """Tiles of the grid: the launcher cannot know how many it needs and takes the most; the rest exit."""


def check_routing(routing: str) -> None:
    """Raise InputError for a word that `row_tiles` does not take."""
    Routing.parse(routing.removesuffix(WORST), experts=2, tokens=1)


def row_tiles(problem: ServedProduct, cta_m: int, routing: str | Sequence[int] = "uniform") -> RowTiles:
    """Tiles of rows of one product; `routing` is uniform, balanced, zipf:EXPONENT, one of these with :worst at its
    end, or the experts' rows. Raises InputError for rows of other experts than the product's.

    vLLM gives each pair of token and expert a tile of its own where experts are four times as many or more.
    """
    asked = routing if isinstance(routing, str) else tuple(routing)
    if not isinstance(asked, str) and (len(asked) != problem.experts or min(asked) < 0):
        raise InputError(f"routing of {len(asked)} experts; expected rows of each of {problem.experts}")
    return _row_tiles(problem.tokens, problem.topk, problem.experts, problem.experts_total, cta_m, asked)


@lru_cache(maxsize=4096)
def _row_tiles(
    tokens: int, topk: int, experts: int, total: int, cta_m: int, routing: str | tuple[int, ...]
) -> RowTiles:
    pairs = tokens * topk
    if total == 1:
        tiles = float(-(-tokens // cta_m))
        return RowTiles(tiles, 1.0, tiles)
    if routing == "uniform":
        from scipy.stats import binom

        # Experts that get more rows than a tile starts at: the first tile of each expert at work, the second, ...
        having = experts * binom.sf(np.arange(0, tokens, cta_m), tokens, topk / total)
        tiles, active = float(having.sum()), float(having[0])
    else:
        counts = _counts(tokens, topk, experts, total, routing)
        tiles = float(np.ceil(counts / cta_m).sum(axis=1).mean())
        active = float((counts > 0).sum(axis=1).mean())
    if pairs * 4 <= total and experts == total:
        return RowTiles(float(pairs), active, float(pairs))
    launched = most_row_tiles(tokens, topk, experts if total == experts else total, cta_m)
    return RowTiles(min(tiles, pairs * experts / total), active, launched)


def most_row_tiles(tokens: int, topk: int, experts: int, cta_m: int) -> float:
    """Tiles that the launchers allow for: one row of each expert in a tile of its own at worst."""
    pairs = tokens * topk
    rows = pairs + experts * (cta_m - 1)
    if pairs < experts or tokens < cta_m:
        rows = min(rows, pairs * cta_m)
    return float(-(-rows // cta_m))


@lru_cache(maxsize=64)
def _counts(tokens: int, topk: int, experts: int, total: int, routing: str | tuple[int, ...]) -> np.ndarray:
    """Rows of each expert here, a line a routing."""
    if not isinstance(routing, str):
        return np.array([routing], dtype=np.float64)
    name = routing.removesuffix(WORST)
    drawn = Routing.parse(name, experts=total, tokens=tokens, top_k=topk).sample(SAMPLES)
    here = drawn[:, :experts].astype(np.float64)
    return here if name == routing else here[[np.ceil(here / CTA_M[0]).sum(axis=1).argmax()]]
