"""How far a calibration adapted from few rows is off on the rows that it has not seen.

    python benchmarks/few_shot.py [--rows 200] [--draws 5]

Whole shapes are drawn until they have that many rows of a rate class; `gemm-model calibrate --from
h200:quack` adapts the donor to them, and the rows of all other shapes judge it. Prints MAPE, p95 and top-1
efficiency of each family and type, averaged over the draws, and the seconds of a fit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.cross_validation import size_groups
from gemm_model.calibration.fit import SPLIT_FREE, Donor, fit, free_from
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import load_tables, splits_k
from gemm_model.core.batch import BoolArray
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import Calibration, load_calibration
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.mechanisms import KernelNumbers
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import error_figures, top1_efficiency

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
GPU, DONOR = "h200", "h200:quack"
TABLES = (
    ("cublas", "cublaslt.csv.gz"),
    ("cutlass", "cutlass.csv.gz"),
    ("triton", "triton_persistent.csv.gz"),
)
"""Family and table."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Numbers fitted to a draw of rows, and how long that took."""

    numbers: KernelNumbers
    seconds: float


def drawn(rows: Observations, count: int, seed: int) -> BoolArray:
    """Rows of whole shapes, drawn at random until there are `count`."""
    groups = size_groups(rows)
    order = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    sizes = np.bincount(groups)[order]
    chosen = order[: int(np.searchsorted(np.cumsum(sizes), count)) + 1]
    result: BoolArray = np.isin(groups, chosen)
    return result


def adapted(rows: Observations, kind: str, few: BoolArray, gpu: GpuSpec, donor: Calibration) -> Adapted:
    """The donor adapted to the `few` rows: first those that leave K whole, then those that split it."""
    family = rows.shape.family
    numbers = donor.numbers_for(kind, family)
    start = numbers.values()
    splits = splits_k(rows.frame).to_numpy()
    began = time.perf_counter()
    for part, free in ((~splits, free_from(donor.family, family.name)), (splits, SPLIT_FREE)):
        if (few & part).any():
            seen = {"burst": rows.rows(few & part, gpu)}
            found = fit(
                seen,
                gpu,
                free=[name for name in free if name.partition(".")[0] not in family.absent_mechanisms],
                start=numbers.values(),
                donor=Donor(values=start, same_kernels=donor.family == family.name),
                without=family.absent_mechanisms,
            )
            numbers = found.numbers
    return Adapted(numbers, time.perf_counter() - began)


def figures(family_name: str, table: str, count: int, draws: int) -> Iterator[dict[str, object]]:
    """A line for each type of a table."""
    gpu = load_gpu(GPU)
    family = family_of(family_name, gpu)
    data = load_tables([MEASUREMENTS / GPU / table], gpu, family)
    for kind, regimes in data.by_kind.items():
        rows = observe(regimes["burst"], gpu, family)
        found = []
        for seed in range(draws):
            few = drawn(rows, count, seed)
            fitted = adapted(rows, kind, few, gpu, load_calibration(DONOR))
            times = kernel_time(rows.shape, gpu, fitted.numbers.without(family.absent_mechanisms))
            seen = rows.frame.assign(predicted_us=times.runtime_us, runtime_us=rows.runtime_us)[~few]
            for name, part in seen.groupby("in_dtype"):
                errors = error_figures(part["predicted_us"].to_numpy(), part["runtime_us"].to_numpy())
                best = float(top1_efficiency(part).mean())
                found.append((name, errors.mape, errors.p95, best, fitted.seconds, int(few.sum())))
        columns = ["type", "MAPE", "p95", "top-1", "seconds", "rows"]
        for name, part in pd.DataFrame(found, columns=columns).groupby("type"):
            mean = part.drop(columns="type").mean()
            yield {
                "family": family_name,
                "type": name,
                "rows": round(mean["rows"]),
                **{what: f"{mean[what]:.1%}" for what in ("MAPE", "p95", "top-1")},
                "seconds": f"{mean['seconds']:.1f}",
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200, help="rows of a rate class to adapt to")
    parser.add_argument("--draws", type=int, default=5, help="draws of shapes to average over")
    args = parser.parse_args()
    lines = [line for table in TABLES for line in figures(*table, args.rows, args.draws)]
    print(pd.DataFrame(lines).to_string(index=False))


if __name__ == "__main__":
    main()
