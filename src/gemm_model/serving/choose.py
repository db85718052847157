"""The configuration of least predicted time for every token count of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_model.core.gpu import GpuSpec
from gemm_model.serving.frameworks import TOKEN_KEYS, Framework, framework_of
from gemm_model.serving.layers import DenseCell, MoeCell
from gemm_model.serving.predict import formula_us, predict_us
from gemm_model.serving.problem import BLOCK, ServedProduct
from gemm_model.serving.tile_config import FloatArray, TileConfig, TileGrid, tuning_grid

Routing = str | Sequence[int]
PROMISING = 384
"""Configurations that trees are asked of [1]; chosen: the fastest of each of 504 measured problems was
among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The choice for one token count: one configuration for all products, or one for each."""

    tokens: int
    configs: tuple[TileConfig, ...]
    predicted_us: float
    """Of the cell's products together."""
    default: TileConfig
    default_us: float

    @property
    def gain(self) -> float:
        """Time of the default over that of the choice, less 1."""
        return self.default_us / self.predicted_us - 1.0


def grid_of(product: ServedProduct) -> TileGrid:
    """The configurations to choose from; a k tile that spans two blocks of scales would be cut."""
    return tuning_grid(BLOCK if product.block_scaled else 256)


def rank(
    product: ServedProduct, gpu: GpuSpec, routing: Routing = "uniform"
) -> Iterator[tuple[TileConfig, float]]:
    """The configurations that fit, fastest first, each with its predicted time in us."""
    grid = _promising([product], gpu, routing)
    times = predict_us(product, grid, gpu, routing)
    for index in np.argsort(times, kind="stable"):
        if np.isfinite(times[index]):
            yield grid.config(index), float(times[index])


def choices_of(asked: tuple[MoeCell | DenseCell, GpuSpec, str, str]) -> list[Chosen]:
    """The choices of a cell on a card for a framework, by name, under a routing."""
    cell, gpu, framework, routing = asked
    if isinstance(cell, DenseCell):
        return choose_dense(cell, gpu, framework_of(framework))
    return choose_moe(cell, gpu, framework_of(framework), routing)


def choose_moe(
    cell: MoeCell, gpu: GpuSpec, framework: Framework, routing: Routing = "uniform"
) -> list[Chosen]:
    """One configuration for both products, or one for each where the framework keeps them apart.

    Both products share the sorted token ids, so that their tiles have equally many rows.
    """
    return [
        _chosen([cell.product(t, down=False), cell.product(t, down=True)], gpu, framework, routing)
        for t in TOKEN_KEYS
    ]


def choose_dense(cell: DenseCell, gpu: GpuSpec, framework: Framework) -> list[Chosen]:
    return [_chosen([cell.product(t)], gpu, framework, "uniform") for t in TOKEN_KEYS]


def _chosen(products: list[ServedProduct], gpu: GpuSpec, framework: Framework, routing: Routing) -> Chosen:
    grid = _promising(products, gpu, routing)
    times = [predict_us(product, grid, gpu, routing) for product in products]
    picked = _apart(grid, times) if framework.apart else [int(np.argmin(sum(times)))] * len(times)
    default = framework.default(products[0], gpu)
    alone = TileGrid.of([default])
    default_us = sum(float(predict_us(product, alone, gpu, routing)[0]) for product in products)
    configs = tuple(grid.config(index) for index in picked)
    return Chosen(
        tokens=products[0].tokens,
        configs=configs if framework.apart else configs[:1],
        predicted_us=sum(float(each[index]) for each, index in zip(times, picked, strict=True)),
        default=default,
        default_us=default_us,
    )


def _promising(products: Sequence[ServedProduct], gpu: GpuSpec, routing: Routing) -> TileGrid:
    """The configurations that the formulas find fastest: trees are asked of these alone."""
    grid = grid_of(products[0])
    times = np.sum([formula_us(product, grid, gpu, routing) for product in products], axis=0)
    fastest = np.argsort(times, kind="stable")[:PROMISING]
    return grid.take(fastest[np.isfinite(times[fastest])])


def _apart(grid: TileGrid, times: list[FloatArray]) -> list[int]:
    """For each product its own best, among those of the row tile with the least sum."""
    best: list[int] = []
    least = np.inf
    for cta_m in np.unique(grid.cta_m):
        of_size = np.flatnonzero(grid.cta_m == cta_m)
        each = [int(of_size[np.argmin(time[of_size])]) for time in times]
        total = sum(float(time[index]) for time, index in zip(times, each, strict=True))
        if total < least or not best:
            best, least = each, total
    return best
