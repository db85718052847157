"""How the fill of boxes partly outside a matrix depends on the CTAs that read the same box at the same time.

python benchmarks/fill_readers.py OUTPUT.csv

Each CTA streams a matrix of `m` rows in boxes of `block_m` rows by TMA and multiplies each by 16 columns; `readers`
CTAs share a matrix. With `skew` they read its k tiles each from another place on. Measured on an H200:
data/measurements/h200/probes.csv.gz, campaign fill_readers.
"""

import sys
from bisect import bisect_right

import numpy as np
import pandas as pd
import torch
import triton
import triton.language as tl

K, BLOCK_K = 8192, 64
BOXES = ((128, 132), (64, 132), (128, 66), (128, 32), (128, 12), (64, 264))
"""Rows of a box, and CTAs; the first is measured with readers one k tile apart as well."""
READERS = (1, 2, 3, 4, 6, 8, 12, 16, 22, 32, 44, 66, 132)


@triton.jit
def stream(  # noqa: PLR0913 - a device function
    a_ptr, b_ptr, out_ptr, matrices, m, k, readers, skew,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(
        a_ptr, shape=[matrices, m, k], strides=[m * k, k, 1], block_shape=[1, BLOCK_M, BLOCK_K]
    )
    b = tl.make_tensor_descriptor(b_ptr, shape=[16, BLOCK_K], strides=[BLOCK_K, 1], block_shape=[16, BLOCK_K])
    cta = tl.program_id(0)
    columns = b.load([0, 0]).T
    k_tiles = k // BLOCK_K
    first = (cta % readers) * skew
    sums = tl.zeros((BLOCK_M, 16), dtype=tl.float32)
    for step in tl.range(0, k_tiles, num_stages=STAGES):
        box = a.load([cta // readers, 0, ((step + first) % k_tiles) * BLOCK_K])
        sums = tl.dot(box.reshape(BLOCK_M, BLOCK_K), columns, sums)
    tl.store(out_ptr + cta, tl.sum(sums))


def time_us(block_m: int, ctas: int, skew: int, readers: int, m: int) -> float:
    """The median of 12 launches, after 12 that warm L2."""
    matrices = -(-ctas // readers)
    a = torch.ones(matrices, m, K, device="cuda", dtype=torch.bfloat16)
    b = torch.ones(16, BLOCK_K, device="cuda", dtype=torch.bfloat16)
    out, found = torch.empty(ctas, device="cuda"), []
    for _ in range(24):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        stream[(ctas,)](a, b, out, matrices, m, K, readers, skew, block_m, BLOCK_K, 4, num_warps=4)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return float(np.median(found[12:]))


triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))
cases = [
    (block_m, ctas, skew, readers, m)
    for block_m, ctas, skew in (*((*each, 0) for each in BOXES), (*BOXES[0], 1))
    for readers in READERS[: bisect_right(READERS, ctas)]
    for m in sorted({8, block_m // 4, block_m // 2, block_m * 3 // 4, block_m})
]
pd.DataFrame(cases, columns=["block_m", "ctas", "skew", "readers", "m"]).assign(
    runtime_us=[time_us(*case) for case in cases]
).to_csv(sys.argv[1], index=False)
