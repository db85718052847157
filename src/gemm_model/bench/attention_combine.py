"""The kernel that combines the parts of an attention whose keys were split.

flash-attn-4's own one takes parts of 32 bits alone (4.0.0b36 on an H200: illegal accesses with 16).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _combine(part, lse, out, splits, heads, SIZE: tl.constexpr, PLACES: tl.constexpr):
    """One program for each sequence and head: parts weighed by their sums of exponentials."""
    row = tl.program_id(0)
    split = tl.arange(0, PLACES)
    seen = split < splits
    at = (row // heads * splits + split) * heads + row % heads
    weight = tl.load(lse + at, mask=seen, other=-float("inf"))
    weight = tl.exp(weight - tl.max(weight, 0))
    weight = weight / tl.sum(weight, 0)
    column = tl.arange(0, SIZE)
    parts = tl.load(part + at[:, None] * SIZE + column[None, :], mask=seen[:, None], other=0.0)
    total = tl.sum(parts.to(tl.float32) * weight[:, None], 0)
    tl.store(out + row * SIZE + column, total.to(out.dtype.element_ty))


def combine(part, lse, out, splits):
    """Fill out (batch, 1, heads, size) from part (batch * splits, 1, heads, size) and lse of each."""
    batch, _, heads, size = out.shape
    places = triton.next_power_of_2(splits)
    _combine[(batch * heads,)](part, lse, out, splits, heads, SIZE=size, PLACES=places, num_warps=4)
