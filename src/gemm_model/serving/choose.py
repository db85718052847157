"""The configuration of least predicted time for every token count of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.gpu import GpuSpec
from gemm_model.serving.frameworks import TOKEN_KEYS, Framework, framework_of
from gemm_model.serving.layers import DenseCell, MoeCell
from gemm_model.serving.model import Launches, launches_of, times_of
from gemm_model.serving.problem import BLOCK, ServedProduct
from gemm_model.serving.residual import corrects, factors, features, first_trees, residual
from gemm_model.serving.resources import resources_of
from gemm_model.serving.tile_config import FloatArray, TileConfig, TileGrid, tuning_grid

Routing = str | Sequence[int]
TRITON_STAGES = 3.0
"""Stages of a kernel that names none [stages]; Triton."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The choice for one token count: one configuration for all products, or one for each."""

    tokens: int
    configs: tuple[TileConfig, ...]
    predicted_us: float
    """Of the cell's products together."""
    default: TileConfig
    default_us: float
    best: tuple[tuple[TileConfig, float], ...] = ()
    """The best for all products, as many as were asked for, each with its predicted time [us]."""
    timed_us: float | None = None
    """Measured, of the cell's products together; None where nothing was timed."""
    default_timed_us: float | None = None

    @property
    def gain(self) -> float:
        """Time of the default over that of the choice, less 1: measured ones where both are."""
        if self.timed_us is not None and self.default_timed_us is not None:
            return self.default_timed_us / self.timed_us - 1.0
        return self.default_us / self.predicted_us - 1.0


def choices_of(asked: tuple[MoeCell | DenseCell, GpuSpec, str, str, int]) -> list[Chosen]:
    """The choices of a cell on a card for a framework, by name, under a routing, each with its `best`.

    One configuration for both products of experts, or one for each where the framework keeps them apart. Both
    share the sorted token ids, so that their tiles have equally many rows.
    """
    cell, gpu, framework, routing, best = asked
    products = [products_of(cell, tokens) for tokens in TOKEN_KEYS]
    return choose_layers(products, gpu, framework_of(framework), routing, best=best)


def products_of(cell: MoeCell | DenseCell, tokens: int) -> list[ServedProduct]:
    """What the layer multiplies: both products of experts, or one."""
    if isinstance(cell, DenseCell):
        return [cell.product(tokens)]
    return [cell.product(tokens, down=down) for down in (False, True)]


def choose_layers(
    layers: Sequence[Sequence[ServedProduct]],
    gpu: GpuSpec,
    framework: Framework,
    routing: Routing = "uniform",
    *,
    best: int = 0,
) -> list[Chosen]:
    """The choice for each token count of a layer: its products, which share a kernel."""
    defaults = [framework.default(products[0], gpu) for products in layers]
    grid = candidates(layers[0][0].smallest, gpu, tuple(dict.fromkeys(defaults)))
    chosen = []
    for products, default in zip(layers, defaults, strict=True):
        launches = [launches_of(product, grid, gpu, routing) for product in products]
        (own,) = grid.where(default)
        chosen.append(
            _chosen(shortlist(launches, int(own), apart=framework.apart), apart=framework.apart, best=best)
        )
    return chosen


@lru_cache(maxsize=64)
def candidates(kernel: ServedProduct, gpu: GpuSpec, more: tuple[TileConfig, ...] = ()) -> TileGrid:
    """The configurations to choose from: those of the frameworks' grid that fit, and `more`.

    A k tile that spans two blocks of scales would be cut.
    """
    grid = tuning_grid(BLOCK if kernel.block_scaled else 256)
    return grid.take(np.flatnonzero(resources_of(kernel, grid, gpu).fits)).with_configs(more)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Launches of configurations that may be the fastest, the default first, and each product's times [us]."""

    launches: list[Launches]
    times: list[FloatArray]

    @property
    def grid(self) -> TileGrid:
        return self.launches[0].grid

    @property
    def margin(self) -> float:
        """Gain over the default below which the model cannot tell the two apart [1]."""
        numbers = self.launches[0].numbers
        return numbers.trees_margin if corrects(self.launches[0].gpu) else numbers.formulas_margin


def ranked(launches: Launches, times_us: FloatArray) -> FloatArray:
    """Times by which a choice is made [us]: where formulas stand alone, Triton's number of stages wins a tie."""
    if corrects(launches.gpu):
        return times_us
    others = launches.grid.stages != TRITON_STAGES
    return np.where(others, 1.0 + launches.numbers.stages_margin, 1.0) * times_us


def shortlist(launches: Sequence[Launches], own: int, *, apart: bool) -> Shortlist:
    """Of the products of a layer, sieved by the formulas, then by the first trees where trees know the card.

    The configuration at `own` stays. Products that need not share one (`apart`) are sieved each for itself.
    """
    numbers, times = launches[0].numbers, [times_of(each) for each in launches]
    rows = _fastest([each.total_us for each in times], int(numbers.promising), own, apart=apart)
    launches = [each.take(rows) for each in launches]
    if not corrects(launches[0].gpu):
        return Shortlist(list(launches), [each.total_us[rows] for each in times])
    seen = [features(each, time.take(rows)) for each, time in zip(launches, times, strict=True)]
    plain = [time.total_us[rows] for time in times]
    sieved = [time * factors(first_trees(), of) for time, of in zip(plain, seen, strict=True)]
    last = _fastest(sieved, int(numbers.finalists), 0, apart=apart)
    exact = [time[last] * factors(residual(), of[:, last]) for time, of in zip(plain, seen, strict=True)]
    return Shortlist([each.take(last) for each in launches], exact)


def _fastest(times: Sequence[FloatArray], count: int, own: int, *, apart: bool) -> NDArray[np.int64]:
    """Positions of the default, and of the `count` fastest for all products or for each."""
    totals = times if apart else [np.sum(times, axis=0)]
    fastest = [np.argsort(total, kind="stable")[:count] for total in totals]
    rows = [
        row for of, total in zip(fastest, totals, strict=True) for row in of[np.isfinite(total[of])].tolist()
    ]
    return np.array(list(dict.fromkeys([own, *rows])), dtype=np.int64)


def _chosen(found: Shortlist, *, apart: bool, best: int) -> Chosen:
    """The best of a shortlist, or the default where the model cannot tell the two apart."""
    times = found.times
    by = [ranked(each, time) for each, time in zip(found.launches, times, strict=True)]
    picked = _apart(found.grid, by) if apart else [int(np.argmin(np.sum(by, axis=0)))] * len(times)
    default_us = sum(float(time[0]) for time in times)
    least_us = sum(float(time[index]) for time, index in zip(times, picked, strict=True))
    if default_us <= least_us * (1.0 + found.margin):
        picked, least_us = [0] * len(times), default_us
    return Chosen(
        tokens=found.launches[0].product.tokens,
        configs=tuple(found.grid.config(index) for index in (picked if apart else picked[:1])),
        predicted_us=least_us,
        default=found.grid.config(0),
        default_us=default_us,
        best=_best(found, np.sum(by, axis=0), best),
    )


def _best(found: Shortlist, by: FloatArray, count: int) -> tuple[tuple[TileConfig, float], ...]:
    """The fastest `count`, one of those that differ by GROUP_SIZE_M or warps alone: they are nearly twins."""
    kept: dict[TileConfig, tuple[TileConfig, float]] = {}
    together = np.sum(found.times, axis=0)
    for index in np.argsort(by, kind="stable").tolist():
        if len(kept) == count:
            break
        config = found.grid.config(index)
        kept.setdefault(replace(config, group_m=1, warps=4), (config, float(together[index])))
    return tuple(kept.values())


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


class Timer(Protocol):
    """Something that runs configurations of a product."""

    def times_us(self, product: ServedProduct, configs: Sequence[TileConfig]) -> list[float]:
        """Time of each [us]; infinite where it does not run."""


def confirmed(cell: MoeCell | DenseCell, chosen: Chosen, timer: Timer) -> Chosen:
    """The fastest of a choice's best and the default, timed for all products."""
    predicted_us = {chosen.default: chosen.default_us} | dict(chosen.best)
    configs = list(predicted_us)
    timed = [timer.times_us(product, configs) for product in products_of(cell, chosen.tokens)]
    together = [sum(each) for each in zip(*timed, strict=True)]
    fastest = min(range(len(configs)), key=together.__getitem__)
    return replace(
        chosen,
        configs=(configs[fastest],),
        predicted_us=predicted_us[configs[fastest]],
        timed_us=together[fastest],
        default_timed_us=together[0],
    )
