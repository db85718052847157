"""How the model carries over between operand types: calibrate on one table, predict another.

    python benchmarks/transfer_between_types.py --gpu b200 --fit fp8.csv --predict nvfp4.csv

Both tables were taken on one GPU at a locked clock, so that the clock's own parameters stay out of the fit.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pandas as pd

from gemm_model.accuracy import choice_figures, error_figures, top1_efficiency
from gemm_model.calibration.fit import fit
from gemm_model.calibration.observations import Observations, observe
from gemm_model.gpu import GpuSpec, load_gpu
from gemm_model.kernel_parameters import KernelParameters, start_values
from gemm_model.kernel_time import kernel_time
from gemm_model.table import read_table, usable_rows

LOCKED_CLOCK = {
    "clock_share": 1.0,
    "droop_mma": 0.0,
    "droop_l2": 0.0,
    "droop_dram": 0.0,
    "droop_free": 0.0,
}
NOT_TOLD = ("droop_us", "spill_clk", "lockstep_loss_per_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate on one type's table, predict another's.")
    parser.add_argument("--gpu", default="b200")
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--predict", type=Path, required=True)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    known, unseen = (_observations(path, gpu) for path in (args.fit, args.predict))
    start = replace(KernelParameters(**start_values()), **LOCKED_CLOCK)
    found = fit(known, None, gpu, start=start, frozen=(*LOCKED_CLOCK, *NOT_TOLD))
    lines = [
        _figures(name, seen, gpu, found.parameters) for name, seen in (("fit", known), ("predict", unseen))
    ]
    print(pd.DataFrame(lines).to_string(index=False))
    print(f"at a bound: {', '.join(found.at_bound) or 'none'}")


def _observations(path: Path, gpu: GpuSpec) -> Observations:
    frame, _ = usable_rows(read_table(path), needs_tile=True)
    return observe(frame.reset_index(drop=True), gpu)


def _figures(name: str, seen: Observations, gpu: GpuSpec, parameters: KernelParameters) -> dict[str, str]:
    predicted_us = kernel_time(seen.shape, gpu, parameters).runtime_us
    errors = error_figures(predicted_us, seen.runtime_us)
    frame = seen.frame.assign(actual_runtime=seen.runtime_us, predicted_runtime=predicted_us)
    top1 = choice_figures(top1_efficiency(frame))
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
