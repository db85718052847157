"""How a weight-prefetch GEMM is built and launched (`KernelBuild`) and run (`OverlapSetting`).

Nothing here needs a GPU or the CuTe DSL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemm_model.config.numbers import room_numbers
from gemm_model.errors import InputError

OPERAND_BYTES = {"e4m3": 1, "e5m2": 1, "bf16": 2}
"""Element types the kernel takes, with their bytes."""

TILE_M = 64
"""Rows of A (output features) of one CTA tile [rows]; the weight-prefetch kernel; the M of one warpgroup
MMA."""
UNIT_M = 32
"""Rows dealt out to clusters at once [rows]; the weight-prefetch kernel; half a tile, the TMA box of A."""
TILE_K_BYTES = 128
"""Bytes of one k tile of a row [B]; the weight-prefetch kernel; the widest smem swizzle of a TMA box."""
MAX_N = 128
"""Widest activation block [tokens]; the weight-prefetch kernel; chosen."""
SMEM_PER_CTA = 227 * 1024
"""Most shared memory of a CTA [B]; Hopper; CUDA C++ Programming Guide."""
SMEM_PER_SM = 228 * 1024
"""Shared memory of an SM [B]; Hopper; CUDA C++ Programming Guide."""
RESERVED_SMEM = 1024
"""Shared memory that the system takes of each CTA [B]; Hopper; CUDA C++ Programming Guide."""
THREADS = 128 + 3 * 32
"""Threads of a CTA [1]; the weight-prefetch kernel; one MMA warpgroup and three load warps (A, B,
prefetch)."""
CLUSTER_SIZES = (1, 2, 4, 8)
"""CTAs of a cluster [1]; the weight-prefetch kernel; larger clusters are not portable."""
TRACE_EVENTS = ("start", "previous_done", "loaded", "end", "sm", "prefetched")
"""Columns of a trace, one row per CTA: nanoseconds of the global timer, the SM, K tiles prefetched."""


def check_ratio(name: str, value: float) -> float:
    """`value` if it is -1 or lies in 0..1, else InputError."""
    if value == -1 or 0 <= value <= 1:
        return float(value)
    raise InputError(f"{name} must be -1 or lie between 0 and 1, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSetting:
    """The two run-time parameters of the kernel."""

    overlap_ratio: float
    """Share of its K tiles that a CTA has loaded when it lets the next kernel start; -1: never, the next
    kernel starts when this one has ended."""
    prefetch_ratio: float
    """Share of its K tiles that a CTA brings into L2, beyond its shared-memory ring, while it waits for the
    previous kernel; -1: as many as it can before the previous kernel has ended."""

    def __post_init__(self) -> None:
        check_ratio("overlap_ratio", self.overlap_ratio)
        check_ratio("prefetch_ratio", self.prefetch_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBuild:
    """The GEMM D[n, m] = B[n, k] A[m, k]^T with A the weights and B the activations: kernel and grid."""

    a_type: str
    b_type: str
    tile_n: int
    """Columns of the tile: the activations rounded up to 8 (8..128)."""
    split_k: int
    """CTAs of a cluster that share one tile of 64 features, each with its part of K."""
    stages: int
    """Depth of the shared-memory ring in K tiles."""
    clusters: int
    """Clusters of the grid; each takes an even share of the rows."""
    fill_delay_clocks: int = 0
    """SM clocks that a CTA waits before it fills its ring."""
    split_loading: bool = True
    """Separate load warps for A and B, so that A is loaded before the wait for the previous kernel."""
    dependent_launch: bool = True
    """Launched so that the kernel may start before the previous one has ended."""
    trace: bool = False
    """Write what happened when in each CTA (`TRACE_EVENTS`)."""

    def __post_init__(self) -> None:
        for name, value in (("a_type", self.a_type), ("b_type", self.b_type)):
            if value not in OPERAND_BYTES:
                raise InputError(f"{name} must be one of {', '.join(OPERAND_BYTES)}, not {value!r}")
        if (self.a_type == "bf16") != (self.b_type == "bf16"):
            raise InputError(
                f"a_type and b_type must both be fp8 or both be bf16, not {self.a_type} and {self.b_type}"
            )
        if self.tile_n % 8 or not 8 <= self.tile_n <= MAX_N:
            raise InputError(f"tile_n must be a multiple of 8 from 8 to {MAX_N}, not {self.tile_n}")
        if self.split_k not in CLUSTER_SIZES:
            raise InputError(f"split_k must be one of {CLUSTER_SIZES}, not {self.split_k}")
        for name, least in (("clusters", 1), ("fill_delay_clocks", 0), ("stages", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.smem_bytes > SMEM_PER_CTA:
            raise InputError(
                f"{self.stages} stages of {self.stage_bytes} bytes need {self.smem_bytes} bytes of shared "
                f"memory, more than the {SMEM_PER_CTA} of one CTA"
            )

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.clusters * self.split_k

    @property
    def operand_bytes(self) -> int:
        return OPERAND_BYTES[self.a_type]

    @property
    def tile_k(self) -> int:
        """K elements of one tile."""
        return TILE_K_BYTES // self.operand_bytes

    @property
    def a_stage_bytes(self) -> int:
        return TILE_M * TILE_K_BYTES

    @property
    def b_stage_bytes(self) -> int:
        return self.tile_n * TILE_K_BYTES

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B of one K tile."""
        return self.a_stage_bytes + self.b_stage_bytes

    @property
    def column_groups(self) -> int:
        """Groups of eight output columns: the unit that a CTA of the cluster reduces and stores."""
        return self.tile_n // 8

    @property
    def owned_groups(self) -> int:
        """Column groups of one CTA of the cluster, at most."""
        return math.ceil(self.column_groups / self.split_k)

    @property
    def exchange_bytes(self) -> int:
        """Partial sums received from the other CTAs: 128 threads x 4 fp32 per group and source."""
        return self.owned_groups * self.split_k * 128 * 16 if self.split_k > 1 else 0

    @property
    def fill_window(self) -> int:
        """K tiles of A that a CTA has in flight while it fills its ring."""
        in_flight = room_numbers("overlap").fill_bytes_in_flight
        return min(max(math.ceil(in_flight / (self.ctas * self.a_stage_bytes)), 1), self.stages)

    @property
    def prefetch_interval_clocks(self) -> int:
        """SM clocks between two prefetched K tiles of a CTA."""
        return round(self.ctas * self.a_stage_bytes / room_numbers("overlap").prefetch_bytes_per_clk)

    @property
    def smem_bytes(self) -> int:
        """Ring, output staging, exchange buffer, and 1 KiB for barriers and alignment."""
        output = self.column_groups * 8 * TILE_M * 2
        return self.stages * self.stage_bytes + output + self.exchange_bytes + 1024

    @property
    def min_ctas_per_sm(self) -> int:
        """CTAs per SM that the register allocation leaves room for (accumulators grow with n)."""
        if self.tile_n <= 32:
            return 3
        return 2 if self.tile_n <= 64 else 1

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that fit on one SM beside each other, by shared memory and registers."""
        return min(SMEM_PER_SM // (self.smem_bytes + RESERVED_SMEM), self.min_ctas_per_sm)


def check_problem(m: int, n: int, k: int, build: KernelBuild) -> None:
    """InputError where the kernel cannot take the sizes (TMA wants 16-byte pitches)."""
    for name, value in (("m", m), ("n", n), ("k", k)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if n > MAX_N:
        raise InputError(f"n must be at most {MAX_N}, not {n}")
    if n > build.tile_n:
        raise InputError(f"n is {n}, more than the {build.tile_n} columns that the kernel is built for")
    if m % 8:
        raise InputError(f"m must be a multiple of 8 (16 bytes of bf16 output), not {m}")
    if k % 16:
        raise InputError(f"k must be a multiple of 16, not {k}")
    if build.split_k > 1 and build.clusters * TILE_M < m:
        raise InputError(
            f"with split_k {build.split_k} each cluster takes one tile of {TILE_M} rows: m = {m} needs "
            f"{math.ceil(m / TILE_M)} clusters, not {build.clusters}"
        )
