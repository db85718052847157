"""What a choice gains over another library: predicted times side by side, of one problem or of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd

from gemm_model.choice.selection import Choice, Ranker, Ranking
from gemm_model.choice.table_ranking import rank_table
from gemm_model.core.errors import InputError
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.problem import GemmProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A ranking beside the best kernel of the family that it is held against."""

    ranking: Ranking
    reference: Choice
    """What that family takes, by prediction."""
    heuristic_choice: HeuristicChoice = field(default_factory=HeuristicChoice)
    """What its library, which picks its kernel by itself, takes over that."""

    def gain(self, choice: Choice) -> float:
        """By what share the family takes longer than one of the choices; negative where it is faster."""
        return self.reference.prediction.runtime_us / choice.prediction.runtime_us - 1.0

    @property
    def heuristic_choice_us(self) -> float:
        """What the family's library takes with the kernel that it picks by itself."""
        fastest = self.reference.prediction
        return float(self.heuristic_choice.time_us(fastest.runtime_us, fastest.limiter))

    @property
    def heuristic_choice_gain(self) -> float:
        """By what share that is longer than the best of the choices takes."""
        return self.heuristic_choice_us / self.ranking.best.prediction.runtime_us - 1.0

    @property
    def tied(self) -> bool:
        """Whether the error bands of the two leave open which is faster."""
        best, other = self.ranking.best.prediction, self.reference.prediction
        faster, slower = sorted((best, other), key=lambda prediction: prediction.runtime_us)
        return slower.runtime_us <= faster.runtime_us * (1.0 + (faster.error_band or 0.0))


def against(ranking: Ranking, reference: Ranker) -> Against:
    """A ranking beside what the best kernel of `reference` takes for the same problem."""
    best = reference.rank(ranking.problem, 1).best
    return Against(
        ranking=ranking, reference=best, heuristic_choice=reference.heuristic_choice_of(ranking.problem)
    )


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
