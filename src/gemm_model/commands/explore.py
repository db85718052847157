"""`gemm-model explore`: a page to look at for one problem, its kernels ranked and the best one explained."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from gemm_model.choice.expected import ExpectedTime, rank_routing
from gemm_model.choice.selection import Ranking, one_of_twins
from gemm_model.commands import attention, common, compare, kinds
from gemm_model.commands.explain import settings_of
from gemm_model.commands.rank import best_of, ranker_of, row_of
from gemm_model.core.fields import problem_fields
from gemm_model.core.problem import swapped
from gemm_model.kernel_model.explanation import MODEL, explain
from gemm_model.report.document import Document, File
from gemm_model.report.page.kernel import shape_page

ALL_KERNELS = 1_000_000
"""Kernels to rank [1]; pages, whose map of tiles and clusters needs all; more than any family offers."""


def run(args: argparse.Namespace) -> Document:
    if compare.cards_asked(args):
        return compare.compare(args, _answer)
    if attention.asked(args):
        return attention.explore(args)
    ranking, expected, page = _explored(args)
    return Document(
        gpu=ranking.gpu.name,
        model=MODEL,
        result={"file": args.html, "problem": problem_fields(ranking.problem), "kernels": ranking.kernels},
        rows=[row_of(ranking.best, ranking.problem)],
        notes=[] if expected is None else [f"{kinds.expected_text(expected)} its page"],
        files=[page],
    )


def _explored(args: argparse.Namespace) -> tuple[Ranking, ExpectedTime | None, File]:
    """The ranking and the page of the problem on one card, of routed tokens those of the routing in the middle."""
    chosen = settings_of(args)
    ranker, problem, routing, expected = ranker_of(args), kinds.problem(args), kinds.routing(args), None
    if routing is not None:
        drawn = {"count": args.routings, "seed": args.seed}
        expected = rank_routing(ranker, problem, routing, 1, **drawn).choices[0].expected
        problem = expected.middle
    ranking = one_of_twins(ranker.rank(problem, ALL_KERNELS))
    best = ranking.best.candidate
    own = swapped(problem) if best.swap_ab else problem
    explanation = explain(own, best.config, ranker.gpu, chosen.options)
    return ranking, expected, common.page(args.html, lambda: shape_page(ranking, explanation))


def _answer(args: argparse.Namespace) -> compare.Answer:
    """The page of one card of several, beside --html: FILE-CARD.html."""
    card = Path(args.gpu).stem
    args.html = args.html.with_stem(f"{args.html.stem}-{card}")
    if attention.asked(args):
        return attention.explored(args)
    common.refuse_given(args, kinds.ROUTING, "with several cards")
    ranking, _, page = _explored(args)
    return replace(best_of(ranking, settings_of(args), file=str(args.html)), files=[page])
