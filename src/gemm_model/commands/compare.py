"""One question to several cards (`--gpu h200,b200_sxm`): ratios, bands, and whether they overlap."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.report.document import Document, text_table

if TYPE_CHECKING:
    from gemm_model.core.prediction import Prediction

Answer = tuple[dict[str, Any], "Prediction"]
"""Columns that say which kernel it is, and its prediction."""


def cards_asked(args: argparse.Namespace) -> list[str]:
    """The cards of --gpu where it names several; else none."""
    return common.listed(args.gpu) if args.gpu is not None and "," in args.gpu else []


def compare(args: argparse.Namespace, verb: str, answer: Callable[[argparse.Namespace], Answer]) -> int:
    """Show the answer of each card beside that of the first."""
    cards = cards_asked(args)
    if len(set(cards)) < 2 or len(set(cards)) < len(cards):
        raise InputError(f"--gpu is {args.gpu}; expected different cards, such as h200,b200_sxm")
    found = [(card, *answer(argparse.Namespace(**{**vars(args), "gpu": card}))) for card in cards]
    first = found[0][2]
    rows = [
        {"gpu": card, **kernel, "predicted_us": of_card.runtime_us, "error_band": of_card.error_band}
        | {"limiter": of_card.limiter, "ratio": of_card.runtime_us / first.runtime_us}
        | {"inside_bands": _inside(first, of_card)}
        for card, kernel, of_card in found
    ]
    caveats = dict.fromkeys(caveat for _, _, of_card in found for caveat in of_card.caveats)
    common.show(args, Document(verb=verb, rows=rows, notes=list(caveats), text=lambda: text_table(rows)))
    return 0


def _inside(first: Prediction, other: Prediction) -> str | None:
    """Whether two times lie within each other's bands; nothing where one has none."""
    if first.error_band is None or other.error_band is None:
        return None
    ratio = max(first.runtime_us / other.runtime_us, other.runtime_us / first.runtime_us)
    return "yes" if ratio <= (1.0 + first.error_band) * (1.0 + other.error_band) else "no"
