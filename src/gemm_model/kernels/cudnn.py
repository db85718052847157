"""Kernels of cuDNN: implicit GEMM with tiles known from kernel names, otherwise like CUTLASS's."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags
from gemm_model.core.kernel_config import AUTO, PINGPONG
from gemm_model.core.kind_columns import CONV
from gemm_model.kernels import cutlass
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.mechanisms import OF_LIBRARIES

SPLITS = (*range(1, 9), *range(10, 25, 2), 32, 44, 64)
"""Parts of K [1]; weight gradients and small GEMMs with long K; grids of its kernels on an H200, in steps of
at most a seventh up to 24."""


def in_its_schedule(batch: GemmBatch) -> Flags:
    """Whether the schedule is the tile's own: cooperative for large tiles."""
    too_large = batch.cta_m * batch.cta_n > room_numbers("kernels").cudnn_pingpong_accumulators
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits


def _of_images(like: KernelFamily) -> KernelFamily:
    space = replace(like.space, swizzles=(1,), rasters=("heuristic",), split_k=SPLITS, fast_accum=False)
    knows = frozenset({CONV, "bias_n", "relu"})
    order = replace(like.tile_order, packs_groups=True)
    return replace(like, name="cudnn", space=space, tile_order=order, knows=knows, plain_products=False)


def _picked_on_hopper(like: KernelFamily) -> KernelFamily:
    """The tiles of most kernels that cuDNN picked on an H200.

    Its clusters have any size that fits a row or column of tiles; kernel names do not show them.
    """
    space = replace(
        like.space, cta_n=(64, 128, 256), cta_k=(AUTO, 32), clusters=((1, 1),), combines=in_its_schedule
    )
    # None of its epilogues uses a division, and measured convolutions show no out-of-bounds fill.
    mechanisms = tuple(name for name in OF_LIBRARIES if name != "edge_tiles")
    return replace(like, space=space, mechanisms=mechanisms)


CUDNN_SM90, *OTHERS = map(_of_images, cutlass.FAMILIES)
FAMILIES = (_picked_on_hopper(CUDNN_SM90), *OTHERS)
