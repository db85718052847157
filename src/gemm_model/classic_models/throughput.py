"""Formulas that several models share: math rates."""

from __future__ import annotations

import numpy as np

from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.dtypes import MATH_KINDS, kind_said
from gemm_model.core.gpu import WITHOUT_BF16, GpuSpec

BITS_PER_BYTE = 8.0


def flop_per_clk_per_sm(batch: GemmBatch, gpu: GpuSpec) -> FloatArray:
    """Peak FLOP per clock of one SM for each row's types; raises InputError where the GPU lacks one."""
    rates = np.array([gpu.flop_per_clk_per_sm.get(kind, np.nan) for kind in MATH_KINDS])
    found: FloatArray = rates[batch.math_kind]
    missing = np.isnan(found)
    if missing.any():
        row = int(np.argmax(missing))
        raise gpu.lacking(kind_said(int(batch.math_kind[row]), max(batch.a_bits[row], batch.b_bits[row])))
    if gpu.architecture in WITHOUT_BF16 and batch.multiplies_bf16.any():
        raise gpu.lacking("bf16")
    return found
