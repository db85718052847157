"""The few rows to measure on a new card: those that best separate a calibration's numbers (D-optimal)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.errors import InputError

TELLING_SHARE, MOST_TELLING = 0.25, 60
"""Share of a plan's rows that are D-optimal [1], and their most [rows]; chosen, docs/fleet.md."""


def log_jacobian(
    log_times: Callable[[FloatArray], FloatArray], values: FloatArray, steps: FloatArray
) -> FloatArray:
    """Derivatives of `log_times(values)`, one row for each time and one column for each value.

    Central differences of `steps`, in units of the steps: a column is the effect of one step of a value.
    """
    columns = []
    for index, step in enumerate(steps):
        shift = np.zeros_like(values)
        shift[index] = step
        columns.append((log_times(values + shift) - log_times(values - shift)) / 2.0)
    return np.stack(columns, axis=1)


def d_optimal(jacobian: FloatArray, count: int, *, noise: float | None = None) -> IntArray:
    """Positions of `count` rows whose information has the largest determinant, the most informative first.

    A column is in units of its number's prior standard deviation, so that the information starts as the
    identity. Each step adds the row that gains most, log(1 + j' M^-1 j / noise^2); no row is taken twice. The
    greedy set is within 1 - 1/e of the best, because the logarithm of the determinant is submodular. Raises
    InputError if there are fewer rows than `count`.
    """
    rows, numbers = jacobian.shape
    if not 0 < count <= rows:
        raise InputError(f"a design of {count} rows from {rows}; expected 1 to {rows}")
    if not np.isfinite(jacobian).all():
        raise InputError(
            "a design from derivatives that are not finite; expected rows that the model predicts"
        )
    scaled = jacobian / (room_numbers("calibration").log_noise if noise is None else noise)
    variance = np.eye(numbers)
    free = np.ones(rows, dtype=bool)
    chosen = np.empty(count, dtype=np.int64)
    for position in range(count):
        gain = np.einsum("ij,ij->i", scaled @ variance, scaled)
        best = int(np.argmax(np.where(free, gain, -1.0)))
        chosen[position], free[best] = best, False
        # Sherman and Morrison: the variance once this row is measured.
        gained = variance @ scaled[best]
        variance = variance - np.outer(gained, gained) / (1.0 + gain[best])
    return chosen


def spread_out(jacobian: FloatArray, count: int) -> IntArray:
    """Positions of `count` rows that represent all rows: one from each of `count` groups of similar rows.

    Rows are similar if the numbers move their times alike. Groups are halved at the median of the derivative
    that differs most within them (in units of its standard deviation over all rows), until there are `count`
    groups of equal size. Each group gives the row nearest to its medians. Raises InputError if there are
    fewer rows than `count`.
    """
    rows = len(jacobian)
    if not 0 < count <= rows:
        raise InputError(f"a design of {count} rows from {rows}; expected 1 to {rows}")
    deviation = jacobian.std(axis=0)
    scaled = jacobian / np.where(deviation > 0, deviation, 1.0)
    chosen: list[int] = []
    groups = [(np.arange(rows), count)]
    while groups:
        members, parts = groups.pop()
        values = scaled[members]
        if parts == 1:
            distance = np.square(values - np.median(values, axis=0)).sum(axis=1)
            chosen.append(int(members[np.argmin(distance)]))
            continue
        ordered = members[np.argsort(values[:, np.argmax(values.var(axis=0))], kind="stable")]
        half = parts // 2
        border = len(members) * half // parts
        groups += [(ordered[border:], parts - half), (ordered[:border], half)]
    return np.array(chosen, dtype=np.int64)


def planned(jacobian: FloatArray, count: int) -> IntArray:
    """Positions of `count` rows for a fit: most represent all rows, the others separate the numbers.

    D-optimal rows alone are extreme ones, where a model errs by more than its numbers explain: fits to them
    predict worse than fits to as many random rows (docs/fleet.md).
    """
    telling = min(round(TELLING_SHARE * count), MOST_TELLING)
    common = spread_out(jacobian, count - telling)
    others = np.setdiff1d(np.arange(len(jacobian)), common)
    if telling == 0:
        return common
    return np.concatenate([common, others[d_optimal(jacobian[others], telling)]])


def left_unknown(jacobian: FloatArray) -> FloatArray:
    """For each number, the share of its prior standard deviation that remains after these rows."""
    information = (
        np.eye(jacobian.shape[1]) + jacobian.T @ jacobian / room_numbers("calibration").log_noise ** 2
    )
    result: FloatArray = np.sqrt(np.diag(np.linalg.inv(information)))
    return result
