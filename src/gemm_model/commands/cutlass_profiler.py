"""`gemm-model cutlass-profiler`: test lists for the CUTLASS profiler, and its results as measurements."""

from __future__ import annotations

import argparse

from gemm_model.choice.selection import Ranker
from gemm_model.commands import common
from gemm_model.core.files import atomic_path
from gemm_model.errors import InputError
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    from gemm_model.integrations.cutlass_profiler import read_problems, read_results, write_test_list

    common.check_outputs(args.output)
    if (args.problems is None) == (args.results is None):
        raise InputError("expected either --problems or --results")
    chosen = common.settings(args)
    if args.results is not None:
        common.refuse_unused(args, "with --results", (*common.GPU, *common.OUTPUT, "results"))
        frame, notes = read_results(args.results, chosen.gpu.name)
        with atomic_path(args.output) as path:
            frame.to_csv(path, index=False)
        return _answer(args, f"wrote {len(frame)} measurements to {args.output}", len(frame), notes)
    ranker = Ranker(chosen.gpu, model=chosen.model, family="cutlass", options=dict(chosen.options))
    rows = write_test_list(args.output, read_problems(args.problems), ranker, args.configs_per_problem)
    return _answer(args, f"wrote {rows} tests to {args.output}", rows, [])


def _answer(args: argparse.Namespace, sentence: str, rows: int, notes: list[str]) -> Document:
    """What was written; a file of its own holds the rows."""
    result = {"file": args.output, "rows_written": rows}
    return common.document(
        common.settings(args), result=result, notes=notes, text=lambda: sentence, apart=True
    )
