"""Expected time of a mixture of experts with random groups, for one kernel and for the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.choice.fastest import SAME_TIME, tie_groups
from gemm_model.choice.selection import Ranker, describe
from gemm_model.core.batch import FloatArray, IntArray, batch_of
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Evaluation, Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import require_kind
from gemm_model.core.routing import Routing
from gemm_model.core.sizes import size_of
from gemm_model.kernels.candidates import Candidate, CandidateSpace, sizes_of
from gemm_model.models import DEFAULT_MODEL, model_for, require_known

ROUTINGS = 32
"""Routings that an expected time is the mean of [1]; by default; chosen: of kernels bound by
weights the mean is then known to 1 %."""
FIRST_ROUTINGS = 4
"""Routings with which all kernels are predicted first [1]; expected times; chosen."""
FINALISTS = 128
"""Kernels predicted with all routings [1]; expected times; chosen: a kernel that loses more than a few
percent on the first routings is not the best on average."""
HIGH_PERCENTILE = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """A kernel's time over the routings of tokens to experts."""

    mean_us: float
    p95_us: float
    """95th percentile [us]; below the mean if fewer than one routing in 20 takes far longer than the
    others."""
    longest_us: float
    routings: int
    middle: GemmProblem
    """The problem of the routing whose time is the median."""
    prediction: Prediction
    """The prediction of `middle`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedChoice:
    """One candidate with its rank by expected time."""

    rank: int
    candidate: Candidate
    expected: ExpectedTime
    tie_group: int
    """Tie group by expected times, counted from 1 as in `Choice`."""

    @property
    def prediction(self) -> Prediction:
        """That of the routing in the middle."""
        return self.expected.prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRanking:
    """The kernels of least expected time in order, each in the tile order that is best in the mean."""

    choices: tuple[RoutedChoice, ...]
    candidates: int
    """How many legal candidates there were: kernels with each of their tile orders."""
    kernels: int
    tied_with_best: int
    """Kernels within the error band of the first, among those predicted with all routings."""

    @property
    def reason(self) -> str:
        """Why the first beats the second, in one sentence."""
        best = self.choices[0]
        other = next((each for each in self.choices if each.expected.mean_us > best.expected.mean_us), None)
        if other is None:
            return "the kernels listed are predicted to take the same time"
        more = other.expected.mean_us / best.expected.mean_us - 1.0
        name = describe(other.candidate, beside=best.candidate)
        return f"{name} takes {other.expected.mean_us:.2f} us in the mean, {more:.1%} more"


def routed(
    problem: GemmProblem, routing: Routing, count: int = ROUTINGS, seed: int = 0
) -> tuple[GemmProblem, ...]:
    """The problem in `count` routings; m is that of all groups, n and k are shared.

    Raises InputError if m is another number of rows.
    """
    require_kind("problem", problem, GemmProblem)
    require_kind("routing", routing, Routing)
    if routing.distribution == "balanced":
        count = 1
    return tuple(replace(problem, groups=groups) for groups in routing.groups(count, seed))


def expected_time(
    problem: GemmProblem,
    routing: Routing,
    config: KernelConfig,
    gpu: GpuSpec | str | Path,
    model: str = DEFAULT_MODEL,
    *,
    count: int = ROUTINGS,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> ExpectedTime:
    """The expected time of one kernel over `count` routings, the same ones for the same seed.

    Of `problem` m is the rows of all groups: tokens times the experts of each. Raises InputError like
    `predict`.
    """
    chosen = model_for(model, gpu, options)
    problems = routed(problem, routing, count, seed)
    require_known(chosen, beyond_plain=not problems[0].plain)
    prediction = chosen.predict_batch(batch_of([(each, config) for each in problems]))
    middle = _middle(prediction.runtime_us)
    return _expected(prediction.runtime_us, problems[middle], prediction.row(middle))


def rank_routing(
    ranker: Ranker,
    problem: GemmProblem,
    routing: Routing,
    top_k: int = 8,
    *,
    count: int = ROUTINGS,
    seed: int = 0,
) -> RoutedRanking:
    """The `top_k` kernels of least expected time over `count` routings, the same ones for the same seed.

    A kernel is launched before its routing is known, so one tile order serves all routings. Raises InputError
    like `Ranker.rank`.
    """
    require_kind("ranker", ranker, Ranker)
    top_k = size_of("top_k", top_k)
    problems = routed(problem, routing, count, seed)
    sizes = np.hstack([sizes_of(each) for each in problems])
    found: list[tuple[Candidate, ExpectedTime]] = []
    candidates, means_us, looked_at = 0, [], 0
    for space in ranker.spaces(problems[0]):
        worth: IntArray = np.flatnonzero(space.worth_a_look(sizes, ranker.gpu).all(axis=0))
        if not len(worth):
            continue
        of_space, mean_us = _best_of_space(ranker, space, problems, worth, top_k)
        found += of_space
        means_us.append(mean_us)
        looked_at += len(worth)
        candidates += len(worth) * space.family.space.orders_per_kernel
    found = sorted(found, key=lambda each: each[1].mean_us)[:top_k]
    bands = np.array([expected.prediction.error_band or 0.0 for _, expected in found])
    groups = tie_groups(np.array([expected.mean_us for _, expected in found]), bands)
    tied_us = found[0][1].mean_us * (1.0 + max(float(bands[0]), SAME_TIME))
    return RoutedRanking(
        choices=tuple(
            RoutedChoice(rank=place, candidate=candidate, expected=expected, tie_group=int(group))
            for place, ((candidate, expected), group) in enumerate(zip(found, groups, strict=True), start=1)
        ),
        candidates=candidates,
        kernels=looked_at,
        tied_with_best=int((np.concatenate(means_us) <= tied_us).sum()),
    )


def _best_of_space(
    ranker: Ranker, space: CandidateSpace, problems: tuple[GemmProblem, ...], worth: IntArray, top_k: int
) -> tuple[list[tuple[Candidate, ExpectedTime]], FloatArray]:
    """The best kernels over all routings, of those that are fast over the first few; mean times of these."""
    first_us, _ = _times(ranker, space, problems[:FIRST_ROUTINGS], worth)
    first_us = first_us.mean(axis=1).min(axis=0)
    count = min(max(FINALISTS, top_k), len(worth))
    finalists = worth[np.sort(np.argpartition(first_us, count - 1)[:count])]
    times_us, evaluation = _times(ranker, space, problems, finalists)
    mean_us = times_us.mean(axis=1)
    least_us = mean_us.min(axis=0)
    best = np.argsort(least_us, kind="stable")[:top_k]
    order = mean_us.argmin(axis=0)[best]
    own_us = times_us[order, :, best]
    middle = [_middle(times) for times in own_us]
    predictions = evaluation.predictions(order, np.array(middle) * count + best)
    positions = finalists[best] * space.family.space.orders_per_kernel + order
    result = [
        (space.candidate(position), _expected(own_us[row], problems[middle[row]], predictions.row(row)))
        for row, position in enumerate(positions.tolist())
    ]
    return result, least_us


def _times(
    ranker: Ranker, space: CandidateSpace, problems: tuple[GemmProblem, ...], kernels: IntArray
) -> tuple[FloatArray, Evaluation]:
    """Times [us] of shape (tile orders, routings, kernels), and what else is known of them."""
    sizes = np.hstack([sizes_of(problem) for problem in problems])
    not_plain = () if problems[0].plain else problems
    positions = np.tile(kernels, (len(problems), 1))
    grid = space.grid_of_shapes(sizes, kernels=positions, not_plain=not_plain)
    found = ranker.model.evaluate(grid)
    return found.runtime_us.reshape(-1, len(problems), len(kernels)), found


def _middle(times_us: FloatArray) -> int:
    """Position of the median, the smaller of two."""
    return int(np.argsort(times_us, kind="stable")[(len(times_us) - 1) // 2])


def _expected(times_us: FloatArray, middle: GemmProblem, prediction: Prediction) -> ExpectedTime:
    longest_us = float(times_us.max())
    return ExpectedTime(
        # The mean of equal times rounds to either side of them.
        mean_us=min(max(float(times_us.mean()), float(times_us.min())), longest_us),
        p95_us=float(np.percentile(times_us, HIGH_PERCENTILE)),
        longest_us=longest_us,
        routings=len(times_us),
        middle=middle,
        prediction=prediction,
    )
