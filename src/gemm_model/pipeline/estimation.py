"""A machine's parameters from measurements: two points by hand, or any number of runs by a robust fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.errors import InputError
from gemm_model.pipeline.machine import PS_PER_US, PipelineKernel, PipelineMachine, with_parameters, workload
from gemm_model.pipeline.steady_state import kernel_time

CONFIDENCE = 0.95
OUTLIER = 0.05
"""Relative error beyond which the loss grows linearly [1]; fits of machines; chosen: single bad runs do not
steer the fit."""
_STEP = 1e-3
"""Step of the derivatives [1, of a start value]; fits of machines; far above the picosecond that times are
rounded to."""
_INVISIBLE = 1e-6
"""Share of the largest singular value [1]; smaller ones belong to directions that the data do not see;
chosen."""
_HIDDEN_SHARE = 1e-3
"""Share of a parameter in such a direction [1]; beyond it the parameter is not identified; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """time = size / throughput_per_us + startup_us"""

    throughput_per_us: float
    startup_us: float


def two_point_estimate(size: float, time_us: float, other_size: float, other_time_us: float) -> LinearCost:
    """Throughput and startup latency from two timed operations of different size.

    Equations 4 to 7 of Liu and Grover: elements (or bytes) for a load, multiply-adds for math. The paper's
    equation 5 prints T_M x T_N where the first operand's T_M x T_K is loaded; `size` is what is moved.
    """
    if size == other_size or time_us == other_time_us or (size > other_size) != (time_us > other_time_us):
        raise InputError(
            f"{size:g} in {time_us:g} us and {other_size:g} in {other_time_us:g} us; expected two sizes of "
            "which the larger takes longer"
        )
    throughput = (size - other_size) / (time_us - other_time_us)
    return LinearCost(throughput_per_us=throughput, startup_us=time_us - size / throughput)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter to fit: its name, start value and bounds.

    A rate (`*_per_us`, `*_per_clk`) is fitted as the time of one unit, so that an infinite rate is in reach.
    """

    name: str
    start: float
    low: float = 0.0
    high: float = np.inf

    def __post_init__(self) -> None:
        if not (np.isfinite(self.start) and self.start > 0):
            raise InputError(f"start value of {self.name} is {self.start:g}; expected a positive number")

    def fitted(self, value: float) -> float:
        """The fitted value of this one (the reciprocal of a rate), and back: it is its own inverse."""
        if not self.name.endswith(("_per_us", "_per_clk")):
            return value
        return np.inf if value == 0 else 1.0 / value


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEstimate:
    """A fitted value with its confidence interval."""

    name: str
    value: float
    low: float
    high: float
    identified: bool
    """False if the measurements do not separate this parameter from others: other values fit as well."""
    at_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a fit found; errors are |predicted / measured - 1| over the measurements it was given."""

    parameters: tuple[ParameterEstimate, ...]
    mean_error: float
    worst_error: float

    @property
    def values(self) -> dict[str, float]:
        return {estimate.name: estimate.value for estimate in self.parameters}


def fit_parameters(
    predict_us: Callable[[Mapping[str, float]], FloatArray],
    measured_us: FloatArray,
    parameters: Sequence[Parameter],
    *,
    tolerance: float = 1e-10,
) -> Fit:
    """Fit parameters to measured runtimes by log(predicted / measured), outliers damped.

    `predict_us` maps parameter values to the runtimes of the measured kernels. The confidence intervals are
    those of the linearised fit for independent errors. The fit ends when neither the loss nor the parameters
    change by more than `tolerance`. Raises InputError for fewer measurements than parameters or for bad ones.
    """
    _require_measured(measured_us, len(parameters))
    space = _Space(tuple(parameters))

    def predicted(point: FloatArray) -> FloatArray:
        return predict_us(space.values(point))

    def residuals(point: FloatArray) -> FloatArray:
        return np.asarray(np.log(predicted(point) / measured_us))

    def jacobian(point: FloatArray) -> FloatArray:
        # Runtimes are piecewise linear in what is fitted, so that their differences are exact.
        here = predicted(point)
        columns = []
        for index, high in enumerate(space.limits[:, 1]):
            step = -_STEP if point[index] + _STEP > high else _STEP
            columns.append((predicted(point + step * (np.arange(len(point)) == index)) / here - 1) / step)
        return np.stack(columns, axis=1)

    from scipy.optimize import least_squares

    solution = least_squares(
        residuals,
        np.clip(np.ones(len(parameters)), *space.limits.T),
        jac=jacobian,
        bounds=tuple(space.limits.T),
        loss="soft_l1",
        f_scale=OUTLIER,
        **dict.fromkeys(("ftol", "xtol", "gtol"), tolerance),
        max_nfev=100,
    )
    half_widths, identified = _uncertainty(jacobian(solution.x), residuals(solution.x))
    errors = np.abs(predicted(solution.x) / measured_us - 1)
    return Fit(
        parameters=_estimates(space, solution, half_widths, identified),
        mean_error=float(errors.mean()),
        worst_error=float(errors.max()),
    )


def _require_measured(measured_us: FloatArray, parameters: int) -> None:
    if len(measured_us) < parameters:
        raise InputError(
            f"{len(measured_us)} measurements for {parameters} parameters; expected at least as many"
        )
    if not (np.isfinite(measured_us) & (measured_us > 0)).all():
        raise InputError("a measured runtime is not a positive number; expected microseconds")


def _estimates(
    space: _Space, solution: Any, half_widths: FloatArray, identified: Sequence[bool]
) -> tuple[ParameterEstimate, ...]:
    """The parameters of a solution; one that is not identified may be anywhere within its bounds."""
    edges = solution.x[:, None] + np.outer(half_widths, [-1.0, 1.0])
    edges = np.clip(edges, space.limits[:, :1], space.limits[:, 1:])
    edges = np.where(np.array(identified)[:, None], edges, space.limits)
    value, ends = space.values(solution.x), [space.values(end) for end in edges.T]
    return tuple(
        ParameterEstimate(
            name=name,
            value=value[name],
            low=min(end[name] for end in ends),
            high=max(end[name] for end in ends),
            identified=identified[index],
            at_bound=bool(solution.active_mask[index]),
        )
        for index, name in enumerate(value)
    )


@dataclass(frozen=True, slots=True)
class _Space:
    """Parameters scaled by their start values, so that all are of order one; of a rate its reciprocal."""

    parameters: tuple[Parameter, ...]

    @property
    def scale(self) -> FloatArray:
        return np.array([abs(p.fitted(p.start)) for p in self.parameters])

    @property
    def limits(self) -> FloatArray:
        """The lowest and the highest point, of shape (parameters, 2)."""
        bounds = [(p.fitted(p.low), p.fitted(p.high)) for p in self.parameters]
        return np.sort(np.array(bounds), axis=1) / self.scale[:, None]

    def values(self, point: FloatArray) -> dict[str, float]:
        """The parameters by name."""
        scaled = zip(self.parameters, point * self.scale, strict=True)
        return {p.name: p.fitted(float(x)) for p, x in scaled}


def predicted_us(machine: PipelineMachine, kernels: PipelineKernel) -> FloatArray:
    """The runtimes in us that a machine gives to the kernels."""
    return np.asarray(kernel_time(workload(machine, kernels, whole=False), machine) / PS_PER_US)


def fit_machine(
    start: PipelineMachine, kernels: PipelineKernel, measured_us: FloatArray, names: Sequence[str]
) -> tuple[PipelineMachine, Fit]:
    """The machine with the named parameters fitted to measured kernels, from the start machine's values."""
    parameters = [Parameter(name=name, start=float(getattr(start, name))) for name in names]
    fit = fit_parameters(
        lambda values: predicted_us(with_parameters(start, values), kernels), measured_us, parameters
    )
    return with_parameters(start, fit.values), fit


def _uncertainty(jacobian: FloatArray, residuals: FloatArray) -> tuple[FloatArray, list[bool]]:
    """Half widths of the confidence intervals, and which parameters the data tell from the others."""
    _, singular, right = np.linalg.svd(jacobian, full_matrices=False)
    seen = singular > _INVISIBLE * max(float(singular[0]), np.finfo(float).tiny)
    freedom = max(len(residuals) - int(seen.sum()), 1)
    # Robust scale of the residuals: the median absolute deviation, scaled as for a normal distribution.
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    variances = ((right[seen] / singular[seen, None]) ** 2).sum(axis=0) * spread**2
    from scipy.stats import t as student_t

    half_widths = student_t.ppf(0.5 + CONFIDENCE / 2, freedom) * np.sqrt(variances)
    hidden = np.abs(right[~seen]).max(axis=0, initial=0.0)
    return half_widths, [bool(share < _HIDDEN_SHARE) for share in hidden]
