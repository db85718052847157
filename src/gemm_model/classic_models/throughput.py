"""Formulas that several models share: math rates."""

from __future__ import annotations

import numpy as np

from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.dtypes import MATH_KINDS, kind_said
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import WITHOUT_BF16, GpuSpec

BITS_PER_BYTE = 8.0


def flop_per_clk_per_sm(batch: GemmBatch, gpu: GpuSpec) -> FloatArray:
    """Peak FLOP per clock of one SM for each row's types; raises InputError where the GPU lacks one."""
    rates = np.array([gpu.flop_per_clk_per_sm.get(kind, np.nan) for kind in MATH_KINDS])
    found: FloatArray = rates[batch.math_kind]
    missing = np.isnan(found)
    if missing.any():
        row = int(np.argmax(missing))
        raise _lacks(kind_said(int(batch.math_kind[row]), max(batch.a_bits[row], batch.b_bits[row])), gpu)
    if gpu.architecture in WITHOUT_BF16 and batch.multiplies_bf16.any():
        raise _lacks("bf16", gpu)
    return found


def flop_per_clk_of(kind: str, gpu: GpuSpec) -> float:
    """Peak FLOP per clock of one SM for a class of types; raises InputError where the GPU lacks it."""
    if kind not in gpu.flop_per_clk_per_sm:
        raise _lacks(kind, gpu)
    return float(gpu.flop_per_clk_per_sm[kind])


def _lacks(kind: str, gpu: GpuSpec) -> InputError:
    known = ", ".join(gpu.flop_per_clk_per_sm)
    return InputError(f"{gpu.words} has no {kind} math; expected one of {known}")
