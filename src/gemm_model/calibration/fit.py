"""The robust, bounded fit of the physical parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import least_squares

from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.kernel_parameters import PARAMETERS, KernelParameters
from gemm_model.persistent.kernel_time import kernel_time

OUTLIER_SCALE = 0.04
"""Residual (relative error) from which the soft-L1 loss grows linearly."""
RANKING_WEIGHT = 1.0
CLOCK_WEIGHT = 4.0
"""Counter rows are few and their clocks exact: they alone tell clock from cycles."""
DRAM_WEIGHT = 0.05
"""DRAM bytes inform the traffic, but a byte too many costs less than a microsecond too many."""
PRIOR_WEIGHT = 1.0
"""Weak pull towards the start values: it settles what the data do not tell, and nothing else."""
MAX_EVALUATIONS = 60
TOLERANCE = 1e-4
"""Relative change of cost or parameters at which the fit ends."""
DIFFERENCE_STEP = 1e-3
AT_BOUND = 1e-3
"""Of a parameter's range: closer to a bound than this is called at the bound."""

NAMES = tuple(spec.name for spec in PARAMETERS)
LOW = np.array([spec.low for spec in PARAMETERS])
HIGH = np.array([spec.high for spec in PARAMETERS])


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values, their 95 % confidence half-widths (linearised), and those that ended at a bound."""

    parameters: KernelParameters
    half_width: dict[str, float]
    at_bound: tuple[str, ...]
    evaluations: int


def fit(
    burst: Observations | None,
    counters: Observations | None,
    gpu: GpuSpec,
    *,
    start: KernelParameters | None = None,
    frozen: Collection[str] = (),
    without: Collection[str] = (),
    progress: Callable[[], None] = lambda: None,
) -> Fit:
    """Fit to timings of the burst regime, to counters, or to both; `frozen` parameters keep their start."""
    first = np.array([spec.start for spec in PARAMETERS])
    if start is not None:
        first = np.array([asdict(start)[name] for name in NAMES])
    free = np.array([name not in frozen for name in NAMES])
    span = HIGH - LOW

    def parameters(unit: FloatArray) -> KernelParameters:
        values = first.copy()
        values[free] = (LOW + unit * span)[free] if len(unit) == len(NAMES) else LOW[free] + unit * span[free]
        return KernelParameters(**dict(zip(NAMES, np.clip(values, LOW, HIGH).tolist(), strict=True)))

    def residuals(unit: FloatArray) -> FloatArray:
        progress()
        p = parameters(unit)
        parts: list[FloatArray] = []
        if burst is not None:
            parts += _time_residuals(burst, gpu, p, "burst", without)
        if counters is not None:
            parts += _time_residuals(counters, gpu, p, "counters", without)
        parts.append(PRIOR_WEIGHT * (unit - prior))
        return np.concatenate(parts)

    prior = ((np.array([spec.start for spec in PARAMETERS]) - LOW) / span)[free]
    unit = np.clip((first - LOW) / span, 0.01, 0.99)[free]
    solved = least_squares(
        residuals,
        unit,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=OUTLIER_SCALE,
        x_scale="jac",
        diff_step=DIFFERENCE_STEP,
        max_nfev=MAX_EVALUATIONS,
        ftol=TOLERANCE,
        xtol=TOLERANCE,
    )
    names = [name for name, use in zip(NAMES, free, strict=True) if use]
    half_width = _half_widths(solved.jac, solved.fun, span[free])
    at_bound = [
        name for name, value in zip(names, solved.x, strict=True) if min(value, 1.0 - value) < AT_BOUND
    ]
    return Fit(
        parameters=parameters(solved.x),
        half_width=dict(zip(names, half_width.tolist(), strict=True)),
        at_bound=tuple(at_bound),
        evaluations=int(solved.nfev),
    )


def _time_residuals(
    seen: Observations, gpu: GpuSpec, p: KernelParameters, regime: str, without: Collection[str]
) -> Sequence[FloatArray]:
    """Weighted log errors of time, of time over the shape's best, of clock and DRAM bytes where counted."""
    predicted = kernel_time(seen.shape, gpu, p, regime=regime, without=without)
    error = np.log(predicted.runtime_us / seen.runtime_us)
    ranking = RANKING_WEIGHT * (error - error[seen.best_row])[seen.near_best]
    parts = [seen.weight * error, seen.weight[seen.near_best] * ranking]
    clocked = np.isfinite(seen.sm_clk_mhz)
    if regime == "counters" and clocked.any():
        clock_error = np.log(predicted.sm_clk_mhz / seen.sm_clk_mhz)
        parts.append(CLOCK_WEIGHT * (seen.weight * clock_error)[clocked])
        dram_error = np.log(predicted.traffic.dram_read_bytes / np.maximum(seen.dram_read_bytes, 1.0))
        parts.append(DRAM_WEIGHT * (seen.weight * dram_error)[np.isfinite(dram_error)])
    return parts


def _half_widths(jacobian: FloatArray, residual: FloatArray, span: FloatArray) -> FloatArray:
    """1.96 standard errors from the linearised problem; infinite where a parameter has no influence."""
    degrees = max(len(residual) - jacobian.shape[1], 1)
    variance = float(residual @ residual) / degrees
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * variance
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    result: FloatArray = np.where(np.linalg.norm(jacobian, axis=0) > 0, 1.96 * deviation * span, np.inf)
    return result
