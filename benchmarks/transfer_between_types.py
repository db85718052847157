"""How the model carries over between operand types: calibrate on one table, predict another.

    python benchmarks/transfer_between_types.py --gpu b200 --fit fp8.csv --predict nvfp4.csv

Both tables were taken on one GPU at a locked clock: most of the clock's parameters stay out of the fit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from gemm_model.persistent.kernel_parameters import KernelParameters

from gemm_model.calibration.fit import fit
from gemm_model.calibration.observations import Observations, observe
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.tables.accuracy import (
    ChoiceFigures,
    ErrorFigures,
    choice_figures,
    error_figures,
    top1_efficiency,
)
from gemm_model.tables.table import read_table, usable_rows

NOT_TOLD = (
    "clock_share",
    "droop_l2",
    "droop_dram",
    "droop_free",
    "droop_us",
    "spill_clk",
    "lockstep_loss_per_ms",
)
"""Parameters of a clock that is not locked, and what timings of one shape by several tiles hardly tell."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate on one type's table, predict another's.")
    parser.add_argument("--gpu", default="b200")
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--predict", type=Path, required=True)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    known, unseen = (observations(path, gpu) for path in (args.fit, args.predict))
    found = fit(known, None, gpu, frozen=NOT_TOLD)
    lines = [_line(name, seen, gpu, found.parameters) for name, seen in (("fit", known), ("predict", unseen))]
    print(pd.DataFrame(lines).to_string(index=False))
    print(f"at a bound: {', '.join(found.at_bound) or 'none'}")


def observations(path: Path, gpu: GpuSpec) -> Observations:
    frame, _ = usable_rows(read_table(path), needs_tile=True)
    return observe(frame.reset_index(drop=True), gpu)


def figures(
    seen: Observations, gpu: GpuSpec, parameters: KernelParameters
) -> tuple[ErrorFigures, ChoiceFigures]:
    """Errors of the times, and what the choices by them reach."""
    predicted_us = kernel_time(seen.shape, gpu, parameters).runtime_us
    frame = seen.frame.assign(actual_runtime=seen.runtime_us, predicted_runtime=predicted_us)
    return error_figures(predicted_us, seen.runtime_us), choice_figures(top1_efficiency(frame))


def _line(name: str, seen: Observations, gpu: GpuSpec, parameters: KernelParameters) -> dict[str, str]:
    errors, top1 = figures(seen, gpu, parameters)
    return {
        "table": name,
        "rows": str(errors.rows),
        "MAPE": f"{errors.mape:.1%}",
        "median": f"{errors.median:.1%}",
        "p95": f"{errors.p95:.1%}",
        "mean ratio": f"{errors.mean_ratio:.3f}",
        "top-1": f"{top1.mean:.1%}",
    }


if __name__ == "__main__":
    main()
