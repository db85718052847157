"""Formulas that several models share: math rates."""

from __future__ import annotations

import numpy as np

from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import WITHOUT_BF16, GpuSpec

BITS_PER_BYTE = 8.0


def flop_per_clk_per_sm(batch: GemmBatch, gpu: GpuSpec) -> FloatArray:
    """Peak FLOP per clock of one SM for each row's types; raises InputError where the GPU lacks one."""
    rates = np.array([gpu.flop_per_clk_per_sm.get(kind, np.nan) for kind in MATH_KINDS])
    found: FloatArray = rates[batch.math_kind]
    missing = np.isnan(found)
    if missing.any():
        flop_per_clk_of(MATH_KINDS[int(batch.math_kind[int(np.argmax(missing))])], gpu)
    if gpu.architecture in WITHOUT_BF16 and batch.multiplies_bf16.any():
        raise InputError(
            f"GPU {gpu.name} has no bf16 math; expected one of {', '.join(gpu.flop_per_clk_per_sm)}"
        )
    return found


def flop_per_clk_of(kind: str, gpu: GpuSpec) -> float:
    """Peak FLOP per clock of one SM for a class of types; raises InputError where the GPU lacks it."""
    if kind not in gpu.flop_per_clk_per_sm:
        known = ", ".join(gpu.flop_per_clk_per_sm)
        raise InputError(f"GPU {gpu.name} has no {kind} math; expected one of {known}")
    return float(gpu.flop_per_clk_per_sm[kind])
