"""`gemm-model cutlass-profiler`: test lists for the CUTLASS profiler, and its results as measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=Path, help="JSON list of problems: writes a test list for them")
    parser.add_argument(
        "--results", type=Path, help="the profiler's CSV: writes it as a table of measurements"
    )
    parser.add_argument("--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument(
        "--configs-per-problem", type=int, default=4, help="kernels to list for each problem (default: 4)"
    )
    common.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.choice.selection import Ranker
    from gemm_model.integrations.cutlass_profiler import read_problems, read_results, write_test_list

    if (args.problems is None) == (args.results is None):
        raise InputError("expected either --problems or --results")
    chosen = common.settings(args)
    if args.results is not None:
        frame, notes = read_results(args.results, chosen.gpu.name)
        with atomic_path(args.output) as path:
            frame.to_csv(path, index=False)
        for note in notes:
            common.words(f"note: {note}")
        common.words(f"wrote {len(frame)} measurements to {args.output}")
        return 0
    ranker = Ranker(chosen.gpu, model=chosen.model, family="cutlass", options=dict(chosen.options))
    rows = write_test_list(args.output, read_problems(args.problems), ranker, args.configs_per_problem)
    common.words(f"wrote {rows} tests to {args.output}")
    return 0
