"""Kernels of cuDNN: implicit GEMM in the tiles that the names of its picks tell, else like CUTLASS's."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags
from gemm_model.core.further_work import CONV
from gemm_model.core.kernel_config import AUTO, PINGPONG
from gemm_model.kernels import cutlass
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.mechanisms import OF_LIBRARIES
from gemm_model.kernels.numbers import family_numbers

SPLITS = (*range(1, 9), *range(10, 25, 2), 32, 44, 64)
"""Parts of K [1]; weight gradients, small products of long K; as many as leave each tile's CTAs room on the
SMs (grids of its picks on an H200), in steps of at most a seventh up to 24."""


def in_its_schedule(batch: GemmBatch) -> Flags:
    """A tile comes in one schedule: warpgroups share the large ones."""
    too_large = batch.cta_m * batch.cta_n > family_numbers().cudnn_pingpong_accumulators
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits


def _of_images(like: KernelFamily) -> KernelFamily:
    space = replace(like.space, swizzles=(1,), rasters=("heuristic",), split_k=SPLITS, fast_accum=False)
    knows = frozenset({CONV, "bias_n", "relu"})
    order = replace(like.tile_order, packs_groups=True)
    return replace(like, name="cudnn", space=space, tile_order=order, knows=knows, plain_products=False)


def _picked_on_hopper(like: KernelFamily) -> KernelFamily:
    """The tiles of most of its picks on an H200; which one it picks is its own affair.

    Its clusters have any size that fits a row or column of tiles, and do not show in a name.
    """
    space = replace(
        like.space,
        cta_n=(64, 128, 256),
        cta_k=(AUTO, 32),
        clusters=((1, 1),),
        combines=in_its_schedule,
    )
    # None of its epilogues divides.
    return replace(like, space=space, mechanisms=OF_LIBRARIES)


CUDNN_SM90, *OTHERS = map(_of_images, cutlass.FAMILIES)
FAMILIES = (_picked_on_hopper(CUDNN_SM90), *OTHERS)
