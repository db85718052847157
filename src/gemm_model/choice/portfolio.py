"""The few kernels that together serve a list of shapes best: the p-median problem.

A kernel is what is compiled: tile, cluster, schedule, stages, split-K, operand order. Raster and swizzle are
arguments of its launch, so that a kernel serves a shape with the best of its tile orders. The portfolio of p
kernels minimises the weighted mean over shapes of (time with the portfolio) / (time with all kernels).

Greedy choice and interchange give a portfolio, Lagrangian relaxation proves how far from the optimum it can
be, and where that leaves a gap, an exact search over the kernels that can still matter closes it (Cornuejols,
Fisher and Nemhauser, Management Science 23, 1977, for all three).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_model.choice.selection import Ranker
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernels.candidates import Candidate, CandidateSpace

PROVEN_GAP = 1e-6
"""Relative gap below which a portfolio is the best one [1]; the exact search; chosen: far below what
measurements resolve."""
SUBGRADIENT_STEPS = 300
EXACT_SEARCH_S = 20.0
EXACT_SEARCH_CELLS = 400_000
"""Most shapes x kernels [1]; the exact search; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Columns chosen from a matrix of costs, and a bound on how good any choice could be."""

    chosen: tuple[int, ...]
    cost: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 where the choice is proven to be the best."""
        return max(self.cost - self.lower_bound, 0.0) / self.cost if self.cost > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Portfolio:
    """Kernels for a list of problems, and the loss of each problem against all kernels."""

    kernels: tuple[Candidate, ...]
    """In order of the weight that they serve."""
    problems: tuple[GemmProblem, ...]
    served_by: IntArray
    """Position in `kernels` for each problem."""
    orders: tuple[Candidate, ...]
    """For each problem its kernel with the best tile order."""
    time_us: FloatArray
    best_us: FloatArray
    """Time with all kernels of the family to choose from."""
    mean_loss: float
    """Weighted mean of time / best - 1."""
    gap: float
    """No portfolio of this size has a mean time ratio smaller by more than this share."""

    @property
    def proven_best(self) -> bool:
        return self.gap <= PROVEN_GAP

    @property
    def loss(self) -> FloatArray:
        result: FloatArray = self.time_us / self.best_us - 1.0
        return result


def choose_portfolio(
    problems: Sequence[GemmProblem],
    ranker: Ranker,
    max_kernels: int,
    weights: Sequence[float] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Portfolio:
    """The portfolio of at most `max_kernels` kernels for problems of one set of types.

    `weights` say how often each problem occurs (default: equally); calls `advance(problems)` as problems are
    done. Raises InputError for no problems, mixed types, or weights that are not positive.
    """
    if not problems:
        raise InputError("no problems; expected at least one")
    if max_kernels < 1:
        raise InputError(f"max_kernels is {max_kernels}; expected a positive whole number")
    share = _shares(weights, len(problems))
    spaces = ranker.spaces(problems[0])
    if any(ranker.spaces(problem) is not spaces for problem in problems):
        raise InputError("problems of different types or layouts; expected one set of types for a portfolio")
    times = _kernel_times(problems, ranker, advance)
    best_us = times.time_us.min(axis=1)
    if not np.isfinite(best_us).all():
        raise InputError("a problem has no legal configuration; expected a larger k")
    found = select_columns(share[:, None] * times.time_us / best_us[:, None], max_kernels)

    of_problem = np.array(found.chosen)[np.argmin(times.time_us[:, found.chosen], axis=1)]
    served = [column for column in found.chosen if (of_problem == column).any()]
    served.sort(key=lambda column: -float(share[of_problem == column].sum()))
    time_us = times.time_us[np.arange(len(problems)), of_problem]
    return Portfolio(
        kernels=tuple(times.spaces[column].candidate(int(times.first[column])) for column in served),
        problems=tuple(problems),
        served_by=np.array([served.index(column) for column in of_problem]),
        orders=tuple(
            times.spaces[column].candidate(int(times.best[row, column]))
            for row, column in enumerate(of_problem)
        ),
        time_us=time_us,
        best_us=best_us,
        mean_loss=float(share @ (time_us / best_us)) - 1.0,
        gap=found.gap,
    )


@dataclass(frozen=True, slots=True)
class _KernelTimes:
    """Times of problems (rows) with each kernel (columns: one space after another) in its best tile order."""

    spaces: Sequence[CandidateSpace]
    """The space of each column."""
    first: IntArray
    """Position of each kernel's first tile order in its space."""
    best: IntArray
    """Position of its fastest tile order for each problem."""
    time_us: FloatArray
    """Infinite where the kernel cannot run."""


def _kernel_times(
    problems: Sequence[GemmProblem], ranker: Ranker, advance: Callable[[int], None]
) -> _KernelTimes:
    spaces = ranker.spaces(problems[0])
    starts = np.cumsum([0, *(space.kernels for space in spaces)])
    first = [np.arange(space.kernels) * space.family.space.orders_per_kernel for space in spaces]
    time_us = np.full((len(problems), int(starts[-1])), np.inf)
    best = np.zeros(time_us.shape, dtype=np.int64)
    for row, problem in enumerate(problems):
        for space, candidates, prediction in ranker.predictions(problem):
            orders = space.family.space.orders_per_kernel
            by_kernel = prediction.runtime_us.reshape(-1, orders)
            columns = starts[spaces.index(space)] + candidates[::orders] // orders
            time_us[row, columns] = by_kernel.min(axis=1)
            best[row, columns] = candidates[::orders] + by_kernel.argmin(axis=1)
        advance(1)
    of_columns = [space for space in spaces for _ in range(space.kernels)]
    return _KernelTimes(of_columns, np.concatenate(first), best, time_us)


def _shares(weights: Sequence[float] | None, count: int) -> FloatArray:
    values = np.ones(count) if weights is None else np.array(weights, dtype=np.float64)
    if len(values) != count or not (np.isfinite(values) & (values > 0)).all():
        raise InputError("weights of a portfolio; expected one positive number for each problem")
    result: FloatArray = values / values.sum()
    return result


def select_columns(cost: FloatArray, count: int) -> Selection:
    """At most `count` columns with the smallest sum over rows of the row's cheapest chosen entry.

    `cost` has shape (rows, columns) and is infinite if a column cannot serve a row. Raises InputError if no
    choice of `count` columns serves every row.
    """
    columns = _undominated(cost)
    # In place of infinity a number that no portfolio would choose.
    reduced = np.minimum(cost[:, columns], float(cost[np.isfinite(cost)].sum()) + 1.0)
    chosen = _interchange(reduced, _greedy(reduced, count))
    value = float(reduced[:, chosen].min(axis=1).sum())
    lower, penalties = _lagrangian_bound(reduced, count, value)
    if value - lower > PROVEN_GAP * value and reduced.size <= EXACT_SEARCH_CELLS:
        # A column whose use would lift the bound above the choice at hand is in no better choice.
        useful = np.flatnonzero(lower + penalties <= value * (1.0 + PROVEN_GAP))
        useful = np.union1d(useful, chosen)
        better, bound = _exact(reduced[:, useful], count)
        lower = max(lower, min(bound, value))
        if better is not None:
            candidate = [int(useful[column]) for column in better]
            better_value = float(reduced[:, candidate].min(axis=1).sum())
            if better_value < value:
                chosen, value = candidate, better_value
    if not np.isfinite(cost[:, columns[chosen]].min(axis=1)).all():
        few = "single kernel serves" if count == 1 else f"{count} kernels serve"
        raise InputError(f"no {few} every problem; expected more kernels")
    return Selection(
        chosen=tuple(sorted(int(columns[column]) for column in chosen)),
        cost=value,
        lower_bound=min(lower, value),
    )


def _undominated(cost: FloatArray) -> IntArray:
    """Columns that no other column beats or equals in every row (the first of equal columns stays)."""
    order = np.argsort(np.where(np.isfinite(cost), cost, 0.0).sum(axis=0), kind="stable")
    kept: list[int] = []
    for column in order:
        entries = cost[:, column]
        if not (cost[:, kept] <= entries[:, None]).all(axis=0).any():
            kept.append(int(column))
    return np.sort(np.array(kept))


def _greedy(cost: FloatArray, count: int) -> list[int]:
    chosen: list[int] = []
    current = np.full(len(cost), np.inf)
    for _ in range(min(count, cost.shape[1])):
        totals = np.minimum(cost, current[:, None]).sum(axis=0)
        best = int(np.argmin(totals))
        if totals[best] >= current.sum():
            break
        chosen.append(best)
        current = np.minimum(current, cost[:, best])
    return chosen


def _interchange(cost: FloatArray, chosen: list[int]) -> list[int]:
    """Exchange one chosen column for another as long as that helps (Teitz and Bart)."""
    best = float(cost[:, chosen].min(axis=1).sum())
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            others = [column for position, column in enumerate(chosen) if position != place]
            kept = cost[:, others].min(axis=1) if others else np.full(len(cost), np.inf)
            totals = np.minimum(cost, kept[:, None]).sum(axis=0)
            column = int(np.argmin(totals))
            if totals[column] < best * (1.0 - 1e-12):
                chosen = [*others, column]
                best, improved = float(totals[column]), True
                break
    return chosen


def _lagrangian_bound(cost: FloatArray, count: int, value: float) -> tuple[float, FloatArray]:
    """A lower bound on every choice of `count` columns, and the amount by which using each column raises it.

    The rule that each row is served once is relaxed with multipliers u: the bound is sum(u) plus the `count`
    most negative of the columns' sums of min(cost - u, 0), maximised over u by subgradient steps.
    """
    multipliers = cost.min(axis=1)
    best, scale = -np.inf, 2.0
    penalties = np.zeros(cost.shape[1])
    since_better = 0
    for _ in range(SUBGRADIENT_STEPS):
        gains = np.minimum(cost - multipliers[:, None], 0.0).sum(axis=0)
        order = np.argsort(gains, kind="stable")
        used = order[:count]
        bound = float(multipliers.sum() + gains[used].sum())
        if bound > best:
            best, since_better = bound, 0
            penalties = np.maximum(gains - gains[used[-1]], 0.0)
        else:
            since_better += 1
            if since_better >= 10:
                scale, since_better = scale / 2.0, 0
        served = (cost[:, used] < multipliers[:, None]).sum(axis=1)
        direction = 1.0 - served
        length = float(direction @ direction)
        if length == 0 or value - bound <= PROVEN_GAP * value:
            break
        multipliers = multipliers + scale * (value - bound) / length * direction
    return best, penalties


def _exact(cost: FloatArray, count: int) -> tuple[list[int] | None, float]:
    """The best columns by integer programming, and the proven bound; None if time ran out first."""
    # Imported here: scipy takes as long as all else together, and most portfolios do without.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import bmat, eye, kron

    rows, columns = cost.shape
    cells = rows * columns
    # Unknowns are the cells that serve a row, row by row, then the columns that are used.
    served = [kron(eye(rows), np.ones((1, columns))), None]
    linked = [eye(cells), -kron(np.ones((rows, 1)), eye(columns))]
    used = [None, np.ones((1, columns))]
    low = np.concatenate([np.ones(rows), np.full(cells, -np.inf), [0.0]])
    high = np.concatenate([np.ones(rows), np.zeros(cells), [float(count)]])
    integral = np.concatenate([np.zeros(cells), np.ones(columns)])
    result = milp(
        np.concatenate([cost.reshape(-1), np.zeros(columns)]),
        constraints=LinearConstraint(bmat([served, linked, used], format="csr"), low, high),
        integrality=integral,
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": EXACT_SEARCH_S, "mip_rel_gap": PROVEN_GAP / 10},
    )
    bound = float(result.mip_dual_bound) if result.mip_dual_bound is not None else -np.inf
    if result.x is None:
        return None, bound
    return [int(column) for column in np.flatnonzero(result.x[cells:] > 0.5)], bound
