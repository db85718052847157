"""What each mechanism of the calibrated model buys: the model without it, refitted, on held-out shapes.

    python benchmarks/ablation.py --input data/measurements/h200/burst.csv.gz \\
        --input data/measurements/h200/wide.csv.gz --input data/measurements/h200/counters.csv.gz \\
        --shapes 200 --output docs/evidence/ablation.md

Each line switches off one mechanism, fits the numbers of the others again, and predicts shapes that the fit
has not seen (folds by shape). A sample of the shapes keeps the run to minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from fold_fits import fold_fits

from gemm_model.calibration.cross_validation import folds_of, held_out, size_groups
from gemm_model.calibration.fit import DEFAULT_FREE
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import load_tables, table_name
from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernels.mechanisms import FURTHER_MECHANISMS, MECHANISMS
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import choice_figures, error_figures, top1_efficiency

FOLDS = 3
UNFELT = frozenset({"power", "chain", "split_k", *FURTHER_MECHANISMS})
"""Mechanisms that plain products with K whole, launched alone, do not meet."""
FULL = "nothing: the full model"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, action="append", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--family", default="auto")
    parser.add_argument("--output", type=Path, help="a Markdown file for the table")
    parser.add_argument("--shapes", type=int, default=80, help="shapes sampled of each rate class")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    family = family_of(args.family, gpu)
    start = calibration_for(gpu, family.name)[0]
    data = load_tables(args.input, gpu, family)
    tables = []
    for kind, regimes in data.by_kind.items():
        seen = {"burst": observe(_sample(regimes["burst"], args.shapes, args.seed), gpu, family)}
        if "counters" in regimes:
            seen["counters"] = observe(regimes["counters"], gpu, family)
        numbers = start.numbers[start.kind_for(kind)].values()
        tables.append(_ablated(kind, seen, gpu, numbers, args.seed))
    text = _markdown(pd.concat(tables, axis=1), args)
    print(text)
    if args.output is not None:
        atomic_write(args.output, text)


def _sample(frame: pd.DataFrame, shapes: int, seed: int) -> pd.DataFrame:
    keys = frame[["in_dtype", "m", "n", "k"]].agg("|".join, axis=1)
    names = np.random.default_rng(seed).permutation(sorted(keys.unique()))[:shapes]
    kept = frame[keys.isin(names)].reset_index(drop=True)
    kept.attrs = dict(frame.attrs)
    return kept


def _ablated(
    kind: str, seen: Mapping[str, Observations], gpu: GpuSpec, start: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """One line for the full model, and one for each mechanism that the family has and burst rows feel."""
    absent = seen["burst"].shape.family.absent_mechanisms
    lines = {FULL: _figures(seen, gpu, start, absent, seed)}
    for mechanism in MECHANISMS:
        if mechanism.name not in absent | UNFELT:
            lines[f"{mechanism.name}: {mechanism.meaning}"] = _figures(
                seen, gpu, start, absent | {mechanism.name}, seed
            )
            print(kind, mechanism.name, *list(lines.values())[-1].values(), flush=True)
    figures = pd.DataFrame(lines).T
    figures.columns = pd.Index([f"{kind} {name}" for name in figures.columns])
    return figures


def _figures(
    seen: Mapping[str, Observations],
    gpu: GpuSpec,
    start: Mapping[str, float],
    without: frozenset[str],
    seed: int,
) -> dict[str, str]:
    rows = seen["burst"]
    free = [name for name in DEFAULT_FREE if name.partition(".")[0] not in without]
    folds = folds_of(size_groups(rows), seed, FOLDS)
    fits = fold_fits(seen, "burst", gpu, folds, free=free, start=start, without=without)
    predicted_us = held_out(fits, len(rows))
    errors = error_figures(predicted_us, rows.runtime_us)
    frame = rows.frame.assign(runtime_us=rows.runtime_us, predicted_us=predicted_us)
    top1 = choice_figures(top1_efficiency(frame))
    return {"MAPE": f"{errors.mape:.2%}", "p95": f"{errors.p95:.1%}", "top-1": f"{top1.mean:.2%}"}


def _named(tables: list[Path]) -> str:
    return ", ".join(f"`{table_name(path)}`" for path in tables)


def _markdown(figures: pd.DataFrame, args: argparse.Namespace) -> str:
    header = "| without | " + " | ".join(figures.columns) + " |"
    rule = "|---|" + "---:|" * len(figures.columns)
    lines = [
        f"| {name} | " + " | ".join(row) + " |"
        for name, row in zip(figures.index, figures.to_numpy(), strict=True)
    ]
    intro = (
        "# What each mechanism buys\n\n"
        "The calibrated model without one mechanism, the usual numbers of the others fitted again; errors\n"
        f"on shapes that the fit had not seen ({FOLDS} folds, {args.shapes} shapes of each class of\n"
        f"{_named(args.input)}, burst regime). Written by `python benchmarks/ablation.py`.\n\n"
    )
    return intro + "\n".join([header, rule, *lines]) + "\n"


if __name__ == "__main__":
    main()
