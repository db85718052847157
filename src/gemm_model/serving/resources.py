"""What Triton 3.6 compiles a configuration to: which MMA, shared memory, registers, CTAs an SM.

Shared memory is exact on 99.5 % of 10,067 rows of kernels compiled for sm_90, registers on average.
Nothing here was fitted to a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.gpu import GpuSpec
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.tile_config import FloatArray, TileGrid

THREADS_PER_WARP = 32.0
MMA_M = 64.0
"""Rows of the MMAs that read shared memory [rows]; sm90 and sm100; PTX ISA: wgmma, tcgen05."""
SMEM_MMAS = ("sm90", "sm100")
"""Architectures with MMAs that read operands from shared memory; PTX ISA."""
ACCESS_BYTES = 16.0
"""Bytes that a thread copies at once [B]; asynchronous copies; Triton's layouts."""
OUTPUT_BYTES = 2.0
"""An element of C [B]; all of these kernels; bf16 or fp16."""
RESERVED_SMEM_BYTES = 1024.0
"""Shared memory that a CTA takes beside its own [B]; from sm80 on; CUDA C++ Programming Guide."""
REGISTER_GRANULE = 8.0
"""Registers of a thread come in multiples of [registers]; all architectures; CUDA occupancy rules."""


@dataclass(frozen=True, slots=True)
class RegisterUse:
    """Registers of a thread [registers]: `base`, and for each fp32 sum and each 16-byte access of a k step.

    Least squares over 1,560 kernels of Triton 3.6 for sm_90 without spills (rms 8 to 16 registers).
    """

    base: float
    per_sum: float
    per_access: float

    def registers(self, sums: FloatArray, accesses: FloatArray) -> FloatArray:
        return self.base + self.per_sum * sums + self.per_access * accesses


PLAIN = RegisterUse(24.0, 1.2, 2.9)
SCALED = RegisterUse(34.0, 2.7, 2.0)
"""Scales of blocks: the sums of a k tile and those of all stand side by side."""

TAKEN = RegisterUse(33.0, 1.44, 3.02)
"""What a thread would need where all MMAs are mma.sync (before sm90, and sm120): operands of a k tile wait beside
the sums. Least squares over 93 kernels for sm_80 without spills (rms 10 registers). Beyond what a thread can have,
Triton 3.4 spills 104, 328 and 288 bytes where this says 91, 332 and 236, and 3.6 spills 0, 152 and 192."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Of each configuration, a column each."""

    swapped: NDArray[np.bool_]
    """Whether the kernel multiplies B by A, so that few tokens fill an MMA's columns, not its rows."""
    from_smem: NDArray[np.bool_]
    """Whether the MMAs read operands from shared memory (wgmma, tcgen05), not from registers."""
    smem_bytes: FloatArray
    registers: FloatArray
    """What a thread would need; more than it can have spills."""
    spilled: FloatArray
    """Registers beyond what a thread can have, over those."""
    ctas_per_sm: FloatArray
    fits: NDArray[np.bool_]

    def take(self, rows: NDArray[np.int64]) -> Resources:
        """Of some of the configurations."""
        return Resources(*(getattr(self, spec.name)[rows] for spec in fields(self)))


def resources_of(product: ServedProduct, grid: TileGrid, gpu: GpuSpec) -> Resources:
    """Resources of every configuration of `grid` on a card."""
    swapped = _swaps(product, gpu) & (grid.cta_m < MMA_M) & (grid.cta_n >= MMA_M)
    from_smem = ((grid.cta_m >= MMA_M) | swapped) & (gpu.kernel_architecture in SMEM_MMAS)
    smem = _smem_bytes(product, grid, from_smem)
    threads = grid.warps * THREADS_PER_WARP
    use = SCALED if product.block_scaled else PLAIN
    sums, accesses = grid.cta_m * grid.cta_n / threads, step_accesses(product, grid) / threads
    registers = use.registers(sums, accesses)
    if gpu.kernel_architecture not in SMEM_MMAS:
        registers = np.maximum(registers, TAKEN.registers(sums, accesses))
    most = float(gpu.registers_per_thread)
    held = np.ceil(np.minimum(registers, most) / REGISTER_GRANULE) * REGISTER_GRANULE
    ctas = np.minimum(
        np.floor(gpu.smem_bytes_per_sm / (smem + RESERVED_SMEM_BYTES)),
        np.floor(gpu.registers_per_sm / (held * threads)),
    )
    ctas = np.minimum(np.minimum(ctas, gpu.threads_per_sm // threads), float(gpu.ctas_per_sm))
    return Resources(
        swapped=swapped,
        from_smem=from_smem,
        smem_bytes=smem,
        registers=registers,
        spilled=np.maximum(registers - most, 0.0) / most,
        ctas_per_sm=np.maximum(ctas, 1.0),
        fits=smem <= gpu.smem_bytes_per_cta,
    )


def _swaps(product: ServedProduct, gpu: GpuSpec) -> bool:
    """VLLM and SGLang swap A and B of fp8 experts on sm90 below 64 rows (`enable_swap_ab`)."""
    experts = product.experts_total > 1
    return experts and gpu.kernel_architecture == "sm90" and product.math_type == "e4m3"


def _smem_bytes(product: ServedProduct, grid: TileGrid, from_smem: NDArray[np.bool_]) -> FloatArray:
    """The ring of k tiles, or the tile of C that is laid over it.

    MMAs that take operands from registers leave one stage of `stages` to the registers.
    """
    stages = np.where(from_smem, grid.stages, grid.stages - 1.0)
    ring = stages * step_accesses(product, grid) * ACCESS_BYTES
    smem: FloatArray = np.maximum(ring, grid.cta_m * grid.cta_n * OUTPUT_BYTES)
    return smem


def warp_grid(grid: TileGrid) -> tuple[FloatArray, FloatArray]:
    """Warps along the rows and along the columns of a tile whose MMAs take operands from registers.

    Triton doubles the longer side, counted in 16 x 16 a warp (true of 19 of 19 tiles compiled for sm_80).
    """
    rows, columns = np.ones(len(grid)), np.ones(len(grid))
    while np.any(more := rows * columns < grid.warps):
        tall = np.floor(grid.cta_m / 16.0 / rows) > np.floor(grid.cta_n / 16.0 / columns)
        rows, columns = rows * np.where(more & tall, 2.0, 1.0), columns * np.where(more & ~tall, 2.0, 1.0)
    return rows, columns


def step_accesses(product: ServedProduct, grid: TileGrid) -> FloatArray:
    """Copies of 16 bytes that a k step asks for, padding rows among them."""
    row = grid.cta_m * product.activation_bytes + grid.cta_n * product.weight_bytes
    return row * grid.cta_k / ACCESS_BYTES
