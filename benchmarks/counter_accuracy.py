"""What hardware counters say of kernels whose shapes a fit has not seen, against what the model does.

    python benchmarks/counter_accuracy.py --input data/measurements/h200/burst.csv.gz \\
        --input data/measurements/h200/wide.csv.gz --input data/measurements/h200/counters.csv.gz

Folds are of sizes: neither a row with counters nor a burst row of them is seen by their fold's fit. Errors
are |predicted / counted - 1|, of clocks and bytes their mean. What L2 is asked for are the sectors that it
reads and writes less those that fills from DRAM count among them; kernels that spill ask for more, and are
left out there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from fold_fits import fold_fits

from gemm_model.calibration.cross_validation import FoldFit, folds_of, size_groups
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import further_situation, load_tables, splits_k
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import error_figures

COUNTERS = "counters"
FOLDS = 4
SECTOR_BYTES = 32.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, action="append", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--family", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    family = family_of(args.family, gpu)
    known = calibration_for(gpu, family.name)[0]
    lines = {}
    for kind, regimes in load_tables(args.input, gpu, family).by_kind.items():
        seen = {
            name: observe(rows[~splits_k(rows) & (further_situation(rows) == "")], gpu, family)
            for name, rows in regimes.items()
            if name in ("burst", COUNTERS)
        }
        folds = folds_of(size_groups(seen[COUNTERS]), args.seed, FOLDS)
        start = known.numbers[known.kind_for(kind)].values()
        lines[kind] = _figures(seen[COUNTERS], fold_fits(seen, COUNTERS, gpu, folds, start=start))
        print(kind, lines[kind], flush=True)
    print(_markdown(lines))


def _figures(rows: Observations, fits: Iterable[FoldFit]) -> dict[str, str]:
    """Errors of times, and the mean errors of clocks and bytes."""
    found = {name: np.full(len(rows), np.nan) for name in ("us", "clock", "dram", "l2")}
    for each in fits:
        times = each.times
        told = (
            times.runtime_us,
            times.sm_clk_mhz,
            times.traffic.dram_read_bytes,
            times.traffic.l2_request_bytes,
        )
        for values, of_fold in zip(found.values(), told, strict=True):
            values[each.test] = of_fold
    time = error_figures(found["us"], rows.runtime_us)
    return {
        "rows": str(time.rows),
        "MAPE": f"{time.mape:.2%}",
        "median": f"{time.median:.2%}",
        "p95": f"{time.p95:.1%}",
        "clock": _mean_error(found["clock"], rows.sm_clk_mhz),
        "bytes from DRAM": _mean_error(found["dram"], rows.dram_read_bytes),
        "bytes asked of L2": _mean_error(found["l2"], _asked_of_l2(rows)),
    }


def _asked_of_l2(rows: Observations) -> FloatArray:
    """In bytes; NaN where registers spill."""
    sectors = sum(_counted(rows.frame, name) for name in ("l2_read_sectors", "l2_write_sectors"))
    spilled = np.broadcast_to(rows.shape.resources.spilled_registers, len(rows)) > 0.0
    return np.where(spilled, np.nan, SECTOR_BYTES * sectors - rows.dram_read_bytes)


def _counted(frame: pd.DataFrame, name: str) -> FloatArray:
    return pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)


def _mean_error(predicted: FloatArray, counted: FloatArray) -> str:
    """Over the rows that tell it."""
    known = counted > 0.0
    return f"{np.abs(predicted[known] / counted[known] - 1.0).mean():.2%}"


def _markdown(lines: Mapping[str, Mapping[str, str]]) -> str:
    names = list(next(iter(lines.values())))
    header = ["| rate class | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    rows = [f"| {kind} | " + " | ".join(figures.values()) + " |" for kind, figures in lines.items()]
    return "\n".join([*header, *rows])


if __name__ == "__main__":
    main()
