"""How near is what is predicted of the time that an epilogue adds?

    python benchmarks/added_by_epilogues.py [--folds 2] [--gpu h200]

The time that a kernel takes longer than the plain one of the same tile, on the same card and shape. The
numbers that epilogues alone have are fitted to the other folds' shapes, all others are as shipped. An added
time is right within RIGHT_SHARE of it or RIGHT_US. Prints the share of right ones by family, length and word,
shapes held out and with shapes that the fit has seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.cross_validation import folds_of, size_groups
from gemm_model.calibration.fit import FURTHER_FREE
from gemm_model.calibration.hold_out import HoldOut
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import load_tables, main_situation
from gemm_model.calibration.twins import added_us, beside_twins
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.mechanisms import FUSED_EPILOGUE, KernelNumbers
from gemm_model.kernels.registry import family_of

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
TABLE = "epilogues.csv.gz"
FAMILIES = ("quack", "cublas", "cutlass", "triton")
REGIME = "burst"
RIGHT_SHARE, RIGHT_US = 0.25, 1.0
LONG_US = 100.0
SEED = 0


def time_us(rows: Observations, gpu: GpuSpec, numbers: KernelNumbers) -> np.ndarray:
    return np.asarray(kernel_time(rows.shape, gpu, numbers, regime=REGIME).runtime_us)


def judged(family_name: str, gpu: GpuSpec, folds: int) -> Iterator[pd.DataFrame]:
    """Of each rate class the epilogue rows with a plain twin, and what they add: measured and predicted."""
    family = family_of(family_name, gpu)
    shipped = calibration_for(gpu, family.name)[0]
    data = load_tables([MEASUREMENTS / gpu.name / TABLE], gpu, family, plain_shapes=False)
    for kind, regimes in data.by_kind.items():
        what = main_situation(regimes[REGIME], family)
        plain, fused = (
            observe(regimes[REGIME][what == name].reset_index(drop=True), gpu, family)
            for name in ("", FUSED_EPILOGUE)
        )
        start = shipped.numbers[kind]
        numbers = start.without(family.absent_mechanisms)
        plain_us = time_us(plain, gpu, numbers)
        beside = observe(beside_twins(fused, plain, plain_us), gpu, family)
        hold_out = HoldOut(
            regimes={REGIME: beside},
            main=REGIME,
            gpu=gpu,
            free=FURTHER_FREE[FUSED_EPILOGUE],
            start=start.values(),
            donor=None,
            without=family.absent_mechanisms,
        )
        unseen_us = hold_out.times(folds_of(size_groups(fused), SEED, folds), map).runtime_us
        yield fused.frame.assign(
            family=family.name,
            measured=added_us(fused, plain, fused.runtime_us, plain.runtime_us),
            unseen=added_us(fused, plain, unseen_us, plain_us),
            seen=added_us(fused, plain, time_us(fused, gpu, numbers), plain_us),
        )


def right(rows: pd.DataFrame, predicted: str) -> pd.Series:
    error = (rows[predicted] - rows["measured"]).abs()
    return (error <= RIGHT_US) | (error <= RIGHT_SHARE * rows["measured"].abs())


def by(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Rows, shares that are right, medians of what was measured and predicted too much, mean |error| [us]."""
    groups = rows.assign(
        held_out=right(rows, "unseen"),
        as_fitted=right(rows, "seen"),
        measured_us=rows["measured"],
        bias_us=rows["unseen"] - rows["measured"],
        mean_error_us=(rows["unseen"] - rows["measured"]).abs(),
    ).groupby(key)
    shares = groups[["held_out", "as_fitted"]].mean().map("{:.1%}".format)
    medians = groups[["measured_us", "bias_us"]].median().round(2)
    means = groups[["mean_error_us"]].mean().round(2)
    return pd.concat([groups.size().rename("rows"), shares, medians, means], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folds", type=int, default=8)
    parser.add_argument("--gpu", default="h200")
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    parts = [part for name in FAMILIES for part in judged(name, gpu, args.folds)]
    rows = pd.concat(parts, ignore_index=True).dropna(subset=["measured"])
    rows["long"] = rows["runtime_us"].astype(float) > LONG_US
    rows["all"] = "all"
    for key in (["all"], ["family"], ["family", "long"], ["family", "epilogue"]):
        print(by(rows, key).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
