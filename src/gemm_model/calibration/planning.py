"""The rows to measure on a card: a designed set of 250 for `--quick`, or as many as a time budget buys."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.provider import configs_of, swept
from gemm_model.bench.rows import Row, padded
from gemm_model.bench.sweep import estimated_row_ms
from gemm_model.calibration.fit import DEFAULT_FREE
from gemm_model.config.mechanisms import NUMBERS, kernel_numbers
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray, batch_of
from gemm_model.core.dtypes import operand_type
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import Calibration, calibration_for
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of


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
    chosen = room_numbers("calibration")
    telling = min(round(chosen.telling_share * count), int(chosen.most_telling))
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


TYPES = ("bf16", "e4m3")


def designed_rows(gpu: GpuSpec, donor: Calibration, types: Sequence[str] = TYPES) -> list[Row]:
    """The rows to be measured on a card, of the types that it has; equal for equal descriptions."""
    chosen = room_numbers("calibration")
    draw = random.Random(int(chosen.plan_seed))
    rows: list[Row] = []
    for dtype in types:
        if gpu.multiplies(operand_type(dtype)[0]):
            pool = list(random_rows(gpu, family_of(donor.family, gpu), dtype, draw, int(chosen.pool_shapes)))
            rows += _chosen(pool, gpu, donor, draw)
    return rows


def sensitivities(rows: Sequence[Row], gpu: GpuSpec, donor: Calibration) -> tuple[FloatArray, FloatArray]:
    """What moves the times of rows of one type: derivatives (rows x fitted numbers), and the times in us.

    A derivative is that of the logarithm of time by a number of the donor, in units of `unknown_share` of it.
    """
    kind = rows[0].problem.a_dtype.math_kind
    known = donor.numbers[donor.kind_for(kind)].values()
    family = family_of(donor.family, gpu)
    pairs = [(row.problem, row.config) for row in rows if isinstance(row.config, KernelConfig)]
    shape = geometry_of(batch_of(pairs), gpu.flop_per_clk(kind), gpu, family)
    names = [name for name in DEFAULT_FREE if name.partition(".")[0] in family.mechanisms]
    low, high = (np.array([getattr(NUMBERS[name], end) for name in names]) for end in ("low", "high"))

    def log_times(values: FloatArray) -> FloatArray:
        moved = dict(zip(names, np.clip(values, low, high).tolist(), strict=True))
        numbers = kernel_numbers(known | moved).without(family.absent_mechanisms)
        result: FloatArray = np.log(kernel_time(shape, gpu, numbers).runtime_us)
        return result

    values = np.array([known[name] for name in names])
    steps = room_numbers("calibration").unknown_share * np.abs(values)
    return log_jacobian(log_times, values, steps), np.exp(log_times(values))


def _chosen(pool: list[Row], gpu: GpuSpec, donor: Calibration, draw: random.Random) -> list[Row]:
    """The designed rows of a pool, and the fastest of some other shapes."""
    jacobian, times_us = sensitivities(pool, gpu, donor)
    chosen = room_numbers("calibration")
    short = np.flatnonzero(times_us < chosen.longest_us)
    designed = short[d_optimal(jacobian[short], min(int(chosen.designed_rows), len(short)))].tolist()
    best: dict[GemmProblem, int] = {}
    for position in short[np.argsort(times_us[short], kind="stable")].tolist():
        best.setdefault(pool[position].problem, position)
    fast = sorted(set(best.values()) - set(designed))
    drawn = draw.sample(fast, min(int(chosen.drawn_rows), len(fast)))
    return [pool[position] for position in (*designed, *drawn)]


def legal_kernels(gpu: GpuSpec, family: KernelFamily, dtype: str) -> list[KernelConfig]:
    """The common tiles, clusters and swizzles that the family has for a type on a GPU; InputError if none."""
    kernels = configs_of(swept()["common"], kernel=family.name)
    any_size = GemmProblem.of(4096, 4096, 4096, dtype)
    legal = feasible_mask(batch_of([(any_size, kernel) for kernel in kernels]), gpu, family)
    if not legal.any():
        raise InputError(f"plans hold no tiles that {family.name} has for {dtype} on {gpu.name}")
    return [kernel for kernel, good in zip(kernels, legal, strict=True) if good]


def random_rows(
    gpu: GpuSpec, family: KernelFamily, dtype: str, draw: random.Random, shapes: int
) -> Iterator[Row]:
    """Legal kernels of shapes from one row to many, with long and short K, and rows that start off lines."""
    kernels = int(room_numbers("calibration").pool_kernels)
    for rows in rows_of_sizes(gpu, family, dtype, _random_sizes(draw, shapes)):
        yield from draw.sample(rows, min(kernels, len(rows)))


def rows_of_sizes(
    gpu: GpuSpec, family: KernelFamily, dtype: str, sizes: Iterable[tuple[int, int, int]]
) -> Iterator[list[Row]]:
    """The legal kernels of each size whose tiles are not much higher than it."""
    kernels = legal_kernels(gpu, family, dtype)
    for asked in sizes:
        problem = padded(GemmProblem.of(*asked, dtype))
        fitting = (kernel for kernel in kernels if kernel.cta_m <= max(64, 2 * asked[0]))
        yield [Row(kernel=family.name, problem=problem, config=kernel, asked=asked) for kernel in fitting]


def _random_sizes(draw: random.Random, shapes: int) -> Iterator[tuple[int, int, int]]:
    for _ in range(shapes):
        step = draw.choice((8, 64, 64, 128, 256))
        m = round(_log_uniform(draw, 1, 16384))
        n, k = (max(round(_log_uniform(draw, 256, 24576) / step), 1) * step for _ in "nk")
        yield m, n, k


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows to measure, with their expected cost and information."""

    rows: list[Row]
    donor: str
    """The calibration whose sensitivities choose them."""
    pool: int
    """Rows that they were chosen from."""
    shapes: int
    measure_s: float
    """Expected duration on the rough card of a dry run [s]."""
    left_unknown: float
    """Share of a number's prior uncertainty that remains after these rows [1]; median over numbers."""


def planned_rows(
    gpu: GpuSpec,
    family: KernelFamily,
    types: Sequence[str],
    *,
    budget_s: float,
    sizes: Sequence[tuple[int, int, int]] = (),
    advance: Callable[[int], None] = lambda _parts: None,
) -> Plan:
    """As many rows as `budget_s` buys, of all types together; equal for equal descriptions.

    `sizes` (m, n, k) replace random ones. `advance` counts types whose candidates are known. Raises
    InputError if the budget buys no row.
    """
    if not types:
        raise InputError("no operand type given; expected some, such as bf16,fp8")
    for dtype in types:
        if not gpu.multiplies(operand_type(dtype)[0]):
            raise InputError(f"{gpu.name} has no {dtype}; expected types of `gemm-model list gpus`")
        legal_kernels(gpu, family, dtype)  # refuses
    donor, _ = calibration_for(gpu, family.name)
    chosen = room_numbers("calibration")
    draw = random.Random(int(chosen.plan_seed))
    pool: list[Row] = []
    derivatives = []
    for dtype in types:
        if sizes:
            rows = [row for some in rows_of_sizes(gpu, family, dtype, sizes) for row in some]
        else:
            rows = list(random_rows(gpu, family, dtype, draw, int(chosen.candidate_shapes)))
        pool += rows
        derivatives.append(sensitivities(rows, gpu, donor)[0])
        advance(1)
    jacobian = np.concatenate(derivatives)
    settings = TimingSettings()
    cost_ms = np.array([estimated_row_ms(row, settings) for row in pool])
    bought = _affordable(jacobian, cost_ms, 1e3 * budget_s)
    rows = [pool[position] for position in sorted(bought.tolist())]
    return Plan(
        rows=rows,
        donor=donor.name,
        pool=len(pool),
        shapes=len({row.problem for row in rows}),
        measure_s=float(cost_ms[bought].sum()) / 1e3,
        left_unknown=float(np.median(left_unknown(jacobian[bought]))),
    )


def _affordable(jacobian: FloatArray, cost_ms: FloatArray, budget_ms: float) -> IntArray:
    """A planned set whose rows take about the budget, and no longer."""
    count = min(round(budget_ms / cost_ms.mean()), len(cost_ms))
    while count > 0:
        found = planned(jacobian, count)
        if cost_ms[found].sum() <= budget_ms:
            return found
        count = min(count - 1, int(count * budget_ms / cost_ms[found].sum()))
    raise InputError(
        f"a budget of {budget_ms / 1e3:g} s buys no row; expected {cost_ms.mean() / 1e3:.2g} s or more"
    )
