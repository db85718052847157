"""Kernels before Hopper, whatever the library: warp MMAs, a ring of stages in shared memory, one CTA a tile.

From sm80 on the ring is filled by asynchronous copies (cp.async); before it through registers, two stages deep.
"""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, where
from gemm_model.kernels import warpgroup_mma
from gemm_model.kernels.family import ResourceRules, TilePeriod
from gemm_model.kernels.mechanisms import OF_LIBRARIES

REGISTER_COPY, ASYNC_COPY = ("sm70", "sm75"), ("sm80", "sm86", "sm89")


def offers_tile(batch: GemmBatch) -> Flags:
    """Whole MMA instructions of m16n8, up to 256 x 256."""
    m, n = batch.cta_m, batch.cta_n
    return is_multiple(m, 16.0) & is_multiple(n, 8.0) & (m <= 256) & (n <= 256)


def warpgroups(batch: GemmBatch) -> Values:
    return where(batch.cta_m * batch.cta_n <= room_numbers("kernels").four_warp_accumulators, 1.0, 2.0)


def resource_rules(*, stages: float = float("inf")) -> ResourceRules:
    return ResourceRules(
        offers_tile=offers_tile,
        warpgroups=warpgroups,
        math_in_round_trip=warpgroup_mma.no_math,
        epilogue_buffers=warpgroup_mma.no_buffers,
        mma_registers=warpgroup_mma.whole_register_file,
        barrier_bytes=0.0,
        most_stages=stages,
    )


MECHANISMS = tuple(name for name in OF_LIBRARIES if name != "edge_tiles")
"""Threads copy the operands, with rows outside the matrix predicated off, so that there is no fill."""

ONE_CTA_A_TILE = TilePeriod(persistent=False)
