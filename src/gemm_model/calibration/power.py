"""The power model of the sustained regime, fitted to launches back to back with a settled clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from gemm_model.calibration.cross_validation import folds_of, size_groups
from gemm_model.calibration.observations import Observations
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.persistent.clock import PowerModel
from gemm_model.persistent.kernel_parameters import KernelParameters
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.tables.accuracy import ErrorFigures, error_figures

_START = np.array([90.0, 0.6, 20.0, 60.0, 2.0])
_LOW = np.array([30.0, 0.05, 0.0, 0.0, 0.0])
_HIGH = np.array([300.0, 3.0, 200.0, 300.0, 8.0])
OUTLIER_SCALE = 0.05
CLOCK_WEIGHT = 1.0


def fit_power(seen: Observations, gpu: GpuSpec, parameters: KernelParameters) -> PowerModel:
    """Idle power, energies and launch time that explain the settled clocks and the times of sustained rows.

    The kernel's own parameters stay as the burst regime gave them: only what the cap adds is fitted.
    """
    clocked = np.isfinite(seen.sm_clk_mhz)

    def residuals(values: FloatArray) -> FloatArray:
        power = _model(values)
        predicted = kernel_time(seen.shape, gpu, parameters, regime="sustained", power=power, warm=True)
        time_error = seen.weight * np.log(predicted.runtime_us / seen.runtime_us)
        clock_error = (seen.weight * np.log(predicted.set_clk_mhz / seen.sm_clk_mhz))[clocked]
        return np.concatenate([time_error, CLOCK_WEIGHT * clock_error])

    solved = least_squares(
        residuals,
        _START,
        bounds=(_LOW, _HIGH),
        loss="soft_l1",
        f_scale=OUTLIER_SCALE,
        x_scale=_START,
        diff_step=1e-3,
    )
    return _model(solved.x)


@dataclass(frozen=True, slots=True)
class SustainedErrors:
    """Errors on held-out shapes of the sustained regime."""

    runtime: ErrorFigures
    clock: float
    """Mean |predicted / settled clock - 1|, the clock as the driver reports it."""


def validate_power(
    seen: Observations, gpu: GpuSpec, parameters: KernelParameters, seed: int
) -> SustainedErrors:
    """Fit the power model to some shapes of the sustained rows, predict the others."""
    folds = folds_of(size_groups(seen), seed)
    runtime_us = np.empty(len(seen))
    clock_mhz = np.empty(len(seen))
    for fold in np.unique(folds):
        test = folds == fold
        power = fit_power(seen.rows(~test, gpu), gpu, parameters)
        part = seen.rows(test, gpu)
        found = kernel_time(part.shape, gpu, parameters, regime="sustained", power=power, warm=True)
        runtime_us[test] = found.runtime_us
        clock_mhz[test] = found.set_clk_mhz
    known = np.isfinite(seen.sm_clk_mhz)
    clock_error = np.abs(clock_mhz[known] / seen.sm_clk_mhz[known] - 1.0)
    return SustainedErrors(error_figures(runtime_us, seen.runtime_us), float(clock_error.mean()))


def _model(values: FloatArray) -> PowerModel:
    idle, flop, l2, dram, launch = (float(value) for value in values)
    return PowerModel(
        idle_w=idle, pj_per_flop=flop, pj_per_l2_byte=l2, pj_per_dram_byte=dram, sustained_launch_us=launch
    )
