"""The page of an attention: its configurations ranked, what limits the best one, and what-ifs."""

from __future__ import annotations

from gemm_model.attention.choice import AttentionRanking
from gemm_model.attention.explanation import AttentionExplanation
from gemm_model.core.fields import number_text
from gemm_model.report.page.content import Fact, Page, band_text, bars
from gemm_model.report.page.kernel import what_if_bars

SHOWN = 16
"""Configurations in the plot [1]; attention; chosen: as of GEMMs."""


def attention_page(ranking: AttentionRanking, explanation: AttentionExplanation, gpu: str) -> Page:
    """The page of `explore` for an attention on a GPU of that name."""
    problem, best = ranking.problem, ranking.best.prediction
    times = [
        (f"{place}. {each.config.name}", each.prediction.runtime_us, each.prediction.limiter)
        for place, each in enumerate(ranking.choices[:SHOWN], 1)
    ]
    units = [(each.name, 100.0 * each.elasticity, each.meaning) for each in explanation.units]
    note = "What of a faster unit reaches the runtime."
    speed = problem.flop / best.runtime_us / 1e6 if best.runtime_us else 0.0
    return Page(
        title=f"Attention {problem.name}",
        subtitle=f"{len(ranking.choices)} configurations on {gpu}; explained is the fastest",
        facts=[
            Fact("Best kernel", ranking.best.config.name, ranking.reason),
            Fact("Predicted", f"{number_text(best.runtime_us)} us", band_text(best)),
            Fact("Speed", f"{speed:.4g}", "TFLOP/s"),
            Fact("Limiter", best.limiter, "what a faster unit gains most"),
            Fact("Gain", f"{ranking.gain:.1%}", "over the library's own choice"),
        ],
        figures=[
            bars("Configurations", "Predicted times, the fastest first.", "us", times),
            bars("Limited by", note, "share of the runtime (%)", units),
            what_if_bars(explanation),
        ],
        notes=best.caveats,
    )
