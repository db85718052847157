"""Predicted times of configurations of one product: formulas, then the trees."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_model.core.gpu import GpuSpec
from gemm_model.serving.model import Times, launches_of, times_of
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.residual import corrected
from gemm_model.serving.tile_config import TileGrid


def predicted(
    product: ServedProduct,
    grid: TileGrid,
    gpu: GpuSpec,
    routing: str | Sequence[int] = "uniform",
    *,
    warm: bool = False,
) -> Times:
    """Times of all configurations of `grid`; `warm` where the weights are in L2 as far as they fit."""
    launches = launches_of(product, grid, gpu, routing, warm=warm)
    return corrected(launches, times_of(launches))
