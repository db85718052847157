"""Joint fit of a card's numbers and those of its kernel families to all its rows: times, clocks, counters.

A number of the card has one value for all families, a number of a family one value for all types. Only the energy
of a FLOP differs by rate class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from gemm_model.calibration.fit import (
    CLOCK_WEIGHT,
    DIFFERENCE_STEP,
    MAX_EVALUATIONS,
    OUTLIER_SCALE,
    TOLERANCE,
    covariance,
    ranges,
    time_errors,
)
from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.kernel_time import KernelTime, kernel_time
from gemm_model.kernels.mechanisms import CARD, CARD_AND_TYPE, NUMBERS, KernelNumbers, kernel_numbers
from gemm_model.kernels.registry import family_of

ROWS_OF_A_TABLE = 1500.0
"""Total weight of a family's table of one type, whatever its length [rows]; joint fits; chosen: a family with ten
times as many rows must not determine the card's numbers alone."""
BYTES_WEIGHT = {"dram_read_bytes": 0.5, "l2_bytes": 0.5}
"""Weight of errors of bytes [1]; rows with counters; chosen: an error of bytes weighs less than one of time."""
START_WEIGHT = 1.5
"""Weight of the distance from the start [1, of a number's range, in OUTLIER_SCALE]; joint fits; chosen: weak, it
settles numbers that no row identifies."""
Kind = tuple[str, str]
"""A family and a rate class of types."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one family, rate class and regime."""

    family: str
    kind: str
    regime: str
    rows: Observations
    without: frozenset[str] = frozenset()
    """Mechanisms that are switched off."""

    @property
    def weight(self) -> float:
        """Factor [1] of the errors of all its rows, so that large tables do not outvote small ones."""
        share = 1.0 if self.regime == "burst" else 0.25
        return float(np.sqrt(share * ROWS_OF_A_TABLE / max(len(self.rows), ROWS_OF_A_TABLE / 10.0)))


@dataclass(frozen=True, slots=True, order=True)
class Parameter:
    """A number to fit, with its family and rate class; None stands for all of them."""

    number: str
    family: str | None = None
    kind: str | None = None

    def serves(self, family: str, kind: str) -> bool:
        return self.family in (None, family) and self.kind in (None, kind)


@dataclass(frozen=True, slots=True)
class JointFit:
    """Result of a joint fit: the value, interval and correlation of each parameter."""

    values: Mapping[Parameter, float]
    half_width: Mapping[Parameter, float]
    """90 % confidence half-width, linearised; infinite if no row depends on the parameter."""
    correlated: Mapping[Parameter, tuple[Parameter, float]]
    """The parameter with which each one correlates most, and the correlation [1]."""
    numbers: Mapping[Kind, Mapping[str, float]]

    def numbers_of(self, family: str, kind: str) -> KernelNumbers:
        return kernel_numbers(self.numbers[family, kind])


def parameters(kinds: Collection[Kind], free: Collection[str]) -> list[Parameter]:
    """The parameters of the `free` numbers, by their scope, for some families and rate classes."""
    found = set()
    for name in free:
        scope = NUMBERS[name].of
        for family, kind in kinds:
            found.add(
                Parameter(
                    name,
                    None if scope in (CARD, CARD_AND_TYPE) else family,
                    kind if scope == CARD_AND_TYPE else None,
                )
            )
    return sorted(found, key=lambda each: (each.number, each.family or "", each.kind or ""))


def joint_fit(
    groups: Sequence[Group],
    gpu: GpuSpec,
    start: Mapping[Kind, Mapping[str, float]],
    free: Collection[Parameter],
    *,
    bounds: Mapping[str, tuple[float, float]],
    evaluations: int = MAX_EVALUATIONS,
) -> JointFit:
    """Fit parameters to the rows of all groups; other numbers keep their values in `start`.

    `bounds` are the intervals that direct measurements allow a number of the card; other numbers have the
    bounds of their `Number`.
    """
    problem = _Problem(groups, gpu, start, sorted(free, key=str), bounds)
    with ThreadPoolExecutor() as threads:
        problem.run = lambda call, jobs: list(threads.map(call, jobs))
        solved = least_squares(
            problem.residuals,
            problem.begin,
            jac=problem.jacobian,
            bounds=(0.0, 1.0),
            x_scale="jac",
            max_nfev=evaluations,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
        )
        jacobian = problem.jacobian(solved.x)
    return problem.result(solved.x, jacobian, solved.fun)


_Job = tuple[FloatArray, int]
"""Parameters as shares of their ranges, and the position of a group."""
_Call = Callable[[_Job], FloatArray]


class _Problem:
    """Least squares of soft-L1 errors, group by group; parameters are shares of their ranges."""

    def __init__(
        self,
        groups: Sequence[Group],
        gpu: GpuSpec,
        start: Mapping[Kind, Mapping[str, float]],
        free: Sequence[Parameter],
        bounds: Mapping[str, tuple[float, float]],
    ) -> None:
        self.groups, self.gpu, self.start, self.free = groups, gpu, start, free
        self.low, self.span = ranges([each.number for each in free], bounds)
        # A parameter starts at the median over the families and rate classes that share it.
        known = [
            np.median([values[each.number] for kind, values in start.items() if each.serves(*kind)])
            for each in free
        ]
        self.begin = np.clip((np.array(known) - self.low) / self.span, 0.01, 0.99)
        self.affected = [
            [place for place, group in enumerate(groups) if each.serves(group.family, group.kind)]
            for each in free
        ]
        self.absent = {group.family: family_of(group.family, gpu).absent_mechanisms for group in groups}
        self.run: Callable[[_Call, Sequence[_Job]], list[FloatArray]] = lambda call, jobs: list(
            map(call, jobs)
        )
        self.at: FloatArray = np.array([])
        self.errors: list[FloatArray] = []

    def values(self, unit: FloatArray) -> FloatArray:
        found: FloatArray = self.low + np.clip(unit, 0.0, 1.0) * self.span
        return found

    def numbers(self, unit: FloatArray, family: str, kind: str) -> dict[str, float]:
        found = dict(self.start[family, kind])
        for each, value in zip(self.free, self.values(unit).tolist(), strict=True):
            if each.serves(family, kind):
                found[each.number] = value
        return found

    def _group_errors(self, job: _Job) -> FloatArray:
        unit, place = job
        group = self.groups[place]
        numbers = kernel_numbers(self.numbers(unit, group.family, group.kind))
        numbers = numbers.without(self.absent[group.family] | group.without)
        times = kernel_time(group.rows.shape, self.gpu, numbers, regime=group.regime)
        return group.weight * np.concatenate([_soft(part) for part in _errors(group, times)])

    def residuals(self, unit: FloatArray) -> FloatArray:
        self.errors = self.run(self._group_errors, [(unit, place) for place in range(len(self.groups))])
        self.at = unit.copy()
        return np.concatenate([*self.errors, START_WEIGHT * OUTLIER_SCALE * (unit - self.begin)])

    def jacobian(self, unit: FloatArray) -> FloatArray:
        """Derivatives by finite differences; each parameter is tried on the groups that depend on it."""
        if not np.array_equal(unit, self.at):
            self.residuals(unit)
        starts = np.cumsum([0, *map(len, self.errors)])
        found = np.zeros((starts[-1] + len(unit), len(unit)))
        found[starts[-1] :] = START_WEIGHT * OUTLIER_SCALE * np.eye(len(unit))
        jobs, places = [], []
        for column, affected in enumerate(self.affected):
            step = DIFFERENCE_STEP if unit[column] < 0.5 else -DIFFERENCE_STEP
            moved = unit.copy()
            moved[column] += step
            jobs += [(moved, place) for place in affected]
            places += [(column, place, step) for place in affected]
        for (column, place, step), errors in zip(places, self.run(self._group_errors, jobs), strict=True):
            found[starts[place] : starts[place + 1], column] = (errors - self.errors[place]) / step
        return found

    def result(self, unit: FloatArray, jacobian: FloatArray, errors: FloatArray) -> JointFit:
        spread = covariance(jacobian, errors)
        deviation = np.sqrt(np.maximum(np.diag(spread), 1e-30))
        correlation = spread / np.outer(deviation, deviation) - np.eye(len(unit))
        most = np.abs(correlation).argmax(axis=1)
        identified = np.linalg.norm(jacobian[: -len(unit)], axis=0) > 0.0
        width = np.where(identified, NORMAL_90 * deviation * self.span, np.inf)
        return JointFit(
            values=dict(zip(self.free, self.values(unit).tolist(), strict=True)),
            half_width=dict(zip(self.free, width.tolist(), strict=True)),
            correlated={
                each: (self.free[other], float(correlation[place, other]))
                for place, (each, other) in enumerate(zip(self.free, most, strict=True))
            },
            numbers={kind: self.numbers(unit, *kind) for kind in self.start},
        )


NORMAL_90 = 1.645
"""Standard deviations that hold 90 % of a normal distribution [1]."""


def _soft(errors: FloatArray) -> FloatArray:
    """Errors whose squares are the soft-L1 loss, which is linear beyond OUTLIER_SCALE."""
    loss = 2.0 * (np.sqrt(1.0 + (errors / OUTLIER_SCALE) ** 2) - 1.0)
    found: FloatArray = np.sign(errors) * OUTLIER_SCALE * np.sqrt(loss)
    return found


def _errors(group: Group, times: KernelTime) -> list[FloatArray]:
    """Log errors of time, of time over the shape's best, and of clock and bytes if they were measured."""
    rows = group.rows
    parts = time_errors(rows, times, group.regime)
    if group.regime in CLOCK_WEIGHT:
        clk_mhz = times.set_clk_mhz if group.regime == "sustained" else times.sm_clk_mhz
        clock = np.log(clk_mhz / rows.sm_clk_mhz)
        parts.append(CLOCK_WEIGHT[group.regime] * clock[np.isfinite(clock)])
    if group.regime == "counters":
        parts += [weight * byte_errors(name, rows, times) for name, weight in BYTES_WEIGHT.items()]
    return parts


def byte_errors(name: str, rows: Observations, times: KernelTime) -> FloatArray:
    """Log errors of bytes, for rows with that counter; of L2 bytes, only for kernels without spills."""
    count, known = len(rows), np.full(len(rows), True)
    if name == "dram_read_bytes":
        counted, predicted = rows.dram_read_bytes, times.traffic.dram_read_bytes
    else:
        counted, predicted = rows.l2_bytes, times.traffic.l2_counted_bytes
        known = np.broadcast_to(rows.shape.resources.spilled_registers, count) <= 0.0
    known = known & np.isfinite(counted) & (counted > 0.0)
    found: FloatArray = np.log(np.broadcast_to(predicted, count)[known] / counted[known])
    return found
