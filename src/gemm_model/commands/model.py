"""`gemm-model model`: every GEMM and attention of a transformer, from its config.json, on one card or several."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemm_model.commands import common, options
from gemm_model.commands.common import but
from gemm_model.commands.compare import beside, cards_asked
from gemm_model.config import read_toml
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import ModelShapes, read_config
from gemm_model.report.document import Document, text_table
from gemm_model.report.page.model import model_page, plot_passes
from gemm_model.serving.layers import Parallelism
from gemm_model.serving.model_parts import Step
from gemm_model.serving.model_time import ModelTime, predict_model


def run(args: argparse.Namespace) -> Document:
    common.check_document(args, args.html, args.plot)
    cards = {}
    for name in cards_asked(args) or [args.gpu]:
        gpu = common.settings(but(args, gpu=name, regime=None)).gpu
        cards[name or gpu.name] = gpu
    prices = _prices(args.price, list(cards))
    parallel = Parallelism(tensor=args.tp, expert=args.ep, data=args.dp)
    shapes = read_config(args.config)
    if args.ep > 1 and shapes.experts is None:
        raise InputError(f"--ep is {args.ep}; expected 1: the model has no experts")
    found = [
        (card, predict_model(shapes, step, gpu, parallel, regime=args.regime, routing=args.routing))
        for step in _steps(args, shapes)
        for card, gpu in cards.items()
    ]
    rows = [[{"gpu": card, **row} for row in each.rows()] for card, each in found]
    totals = []
    for place, (card, each) in enumerate(found):
        first = found[place - place % len(cards)][1]
        ratio = beside(first.total_us, each.total_us, first.error_band, each.error_band)
        totals.append(_total(card, each, prices.get(card)) | (ratio if len(cards) > 1 else {}))
    notes = [*_cheapest(totals), *dict.fromkeys(caveat for _, each in found for caveat in each.caveats)]
    return Document(
        gpu=",".join(cards),
        result={"model": shapes.model_type, "layers": shapes.layers, "regime": args.regime, "passes": totals},
        rows=[row for of_pass in rows for row in of_pass],
        notes=notes,
        text=lambda: _text(rows, totals),
        files=[
            common.page(args.html, lambda: model_page(str(args.config), totals, rows, notes)),
            (args.plot, lambda path: plot_passes(totals, rows, path)),
        ],
    )


def _prices(text: str | None, cards: Sequence[str]) -> dict[str, float]:
    """USD an hour by card."""
    found: dict[str, float] = {}
    for word in common.listed(text or ""):
        name, _, value = word.partition("=")
        if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?", value) or float(value) == 0.0:
            raise InputError(f"--price {word!r}; expected NAME=USD_PER_HOUR, such as h200=3.5")
        if name not in cards or name in found:
            raise InputError(f"--price names {name!r}; expected each of {', '.join(cards)} at most once")
        found[name] = float(value)
    return found


def _steps(args: argparse.Namespace, shapes: ModelShapes) -> list[Step]:
    """Prefill, decode, or both; nothing is decoded by a model whose queries see all keys."""
    prompt, context = args.prompt_tokens, args.context
    if prompt is None and context is None:
        prompt, context = options.TOKENS, options.TOKENS if shapes.vocabulary or shapes.window else None
    asked = ((prompt, prompt), (1, context))
    return [Step(batch=args.batch, queries=new, keys=keys) for new, keys in asked if keys is not None]


def _total(card: str, time: ModelTime, price: float | None) -> dict[str, Any]:
    found = {"phase": time.step.phase, "gpu": card, "cards": time.parallel.cards, "tokens": time.step.tokens}
    found |= {name: getattr(time, name) for name in ("layer_us", "total_us", "error_band", "us_per_token")}
    cost = None if price is None else time.usd_per_million_tokens(price)
    found |= {"tokens_per_s": 1e6 / time.us_per_token, "usd_per_hour": price}
    return found | {"usd_per_million_tokens": cost}


def _cheapest(totals: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which card serves a token cheapest, for each phase with several prices, and whether the bands tell."""
    for phase in dict.fromkeys(each["phase"] for each in totals):
        priced = [each for each in totals if each["phase"] == phase and each["usd_per_hour"] is not None]
        if len(priced) < 2:
            continue
        best, second = sorted(priced, key=lambda each: float(each["usd_per_million_tokens"]))[:2]
        cost = best["usd_per_million_tokens"]
        ratio = second["usd_per_million_tokens"] / cost
        inside = beside(1.0, ratio, best["error_band"], second["error_band"])["inside_bands"] == "yes"
        more = f"{second['gpu']} costs {ratio - 1.0:.1%} more{', within the bands' if inside else ''}"
        yield f"{phase}: {best['gpu']} serves a token cheapest, {cost:.4g} USD a million; {more}"


def _text(passes: Sequence[Sequence[Mapping[str, Any]]], totals: Sequence[Mapping[str, Any]]) -> str:
    """A table of parts for each pass, then the totals."""
    parts, names = [], read_toml("columns")["model_text"]
    for total, rows in zip(totals, passes, strict=True):
        shown = [{name: _shown(name, row[name]) for name in names if name in row} for row in rows]
        title = f"{total['phase'].upper()} on {total['gpu']}, {total['tokens']} tokens a pass"
        parts.append(f"{title}\n{text_table(shown)}")
    shown = [{name: _shown(name, value) for name, value in total.items()} for total in totals]
    return "\n\n".join([*parts, f"TOTAL\n{text_table(shown)}"])


def _shown(name: str, value: Any) -> Any:
    """A cell of the text: shares in percent, and no batch of one matrix."""
    if name in ("share", "error_band") and value is not None:
        return f"{value:.1%}"
    return None if name == "batch" and value == 1 else value
