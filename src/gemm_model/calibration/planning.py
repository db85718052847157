"""Plan rows to measure within a time budget, by the sensitivities of their predicted times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.rows import Row
from gemm_model.bench.sweep import estimated_row_ms
from gemm_model.calibration.design import left_unknown, planned
from gemm_model.calibration.quick import SEED, legal_kernels, random_rows, rows_of_sizes, sensitivities
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.dtypes import operand_type
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernels.family import KernelFamily

CANDIDATE_SHAPES = 1200
"""Random shapes of each type to choose from [shapes]; plans of a calibration, 16 kernels each; chosen."""


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
    draw = random.Random(SEED)
    pool: list[Row] = []
    derivatives = []
    for dtype in types:
        if sizes:
            rows = [row for some in rows_of_sizes(gpu, family, dtype, sizes) for row in some]
        else:
            rows = list(random_rows(gpu, family, dtype, draw, CANDIDATE_SHAPES))
        pool += rows
        derivatives.append(sensitivities(rows, gpu, donor)[0])
        advance(1)
    jacobian = np.concatenate(derivatives)
    settings = TimingSettings()
    cost_ms = np.array([estimated_row_ms(row, settings) for row in pool])
    chosen = _affordable(jacobian, cost_ms, 1e3 * budget_s)
    rows = [pool[position] for position in sorted(chosen.tolist())]
    return Plan(
        rows=rows,
        donor=donor.name,
        pool=len(pool),
        shapes=len({row.problem for row in rows}),
        measure_s=float(cost_ms[chosen].sum()) / 1e3,
        left_unknown=float(np.median(left_unknown(jacobian[chosen]))),
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
