"""How the model carries over between operand types: calibrate on one table, predict another.

    python benchmarks/transfer_between_types.py --gpu b200 --fit fp8.csv --predict nvfp4.csv

Both tables were taken on one GPU at a locked clock: most of the clock's numbers stay out of the fit. So do
numbers that are the kernel's doing, which the nearest calibration of the same family has: the rows tell of
the card. (With all of them free, fp8 rows of a B200 told nvfp4 worse.)

With `--launched-from-python` calls come one after the other from a script that converts its tensors for each
call, so that none is shorter than the host takes for its tensors: A, B, D, and the scale factors of scaled
operands. The fastest row of the table that is fitted tells how long one tensor takes; its rows that the host
may bound are not fitted to. Published times of such calls: 33 us to convert eight tensors and 47 us with the
launch (Dao-AILab/flash-attention, pull request 2305), 20.8 us for five arguments on a B200, by the host's
clock and by events (NVIDIA/cutlass, issue 3418).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.fit import DEFAULT_FREE, Donor, Fit, fit
from gemm_model.calibration.observations import Observations, observe
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.mechanisms import KERNEL_MECHANISMS, KernelNumbers
from gemm_model.kernels.registry import family_of
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


HOST_BOUND = 1.1
"""Of the host's time [1]; a call that takes less may wait for the host; chosen."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Calibrate on one type's table, predict another's.")
    parser.add_argument("--gpu", default="b200")
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--predict", type=Path, required=True)
    parser.add_argument(
        "--launched-from-python",
        action="store_true",
        help="no call is shorter than its tensors take the host",
    )
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    known, unseen = (observations(path, gpu) for path in (args.fit, args.predict))
    tensor_us = host_us_per_tensor(known) if args.launched_from_python else 0.0
    found = fit_to(bound_by_the_card(known, gpu, tensor_us), gpu)
    lines = [
        _line(name, seen, gpu, found.numbers, tensor_us)
        for name, seen in (("fit", known), ("predict", unseen))
    ]
    print(pd.DataFrame(lines).to_string(index=False))
    print(f"at a bound: {', '.join(found.at_bound) or 'none'}")
    if args.launched_from_python:
        print(f"the host takes {tensor_us:.2f} us a tensor")


def tensors(seen: Observations) -> FloatArray:
    """Tensors of each call: A, B and D, and the scale factors of A and of B."""
    batch, rows = seen.shape.batch, len(seen.runtime_us)
    scaled = np.where(batch.a_scale_bits > 0, 1.0, 0.0) + np.where(batch.b_scale_bits > 0, 1.0, 0.0)
    return np.broadcast_to(3.0 + scaled, rows)


def host_us_per_tensor(seen: Observations) -> float:
    """What the host takes for a tensor [us], if the fastest call waits for it."""
    return float((seen.runtime_us / tensors(seen)).min())


def bound_by_the_card(seen: Observations, gpu: GpuSpec, tensor_us: float) -> Observations:
    """The rows that tell of the card: those that take longer than the host does."""
    longer = seen.runtime_us > HOST_BOUND * tensor_us * tensors(seen)
    return observe(seen.frame[longer].reset_index(drop=True), gpu, seen.shape.family)


def fit_to(known: Observations, gpu: GpuSpec) -> Fit:
    """What the rows tell of the card; the rest stays as the nearest calibration of their family has it."""
    family = known.shape.family
    kept = (*family.absent_mechanisms, *KERNEL_MECHANISMS)
    free = [name for name in DEFAULT_FREE if name not in NOT_TOLD and name.partition(".")[0] not in kept]
    nearest = calibration_for(gpu, family.name)[0]
    values = nearest.numbers_on(gpu, NEAREST_KIND, family).values()
    donor = Donor(values=values, same_kernels=nearest.family == family.name)
    return fit({"burst": known}, gpu, free=free, start=values, donor=donor, without=family.absent_mechanisms)


def observations(path: Path, gpu: GpuSpec) -> Observations:
    frame, _ = usable_rows(read_table(path), needs_tile=True)
    return observe(frame.reset_index(drop=True), gpu, family_of("auto", gpu))


def figures(
    seen: Observations, gpu: GpuSpec, numbers: KernelNumbers, tensor_us: float = 0.0
) -> tuple[ErrorFigures, ChoiceFigures]:
    """Errors of the times, and what the choices by them reach; the host takes `tensor_us` for a tensor."""
    present = numbers.without(seen.shape.family.absent_mechanisms)
    predicted_us = kernel_time(seen.shape, gpu, present).runtime_us
    predicted_us = np.maximum(predicted_us, tensor_us * tensors(seen))
    frame = seen.frame.assign(runtime_us=seen.runtime_us, predicted_us=predicted_us)
    return error_figures(predicted_us, seen.runtime_us), choice_figures(top1_efficiency(frame))


def _line(
    name: str, seen: Observations, gpu: GpuSpec, numbers: KernelNumbers, tensor_us: float
) -> dict[str, str]:
    errors, top1 = figures(seen, gpu, numbers, tensor_us)
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
