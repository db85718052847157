"""`gemm-model explore`: a page to look at for one problem, its kernels ranked and the best one explained."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.commands.rank import add_family, ranker_of

EXAMPLES = (
    "--m 4096 --n 4096 --k 4096 --dtype fp8 --html shape.html",
    "--m 16 --n 7168 --k 2048 --family cutlass --html decode.html",
)
ALL_KERNELS = 1_000_000
"""Kernels to rank [1]; pages, whose map of tiles and clusters needs all; more than any family offers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_problem(parser, required=True)
    common.add_settings(parser)
    add_family(parser)
    common.add_page(parser, "the problem", required=True)


def run(args: argparse.Namespace) -> int:
    from gemm_model.integrations.quack import swapped
    from gemm_model.persistent.explanation import explain
    from gemm_model.report.page.kernel import shape_page

    ranker, problem = ranker_of(args), common.problem(args)
    ranking = ranker.rank(problem, ALL_KERNELS)
    best = ranking.best.candidate
    own = swapped(problem) if best.swap_ab else problem
    explanation = explain(own, best.config, ranker.gpu, common.settings(args).options)
    common.write_page(shape_page(ranking, explanation), args.html)
    return 0
