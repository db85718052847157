"""How far a borrowed calibration is off: tables of other cards and families, predicted with h200:quack.

    python benchmarks/borrowed_bands.py

Prints rows, MAPE, p95, the error that nine rows of ten stay within and the top-1 efficiency of each type.
No row of these tables is in the fit of h200:quack. The bands of `config/calibration/borrowed_bands.yaml` are
the largest of each kind of borrowing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from measured import MEASUREMENTS, beyond_band, kernels_of, rows_of

from gemm_model import predict_table
from gemm_model.calibration.observations import observe
from gemm_model.calibration.tables import load_tables
from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.calibration_file import load_calibration, regime_band
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import error_figures, top1_efficiency

DONOR = "h200:quack"
TABLES = (
    ("other_gpu", "h100_sxm", "quack", "burst.csv.gz"),
    ("other_family", "h200", "cutlass", "cutlass.csv.gz"),
    ("other_family", "h200", "cublas", "cublaslt.csv.gz"),
    ("other_family", "h200", "triton", "triton_persistent.csv.gz"),
    ("other_gpu_and_family", "h100_sxm", "cutlass", "cutlass.csv.gz"),
    ("other_gpu_and_family", "h100_sxm", "cublas", "cublaslt.csv.gz"),
)
"""Kind of borrowing, GPU, family, table."""


def regimes() -> Iterator[str]:
    """What rows of kernels by name in each other regime are off beyond the bands of single launches, by card."""
    for gpu in ("h200", "h100_sxm"):
        for regime in ("graph", "sustained", "counters"):
            named = [each for each in kernels_of("fit") if (each.gpu, each.protocol) == (gpu, regime)]
            rows = pd.concat(
                predict_table(rows_of(each.name, gpu), gpu, options={"regime": regime}) for each in named
            )
            errors = (pd.to_numeric(rows["predicted_us"]) / pd.to_numeric(rows["runtime_us"]) - 1.0).abs()
            alone = np.sqrt(pd.to_numeric(rows["error_band"]) ** 2 - regime_band(regime) ** 2)
            beyond = beyond_band(errors, alone)
            yield f"{gpu} {regime}: {errors.count()} rows, {beyond:.3f} beyond them"


def figures(kind: str, gpu_name: str, family_name: str, table: str) -> list[dict[str, object]]:
    """One line for each type of a table."""
    gpu = load_gpu(gpu_name)
    family = family_of(family_name, gpu)
    donor = load_calibration(DONOR)
    data = load_tables([MEASUREMENTS / gpu_name / table], gpu, family)
    lines: list[dict[str, object]] = []
    for rate_class, regimes in data.by_kind.items():
        rows = observe(regimes["burst"], gpu, family)
        numbers = donor.numbers_for(rate_class, family).without(family.absent_mechanisms)
        predicted_us = kernel_time(rows.shape, gpu, numbers).runtime_us
        seen = rows.frame.assign(predicted_us=predicted_us, runtime_us=rows.runtime_us)
        for name, part in seen.groupby("in_dtype"):
            errors = error_figures(part["predicted_us"].to_numpy(), part["runtime_us"].to_numpy())
            relative = np.abs(part["predicted_us"] / part["runtime_us"] - 1.0)
            lines.append(
                {
                    "borrowed": kind,
                    "table": f"{gpu_name}/{table.split('.')[0]}",
                    "type": name,
                    "rows": len(part),
                    "MAPE": f"{errors.mape:.1%}",
                    "p95": f"{errors.p95:.1%}",
                    "90 % within": f"{relative.quantile(room_numbers('calibration').band_share):.1%}",
                    "top-1": f"{top1_efficiency(part).mean():.2%}",
                }
            )
    return lines


def main() -> None:
    lines = [line for entry in TABLES for line in figures(*entry)]
    print(pd.DataFrame(lines).to_string(index=False))
    print(*regimes(), sep="\n")


if __name__ == "__main__":
    main()
