"""Tables of kernels that servers tune (column `tokens`): `predict --input` and `rank --input`."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.config import read_toml
from gemm_model.core.files import atomic_write
from gemm_model.report.console import accuracy_text
from gemm_model.report.document import Document, screen_text


def answer(args: argparse.Namespace) -> Document | None:
    """The answer if --input is such a table; `predict` writes all rows into the folder of --output."""
    if args.input is None:
        return None
    from gemm_model.serving.tables import is_served, predict_served, rank_served

    if not is_served(args.input):
        return None
    from gemm_model.serving.routing import check_routing
    from gemm_model.tables.schema import card_named, cards_of, require_card
    from gemm_model.tables.table import read_table

    common.refuse_unused(args, "with a table of served layers", (*common.OUTPUT, "gpu", "input", "routing"))
    check_routing(args.routing)
    frame = read_table(args.input)
    args.gpu = args.gpu or next((card_named(name) for name in cards_of(frame)), None)
    gpu = common.settings(args).gpu
    require_card(frame, gpu)
    predicts = args.verb == "predict"
    rows = (predict_served if predicts else rank_served)(frame, gpu, args.routing)
    accuracy = rows.attrs.get("accuracy", [])
    shown = rows[[name for name in read_toml("columns")["served_text"] if name in rows]]
    table = args.output / "predictions_serving.csv" if predicts and args.output is not None else None
    return Document(
        gpu=gpu.name,
        result={"accuracy": accuracy},
        rows=rows,
        notes=rows.attrs.get("notes", ()),
        text=lambda: (
            accuracy_text(accuracy)
            if accuracy
            else screen_text(shown, ("tokens", "n", "k", "predicted_us", "limiter"))
        ),
        files=[(table, lambda path: atomic_write(path, rows.to_csv(index=False)))],
        apart=predicts,
    )
