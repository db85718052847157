"""How the model carries over between operand types: calibrate on one table, predict another.

    python benchmarks/transfer_between_types.py --gpu b200 --fit fp8.csv --predict nvfp4.csv

Both tables were taken on one GPU at a locked clock: most of the clock's numbers stay out of the fit. So do
numbers that are the kernel's doing, which the nearest calibration of the same family has: the rows tell of
the card. (With all of them free, fp8 rows of a B200 told nvfp4 worse.)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from gemm_model.calibration.fit import DEFAULT_FREE, Fit, fit
from gemm_model.calibration.observations import Observations, observe
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernels.mechanisms import KERNEL_MECHANISMS, KernelNumbers
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.calibration_file import calibration_for
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.tables.accuracy import (
    ChoiceFigures,
    ErrorFigures,
    choice_figures,
    error_figures,
    top1_efficiency,
)
from gemm_model.tables.table import read_table, usable_rows

NEAREST_KIND = "fp8"
"""The rate class of a calibration that is nearest to fp8 and fp4 operands."""
NOT_TOLD = (
    "clock.light_share",
    "clock.droop_memory",
    "clock.droop_free",
    "clock.droop_us",
    "spilling.register_clk",
    "coalescing.loss_per_ms",
)
"""Numbers of a clock that is not locked, and what timings of one shape by several tiles hardly tell."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate on one type's table, predict another's.")
    parser.add_argument("--gpu", default="b200")
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--predict", type=Path, required=True)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    known, unseen = (observations(path, gpu) for path in (args.fit, args.predict))
    found = fit_to(known, gpu)
    lines = [_line(name, seen, gpu, found.numbers) for name, seen in (("fit", known), ("predict", unseen))]
    print(pd.DataFrame(lines).to_string(index=False))
    print(f"at a bound: {', '.join(found.at_bound) or 'none'}")


def fit_to(known: Observations, gpu: GpuSpec) -> Fit:
    """What the rows tell of the card; the rest stays as the nearest calibration of their family has it."""
    family = known.shape.family
    kept = (*family.absent_mechanisms, *KERNEL_MECHANISMS)
    free = [name for name in DEFAULT_FREE if name not in NOT_TOLD and name.partition(".")[0] not in kept]
    donor = calibration_for(gpu, family.name)[0].numbers_on(gpu, NEAREST_KIND, family).values()
    return fit({"burst": known}, gpu, free=free, start=donor, donor=donor, without=family.absent_mechanisms)


def observations(path: Path, gpu: GpuSpec) -> Observations:
    frame, _ = usable_rows(read_table(path), needs_tile=True)
    return observe(frame.reset_index(drop=True), gpu, family_of("auto", gpu))


def figures(seen: Observations, gpu: GpuSpec, numbers: KernelNumbers) -> tuple[ErrorFigures, ChoiceFigures]:
    """Errors of the times, and what the choices by them reach."""
    present = numbers.without(seen.shape.family.absent_mechanisms)
    predicted_us = kernel_time(seen.shape, gpu, present).runtime_us
    frame = seen.frame.assign(runtime_us=seen.runtime_us, predicted_us=predicted_us)
    return error_figures(predicted_us, seen.runtime_us), choice_figures(top1_efficiency(frame))


def _line(name: str, seen: Observations, gpu: GpuSpec, numbers: KernelNumbers) -> dict[str, str]:
    errors, top1 = figures(seen, gpu, numbers)
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
