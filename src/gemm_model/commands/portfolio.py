"""`gemm-model portfolio`: the few kernels that together serve a list of shapes best."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.choice.portfolio import PROVEN_GAP, Portfolio, choose_portfolio
from gemm_model.commands import common
from gemm_model.commands.rank import add_family, ranker_of
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_path
from gemm_model.kernels.candidates import Candidate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", type=Path, required=True, help="CSV file of problems (m, n, k, in_dtype)")
    parser.add_argument("--max-kernels", type=int, required=True, help="how many kernels may be compiled")
    parser.add_argument("--weight", metavar="COLUMN", help="column that says how often a problem occurs")
    parser.add_argument(
        "--dtype", default="bf16", help="operand type where the table names none (default: bf16)"
    )
    parser.add_argument("--output", type=Path, help="CSV file for kernel, tile order and loss of each shape")
    common.add_settings(parser)
    add_family(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.choice.table_ranking import problems_of_table
    from gemm_model.tables.table import read_table

    frame = read_table(args.table)
    if "in_dtype" not in frame and "a_dtype" not in frame:
        frame["in_dtype"] = args.dtype
    weights = _weights(frame, args.weight)
    found = choose_portfolio(problems_of_table(frame), ranker_of(args), args.max_kernels, weights)
    shapes = _shapes(found)
    if args.output is not None:
        with atomic_path(args.output) as path:
            shapes.to_csv(path, index=False)
        common.words(f"wrote {args.output}")
    kernels = _kernels(found)
    if args.format == "json":
        figures = {"mean_loss": found.mean_loss, "gap": found.gap}
        records = {"kernels": kernels, "shapes": shapes}
        tables = {name: json.loads(rows.to_json(orient="records")) for name, rows in records.items()}
        print(json.dumps({**figures, **tables}, indent=2))
    elif args.format == "csv":
        shapes.to_csv(sys.stdout, index=False)
    else:
        common.show(kernels, "table")
        print()
        common.show(shapes, "table")
    for line in _notes(found):
        common.words(line)
    return 0


def _weights(frame: pd.DataFrame, column: str | None) -> list[float] | None:
    if column is None:
        return None
    if column not in frame:
        raise InputError(f"{frame.attrs['path']}: column {column!r} is missing; expected the --weight column")
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=np.float64)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        line = frame.index[int(np.argmax(bad))]
        raise InputError(f"{frame.attrs['path']}: line {line}, column {column}: expected a positive number")
    return [float(value) for value in values]


def _kernels(found: Portfolio) -> pd.DataFrame:
    rows = []
    for position, candidate in enumerate(found.kernels):
        served = found.served_by == position
        losses = found.loss[served]
        rows.append(
            {"kernel": position + 1, **_kernel(candidate)}
            | {"shapes": int(served.sum()), "mean_loss": losses.mean(), "worst_loss": losses.max()}
        )
    return pd.DataFrame(rows)


def _shapes(found: Portfolio) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "m": [problem.m for problem in found.problems],
            "n": [problem.n for problem in found.problems],
            "k": [problem.k for problem in found.problems],
            "kernel": found.served_by + 1,
            "swizzle": [order.config.swizzle for order in found.orders],
            "raster": [order.config.raster for order in found.orders],
            "predicted_us": found.time_us,
            "best_us": found.best_us,
            "loss": found.loss,
        }
    )


def _kernel(candidate: Candidate) -> dict[str, Any]:
    config = candidate.config
    return {
        "tile": f"{config.cta_m}x{config.cta_n}",
        "cluster": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule,
        "split_k": config.split_k,
        "swap_ab": int(candidate.swap_ab),
    }


def _notes(found: Portfolio) -> list[str]:
    quality = "the best of its size" if found.gap <= PROVEN_GAP else f"at most {found.gap:.3%} from the best"
    worst = float(found.loss.max())
    return [
        f"{len(found.kernels)} kernels for {len(found.problems)} shapes lose {found.mean_loss:.2%} on "
        f"average and {worst:.2%} at worst against all kernels; {quality}"
    ]
