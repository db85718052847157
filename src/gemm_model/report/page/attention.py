"""The page of an attention: its configurations ranked, what limits the best one, and what-ifs."""

from __future__ import annotations

from gemm_model.attention.choice import AttentionChoice, AttentionRanking
from gemm_model.attention.explanation import AttentionExplanation
from gemm_model.report.page.content import Fact, Figure, Listing, Page, bars

SHOWN = 16
"""Configurations in the plot and the list [1]; attention; chosen: as of GEMMs."""


def attention_page(ranking: AttentionRanking, explanation: AttentionExplanation, gpu: str) -> Page:
    """The page of `explore` for an attention on a GPU of that name."""
    problem, best = ranking.problem, ranking.best.prediction
    speed = problem.flop / best.runtime_us / 1e6 if best.runtime_us else 0.0
    band = "" if best.error_band is None else f"+- {best.error_band:.1%}"
    return Page(
        title=f"Attention {problem.name}",
        subtitle=f"{len(ranking.choices)} configurations on {gpu}; explained is the fastest",
        facts=[
            Fact(label="Best kernel", value=_name(ranking.best), note=ranking.reason),
            Fact(label="Predicted", value=f"{best.runtime_us:.4g} us", note=band),
            Fact(label="Speed", value=f"{speed:.4g}", note="TFLOP/s"),
            Fact(label="Limiter", value=explanation.limiter, note="what a faster unit gains most"),
            Fact(label="Gain", value=f"{ranking.gain:.1%}", note="over the library's own choice"),
        ],
        figures=[_times(ranking), _limits(explanation), _what_ifs(explanation)],
        listings=[_listing(ranking)],
        notes=best.caveats,
    )


def _name(choice: AttentionChoice) -> str:
    config = choice.config
    words = [f"{config.tile_m}x{config.tile_n}", *(["packed"] if config.pack_gqa else [])]
    return " ".join((*words, *([f"{config.num_splits} splits"] if config.num_splits > 1 else [])))


def _times(ranking: AttentionRanking) -> Figure:
    shown = ranking.choices[:SHOWN]
    times = [
        (
            f"{place}. {_name(choice)}",
            choice.prediction.runtime_us,
            f"{choice.prediction.runtime_us:.4g} us, {choice.prediction.limiter}",
        )
        for place, choice in enumerate(shown, start=1)
    ]
    return bars("Configurations", "Predicted times, the fastest first.", "us", times)


def _limits(explanation: AttentionExplanation) -> Figure:
    shown = [
        (unit.name, 100.0 * unit.elasticity, f"{unit.meaning}: {unit.elasticity:.1%}")
        for unit in explanation.units
    ]
    note = "What of a faster unit reaches the runtime."
    return bars("Limited by", note, "share of the runtime (%)", shown)


def _what_ifs(explanation: AttentionExplanation) -> Figure:
    shown = [
        (each.change, 100.0 * (1.0 - each.relative), f"{each.change}: {each.runtime_us:.4g} us")
        for each in explanation.what_if
    ]
    return bars("What if", "Time that each change would save.", "time saved (%)", shown)


def _listing(ranking: AttentionRanking) -> Listing:
    rows = [
        (str(place), _name(choice), f"{choice.prediction.runtime_us:.4g}", choice.prediction.limiter)
        for place, choice in enumerate(ranking.choices[:SHOWN], start=1)
    ]
    header = ("rank", "kernel", "us", "limiter")
    return Listing(title="Ranking", note="The fastest configurations.", header=header, rows=rows)
