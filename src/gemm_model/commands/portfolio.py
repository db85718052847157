"""`gemm-model portfolio`: the few kernels that together serve a list of shapes best."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.choice.portfolio import Portfolio, choose_portfolio
from gemm_model.commands import common
from gemm_model.commands.rank import ranker_of
from gemm_model.core.fields import counted, kernel_fields, problem_fields
from gemm_model.errors import InputError
from gemm_model.kernels.candidates import Candidate
from gemm_model.report.document import Document, screen_text, text_table
from gemm_model.report.page.portfolio import portfolio_page

SHOWN = ("m", "n", "k", "a_dtype", "served_by", "swizzle", "raster", "predicted_us", "best_us", "loss")
"""Of a shape what the text shows."""


def run(args: argparse.Namespace) -> Document:
    from gemm_model.choice.table_ranking import problems_of_table
    from gemm_model.report.table_job import by_place
    from gemm_model.tables.schema import KNOWN

    common.check_document(args, args.html)
    if args.input is None:
        raise InputError("--input is missing; expected a table of problems")
    frame = common.problem_table(args)
    weights = _weights(frame, args.weight)
    places = by_place(frame, common.settings(args), partial(common.of_rows, args))
    if len(places) > 1:
        named = " and of ".join(" ".join(common.place(each, "regime", "l2").values()) for each, _ in places)
        raise InputError(f"{args.input}: rows of {named}; expected those of one place, or --gpu and more")
    chosen, _ = places[0]
    ranker = ranker_of(args, None, chosen)
    problems = problems_of_table(frame)
    with common.progress("ranking", len(problems)) as advance:
        found = choose_portfolio(problems, ranker, args.max_kernels, weights, advance)
    shapes, kernels = _shapes(found, common.place(chosen, "regime", "l2")), _kernels(found)
    shown = pd.DataFrame(shapes)[[*SHOWN]]
    names = [name for name in map(str, frame) if name not in KNOWN]
    carried = [dict(zip(names, cells, strict=True)) for cells in frame[names].to_numpy()]
    return Document(
        gpu=ranker.gpu.name,
        model=chosen.model,
        result={"mean_loss": found.mean_loss, "gap": found.gap, "kernels": kernels},
        rows=[{**own, **row} for own, row in zip(carried, shapes, strict=True)],
        notes=[*_notes(found), *frame.attrs.get("notes", ())],
        text=lambda: f"{text_table(kernels)}\n\n{screen_text(shown, SHOWN)}",
        files=[common.page(args.html, lambda: portfolio_page(found, ranker.gpu.name, args.input.name))],
    )


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


def _kernels(found: Portfolio) -> list[dict[str, Any]]:
    rows = []
    for position, candidate in enumerate(found.kernels):
        served = found.served_by == position
        losses = found.loss[served]
        rows.append(
            {"kernel": position + 1, **_kernel(candidate)}
            | {"shapes": int(served.sum())}
            | {"mean_loss": float(losses.mean()), "worst_loss": float(losses.max())}
        )
    return rows


def _shapes(found: Portfolio, place: dict[str, Any]) -> list[dict[str, Any]]:
    columns = {"predicted_us": found.time_us, "best_us": found.best_us, "loss": found.loss}
    figures = zip(*(values.tolist() for values in columns.values()), strict=True)
    each = zip(found.problems, found.orders, found.served_by.tolist(), figures, strict=True)
    return [
        {**problem_fields(problem), **place, **kernel_fields(order.config), "swap_ab": int(order.swap_ab)}
        | {"served_by": served_by + 1, **dict(zip(columns, own, strict=True))}
        for problem, order, served_by, own in each
    ]


def _kernel(candidate: Candidate) -> dict[str, Any]:
    config = candidate.config
    return {
        "family": config.kernel,
        "tile": f"{config.cta_m}x{config.cta_n}",
        "cluster": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule,
        "split_k": config.split_k,
        "swap_ab": int(candidate.swap_ab),
    }


def _notes(found: Portfolio) -> list[str]:
    quality = "the best of its size" if found.proven_best else f"at most {found.gap:.3%} from the best"
    worst = float(found.loss.max())
    return [
        f"{counted(len(found.kernels), 'kernel')} for {counted(len(found.problems), 'shape')}: "
        f"{found.mean_loss:.2%} are lost on "
        f"average and {worst:.2%} at worst against all kernels; {quality}"
    ]
