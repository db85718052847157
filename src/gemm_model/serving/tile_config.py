"""Configurations of the frameworks' Triton kernels: the grid that they tune over, and what fits a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gemm_model.config import read_toml
from gemm_model.errors import InputError

FloatArray = NDArray[np.float64]

CTA_M = (16, 32, 64, 128, 256)
CTA_N = (32, 64, 128, 256)
CTA_K = (64, 128, 256)
GROUP_M = (1, 16, 32, 64)
WARPS = (4, 8)
STAGES = (2, 3, 4, 5)
"""The 1,920 configurations of vLLM's tuning script (benchmarks/kernels/benchmark_moe.py, 0.33.0)."""

KEYS: Mapping[str, str] = read_toml("other_names")["tile_config"]
"""What the frameworks' files call each number of a configuration."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One configuration, as a file of tuned ones holds it."""

    cta_m: int
    cta_n: int
    cta_k: int
    group_m: int
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        """Triton's ranges and warps are powers of 2."""
        for name in ("cta_m", "cta_n", "cta_k", "warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise InputError(f"{name} is {value}; expected a power of 2")
        if self.group_m < 1 or self.stages < 1:
            raise InputError(f"group_m is {self.group_m}, stages {self.stages}; expected at least 1 of each")

    def as_mapping(self) -> dict[str, int]:
        """As the frameworks' files hold it."""
        return {key: getattr(self, name) for name, key in KEYS.items()}


@dataclass(frozen=True, slots=True, eq=False)
class TileGrid:
    """Many configurations, a column a number; a grid equals itself alone, so that costs can be kept by it."""

    cta_m: FloatArray
    cta_n: FloatArray
    cta_k: FloatArray
    group_m: FloatArray
    warps: FloatArray
    stages: FloatArray

    @classmethod
    def of(cls, configs: Sequence[TileConfig]) -> TileGrid:
        return cls(*(np.array([getattr(c, name) for c in configs], dtype=np.float64) for name in KEYS))

    def take(self, rows: NDArray[np.int64]) -> TileGrid:
        """Some of the configurations."""
        return TileGrid(*(getattr(self, name)[rows] for name in KEYS))

    def config(self, index: int) -> TileConfig:
        return TileConfig(*(int(getattr(self, name)[index]) for name in KEYS))

    def where(self, config: TileConfig) -> NDArray[np.int64]:
        """Positions of a configuration: one, or none."""
        same = [getattr(self, name) == getattr(config, name) for name in KEYS]
        return np.flatnonzero(np.logical_and.reduce(same))

    def with_configs(self, configs: Sequence[TileConfig]) -> TileGrid:
        """The same with those of `configs` that it lacks at its end."""
        more = TileGrid.of([each for each in dict.fromkeys(configs) if not len(self.where(each))])
        return TileGrid(*(np.append(getattr(self, name), getattr(more, name)) for name in KEYS))

    def __len__(self) -> int:
        return len(self.cta_m)


@cache
def tuning_grid(largest_k: int = CTA_K[-1]) -> TileGrid:
    """The frameworks' grid; `largest_k` bounds the k tile: block scales change every 128 of K."""
    ks = tuple(k for k in CTA_K if k <= largest_k)
    columns = np.array(list(product(CTA_M, CTA_N, ks, GROUP_M, WARPS, STAGES)), dtype=np.float64)
    return TileGrid(*columns.T)
