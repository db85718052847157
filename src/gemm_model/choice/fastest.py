"""The fastest kernels of a problem, without predicting those that cannot be among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.prediction import Evaluation, LeastTimes, Prediction
from gemm_model.kernel_model.residual import LIMIT
from gemm_model.kernels.candidates import Candidate, CandidateSpace
from gemm_model.kernels.feasibility import Grid
from gemm_model.models import Model

SAME_TIME = 1e-9
"""Relative difference up to which two times are equal [1]; all rankings; chosen: above rounding errors."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernels of one problem, each in its fastest tile order."""

    space: CandidateSpace
    kernels: IntArray
    """Their positions in the space."""
    evaluation: Evaluation
    orders: IntArray
    times_us: FloatArray

    def with_residual(self, top_k: int, ties: bool, slowest_us: float | None = None) -> KernelTimes:
        """A copy that corrects the kernels which a residual can bring among the `top_k`.

        `slowest_us` is the time of the last of the `top_k` if other families compete. With `ties`, kernels that
        a residual can bring into the error band of the best or before its runner-up are corrected too. The nearest
        kernels are corrected first and bound the times that still matter, because no correction exceeds LIMIT;
        other families have corrections of their own and give no bound. Tile orders are corrected one by one,
        and a kernel takes the time of the order that is fastest after correction.
        """
        beyond = 1.0 - LIMIT if slowest_us is None else 1.0 + LIMIT
        matters_us = (slowest_us or _smallest(self.times_us, top_k)) * beyond
        least_us = self.evaluation.runtime_us * (1.0 - LIMIT)
        corrected_us, band = np.full_like(least_us, np.inf), np.zeros_like(least_us)
        while (more := np.isinf(corrected_us) & (least_us <= matters_us)).any():
            correction = self.evaluation.correction(*np.nonzero(more))
            if correction is None:
                return self
            corrected_us[more], bands = correction
            if bands is not None:
                band[more] = np.nan_to_num(bands)
            kernel_us = corrected_us.min(axis=0)
            tied_us = _tied_or_next(kernel_us, band.max(axis=0)) if ties else 0.0
            matters_us = max(_smallest(kernel_us, top_k), tied_us) * (1.0 + SAME_TIME)
        kernel_us = corrected_us.min(axis=0)
        known = np.isfinite(kernel_us)
        orders = np.where(known, corrected_us.argmin(axis=0), self.orders)
        times_us = np.where(known, kernel_us, self.times_us)
        return replace(self, times_us=times_us, orders=orders) if known.any() else self

    @property
    def candidates(self) -> IntArray:
        """The candidate's position in the space."""
        return self.kernels * self.space.family.space.orders_per_kernel + self.orders

    def predictions(self, kernels: IntArray) -> Iterator[tuple[Candidate, Prediction]]:
        """The candidates of some kernels, by their positions in the grid, and their full predictions."""
        found = self.evaluation.predictions(self.orders[kernels], kernels)
        for row, candidate in enumerate(self.candidates[kernels].tolist()):
            yield self.space.candidate(candidate), found.row(row)


@dataclass(frozen=True, slots=True)
class Contenders:
    """The kernels of a space worth predicting for one problem."""

    space: CandidateSpace
    kernels: IntArray
    """Their positions in the space."""
    grid: Grid
    least: LeastTimes

    def within(self, limit_us: float) -> IntArray:
        """The kernels whose lower bound is at most `limit_us`."""
        result: IntArray = np.flatnonzero(self.least.kept * self.least.physical_us <= limit_us)
        return result

    def times(self, model: Model, limit_us: float) -> KernelTimes:
        """The times of the kernels within `limit_us`."""
        some = self.within(limit_us)
        grid = self.grid if len(some) == len(self.kernels) else self.grid.of_kernels(some)
        return kernel_times(model, self.space, grid, self.kernels[some])


def kernel_times(model: Model, space: CandidateSpace, grid: Grid, kernels: IntArray) -> KernelTimes:
    """Kernels of a problem's grid, each in its fastest tile order; `kernels` are their positions."""
    evaluation = model.evaluate(grid)
    every_us = evaluation.runtime_us
    return KernelTimes(space, kernels, evaluation, every_us.argmin(axis=0), every_us.min(axis=0))


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest of some kernels."""

    kernel_us: FloatArray
    """Time of each predicted kernel."""
    chosen: list[tuple[Candidate, Prediction]]
    """The fastest ones in order, and the runner-up behind them."""
    ties: IntArray
    """Tie groups of the fastest."""
    tied_us: float
    """Time up to which kernels tie with the best."""
    second_us: float
    """Time of the runner-up; infinite without one."""
    needed_us: float
    """Time beyond which another kernel would not change this result."""


def fastest(model: Model, contenders: Sequence[Contenders], top_k: int, ties: bool = True) -> Fastest:
    """The `top_k` fastest kernels of all contenders, as if each of them were predicted.

    It first predicts kernels whose lower bound is near the smallest, then all others that the result does not
    exclude. Ties keep their order.
    """
    least_us = np.concatenate([each.least.physical_us for each in contenders])
    numbers = room_numbers("choice")
    limit_us = numbers.first_look * _smallest(least_us, int(numbers.first_look_among) * top_k)
    several = len({each.space.family.name for each in contenders}) > 1

    def look(each: Contenders, limit_us: float) -> KernelTimes:
        """Where families contend, a correction waits for the times of all."""
        times = each.times(model, limit_us)
        return times if several else times.with_residual(top_k, ties)

    looked_at: dict[int, KernelTimes] = {}
    seen = [0] * len(contenders)
    for place in sorted(range(len(contenders)), key=lambda place: contenders[place].least.physical_us.min()):
        if sum(seen) < min(top_k, len(least_us)):
            looked_at[place] = look(contenders[place], limit_us)
            seen[place] = len(looked_at[place].kernels)
    while True:
        parts = [looked_at[place] for place in sorted(looked_at)]
        parts = _corrected_together(parts, top_k, ties) if several else parts
        found = _fastest_of(parts, top_k, ties)
        needed = [len(each.within(found.needed_us)) for each in contenders]
        missed = [place for place in range(len(contenders)) if needed[place] > seen[place]]
        if not missed:
            return found
        for place in missed:
            looked_at[place], seen[place] = look(contenders[place], found.needed_us), needed[place]


def _corrected_together(parts: Sequence[KernelTimes], top_k: int, ties: bool) -> list[KernelTimes]:
    """Corrected kernels of several families, for those among the fastest of all."""
    slowest_us = _smallest(np.concatenate([kernels.times_us for kernels in parts]), top_k)
    return [kernels.with_residual(top_k, ties, slowest_us) for kernels in parts]


def _fastest_of(parts: Sequence[KernelTimes], top_k: int, ties: bool = True) -> Fastest:
    """The fastest of kernels of one problem."""
    kernel_us = np.concatenate([kernels.times_us for kernels in parts])
    first = _in_order(kernel_us, top_k)
    best_us, last_us = kernel_us[first[[0, -1]]].tolist()
    slower_us = np.where(kernel_us > best_us * (1.0 + SAME_TIME), kernel_us, np.inf)
    second = int(slower_us.argmin())
    second_us = float(slower_us[second])
    shown, start = np.append(first, second), 0
    found: dict[int, tuple[Candidate, Prediction]] = {}
    for part in parts:
        here = np.unique(shown[(shown >= start) & (shown < start + len(part.kernels))])
        if len(here):
            found |= zip(here.tolist(), part.predictions(here - start), strict=True)
        start += len(part.kernels)
    chosen = [found[place] for place in shown.tolist()]
    bands = np.array([prediction.error_band or 0.0 for _, prediction in chosen])
    tied_us = best_us * (1.0 + max(float(bands[0]), SAME_TIME))
    return Fastest(
        kernel_us=kernel_us,
        chosen=chosen,
        ties=tie_groups(kernel_us[first], bands),
        tied_us=tied_us,
        second_us=second_us,
        needed_us=(max(last_us, tied_us, second_us) if ties else last_us) * (1.0 + SAME_TIME),
    )


def _smallest(times_us: FloatArray, count: int) -> float:
    """The `count`-th smallest time; the largest if there are fewer."""
    last = min(count, len(times_us)) - 1
    return float(np.partition(times_us, last)[last])


def _tied_or_next(times_us: FloatArray, error_band: FloatArray) -> float:
    """Time up to which times tie with the smallest, or the next larger time if that is more."""
    best = int(times_us.argmin())
    next_us = times_us[times_us > times_us[best] * (1.0 + SAME_TIME)].min(initial=np.inf)
    return float(max(times_us[best] * (1.0 + error_band[best]), next_us))


def _in_order(times_us: FloatArray, count: int) -> IntArray:
    """Positions of the smallest times in order; ties keep their order."""
    count = min(count, len(times_us))
    limit = np.partition(times_us, count - 1)[count - 1]
    near = np.flatnonzero(times_us <= limit)
    result: IntArray = near[np.argsort(times_us[near], kind="stable")][:count]
    return result


def tie_groups(times_us: FloatArray, error_band: FloatArray | None) -> IntArray:
    """Group numbers from 1 for ascending times: a group ends where a time leaves the band of its first."""
    groups = np.empty(len(times_us), dtype=np.int64)
    group, limit = 0, -np.inf
    for place, time in enumerate(times_us):
        if time > limit:
            group += 1
            band = SAME_TIME if error_band is None else max(float(error_band[place]), SAME_TIME)
            limit = time * (1.0 + band)
        groups[place] = group
    return groups
