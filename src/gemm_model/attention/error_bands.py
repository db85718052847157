"""Error bands of attention kernels, from `config/numbers/attention.yaml`."""

from __future__ import annotations

from functools import cache

import numpy as np

from gemm_model.config import read_yaml_mapping
from gemm_model.config.numbers import NUMBERS_DIR
from gemm_model.core.attention import KERNELS
from gemm_model.core.batch import FloatArray

MOST_DECODED = 256
"""Most queries of a sequence in a decode step [1]; error bands; chosen: more queries have prefill's band."""


@cache
def error_bands(gpu: str) -> FloatArray:
    """Relative error of 90 % of measurements, of each of KERNELS in decode and prefill [1]; NaN where none is."""
    found = read_yaml_mapping(NUMBERS_DIR / "attention.yaml", "numbers of a room")
    known = found["error_band"] if gpu == found["measured_on"] else {}
    kinds = ("decode", "prefill")
    return np.array([[known.get(name, {}).get(kind, np.nan) for kind in kinds] for name in KERNELS])
