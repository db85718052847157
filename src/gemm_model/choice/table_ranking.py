"""The best candidate for every shape of a table, without predicting every candidate of every shape.

Beside it: the gain of a choice over another library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gemm_model.choice.selection import Choice, Ranker, Ranking
from gemm_model.core.fields import KIND_COLUMNS, TYPE_COLUMNS, kernel_fields, problem_of_row
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernels.candidates import COUNTS, Candidate
from gemm_model.tables.schema import KNOWN, PROBLEM_COLUMNS, understood
from gemm_model.tables.table import batch_from_frame, sizes


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
    gets the number of rows done.
    """
    result = rank_table(frame, ranker, advance)
    against_us = rank_table(frame, reference)["predicted_us"]
    return result.assign(against_us=against_us, gain=against_us / result["predicted_us"] - 1.0)


DEFAULT_DTYPE = "bf16"


def problems_of_table(frame: pd.DataFrame) -> list[GemmProblem]:
    """The problems of a table: m, n, k, and of `PROBLEM_COLUMNS` the others if any.

    Raises InputError naming the row and column of a bad value.
    """
    types = _with_types(frame)
    batch_from_frame(types, needs_tile=False)  # checks every value
    names = [name for name in (*TYPE_COLUMNS, *KIND_COLUMNS) if name in types]
    cells = types[names].astype(object).fillna("").astype(str)
    for name in ("m", "n", "k", "batch"):
        cells[name] = sizes(types, name, default=1.0)
    return [problem_of_row({str(name): cell for name, cell in row.items()}) for _, row in cells.iterrows()]


def rank_table(
    frame: pd.DataFrame, ranker: Ranker, advance: Callable[[int], None] = lambda _: None, own: bool = False
) -> pd.DataFrame:
    """The best candidate for each row of a table of problems (columns: `problems_of_table`).

    The table comes back with the choice's columns behind its own: `gpu`, those of `KERNEL_COLUMNS`,
    `predicted_us`, `limiter` and, where the model has one, `error_band`; without what it said of another
    kernel and of its measurement.

    `advance` gets the number of rows done; `own` asks for what the library chooses by itself. `attrs["notes"]` of the
    result ends with the predictions' caveats.
    """
    types, best = _with_types(frame), []
    for problem in problems_of_table(types):
        best.append(ranker.picked(problem) if own else ranker.best(problem))
        advance(1)
    replaced = KNOWN.union(
        *({*found.details, *map("{}_bytes".format, found.bytes_by_level)} for _, found in best)
    )
    kept = types.filter(regex="^(?!phase_.*_us$)")
    kept = kept.drop(columns=replaced.difference(PROBLEM_COLUMNS), errors="ignore")
    result = pd.concat([kept, pd.DataFrame(list(_rows(best, ranker)), index=frame.index)], axis=1)
    caveats = dict.fromkeys(caveat for _, found in best for caveat in found.caveats)
    result.attrs = {**types.attrs, "notes": [*types.attrs.get("notes", ()), *caveats]}
    return result


def _rows(best: Sequence[tuple[Candidate, Prediction]], ranker: Ranker) -> Iterator[dict[str, Any]]:
    for candidate, found in best:
        kernel = kernel_fields(candidate.config)
        named = {name: kernel[name] for name in ("kernel", *COUNTS, "schedule", "raster")}
        further = {"swap_ab": int(candidate.swap_ab), "fast_accum": kernel["fast_accum"]}
        yield {**ranker.place, **named, **further} | {
            "predicted_us": found.runtime_us,
            "limiter": found.limiter,
            **({} if found.error_band is None else {"error_band": found.error_band}),
        }


def choices_of(ranked: pd.DataFrame) -> Iterator[tuple[GemmProblem, Candidate]]:
    """The problem and the chosen kernel of each row of what `rank_table` returns."""
    names = (*COUNTS, "schedule", "raster", "kernel", "fast_accum")
    for problem, row in zip(problems_of_table(ranked), ranked.to_dict("records"), strict=True):
        config = KernelConfig(**{name: row[name] for name in names})
        yield problem, Candidate(config=config, swap_ab=bool(row["swap_ab"]))


def _with_types(frame: pd.DataFrame) -> pd.DataFrame:
    frame = understood(frame)
    if "in_dtype" in frame or ("a_dtype" in frame and "b_dtype" in frame):
        return frame
    return frame.assign(in_dtype=frame.get("a_dtype", DEFAULT_DTYPE))
