"""Bandwidth amplification: how many times each byte that a level delivers is used below it.

All formulas hold for an output-stationary tile of m x n outputs: each step of k brings m elements of A and
n of B, and every one of its m n FMAs takes one of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gemm_model.core.batch import FloatArray


def tiling(m: ArrayLike, n: ArrayLike, a_bytes: ArrayLike, b_bytes: ArrayLike) -> FloatArray:
    """Bytes that the FMAs of a tile take over bytes that the tile loads: m n (a + b) / (m a + n b).

    A square tile of side s amplifies by s, whatever the widths; a single output by 1.
    """
    m, n, a, b = (np.asarray(value, dtype=np.float64) for value in (m, n, a_bytes, b_bytes))
    result: FloatArray = m * n * (a + b) / (m * a + n * b)
    return result


def multicast(
    m: ArrayLike,
    n: ArrayLike,
    sharers_m: ArrayLike,
    sharers_n: ArrayLike,
    a_bytes: ArrayLike,
    b_bytes: ArrayLike,
) -> FloatArray:
    """Amplification by sharing one read among several tiles of m x n.

    `sharers_m` x `sharers_n` tiles stand together: A's rows are shared along n, B's along m. It is the
    amplification of the whole group's tile over that of one.
    """
    group_m = np.asarray(m, dtype=np.float64) * np.asarray(sharers_m)
    group_n = np.asarray(n, dtype=np.float64) * np.asarray(sharers_n)
    result: FloatArray = tiling(group_m, group_n, a_bytes, b_bytes) / tiling(m, n, a_bytes, b_bytes)
    return result


def output_bytes_per_fma(depth: ArrayLike, bytes_each_way: ArrayLike, *, stationary: bool) -> FloatArray:
    """Bytes of output that cross a level's boundary for one FMA.

    Output-stationary: each output leaves once, after all `depth` = K products. Otherwise the partial sum is
    read and written again for every slice of `depth` products.
    """
    per_visit = np.asarray(bytes_each_way, dtype=np.float64) * (1.0 if stationary else 2.0)
    result: FloatArray = per_visit / np.asarray(depth, dtype=np.float64)
    return result
