"""`gemm-model plan`: which rows to measure in a given time, for `gemm-model benchmark --rows`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from gemm_model.bench.rows import write_plan
from gemm_model.commands import common
from gemm_model.errors import InputError
from gemm_model.kernels.registry import family_of
from gemm_model.report.document import Document

UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|min|h)")


def run(args: argparse.Namespace) -> Document:
    from gemm_model.calibration.planning import planned_rows

    if args.output is None:
        raise InputError("no --output given; expected the CSV of the plan to write")
    common.check_outputs(args.output)
    budget_s = budget(args.budget)
    gpu = common.settings(args).gpu
    family = family_of(args.family, gpu)
    types = common.listed(args.dtype)
    sizes = _sizes(args.input)
    with common.progress("planning", len(types) + 1) as advance:
        plan = planned_rows(gpu, family, types, budget_s=budget_s, sizes=sizes, advance=advance)
    lines = [
        f"rows      {len(plan.rows)} of {plan.pool} candidates, {plan.shapes} shapes",
        f"measure   about {plan.measure_s:.0f} s of {budget_s:.0f} s on one card",
        f"by        sensitivities of {plan.donor}",
        f"unknown   {plan.left_unknown:.0%} of what was not known of a number, in the median, is left",
    ]
    figures = {
        "pool": plan.pool,
        "shapes": plan.shapes,
        "measure_s": plan.measure_s,
        "left_unknown": plan.left_unknown,
    }
    return Document(
        gpu=gpu.name,
        result={"file": args.output, "rows": len(plan.rows), "donor": plan.donor, **figures},
        text=lambda: "\n".join(lines),
        notes=[f"measure it by gemm-model benchmark --rows {args.output} --output rows.csv"],
        files=[(args.output, lambda path: write_plan(plan.rows, path, gpu.name))],
        apart=True,
    )


def budget(text: str) -> float:
    """Seconds of a time such as 90s, 10min or 2h."""
    found = _BUDGET.fullmatch(text)
    if found is None:
        raise InputError(f"--budget is {text!r}; expected a time such as 90s, 10min or 2h")
    return float(found[1]) * UNITS_S[found[2]]


def _sizes(path: Path | None) -> list[tuple[int, int, int]]:
    from gemm_model.tables.table import gemms_of, read_table, require_columns, sizes

    if path is None:
        return []
    table = gemms_of(read_table(path))
    names = ("m", "n", "k")
    require_columns(table, names)
    rows = zip(*(sizes(table, name) for name in names), strict=True)
    return list(dict.fromkeys((int(m), int(n), int(k)) for m, n, k in rows))
