"""A persistent Triton kernel with tensor descriptors (TMA), with and without warp specialization."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl

from gemm_model.bench import triton_fused
from gemm_model.bench.extended import BATCH_COLUMNS, MASK_COLUMNS, beyond, extras
from gemm_model.bench.provider import (
    CompileError,
    Config,
    KernelError,
    Launch,
    Operands,
    UnsupportedError,
)
from gemm_model.bench.triton_fused import POINTERS
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

FIRST_TMA_CAPABILITY = 9
SPECIALIZED_WARPS = 12
"""Warps of a specialized kernel [1]; Hopper: a group of four that loads and two groups that multiply;
Triton."""

WARPS_PER_GROUP = 4
TYPES = ("bf16", "fp16", "e4m3")

TILES = ((64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128))
"""Rows and columns of a CTA's tile [elements]; Triton on Hopper; chosen: Triton's tiles are powers of two."""
TILE_K_BYTES = (128, 256)
"""A k tile [B]; Triton; chosen: the widest swizzle of a TMA box, and twice it."""
STAGES = (2, 3, 4, 5)
"""Stages of the ring [1]; Triton; chosen."""
GROUPS = (1, 4, 8)
"""Row panels of a raster group [panels]; Triton; chosen."""
SMEM_BYTES = 232448
"""Shared memory of a CTA [B]; Hopper; CUDA C++ Programming Guide."""


@triton.jit
def matmul_persistent(
    a_ptr, b_ptr, d_ptr, M, N, K, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """D[M, N] = A[M, K] x B[N, K]^T; each program takes every num_programs-th tile of the grouped order."""
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    d = tl.make_tensor_descriptor(d_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(
        tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0),
        flatten=not WARP_SPECIALIZE, warp_specialize=WARP_SPECIALIZE,
    ):  # fmt: skip
        group = tile // (GROUP_M * tiles_n)
        first_m = group * GROUP_M
        rows = tl.minimum(tiles_m - first_m, GROUP_M)
        within = tile % (GROUP_M * tiles_n)
        offset_m = (first_m + within % rows) * BLOCK_M
        offset_n = (within // rows) * BLOCK_N
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a_tile = a.load([offset_m, step * BLOCK_K])
            b_tile = b.load([offset_n, step * BLOCK_K])
            accumulator = tl.dot(a_tile, b_tile.T, accumulator)
        d.store([offset_m, offset_n], accumulator.to(d_ptr.dtype.element_ty))


class TritonProvider:
    """`swizzle` is the group of M, `warps` 4, 8, or 12 for a warp-specialized kernel; the raster is along m.

    Triton's fp8 sums stay in the tensor core's accumulators (`fast_accum` 1).
    """

    name = "triton"

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        if compute_capability[0] < FIRST_TMA_CAPABILITY:
            return "tensor descriptors need compute capability 9.0"
        if problem.a_scale is not None or problem.b_scale is not None:
            return "the triton provider runs types without scales"
        if (problem.a_major, problem.b_major, problem.c_major) != ("k", "k", "n"):
            return "the triton provider takes A and B contiguous along k and C along n"
        if problem.a_dtype.name not in TYPES or problem.out_dtype.name not in TYPES:
            return f"the triton provider multiplies no {problem.a_dtype.name} into {problem.out_dtype.name}"
        if problem.a_dtype != problem.b_dtype or problem.acc_dtype.name != "fp32":
            return "the triton provider takes operands of one type and sums in fp32"
        known = beyond(problem, "epilogue", "groups", "block_scaling", *BATCH_COLUMNS, *MASK_COLUMNS)
        return known or triton_fused.unsupported(problem)

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        return tuple(
            KernelConfig(
                cta_m=cta_m,
                cta_n=cta_n,
                cta_k=k_bytes * 8 // problem.a_dtype.bits,
                stages=stages,
                swizzle=group,
                raster="along_m",
                warps=warps,
                kernel=self.name,
                fast_accum=problem.a_dtype.bits == 8,
            )
            for (cta_m, cta_n), k_bytes, stages, group in product(TILES, TILE_K_BYTES, STAGES, GROUPS)
            for warps in _warps(cta_m, cta_n)
            if smem_bytes(cta_m, cta_n, k_bytes, stages, problem.out_dtype.bits) <= SMEM_BYTES
        )

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        config = _require_config(problem, config)
        if extras(problem):
            return triton_fused.fused_kernel(problem, config)
        return _kernel_key(problem, config)

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        config = _require_config(problem, config)
        if extras(problem):
            triton_fused.compiled(triton_fused.fused_kernel(problem, config), compute_capability)
        else:
            _compiled(_kernel_key(problem, config), compute_capability)

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        config = _require_config(problem, config)
        triton.set_allocator(allocate_workspace)
        if extras(problem):
            return triton_fused.prepare(problem, config, operands)
        kernel = _compiled(_kernel_key(problem, config), torch.cuda.get_device_capability())
        tiles = -(-problem.m // config.cta_m) * -(-problem.n // config.cta_n)
        programs = min(tiles, torch.cuda.get_device_properties(operands.a.device).multi_processor_count)
        constants = (config.cta_m, config.cta_n, config.cta_k, config.warps == SPECIALIZED_WARPS)
        arguments = (operands.a, operands.b, operands.out, problem.m, problem.n, problem.k, config.swizzle)
        return triton_fused.launcher(kernel, programs, (*arguments, *constants))

    def describe(self, problem: GemmProblem, config: Config, _: Operands) -> Mapping[str, Any]:
        config = _require_config(problem, config)
        if extras(problem):
            return triton_fused.described(triton_fused.built(problem, config))
        return triton_fused.described(
            _compiled(_kernel_key(problem, config), torch.cuda.get_device_capability())
        )


def smem_bytes(cta_m: int, cta_n: int, k_bytes: int, stages: int, out_bits: int) -> int:
    """Shared memory of a CTA: the ring of operands and a whole output tile, as Triton 3.6 lays it out."""
    return stages * (cta_m + cta_n) * k_bytes + cta_m * cta_n * out_bits // 8


def _warps(cta_m: int, cta_n: int) -> tuple[int, ...]:
    """Warps worth trying: a warp group holds at most 64 x 256 or 128 x 128 sums in registers."""
    groups = (4,) if cta_m * cta_n <= 64 * 128 else (4, 8) if cta_m * cta_n <= 128 * 128 else (8,)
    return (*groups, SPECIALIZED_WARPS) if cta_m == 128 else groups


def _kernel_key(problem: GemmProblem, config: KernelConfig) -> tuple[Any, ...]:
    types = (problem.a_dtype.name, problem.out_dtype.name)
    return (*types, config.cta_m, config.cta_n, config.cta_k, config.stages, config.warps)


@lru_cache(maxsize=1024)
def _compiled(key: tuple[Any, ...], compute_capability: tuple[int, int]) -> Any:
    """The compiled kernel, from Triton's cache on disk where it is there. Raises CompileError."""
    in_type, out_type, cta_m, cta_n, cta_k, stages, warps = key
    specialized = warps == SPECIALIZED_WARPS
    pointers = {"a_ptr": POINTERS[in_type], "b_ptr": POINTERS[in_type], "d_ptr": POINTERS[out_type]}
    constants = {"BLOCK_M": cta_m, "BLOCK_N": cta_n, "BLOCK_K": cta_k, "WARP_SPECIALIZE": specialized}
    groups = WARPS_PER_GROUP if specialized else warps or WARPS_PER_GROUP
    options = {"num_warps": groups, "num_stages": stages}
    kernel = triton_fused.compile_kernel(matmul_persistent, pointers, constants, compute_capability, options)
    if specialized and kernel.metadata.num_warps != SPECIALIZED_WARPS:
        raise CompileError("this Triton does not specialize the warps of this kernel")
    return kernel


def allocate_workspace(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    """Workspace for the tensor descriptors that the kernel makes."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


def _require_config(problem: GemmProblem, config: Config) -> KernelConfig:
    if not isinstance(config, KernelConfig) or not config.cta_k or not config.stages:
        raise KernelError("Triton needs a tile in m, n and k, and stages")
    if problem.a_dtype.bits == 8 and not config.fast_accum:
        raise UnsupportedError(
            "the triton provider's fp8 sums stay in the accumulators: expected fast_accum 1"
        )
    if config.pdl:
        raise UnsupportedError("the triton provider launches without PDL")
    return config
