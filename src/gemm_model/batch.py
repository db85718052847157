"""Many (problem, kernel configuration) pairs as columns: what every model's formulas take.

A single prediction is a batch of one row, so that scalar and table go through the same formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemm_model.dtypes import MATH_KINDS
from gemm_model.errors import InputError
from gemm_model.kernel import RASTERS, SCHEDULES, KernelConfig
from gemm_model.problem import GemmProblem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmBatch:
    """Columns of equal length; sizes in elements, widths in bits, codes as positions in their tuples."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    a_bits: FloatArray
    b_bits: FloatArray
    out_bits: FloatArray
    acc_bits: FloatArray
    a_scale_bits: FloatArray
    """Scale-factor bits that travel with one element of A; 0 without block scales."""
    b_scale_bits: FloatArray
    math_kind: IntArray
    """Position in `dtypes.MATH_KINDS`."""
    a_k_major: BoolArray
    b_k_major: BoolArray
    c_n_major: BoolArray
    cta_m: FloatArray
    cta_n: FloatArray
    cta_k: FloatArray
    """0 where the kernel family chooses."""
    mma_m: FloatArray
    mma_n: FloatArray
    cluster_m: FloatArray
    cluster_n: FloatArray
    stages: FloatArray
    """0 where the kernel family chooses."""
    schedule: IntArray
    """Position in `kernel.SCHEDULES`."""
    raster: IntArray
    """Position in `kernel.RASTERS`."""
    swizzle: FloatArray
    split_k: FloatArray
    fast_accum: BoolArray

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: slice | IntArray | BoolArray) -> GemmBatch:
        """The batch of some rows."""
        return GemmBatch(**{spec.name: getattr(self, spec.name)[rows] for spec in fields(self)})

    @property
    def flop(self) -> FloatArray:
        return 2.0 * self.m * self.n * self.k * self.batch


_PROBLEM_COLUMNS = ("m", "n", "k", "batch")
_CONFIG_COLUMNS = (
    *("cta_m", "cta_n", "cta_k", "mma_m", "mma_n", "cluster_m", "cluster_n"),
    *("stages", "swizzle", "split_k"),
)


def batch_of(pairs: Sequence[tuple[GemmProblem, KernelConfig]]) -> GemmBatch:
    """The batch of some (problem, configuration) pairs, in their order."""
    if not pairs:
        raise InputError("no (problem, configuration) pair given; expected at least one")
    columns: dict[str, Any] = {}
    for name in _PROBLEM_COLUMNS:
        columns[name] = np.array([float(getattr(problem, name)) for problem, _ in pairs])
    for name in _CONFIG_COLUMNS:
        columns[name] = np.array([float(getattr(config, name)) for _, config in pairs])
    for operand in ("a", "b", "out", "acc"):
        columns[f"{operand}_bits"] = np.array([float(getattr(p, f"{operand}_dtype").bits) for p, _ in pairs])
    for operand in ("a", "b"):
        scales = [getattr(problem, f"{operand}_scale") for problem, _ in pairs]
        columns[f"{operand}_scale_bits"] = np.array(
            [scale.dtype.bits / scale.vec_size if scale else 0.0 for scale in scales]
        )
    columns["math_kind"] = np.array([MATH_KINDS.index(problem.math_kind) for problem, _ in pairs])
    columns["a_k_major"] = np.array([problem.a_major == "k" for problem, _ in pairs])
    columns["b_k_major"] = np.array([problem.b_major == "k" for problem, _ in pairs])
    columns["c_n_major"] = np.array([problem.c_major == "n" for problem, _ in pairs])
    columns["schedule"] = np.array([SCHEDULES.index(config.schedule) for _, config in pairs])
    columns["raster"] = np.array([RASTERS.index(config.raster) for _, config in pairs])
    columns["fast_accum"] = np.array([config.fast_accum for _, config in pairs])
    return GemmBatch(**columns)
