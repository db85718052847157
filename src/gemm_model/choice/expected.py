"""Expected time of a mixture of experts, whose groups are random: of one kernel, and of the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.choice.selection import Ranker, tie_groups
from gemm_model.core.batch import FloatArray, GridRows, IntArray, batch_of
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.routing import Routing
from gemm_model.kernels.candidates import Candidate, CandidateSpace, sizes_of
from gemm_model.models import DEFAULT_MODEL, model_for, require_known

ROUTINGS = 32
"""Routings that an expected time is the mean of [1], unless told otherwise; chosen: of kernels bound by
weights the mean is then known to 1 %."""
FIRST_ROUTINGS = 4
"""Routings that all kernels of a choice are looked at with [1]; chosen."""
FINALISTS = 128
"""Kernels [1] that are looked at with all routings; chosen: what loses more than a few percent on the first
few is not the best in the mean."""
HIGH_PERCENTILE = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """A kernel's time over the routings of tokens to experts."""

    mean_us: float
    p95_us: float
    routings: int
    middle: GemmProblem
    """The problem of the routing whose time is the median."""
    prediction: Prediction
    """Of that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedChoice:
    """One candidate in its place by expected time."""

    rank: int
    candidate: Candidate
    expected: ExpectedTime
    tie_group: int
    """From 1, as in `Choice`, of expected times."""


def routed(
    problem: GemmProblem, routing: Routing, count: int = ROUTINGS, seed: int = 0
) -> tuple[GemmProblem, ...]:
    """The problem in `count` routings; m is that of all groups, n and k are shared.

    Raises InputError where m is another number of rows.
    """
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
    require_known(chosen, further=not problems[0].plain)
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
) -> tuple[RoutedChoice, ...]:
    """The `top_k` kernels of least expected time, each in the tile order that is best in the mean.

    A kernel is launched before its routing is known, so that one order serves all. Raises InputError like
    `Ranker.rank`.
    """
    if top_k < 1:
        raise InputError(f"top_k is {top_k}; expected a positive whole number")
    problems = routed(problem, routing, count, seed)
    found = [
        each
        for space in ranker.spaces(problems[0])
        for each in _best_of_space(ranker, space, problems, top_k)
    ]
    found.sort(key=lambda each: each[1].mean_us)
    mean_us = np.array([expected.mean_us for _, expected in found[:top_k]])
    bands = np.array([expected.prediction.error_band or 0.0 for _, expected in found[:top_k]])
    groups = tie_groups(mean_us, bands)
    return tuple(
        RoutedChoice(rank=place, candidate=candidate, expected=expected, tie_group=int(group))
        for place, ((candidate, expected), group) in enumerate(zip(found, groups, strict=False), start=1)
    )


def _best_of_space(
    ranker: Ranker, space: CandidateSpace, problems: tuple[GemmProblem, ...], top_k: int
) -> list[tuple[Candidate, ExpectedTime]]:
    """The best kernels of a space over all routings, of those that are fast over the first few."""
    sizes = np.hstack([sizes_of(problem) for problem in problems])
    worth: IntArray = np.flatnonzero(space.worth_a_look(sizes, ranker.gpu).all(axis=0))
    if not len(worth):
        return []
    first_us, _ = _times(ranker, space, problems[:FIRST_ROUTINGS], worth)
    first_us = first_us.mean(axis=1).min(axis=0)
    count = min(max(FINALISTS, top_k), len(worth))
    finalists = worth[np.sort(np.argpartition(first_us, count - 1)[:count])]
    times_us, evaluation = _times(ranker, space, problems, finalists)
    mean_us = times_us.mean(axis=1)
    order, least_us = mean_us.argmin(axis=0), mean_us.min(axis=0)
    result = []
    for kernel in np.argsort(least_us, kind="stable")[:top_k]:
        best = int(order[kernel])
        own_us = times_us[best, :, kernel]
        middle = _middle(own_us)
        place = middle * count + int(kernel)
        cell = best * times_us[0].size + place
        rows = GridRows(*(np.array([position]) for position in (best, place, cell)))
        prediction = evaluation.predictions(rows).row(0)
        position = int(finalists[kernel]) * space.family.space.orders_per_kernel + best
        result.append((space.candidate(position), _expected(own_us, problems[middle], prediction)))
    return result


def _times(
    ranker: Ranker, space: CandidateSpace, problems: tuple[GemmProblem, ...], kernels: IntArray
) -> tuple[FloatArray, Any]:
    """Times in us of shape (tile orders, routings, kernels), and the evaluation that they are of."""
    sizes = np.hstack([sizes_of(problem) for problem in problems])
    further = () if problems[0].plain else problems
    positions = np.tile(kernels, (len(problems), 1))
    evaluation = ranker.model.evaluate(space.grid_of_shapes(sizes, kernels=positions, further=further))
    return evaluation.runtime_us.reshape(-1, len(problems), len(kernels)), evaluation


def _middle(times_us: FloatArray) -> int:
    """Position of the median, the smaller of two."""
    return int(np.argsort(times_us, kind="stable")[(len(times_us) - 1) // 2])


def _expected(times_us: FloatArray, middle: GemmProblem, prediction: Prediction) -> ExpectedTime:
    return ExpectedTime(
        mean_us=float(times_us.mean()),
        p95_us=float(np.percentile(times_us, HIGH_PERCENTILE)),
        routings=len(times_us),
        middle=middle,
        prediction=prediction,
    )
