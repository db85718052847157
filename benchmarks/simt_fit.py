"""Fit the CUDA-core runtime model's parameters to the ladder's measurements, and say how well they hold.

    python benchmarks/simt_fit.py data/measurements/h200/simt.csv.gz

Fitted to the cube of 4096 alone; the other shapes, and each rung in turn, are predicted unseen.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from gemm_model.bench.simt.ladder import LADDER
from gemm_model.bench.simt.measurements import read_measurements
from gemm_model.core.gpu import load_gpu
from gemm_model.hierarchy.cuda_core_runtime import RuntimeParameters, runtime
from gemm_model.hierarchy.levels import datapath_of, machine_of

STARTS = ((0.85, 1500.0, 80.0, 4.0), (0.9, 1000.0, 200.0, 2.5))
"""Where the search starts, in the order of the fields of RuntimeParameters."""
STEP = 1.15
TOLERANCE = 0.05
"""Errors beyond this count linearly, not squared: one odd kernel does not bend the fit."""

GPU = load_gpu("h200")
MACHINE = machine_of(GPU, datapath_of(GPU, "cuda_cores", "fp32"))
KERNELS = {kernel.name: kernel for kernel in LADDER}


def parameters_of(values: np.ndarray) -> RuntimeParameters:
    low = (0.1, 1.0, 1.0, 1.0)
    high = (1.0, 1e5, 1e5, 20.0)
    names = [field.name for field in fields(RuntimeParameters)]
    return RuntimeParameters(**dict(zip(names, np.clip(values, low, high).tolist(), strict=True)))


def predicted_us(table: pd.DataFrame, parameters: RuntimeParameters) -> np.ndarray:
    times = []
    for row in table.itertuples():
        kernel = KERNELS[row.kernel]
        shape = (int(row.m), int(row.n), int(row.k))
        times.append(runtime(MACHINE, kernel.blocking, shape, kernel.resident_ctas, parameters).runtime_us)
    return np.array(times)


def fit(table: pd.DataFrame) -> RuntimeParameters:
    """Robust fit of log(predicted / measured), every kernel weighted alike."""

    def loss(values: np.ndarray) -> float:
        errors = np.log(predicted_us(table, parameters_of(values)) / table.runtime_us.to_numpy())
        return float(np.sum(np.sqrt(1 + (errors / TOLERANCE) ** 2) - 1))

    found = []
    for start in STARTS:
        simplex = np.array(
            [start, *(np.where(np.eye(len(start))[i], STEP, 1.0) * start for i in range(len(start)))]
        )
        found.append(
            minimize(loss, start, method="Nelder-Mead", options={"maxiter": 1200, "initial_simplex": simplex})
        )
    return parameters_of(min(found, key=lambda result: result.fun).x)


def report(title: str, table: pd.DataFrame, parameters: RuntimeParameters) -> None:
    errors = np.abs(predicted_us(table, parameters) / table.runtime_us - 1)
    print(f"{title:32s} {len(table):4d} rows, mean {errors.mean():6.2%}, largest {errors.max():6.2%}")


def main() -> None:
    table = read_measurements(Path(sys.argv[1]))
    table = table[table.kernel.isin(KERNELS)]
    cube = (table.m == 4096) & (table.n == 4096) & (table.k == 4096)
    parameters = fit(table[cube])
    print(parameters)
    for (m, n, k), rows in table.groupby(["m", "n", "k"]):
        report(f"{m}x{n}x{k}", rows, parameters)
    report("all", table, parameters)
    for rung in table.rung.unique():
        others = cube & (table.rung != rung)
        report(f"{rung}, fitted without it", table[cube & (table.rung == rung)], fit(table[others]))


if __name__ == "__main__":
    main()
