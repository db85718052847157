"""Trees that correct the formulas' times: what measured kernels of one card say beyond them, frozen.

The trees ask for sizes of tiles, what a thread holds, and each resource's share of the time. They know
the code that Triton makes for sm90, where their rows were measured; no other architecture takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gemm_model.config import CONFIG_DIR
from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import GpuSpec
from gemm_model.kernel_model.forest import Features, Forest
from gemm_model.kernel_model.forest_file import forest_of, read_archive
from gemm_model.serving.model import Launches, Times, chain_clk, launches_of, sm_clk, times_of
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.tile_config import FloatArray, TileGrid

RESIDUAL = CONFIG_DIR / "serving_residual.npz"
FOREST = "serving"
FEATURES = 28
GATHERED = 12
"""Place of the feature that tells the products of experts apart [1]."""
ARCHITECTURE = "sm90"


def features(launches: Launches, times: Times) -> Features:
    """What the trees ask of every configuration, of shape (features, rows)."""
    grid, resources, product = launches.grid, launches.resources, launches.product
    all_rounds = launches.tiles / launches.slots
    rounds = np.minimum(all_rounds, launches.numbers.most_rounds)
    total = np.where(resources.fits, times.total_us, 1.0)
    of_expert = launches.row_tiles / launches.active_experts
    columns: tuple[FloatArray | NDArray[np.bool_] | float, ...] = (
        np.log2(grid.cta_m),
        np.log2(grid.cta_n),
        np.log2(grid.cta_k * product.weight_bytes),
        grid.warps,
        grid.stages,
        np.log2(np.minimum(grid.group_m, launches.row_tiles)),
        resources.registers,
        resources.ctas_per_sm,
        resources.from_smem,
        resources.swapped,
        product.activation_bytes,
        product.block_scaled,
        product.gathered,
        np.log2(launches.steps),
        np.log2(launches.columns),
        np.log2(rounds),
        rounds % 1.0,
        np.log2(launches.tile_rows),
        launches.tile_rows / grid.cta_m,
        np.log2(of_expert),
        np.log(times.sm_us / total),
        np.log(times.l2_us / total),
        np.log(times.dram_us / total),
        np.log(times.start_us / total),
        np.log(resources.ctas_per_sm * sm_clk(launches) / chain_clk(launches)),
        np.log2(1.0 + launches.in_flight_bytes),
        np.ceil(all_rounds % 1.0 * resources.ctas_per_sm - 1e-9),
        resources.smem_bytes,
    )
    seen = np.empty((FEATURES, len(grid)), dtype=np.float32)
    for row, column in zip(seen, columns, strict=True):
        row[:] = column
    return seen


@cache
def residual() -> Forest:
    """The shipped trees; raises InputError where the file is damaged."""
    _, arrays = read_archive(RESIDUAL)
    return forest_of(arrays, FOREST, FEATURES, RESIDUAL)


@cache
def first_trees() -> Forest:
    """The trees that say most, boosted first: they sort out what all trees need not see."""
    every, count = residual(), int(room_numbers("serving").first_trees)
    return replace(every, tree_splits=every.tree_splits[:, :count], leaves=every.leaves[:count])


def corrects(gpu: GpuSpec) -> bool:
    """Whether the trees know the code that Triton makes for this card."""
    return gpu.kernel_architecture == ARCHITECTURE


def factors(forest: Forest, seen: Features) -> FloatArray:
    """What times are multiplied by, of each column of `features`."""
    most = room_numbers("serving").largest_log
    return np.exp(np.clip(forest.predict(seen), -most, most))


def corrected(launches: Launches, times: Times) -> Times:
    """The times, each multiplied by what the trees say of it."""
    forest = residual()  # a damaged file is refused on every card
    return times.scaled(factors(forest, features(launches, times))) if corrects(launches.gpu) else times


def predicted(
    product: ServedProduct,
    grid: TileGrid,
    gpu: GpuSpec,
    routing: str | Sequence[int] = "uniform",
    *,
    warm: bool = False,
) -> Times:
    """Times of all configurations of `grid`: formulas, then trees; `warm` where L2 holds what it can of the weights."""
    launches = launches_of(product, grid, gpu, routing, warm=warm)
    return corrected(launches, times_of(launches))
