"""The situation of a kernel: error bands are kept for each (tiny, memory-bound, few waves, many waves, split K)."""

from __future__ import annotations

import numpy as np

from gemm_model.core.batch import IntArray
from gemm_model.core.elementwise import Values, maximum, where
from gemm_model.kernel_model.calibration_file import WHOLE_SITUATIONS
from gemm_model.kernel_model.kernel import Geometry
from gemm_model.kernel_model.kernel_time import KernelTime

TINY_US = 10.0
"""Longest waves of a tiny kernel [us]; error bands; chosen."""
FEW_WAVES = 4.0
"""Most waves of situation few_waves [waves]; error bands; chosen."""


def situation(geometry: Geometry, times: KernelTime) -> IntArray:
    """Position in SITUATIONS of each row."""
    return positions(situation_code(geometry, times), np.size(times.waves_us))


def positions(code: Values, rows: int) -> IntArray:
    """A code for all rows, or one for each, as an array of one position a row."""
    return np.broadcast_to(code, (rows,)).astype(np.int64)


def situation_code(geometry: Geometry, times: KernelTime) -> Values:
    """The position as a float, or as a column of floats."""
    schedule, kinds = geometry.schedule, geometry.batch.kinds
    memory_bound = maximum(times.l2_us, times.dram_us) > times.tensor_us
    waves = where(memory_bound, 1.0, where(schedule.waves <= FEW_WAVES, 2.0, 3.0))
    found = where(times.waves_us < TINY_US, 0.0, waves)
    found = where(kinds.kind >= 0.0, len(WHOLE_SITUATIONS) + kinds.kind, found)
    return where(schedule.sharers > 1.0, 4.0, found)
