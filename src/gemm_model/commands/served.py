"""Tables of kernels that servers tune (column `tokens`): `predict --input` and `rank --input`."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.report.document import Document, text_table

MOST_ROWS = 38
"""Rows that the text shows [rows]; chosen: a screen."""
SHOWN = ("kernel", "tokens", "experts", "topk", "n", "k", "in_dtype", "cta_m", "cta_n", "cta_k", "group_m",
         "warps", "stages", "predicted_us", "limiter", "disposition")  # fmt: skip


def answered(args: argparse.Namespace, verb: str) -> bool:
    """Whether --input is such a table; it is predicted or ranked then, and shown or written.

    `predict` writes all rows into the folder of --output.
    """
    if args.input is None:
        return False
    from gemm_model.serving.tables import is_served, predict_served, rank_served

    if not is_served(args.input):
        return False
    from gemm_model.core.files import atomic_path
    from gemm_model.core.routing import Routing
    from gemm_model.report.console import accuracy_text
    from gemm_model.tables.schema import card_named, cards_of, require_card
    from gemm_model.tables.table import read_table

    common.refuse_unused(args, "with a table of served layers", (*common.OUTPUT, "gpu", "input", "routing"))
    Routing.parse(args.routing, experts=2, tokens=1)
    frame = read_table(args.input)
    args.gpu = args.gpu or next((card_named(name) for name in cards_of(frame)), None)
    gpu = common.settings(args).gpu
    require_card(frame, gpu)
    rows = (predict_served if verb == "predict" else rank_served)(frame, gpu, args.routing)
    accuracy = rows.attrs.get("accuracy", [])
    shown = rows[[name for name in SHOWN if name in rows]].head(MOST_ROWS)
    document = Document(
        verb=verb,
        gpu=gpu.name,
        result={"accuracy": accuracy},
        rows=rows,
        text=lambda: accuracy_text(accuracy) if accuracy else text_table(shown),
    )
    if verb == "predict" and args.output is not None:
        with atomic_path(args.output / "predictions_serving.csv") as temporary:
            rows.to_csv(temporary, index=False)
        args.output = None
    common.show(args, document)
    return True
