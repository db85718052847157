"""Gain of a choice over another library, for one problem or for a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gemm_model.choice.selection import Choice, Ranker, Ranking
from gemm_model.choice.table_ranking import rank_table
from gemm_model.core.errors import InputError
from gemm_model.core.problem import GemmProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A ranking, compared with the best kernel of another family."""

    ranking: Ranking
    reference: Choice
    """The family's fastest kernel by prediction."""
    heuristic_choice_us: float
    """Time of its library's heuristic choice [us]."""

    def gain(self, choice: Choice) -> float:
        """Gain of a choice over the family: its time over the choice's, less one; negative if the family is
        faster.
        """
        return self.reference.prediction.runtime_us / choice.prediction.runtime_us - 1.0

    @property
    def heuristic_choice_gain(self) -> float:
        """Gain of the best choice over the library's heuristic choice."""
        return self.heuristic_choice_us / self.ranking.best.prediction.runtime_us - 1.0

    @property
    def tied(self) -> bool:
        """Whether the error bands of the two overlap, so that either may be faster."""
        best, other = self.ranking.best.prediction, self.reference.prediction
        faster, slower = sorted((best, other), key=lambda prediction: prediction.runtime_us)
        return slower.runtime_us <= faster.runtime_us * (1.0 + (faster.error_band or 0.0))


def against(ranking: Ranking, reference: Ranker) -> Against:
    """Compare a ranking with the best kernel of `reference` for the same problem."""
    best = reference.rank(ranking.problem, 1).best
    own_us = reference.call(ranking.problem).time_us
    return Against(ranking=ranking, reference=best, heuristic_choice_us=own_us)


def best_of_each(ranker: Ranker, problem: GemmProblem) -> tuple[Choice, ...]:
    """The fastest kernel of each family of `ranker` that has one for the problem, the fastest first."""
    found = []
    for name in dict.fromkeys(space.family.name for space in ranker.spaces(problem)):
        try:
            found.append(ranker.of_family(name).rank(problem, 1).best)
        except InputError:  # no legal kernel, which the ranking of all says
            continue
    return tuple(sorted(found, key=lambda choice: choice.prediction.runtime_us))


def rank_table_against(
    frame: pd.DataFrame, ranker: Ranker, reference: Ranker, advance: Callable[[int], None] = lambda _: None
) -> pd.DataFrame:
    """`rank_table` with two columns more.

    `against_us` is what the best kernel of `reference` takes, `gain` against_us / predicted_us - 1. `advance`
    is told of the rows done.
    """
    result = rank_table(frame, ranker, advance)
    against_us = rank_table(frame, reference)["predicted_us"]
    return result.assign(against_us=against_us, gain=against_us / result["predicted_us"] - 1.0)
