"""Kernels of cuDNN: implicit GEMM, in tiles like CUTLASS's; which one it picks is known by name alone."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.further_work import CONV
from gemm_model.kernels import cutlass
from gemm_model.kernels.family import KernelFamily

SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""Parts of K [1]; weight gradients, small products of long K; chosen: whole ones would leave most SMs
idle."""


def _of_images(like: KernelFamily) -> KernelFamily:
    space = replace(
        like.space, swizzles=(1,), rasters=("heuristic",), split_k=SPLITS, fast_accum=False, stream_k=False
    )
    knows = frozenset({CONV, "bias_n", "relu"})
    return replace(like, name="cudnn", space=space, knows=knows, plain_products=False)


FAMILIES = tuple(map(_of_images, cutlass.FAMILIES))
