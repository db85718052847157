"""`gemm-model rank`: the configurations of a kernel family, in order of predicted time."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_model.choice.selection import Choice, Ranker, Ranking
from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_path
from gemm_model.core.kernel_config import AUTO_KERNEL
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.emit import EMITTERS, emit
from gemm_model.kernels.registry import families


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_problem(parser, required=False)
    common.add_settings(parser)
    add_family(parser)
    parser.add_argument(
        "--top",
        type=int,
        default=8,
        help="how many kernels to list, each with its best tile order (default: 8)",
    )
    parser.add_argument(
        "--why-not", metavar="CONFIG", help="why a configuration did not win, such as 128x128,cluster=1x1"
    )
    parser.add_argument(
        "--emit", choices=tuple(EMITTERS), help="print the winner for this tool, ready to paste"
    )
    parser.add_argument(
        "--table", type=Path, help="CSV file of problems (m, n, k, in_dtype): the best for each"
    )
    parser.add_argument("--output", type=Path, help="CSV file for the table's result (default: stdout)")
    common.add_format(parser)


def add_family(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family",
        default=AUTO_KERNEL,
        help=f"kernels to choose from: {', '.join(families())} (default: the GPU's first)",
    )
    parser.add_argument("--sms", type=int, help="plan for a kernel that may use only so many SMs")


def ranker_of(args: argparse.Namespace) -> Ranker:
    chosen = common.settings(args)
    return Ranker(
        chosen.gpu, model=chosen.model, family=args.family, sms=args.sms, options=dict(chosen.options)
    )


def run(args: argparse.Namespace) -> int:
    ranker = ranker_of(args)
    if args.table is not None:
        if args.m is not None or args.why_not or args.emit:
            raise InputError("--table comes with --m, --why-not or --emit; expected a table or one problem")
        return _rank_table(args, ranker)
    problem = common.problem(args)
    if args.why_not:
        print(ranker.why_not(problem, args.why_not))
        return 0
    ranking = ranker.rank(problem, args.top)
    if args.emit:
        print(emit(args.emit, problem, ranking.best.candidate, ranking.gpu))
        return 0
    _show(ranking, args.format)
    return 0


def _rank_table(args: argparse.Namespace, ranker: Ranker) -> int:
    from gemm_model.choice.table_ranking import rank_table
    from gemm_model.tables.table import read_table

    frame = read_table(args.table)
    if "in_dtype" not in frame and "a_dtype" not in frame:
        frame["in_dtype"] = args.dtype
    result = rank_table(frame, ranker)
    if args.output is None:
        common.show(result, args.format)
        return 0
    with atomic_path(args.output) as path:
        result.to_csv(path, index=False)
    common.words(f"wrote {args.output}")
    return 0


def _show(ranking: Ranking, output_format: str) -> None:
    rows = pd.DataFrame([_row(choice, ranking.problem) for choice in ranking.choices])
    if output_format == "json":
        figures = {
            "gpu": ranking.gpu.name,
            "candidates": ranking.candidates,
            "kernels": ranking.kernels,
            "tied_with_best": ranking.tied_with_best,
            "reason": ranking.reason,
            "choices": [
                {**_row(choice, ranking.problem), "prediction": asdict(choice.prediction)}
                for choice in ranking.choices
            ],
        }
        print(json.dumps(figures, indent=2))
        return
    if output_format == "csv":
        rows.to_csv(sys.stdout, index=False)
    else:
        common.show(rows.dropna(axis=1, how="all"), "table")
    for line in _notes(ranking):
        common.words(line)


def _row(choice: Choice, problem: GemmProblem) -> dict[str, Any]:
    config, prediction = choice.candidate.config, choice.prediction
    return {
        "rank": choice.rank,
        "ties": choice.tie_group,
        "tile": f"{config.cta_m}x{config.cta_n}",
        "cluster": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule,
        "swizzle": config.swizzle,
        "raster": config.raster,
        "stages": config.stages or None,
        "split_k": config.split_k,
        "swap_ab": int(choice.candidate.swap_ab),
        "predicted_us": prediction.runtime_us,
        "error_band": prediction.error_band,
        "tflops": problem.flop / prediction.runtime_us / 1e6,
        "limiter": prediction.limiter,
    }


def _notes(ranking: Ranking) -> list[str]:
    best = ranking.best.prediction
    notes = [f"{ranking.candidates} legal candidates on {ranking.gpu.name}, of {ranking.kernels} kernels"]
    if best.error_band is None:
        notes[0] += "; the model has no error band, so that only equal times tie"
    else:
        tied = ranking.tied_with_best
        notes[0] += f"; {tied} kernels lie within the best one's error band of {best.error_band:.1%}"
    notes.append(f"why the first: {ranking.reason}")
    return notes + [f"note: {caveat}" for caveat in best.caveats]
