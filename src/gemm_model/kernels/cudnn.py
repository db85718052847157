"""Kernels of cuDNN: implicit GEMM in the tiles that the names of its picks tell, else like CUTLASS's."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags
from gemm_model.core.further_work import CONV
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernels import cutlass
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.numbers import family_numbers

SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""Parts of K [1]; weight gradients, small products of long K; chosen: whole ones would leave most SMs
idle."""


def in_its_schedule(batch: GemmBatch) -> Flags:
    """A tile comes in one schedule: warpgroups share the large ones."""
    too_large = batch.cta_m * batch.cta_n > family_numbers().cudnn_pingpong_accumulators
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits


def _of_images(like: KernelFamily) -> KernelFamily:
    space = replace(like.space, swizzles=(1,), rasters=("heuristic",), split_k=SPLITS, fast_accum=False)
    knows = frozenset({CONV, "bias_n", "relu"})
    return replace(like, name="cudnn", space=space, knows=knows, plain_products=False)


def _picked_on_hopper(like: KernelFamily) -> KernelFamily:
    """The tiles and clusters of its picks on an H200; which one it picks is its own affair."""
    space = replace(
        like.space,
        cta_n=(64, 128, 192, 256),
        clusters=((1, 1), (2, 1), (4, 1), (8, 1)),
        combines=in_its_schedule,
    )
    return replace(like, space=space)


CUDNN_SM90, *OTHERS = map(_of_images, cutlass.FAMILIES)
FAMILIES = (_picked_on_hopper(CUDNN_SM90), *OTHERS)
