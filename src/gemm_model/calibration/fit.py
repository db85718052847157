"""The robust, bounded fits to measured rows: of a kernel family's numbers, and of a card's with all its families'.

In the joint fit a number of the card has one value for all families, a number of a family one value for all
types. Only the energy of a FLOP differs by rate class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from gemm_model.calibration.observations import Observations, sizes
from gemm_model.config import mechanisms as mech
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.kernel_time import KernelTime, kernel_time
from gemm_model.kernels.registry import family_of

LAUNCH_NUMBER = "launch.kernel_us"
"""The kernels' number that moves with the card: the launch [us]; QuACK's is 2.69 on the H200, 2.83 on the H100."""
SPLIT_NUMBERS = tuple(name for name in mech.NUMBERS if name.startswith("split_k."))
"""Numbers determined only by kernels that split K."""
CHAIN_NUMBERS = tuple(name for name in mech.NUMBERS if name.startswith(("power.", "chain.")))
"""Numbers determined only by launches back to back."""
KIND_NUMBERS = {
    stage: tuple(name for name in mech.NUMBERS if name.partition(".")[0] in mechanisms)
    for stage, mechanisms in mech.KIND_STAGES.items()
}
"""Numbers determined only by a kind of problem, by kind."""
WHOLE_NUMBERS = tuple(
    name
    for name in mech.NUMBERS
    if name not in (*SPLIT_NUMBERS, *CHAIN_NUMBERS) and name.partition(".")[0] not in mech.KIND_MECHANISMS
)
"""Numbers determined by single launches of plain GEMMs with whole K."""


def fitted(names: Collection[str]) -> tuple[str, ...]:
    """Those that a calibration fits by default."""
    return tuple(name for name in names if mech.NUMBERS[name].fitted)


CHAIN_FREE, DEFAULT_FREE = fitted(CHAIN_NUMBERS), fitted(WHOLE_NUMBERS)


def free_from(donor_family: str, family: str) -> tuple[str, ...]:
    """Numbers fitted when a donor is adapted: the card's and the launch's; for another family, also those of the
    kernels' code.
    """
    if donor_family == family:
        return tuple(
            name for name in DEFAULT_FREE if mech.NUMBERS[name].of != mech.KERNEL or name == LAUNCH_NUMBER
        )
    kernels = (name for name in WHOLE_NUMBERS if name.partition(".")[0] in mech.KERNEL_MECHANISMS)
    return tuple(dict.fromkeys((*DEFAULT_FREE, *kernels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """A donor's numbers as a prior; a deviation by `spread` is as likely as a row's error of
    `outlier_scale`.
    """

    values: Mapping[str, float]
    same_kernels: bool
    """Whether the donor is the same family on another card, not another family."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Intervals that direct measurements allow numbers of its card, and so those of a card of its kind."""

    @property
    def spread(self) -> float:
        """Relative standard deviation of a number [1]."""
        numbers = room_numbers("calibration")
        return numbers.unknown_share if self.same_kernels else numbers.donor_spread

    def residuals(self, deviations: FloatArray) -> FloatArray:
        """Residuals of deviations (in spreads) for a fit with the soft-L1 loss.

        Numbers of the same kernels scatter normally: a deviation x costs x^2, which equals the soft-L1 loss
        2 (sqrt(1 + r^2) - 1) at r = x sqrt(1 + x^2 / 4). Numbers of other kernels have outliers, as rows do.
        """
        scaled: FloatArray = room_numbers("calibration").outlier_scale * deviations
        return scaled * np.sqrt(1.0 + deviations**2 / 4.0) if self.same_kernels else scaled


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted numbers, their 90 % half-widths over resampled shapes, and those that ended at a bound."""

    numbers: mech.KernelNumbers
    half_width: dict[str, float]
    at_bound: tuple[str, ...]


def fit(
    seen: Mapping[str, Observations],
    gpu: GpuSpec,
    *,
    free: Collection[str] = DEFAULT_FREE,
    start: Mapping[str, float] | None = None,
    donor: Donor | None = None,
    without: Collection[str] = (),
) -> Fit:
    """Fit the `free` numbers to rows by regime; the others keep their values in `start`.

    A `donor` is a prior for the numbers; without one, a weak pull leads to the start values. `without` names
    mechanisms that are switched off.
    """
    first = dict(start or mech.start_values())
    names = [name for name in mech.NUMBERS if name in free]
    low, span = ranges(names, {} if donor is None else donor.bounds)
    pull = _pull(donor, names, low, span)

    def numbers(unit: FloatArray) -> mech.KernelNumbers:
        values = np.clip(low + unit * span, low, low + span)
        return mech.kernel_numbers({**first, **dict(zip(names, values.tolist(), strict=True))})

    def errors(unit: FloatArray) -> list[Sequence[FloatArray]]:
        found = numbers(unit).without(without)
        return [_errors(rows, gpu, found, regime) for regime, rows in seen.items()]

    def residuals(unit: FloatArray) -> FloatArray:
        return np.concatenate([*chain.from_iterable(errors(unit)), pull(unit)])

    begin = np.clip((np.array([first[name] for name in names]) - low) / span, 0.01, 0.99)
    solved = _robust(residuals, begin)
    shapes = _shapes(zip(seen.values(), map(len, errors(solved.x)), strict=True))
    spread = covariance(solved.jac, solved.fun, shapes)
    ends = np.minimum(solved.x, 1.0 - solved.x) < room_numbers("calibration").at_bound
    return Fit(
        numbers=numbers(solved.x),
        half_width=dict(zip(names, _half_widths(spread, solved.jac, span).tolist(), strict=True)),
        at_bound=tuple(np.array(names)[ends].tolist()),
    )


def _robust(residuals: Callable[[FloatArray], FloatArray], begin: FloatArray) -> OptimizeResult:
    """The least squares of residuals, linear beyond `outlier_scale`, over numbers as shares of their ranges."""
    chosen = room_numbers("calibration")
    return least_squares(
        residuals,
        begin,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=chosen.outlier_scale,
        x_scale="jac",
        diff_step=chosen.difference_step,
        max_nfev=int(chosen.most_evaluations),
        ftol=chosen.tolerance,
        xtol=chosen.tolerance,
    )


def ranges(names: Sequence[str], allowed: Mapping[str, tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    """Low end and span of the range that each number may take; `allowed` ones replace its own."""
    ends = [allowed.get(name, (mech.NUMBERS[name].low, mech.NUMBERS[name].high)) for name in names]
    low, high = np.array(ends, dtype=np.float64).reshape(-1, 2).T
    return low, high - low


def _pull(
    donor: Donor | None, names: Sequence[str], low: FloatArray, span: FloatArray
) -> Callable[[FloatArray], FloatArray]:
    """Residuals of numbers, given as shares of their ranges, towards a donor's or the start values."""
    known, chosen = mech.start_values() if donor is None else donor.values, room_numbers("calibration")
    values = np.array([known[name] for name in names])
    centre = (values - low) / span
    if donor is None:
        return lambda unit: chosen.prior_weight * (unit - centre)
    spread = np.maximum(donor.spread * np.abs(values) / span, chosen.least_spread)
    return lambda unit: donor.residuals((unit - centre) / spread)


def time_errors(rows: Observations, predicted: KernelTime, regime: str) -> list[FloatArray]:
    """Weighted log errors of time and, but of settled chains, of time over that of the shape's best; 0 far from it."""
    error = np.log(predicted.runtime_us / rows.runtime_us)
    if regime == "sustained":
        return [rows.weight * error]
    ranking = room_numbers("calibration").ranking_weight * (error - error[rows.best_row])
    return [rows.weight * error, rows.weight * np.where(rows.near_best, ranking, 0.0)]


def _errors(
    rows: Observations, gpu: GpuSpec, numbers: mech.KernelNumbers, regime: str
) -> Sequence[FloatArray]:
    """Weighted log errors of time, of time over the shape's best, of clock and DRAM bytes where known."""
    predicted = kernel_time(rows.shape, gpu, numbers, regime=regime)
    parts = time_errors(rows, predicted, regime) + _clock_errors(rows, predicted, regime, rows.weight)
    if regime == "counters":
        dram_error = np.log(predicted.traffic.dram_read_bytes / np.maximum(rows.dram_read_bytes, 1.0))
        weight = room_numbers("calibration").dram_weight
        parts.append(weight * _known(rows.weight * dram_error))
    return parts


def _clock_errors(
    rows: Observations, predicted: KernelTime, regime: str, weight: FloatArray | float = 1.0
) -> list[FloatArray]:
    """Weighted log errors of clocks, 0 of unknown ones: counters read the kernel's, sustained rows the card's."""
    chosen = room_numbers("calibration")
    of_regime = {"counters": chosen.counters_clock_weight, "sustained": chosen.sustained_clock_weight}
    if regime not in of_regime:
        return []
    clk_mhz = predicted.set_clk_mhz if regime == "sustained" else predicted.sm_clk_mhz
    error = of_regime[regime] * (weight * np.log(clk_mhz / rows.sm_clk_mhz))
    return [_known(error)]


def _known(errors: FloatArray) -> FloatArray:
    """Errors, 0 where nothing was measured: each row has one of every sort, so that a shape's are found."""
    found: FloatArray = np.where(np.isfinite(errors), errors, 0.0)
    return found


def covariance(jacobian: FloatArray, residual: FloatArray, shapes: IntArray) -> FloatArray:
    """Covariance of least-squares estimates when whole shapes are drawn again, from the linearised problem.

    `shapes` numbers the shape of each row; further rows pull towards what is known. Rows of a shape err alike, so
    that they tell less than as many shapes. Source: the infinitesimal jackknife, H (sum of g g') H with
    H = (J'J)^-1 and g a shape's J'r less the mean of all shapes.
    """
    count = int(shapes.max()) + 1
    gradients = np.zeros((count, jacobian.shape[1]))
    np.add.at(gradients, shapes, (jacobian * residual[:, None])[: len(shapes)])
    gradients -= gradients.mean(axis=0)
    held = np.linalg.pinv(jacobian.T @ jacobian)
    found: FloatArray = held @ (gradients.T @ gradients) @ held * count / max(count - 1, 1)
    return found


def _shapes(errors_of: Iterable[tuple[Observations, int]]) -> IntArray:
    """The number of the shape of each error, where the rows of each table have so many errors; tables share shapes."""
    sizes_of = [np.tile(sizes(rows), count) for rows, count in errors_of]
    found: IntArray = np.unique(np.concatenate(sizes_of), return_inverse=True)[1]
    return found


def _half_widths(spread: FloatArray, jacobian: FloatArray, span: FloatArray) -> FloatArray:
    """90 % half-widths of numbers; infinite where one has no influence on any row."""
    deviation = np.sqrt(np.maximum(np.diag(spread), 0.0))
    found: FloatArray = np.where(np.linalg.norm(jacobian, axis=0) > 0, NORMAL_90 * deviation * span, np.inf)
    return found


COUNTED_BYTES = ("dram_read_bytes", "l2_bytes")
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
        chosen = room_numbers("calibration")
        rows = chosen.rows_of_a_table
        share = 1.0 if self.regime == "burst" else chosen.other_regime_share
        return float(np.sqrt(share * rows / max(len(self.rows), rows * chosen.least_table_share)))


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

    def numbers_of(self, family: str, kind: str) -> mech.KernelNumbers:
        return mech.kernel_numbers(self.numbers[family, kind])


def parameters(kinds: Collection[Kind], free: Collection[str]) -> list[Parameter]:
    """The parameters of the `free` numbers, by their scope, for some families and rate classes."""
    found = set()
    for name in free:
        scope = mech.NUMBERS[name].of
        for family, kind in kinds:
            found.add(
                Parameter(
                    name,
                    None if scope in (mech.CARD, mech.CARD_AND_TYPE) else family,
                    kind if scope == mech.CARD_AND_TYPE else None,
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
    evaluations: int | None = None,
) -> JointFit:
    """Fit parameters to the rows of all groups; other numbers keep their values in `start`.

    `bounds` are the intervals that direct measurements allow a number of the card; other numbers have the
    bounds of their `Number`.
    """
    problem, chosen = _Problem(groups, gpu, start, sorted(free, key=str), bounds), room_numbers("calibration")
    with ThreadPoolExecutor() as threads:
        problem.run = lambda call, jobs: list(threads.map(call, jobs))
        solved = least_squares(
            problem.residuals,
            problem.begin,
            jac=problem.jacobian,
            bounds=(0.0, 1.0),
            x_scale="jac",
            max_nfev=evaluations or int(chosen.most_evaluations),
            ftol=chosen.tolerance,
            xtol=chosen.tolerance,
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
        chosen = room_numbers("calibration")
        self.pull, self.step = chosen.start_weight * chosen.outlier_scale, chosen.difference_step
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
        numbers = mech.kernel_numbers(self.numbers(unit, group.family, group.kind))
        numbers = numbers.without(self.absent[group.family] | group.without)
        times = kernel_time(group.rows.shape, self.gpu, numbers, regime=group.regime)
        return group.weight * np.concatenate([_soft(part) for part in _group_parts(group, times)])

    def residuals(self, unit: FloatArray) -> FloatArray:
        self.errors = self.run(self._group_errors, [(unit, place) for place in range(len(self.groups))])
        self.at = unit.copy()
        return np.concatenate([*self.errors, self.pull * (unit - self.begin)])

    def jacobian(self, unit: FloatArray) -> FloatArray:
        """Derivatives by finite differences; each parameter is tried on the groups that depend on it."""
        if not np.array_equal(unit, self.at):
            self.residuals(unit)
        starts = np.cumsum([0, *map(len, self.errors)])
        found = np.zeros((starts[-1] + len(unit), len(unit)))
        found[starts[-1] :] = self.pull * np.eye(len(unit))
        jobs, places = [], []
        for column, affected in enumerate(self.affected):
            step = self.step if unit[column] < 0.5 else -self.step
            moved = unit.copy()
            moved[column] += step
            jobs += [(moved, place) for place in affected]
            places += [(column, place, step) for place in affected]
        for (column, place, step), errors in zip(places, self.run(self._group_errors, jobs), strict=True):
            found[starts[place] : starts[place + 1], column] = (errors - self.errors[place]) / step
        return found

    def shapes(self) -> IntArray:
        """The number of the shape of each error at `at`."""
        each = zip(self.groups, self.errors, strict=True)
        return _shapes((group.rows, len(errors) // len(group.rows)) for group, errors in each)

    def result(self, unit: FloatArray, jacobian: FloatArray, errors: FloatArray) -> JointFit:
        spread = covariance(jacobian, errors, self.shapes())
        deviation = np.sqrt(np.maximum(np.diag(spread), 1e-30))
        correlation = spread / np.outer(deviation, deviation) - np.eye(len(unit))
        most = np.abs(correlation).argmax(axis=1)
        width = _half_widths(spread, jacobian[: -len(unit)], self.span)
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
    """Errors whose squares are the soft-L1 loss, which is linear beyond `outlier_scale`."""
    scale = room_numbers("calibration").outlier_scale
    loss = 2.0 * (np.sqrt(1.0 + (errors / scale) ** 2) - 1.0)
    found: FloatArray = np.sign(errors) * scale * np.sqrt(loss)
    return found


def _group_parts(group: Group, times: KernelTime) -> list[FloatArray]:
    """Log errors of time, of time over the shape's best, and of clock and bytes if they were measured."""
    rows = group.rows
    parts = time_errors(rows, times, group.regime) + _clock_errors(rows, times, group.regime)
    if group.regime == "counters":
        weight = room_numbers("calibration").bytes_weight
        parts += [weight * _known(byte_errors(name, rows, times)) for name in COUNTED_BYTES]
    return parts


def byte_errors(name: str, rows: Observations, times: KernelTime) -> FloatArray:
    """Log errors of bytes, NaN for rows without that counter and, of L2 bytes, for kernels that spill."""
    count, known = len(rows), np.full(len(rows), True)
    if name == "dram_read_bytes":
        counted, predicted = rows.dram_read_bytes, times.traffic.dram_read_bytes
    else:
        counted, predicted = rows.l2_bytes, times.traffic.l2_counted_bytes
        known = np.broadcast_to(rows.shape.resources.spilled_registers, count) <= 0.0
    known = known & np.isfinite(counted) & (counted > 0.0)
    found: FloatArray = np.log(predicted / np.where(known, counted, np.nan))
    return found
