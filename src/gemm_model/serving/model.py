"""Times of the frameworks' Triton kernels: one CTA a tile, rings of asynchronous copies, padded experts.

A tile costs its SM what its MMAs and copies take (`sm_clk`), and lasts at least as long as its own chain of
steps (`chain_clk`). CTAs fill the SMs in rounds; L2 and DRAM bound each round together. Every function
states one formula for all configurations of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gemm_model.config.numbers import Numbers, room_numbers
from gemm_model.core.dtypes import element_type
from gemm_model.core.gpu import TRANSFERS_PER_CLK, GpuSpec
from gemm_model.serving import resources as taken
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.routing import row_tiles
from gemm_model.serving.tile_config import FloatArray, TileGrid

LINE_BYTES = 128.0
"""A line of L2 [B]; all GPUs; CUDA C++ Programming Guide."""
CUDA_LANES = 128.0
"""FMAs of an SM's CUDA cores [1/clk]; from sm80 on, sm80 half of it; CUDA C++ Programming Guide."""
WARP_SCHEDULERS = 4.0
SINGLE = 2.0
"""Stages of a ring that holds one k tile in shared memory [stages]; one waits in registers; Triton's pipeline."""
LDMATRIX_BYTES = 512.0
"""What a warp reads of shared memory by one instruction [B]; MMAs from registers; PTX ISA: ldmatrix.x4."""
HBM_BUS_BITS = 1024
"""Width from which a DRAM bus is one of HBM stacks [bits]; all GPUs; JEDEC JESD235: 1,024 a stack."""
GDDR_CHANNEL_BYTES = 2.0
"""Width of a channel [B]; GDDR6, GDDR7, LPDDR5; JEDEC JESD250."""
SHARP, SOFT = 4, 2
"""Orders of the smooth maxima [1]: resources beside each other; what waits beside what works. Chosen: of whole
orders the first choices of models that are held out are fastest."""


@dataclass(frozen=True, slots=True)
class Times:
    """Predicted times of every configuration [us], and what they are made of; infinite where nothing fits."""

    total_us: FloatArray
    sm_us: FloatArray
    """Rounds of CTAs on the SMs, as if L2 and DRAM had no bound."""
    l2_us: FloatArray
    dram_us: FloatArray
    start_us: FloatArray
    """Launch, and CTAs that find no tile."""

    @property
    def limiter(self) -> list[str]:
        """The largest part of each time."""
        names = ("sm", "l2", "dram", "start")
        parts = np.stack([self.sm_us, self.l2_us, self.dram_us, self.start_us])
        return [names[index] for index in parts.argmax(axis=0)]

    def take(self, rows: NDArray[np.int64]) -> Times:
        """Of some of the configurations."""
        return Times(*(getattr(self, spec.name)[rows] for spec in fields(self)))

    def scaled(self, factor: FloatArray) -> Times:
        return Times(*(getattr(self, spec.name) * factor for spec in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """Configurations of one kernel on a card, whatever the sizes of what it multiplies."""

    product: ServedProduct
    grid: TileGrid
    gpu: GpuSpec
    numbers: Numbers
    resources: taken.Resources


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches(Kernels):
    """A grid of configurations of one product on a card: what all formulas take."""

    step_sm_clk: FloatArray
    """What a k step of a tile takes of its SM while others wait for data."""
    step_work_clk: FloatArray
    """How long a k step lasts once its copies are there."""
    row_tiles: FloatArray
    launched: FloatArray
    """Tiles of rows in the grid, those without rows among them."""
    active_experts: float
    warm: bool
    """Whether the weights are in L2 where they fit: launches of one layer back to back."""

    def take(self, rows: NDArray[np.int64]) -> Launches:
        """Some of the configurations."""
        return replace(
            self,
            grid=self.grid.take(rows),
            resources=self.resources.take(rows),
            step_sm_clk=self.step_sm_clk[rows],
            step_work_clk=self.step_work_clk[rows],
            row_tiles=self.row_tiles[rows],
            launched=self.launched[rows],
        )

    @property
    def columns(self) -> FloatArray:
        return -(-self.product.n // self.grid.cta_n)

    @property
    def steps(self) -> FloatArray:
        return -(-self.product.k // self.grid.cta_k)

    @property
    def tiles(self) -> FloatArray:
        return self.row_tiles * self.columns

    @property
    def tile_rows(self) -> FloatArray:
        """Rows of a tile that are no padding, on average."""
        return np.minimum(self.product.rows / self.row_tiles, self.grid.cta_m)

    @property
    def slots(self) -> FloatArray:
        """CTAs that run at once."""
        return self.gpu.sm_count * self.resources.ctas_per_sm

    @property
    def clk_per_us(self) -> float:
        return self.gpu.sm_clk_mhz * self.gpu.mma_clk_share

    @property
    def tile_bytes(self) -> FloatArray:
        """A k tile of weights [B]."""
        return self.grid.cta_n * self.grid.cta_k * self.product.weight_bytes

    @property
    def in_flight_bytes(self) -> FloatArray:
        """Weights that an SM has asked for at once at most [B]."""
        return self.resources.ctas_per_sm * self.tile_bytes * (self.grid.stages - 1.0)

    @property
    def short_rows(self) -> FloatArray:
        """What rows of k tiles cost DRAM over long ones: a row's activation hides behind its transfer, if long."""
        row = self.grid.cta_k * self.product.weight_bytes
        return _smooth_max(SHARP, np.ones_like(row), activation_bytes(self.gpu, self.numbers) / row)


def launches_of(
    product: ServedProduct,
    grid: TileGrid,
    gpu: GpuSpec,
    routing: str | Sequence[int] = "uniform",
    *,
    warm: bool = False,
) -> Launches:
    """The launches of all configurations of `grid`; raises InputError where the card lacks the type."""
    gpu.flop_per_us(element_type(product.math_type).math_kind)
    kernels, step_sm_clk, step_work_clk = _kernels(product.smallest, grid, gpu)
    sizes, size_of_each = np.unique(grid.cta_m, return_inverse=True)
    tiles = [row_tiles(product, int(size), routing) for size in sizes]
    return Launches(
        product=product,
        grid=grid,
        gpu=gpu,
        numbers=kernels.numbers,
        resources=kernels.resources,
        step_sm_clk=step_sm_clk,
        step_work_clk=step_work_clk,
        row_tiles=np.array([each.tiles for each in tiles])[size_of_each],
        launched=np.array([each.launched for each in tiles])[size_of_each],
        active_experts=tiles[0].active_experts,
        warm=warm,
    )


@lru_cache(maxsize=8)
def _kernels(product: ServedProduct, grid: TileGrid, gpu: GpuSpec) -> tuple[Kernels, FloatArray, FloatArray]:
    """What products of all sizes share, kept for the next one: the kernels, and their steps' clocks."""
    numbers, resources = room_numbers("serving"), taken.resources_of(product, grid, gpu)
    kernels = Kernels(product=product, grid=grid, gpu=gpu, numbers=numbers, resources=resources)
    return kernels, _step_sm_clk(kernels), _step_work_clk(kernels)


def activation_bytes(gpu: GpuSpec, numbers: Numbers) -> float:
    """What a channel of DRAM transfers while it may activate one row [B]."""
    if gpu.dram_bus_bits >= HBM_BUS_BITS:
        return numbers.hbm_activation_bytes
    return numbers.gddr_activation_ns * GDDR_CHANNEL_BYTES * TRANSFERS_PER_CLK * gpu.dram_clk_mhz / 1e3


def times_of(launches: Launches) -> Times:
    """Times by the formulas alone.

    Whole rounds of CTAs, and a last one with as many CTAs an SM as are left: SMs, L2 and DRAM each bound it.
    """
    ctas, l2, dram = launches.resources.ctas_per_sm, _l2_us(launches), _dram_us(launches)
    rounds = launches.tiles / launches.slots
    whole = np.floor(rounds)
    left = np.ceil((rounds - whole) * ctas - 1e-9)
    full, last = _busy_us(launches, ctas), np.where(left > 0.0, _busy_us(launches, left), 0.0)
    share = (rounds - whole) / rounds
    body = whole * _smooth_max(SHARP, full, l2 / rounds, dram / rounds)
    body = body + _smooth_max(SHARP, last, l2 * share, dram * share)
    start = _start_us(launches)
    spills = 1.0 + launches.numbers.spill_cost * launches.resources.spilled
    total = np.where(launches.resources.fits, (body + start) * spills, np.inf)
    sm = whole * full + last
    return Times(total_us=total, sm_us=sm * spills, l2_us=l2, dram_us=dram, start_us=start)


def _smooth_max(order: int, *parts: FloatArray) -> FloatArray:
    """The norm of that order: nearly the largest part, more where two are alike."""
    powers = [part * part for part in parts]
    if order == SHARP:
        powers = [power * power for power in powers]
    root: FloatArray = np.sqrt(sum(powers[1:], powers[0]))
    return root if order == SOFT else np.sqrt(root)


def mma_clk(kernels: Kernels) -> FloatArray:
    """MMAs of a k step [clk of the SM's tensor cores].

    From shared memory, 64 x n at a time: n / 2 clocks at the full rate, or its operands' bytes at 128 B/clk,
    max(n / 2, (2048 + 32 n) / 128) (wgmma, measured on an H200). From registers: a share of the rate on sm90
    and later, all of it before; warps beyond the tile's 16 x 8 do the work of others again.
    """
    grid, gpu, resources = kernels.grid, kernels.gpu, kernels.resources
    kinds = gpu.flop_per_clk_per_sm
    rate = kinds[element_type(kernels.product.math_type).math_kind]
    columns = np.where(resources.swapped, grid.cta_m, grid.cta_n)
    whole = np.maximum(columns / 2.0, (2048.0 + 32.0 * columns) / 128.0) / (columns / 2.0)
    newer = gpu.kernel_architecture in taken.SMEM_MMAS
    slow_rate = min(rate, kinds["fp16"]) * kernels.numbers.mma_share if newer else rate
    rows, wide = _multiplied(kernels)
    flop = 2.0 * grid.cta_k
    return np.where(
        resources.from_smem, flop * grid.cta_m * grid.cta_n / rate * whole, flop * rows * wide / slow_rate
    )


def _multiplied(kernels: Kernels) -> tuple[FloatArray, FloatArray]:
    """Rows and columns that MMAs from registers multiply: at least 16 x 8 a warp."""
    rows, columns = taken.warp_grid(kernels.grid)
    return np.maximum(kernels.grid.cta_m, 16.0 * rows), np.maximum(kernels.grid.cta_n, 8.0 * columns)


def operand_bytes(kernels: Kernels) -> FloatArray:
    """What warps read of shared memory to registers in a k step [B]; none where MMAs read it themselves.

    Warps beside each other read the same rows, warps below each other the same columns.
    """
    grid, product = kernels.grid, kernels.product
    rows, columns = taken.warp_grid(grid)
    _, wide = _multiplied(kernels)
    read = grid.cta_m * columns * product.activation_bytes + wide * rows * product.weight_bytes
    return np.where(kernels.resources.from_smem, 0.0, read * grid.cta_k)


def scaling_clk(kernels: Kernels) -> FloatArray:
    """Scaling the sums of a k step by their blocks' scales [clk]: FMAs for each sum, a load for each row."""
    if not kernels.product.block_scaled:
        return np.zeros(len(kernels.grid))
    grid, numbers = kernels.grid, kernels.numbers
    sums = grid.cta_m * grid.cta_n * numbers.promote_clk / CUDA_LANES
    return sums + grid.cta_m * numbers.scale_row_clk


def copy_clk(kernels: Kernels) -> FloatArray:
    """Issuing the copies of a k step, padding rows among them, and reads to registers [clk]."""
    slots = taken.step_accesses(kernels.product, kernels.grid) / 32.0 * kernels.numbers.access_clk
    return (slots + operand_bytes(kernels) / LDMATRIX_BYTES) / WARP_SCHEDULERS


def _step_sm_clk(kernels: Kernels) -> FloatArray:
    """MMAs and instructions in turn, beside shared memory's reads and writes for MMAs from registers."""
    read = operand_bytes(kernels)
    written = taken.step_accesses(kernels.product, kernels.grid) * taken.ACCESS_BYTES
    smem = np.where(read > 0.0, read + written, 0.0) / kernels.gpu.smem_bytes_per_clk_per_sm
    return _smooth_max(SHARP, mma_clk(kernels) + copy_clk(kernels) + scaling_clk(kernels), smem)


def _step_work_clk(kernels: Kernels) -> FloatArray:
    """All work of a step in turn. Scales are loaded, not copied ahead: each step waits for its own."""
    numbers, grid = kernels.numbers, kernels.grid
    of_thread = taken.step_accesses(kernels.product, grid) / (grid.warps * taken.THREADS_PER_WARP)
    to_registers = np.where(kernels.resources.from_smem, 0.0, numbers.operand_clk * of_thread)
    working = mma_clk(kernels) + copy_clk(kernels) + scaling_clk(kernels) + to_registers
    return working + numbers.scale_wait_clk if kernels.product.block_scaled else working


def latency_clk(launches: Launches) -> FloatArray:
    """From asking for a k tile to its use [clk]: L2's own latency for what a launch before left there."""
    slow = launches.numbers.load_latency_clk
    kept = _kept_share(launches) if launches.warm else np.zeros(len(launches.grid))
    return slow + kept * ((launches.gpu.l2_latency_clk or slow) - slow)


def step_chain_clk(launches: Launches) -> FloatArray:
    """A step waits for its copies, asked for `stages` - 1 steps before, or does all its work in turn.

    A ring of one stage does both in turn.
    """
    stages, working = launches.grid.stages, launches.step_work_clk
    waiting = latency_clk(launches) / np.maximum(stages - 1.0, 1.0)
    return np.where(stages <= SINGLE, waiting + working, _smooth_max(SOFT, waiting, working))


def sm_clk(launches: Launches) -> FloatArray:
    """What a tile takes of its SM while others wait for data [clk]: its steps, its CTA's start and its store."""
    return launches.steps * launches.step_sm_clk + launches.numbers.cta_clk + _store_clk(launches)


def chain_clk(launches: Launches) -> FloatArray:
    """How long a tile lasts at least [clk]: token ids, step after step, and its store.

    The first k tile is waited for whole: no step comes before it that could hide a share. Token ids are loads
    one after another.
    """
    numbers, ahead = launches.numbers, np.maximum(launches.grid.stages - 1.0, 1.0)
    ids_us = numbers.tile_us if launches.product.experts_total > 1 else 0.0
    ids = ids_us * launches.clk_per_us / numbers.load_latency_clk
    first = latency_clk(launches) * (1.0 - 1.0 / ahead + ids)
    return first + launches.steps * step_chain_clk(launches) + _store_clk(launches)


def _store_clk(launches: Launches) -> FloatArray:
    """Rounding a tile's sums, their addresses and stores [clk]."""
    return launches.grid.cta_m * launches.grid.cta_n * launches.numbers.store_clk / CUDA_LANES


def _busy_us(launches: Launches, ctas: FloatArray) -> FloatArray:
    """Time of an SM with that many CTAs [us]: one lasts as long as its chain."""
    work, chain = sm_clk(launches), chain_clk(launches)
    together = _smooth_max(SHARP, ctas * work, chain)
    return np.where(ctas > 1.0, together, np.maximum(work, chain)) / launches.clk_per_us


def _l2_us(launches: Launches) -> FloatArray:
    """All tiles' loads at L2's bandwidth [us]; equal requests of neighbours merge, half lines cost more."""
    product, grid = launches.product, launches.grid
    row = launches.tile_rows * product.activation_bytes + grid.cta_n * product.weight_bytes
    rate = np.where(grid.cta_k * product.weight_bytes < LINE_BYTES, launches.numbers.half_line_share, 1.0)
    loaded = launches.tiles * launches.steps * grid.cta_k * row / rate
    merged = launches.numbers.l2_merged if launches.gpu.l2_merging_sms > 1 else 1.0
    return loaded / (launches.gpu.l2_read_bytes_per_us * merged)


def _dram_us(launches: Launches) -> FloatArray:
    """Weights of the experts at work, rows of A and of C at DRAM's bandwidth [us]."""
    product, gpu = launches.product, launches.gpu
    weights, activations = _footprint(launches)
    loaded = weights * launches.short_rows + activations
    if launches.warm:
        loaded = loaded * (1.0 - _kept_share(launches))
    stored = product.rows * product.n * taken.OUTPUT_BYTES
    return (loaded + stored) * _unsteady(launches) / gpu.dram_read_bytes_per_us


def _footprint(launches: Launches) -> tuple[FloatArray, FloatArray]:
    """Weights and rows of A that come from DRAM if L2 holds none of them before [B]."""
    product = launches.product
    weights = launches.active_experts * _slab_bytes(product) * _weight_passes(launches)
    rows = product.tokens if product.gathered else product.rows
    return weights, rows * product.k * product.activation_bytes * _activation_passes(launches)


def _kept_share(launches: Launches) -> FloatArray:
    """Share of weights and rows of A that a launch like it left in L2 [1]."""
    return _kept(launches.gpu, np.add(*_footprint(launches)))


def _unsteady(launches: Launches) -> FloatArray:
    """What DRAM's time is over that of a steady stream: CTAs ask for whole k tiles, and rings drain at a tile's end.

    An SM has `stages` - 1 k tiles of weights of each CTA in flight, on average fewer by half a ring a tile. It
    needs as much as its share of DRAM's rate brings in a time (Little's law): less on cards with slower DRAM.
    """
    numbers = launches.numbers
    drained = np.minimum((launches.grid.stages - 1.0) / launches.steps, 1.0) / 2.0
    needed = numbers.queue_us * launches.gpu.dram_read_bytes_per_us / launches.gpu.sm_count
    in_flight = launches.in_flight_bytes * (1.0 - drained)
    return 1.0 + launches.tile_bytes / numbers.burst_bytes + needed / in_flight


def _slab_bytes(product: ServedProduct) -> float:
    """Weights of one expert [B]."""
    return product.n * product.k * product.weight_bytes


def _kept(gpu: GpuSpec, footprint: FloatArray | float) -> FloatArray:
    """Share of a footprint [B] that L2 still holds when it is asked for again."""
    capacity = gpu.l2_bytes * gpu.l2_kept_share
    kept: FloatArray = 1.0 / (1.0 + (np.asarray(footprint) / capacity) ** gpu.l2_kept_order)
    return kept


def _weight_passes(launches: Launches) -> FloatArray:
    """How often an expert's weights come from DRAM [1]: once for tiles that run together."""
    of_expert = launches.row_tiles / launches.active_experts
    beside = np.maximum(launches.grid.group_m, launches.slots / launches.columns)
    together = np.maximum(np.minimum(beside, of_expert), 1.0)
    again = np.maximum(of_expert / together, 1.0) - 1.0
    return 1.0 + again * (1.0 - _kept(launches.gpu, _slab_bytes(launches.product)))


def _activation_passes(launches: Launches) -> FloatArray:
    """How often rows of A come from DRAM [1]: for each group of columns, where a group's rows outgrow L2."""
    group = np.minimum(launches.grid.group_m, launches.row_tiles)
    footprint = group * launches.tile_rows * launches.product.k * launches.product.activation_bytes
    again = np.maximum(launches.columns / np.maximum(launches.slots / group, 1.0), 1.0) - 1.0
    return 1.0 + again * (1.0 - _kept(launches.gpu, footprint))


def _start_us(launches: Launches) -> FloatArray:
    """Launch, and CTAs that find no tile: the launcher takes the most that a routing may need [us]."""
    empty = np.maximum(launches.launched * launches.columns - launches.tiles, 0.0) / launches.slots
    numbers = launches.numbers
    return empty * numbers.empty_us + numbers.launch_us + launches.gpu.graph_launch_us
