"""The pipeline model on the H200: parameters from some shapes, errors on the others.

    python benchmarks/pipeline_h200.py [--data FILE] [--dtype bf16] [--folds 4] [--fix NAME=VALUE]

Fits PipelineModel's figures to QuACK's kernels of one data type, once for each fold with a quarter of the
*shapes* held out, then on all shapes (the figures that config/model/PipelineModel.yaml ships), and compares
the held-out errors with those of the classic model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import load_gpu
from gemm_model.models import create_model
from gemm_model.pipeline.estimation import Fit, Parameter, fit_parameters
from gemm_model.tables.accuracy import choice_figures, error_figures, top1_efficiency
from gemm_model.tables.table import predict_frame, read_table

DATA = Path(__file__).parents[1] / "data" / "measurements" / "h200" / "burst.csv.gz"
PARAMETERS = (
    Parameter(name="launch_us", start=4.0),
    Parameter(name="math_efficiency", start=0.9, low=0.1, high=1.0),
    Parameter(name="math_startup_clk", start=20.0),
    Parameter(name="load_bytes_per_clk", start=64.0, low=1.0, high=128.0),
    Parameter(name="load_startup_clk", start=10.0),
    Parameter(name="load_latency_clk", start=1000.0),
    Parameter(name="device_load_efficiency", start=1.15, low=0.13, high=1.274),
    Parameter(name="dram_efficiency", start=0.9, low=0.1, high=1.0),
    Parameter(name="epilogue_clk", start=500.0),
    Parameter(name="epilogue_elements_per_clk", start=16.0),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--fit-rows", type=int, default=3000, help="rows that a fit sees, drawn at random")
    parser.add_argument(
        "--fix", action="append", default=[], metavar="NAME=VALUE", help="do not fit this figure"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fixed = {name: float(value) for name, value in (item.split("=") for item in args.fix)}

    frame = read_table(args.data)
    frame = frame[(frame.kernel == "quack") & (frame.in_dtype == args.dtype)].reset_index(drop=True)
    shape = frame.groupby(["m", "n", "k"], sort=True).ngroup().to_numpy()
    order = np.random.default_rng(args.seed).permutation(shape.max() + 1)
    print(f"{len(frame)} {args.dtype} kernels of QuACK on {shape.max() + 1} shapes")

    predicted_us = np.empty(len(frame))
    for fold in range(args.folds):
        held_out = np.isin(shape, order[fold :: args.folds])
        started = time.perf_counter()
        fit = fitted(drawn(frame[~held_out], args.fit_rows, args.seed), fixed)
        predicted_us[held_out] = predicted(frame[held_out], fit, fixed)
        report(
            f"fold {fold + 1}, {time.perf_counter() - started:.0f} s", frame[held_out], predicted_us[held_out]
        )
    report("all held-out rows", frame, predicted_us)
    for name, options in (("classic, L2 hits 0", 0.0), ("classic, L2 hits 0.4", 0.4)):
        classic = create_model("WSPersistentGEMMModel", load_gpu("h200"), {"l2_hit_rate": options})
        report(name, frame, predict_frame(frame, classic).runtime_us)

    fit = fitted(drawn(frame, args.fit_rows, args.seed), fixed)
    report("fitted on all shapes (not held out)", frame, predicted(frame, fit, fixed))
    for estimate in fit.parameters:
        note = "" if estimate.identified else "  not identified"
        note += "  at its bound" if estimate.at_bound else ""
        print(f"  {estimate.name:28} {estimate.value:10.4g}  [{estimate.low:.4g}, {estimate.high:.4g}]{note}")
    return 0


def drawn(frame: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    return frame.sample(min(rows, len(frame)), random_state=seed).sort_index()


def fitted(frame: pd.DataFrame, fixed: Mapping[str, float]) -> Fit:
    gpu, measured_us = load_gpu("h200"), frame["runtime_us"].to_numpy(float)

    def predict_us(values: Mapping[str, float]) -> FloatArray:
        return predict_frame(frame, create_model("PipelineModel", gpu, {**values, **fixed})).runtime_us

    free = [parameter for parameter in PARAMETERS if parameter.name not in fixed]
    return fit_parameters(predict_us, measured_us, free, tolerance=1e-5)


def predicted(frame: pd.DataFrame, fit: Fit, fixed: Mapping[str, float]) -> FloatArray:
    options = {**fit.values, **fixed}
    return predict_frame(frame, create_model("PipelineModel", load_gpu("h200"), options)).runtime_us


def report(what: str, frame: pd.DataFrame, predicted_us: FloatArray) -> None:
    errors = error_figures(predicted_us, frame["runtime_us"].to_numpy(float))
    table = frame.assign(predicted_us=predicted_us, runtime_us=frame["runtime_us"].astype(float))
    choice = choice_figures(top1_efficiency(table))
    print(
        f"{what}: {errors.rows} rows, MAPE {errors.mape:.1%}, median {errors.median:.1%}, "
        f"p95 {errors.p95:.1%}, worst {errors.worst:.1%}; top-1 {choice.mean:.1%} (p5 {choice.p5:.1%})",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
