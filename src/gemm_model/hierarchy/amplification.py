"""Bandwidth amplification: how many times each byte that a level delivers is used below it.

All formulas hold for an output-stationary tile of m x n outputs: each step of k brings m elements of A and
n of B, and every one of its m n FMAs takes one of each.
"""

from __future__ import annotations


def tiling(m: float, n: float, a_bytes: float, b_bytes: float) -> float:
    """Bytes that the FMAs of a tile take over bytes that the tile loads: m n (a + b) / (m a + n b).

    A square tile of side s amplifies by s, whatever the widths; a single output by 1.
    """
    return m * n * (a_bytes + b_bytes) / (m * a_bytes + n * b_bytes)


def multicast(
    m: float, n: float, sharers_m: float, sharers_n: float, a_bytes: float, b_bytes: float
) -> float:
    """Amplification by sharing one read among several tiles of m x n.

    `sharers_m` x `sharers_n` tiles stand together: A's rows are shared along n, B's along m. It is the
    amplification of the whole group's tile over that of one.
    """
    return tiling(m * sharers_m, n * sharers_n, a_bytes, b_bytes) / tiling(m, n, a_bytes, b_bytes)


def output_bytes_per_fma(depth: float, bytes_each_way: float, *, stationary: bool) -> float:
    """Bytes of output that cross a level's boundary for one FMA.

    Output-stationary: each output leaves once, after all `depth` = K products. Otherwise the partial sum is
    read and written again for every slice of `depth` products.
    """
    return bytes_each_way * (1.0 if stationary else 2.0) / depth
