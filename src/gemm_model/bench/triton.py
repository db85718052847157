"""Persistent Triton kernels as a provider of the benchmark."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemm_model.bench import triton_kernels
from gemm_model.bench.problem_kinds import BATCH_COLUMNS, MASK_COLUMNS, beyond
from gemm_model.bench.provider import (
    Config,
    KernelError,
    Launch,
    Operands,
    UnsupportedError,
    configs_of,
    swept,
)
from gemm_model.bench.triton_kernels import SPECIALIZED_WARPS
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.emit import triton_config

FIRST_TMA_CAPABILITY = 9
TYPES = ("bf16", "fp16", "e4m3")

SMEM_BYTES = 232448
"""Shared memory of a CTA [B]; Hopper; CUDA C++ Programming Guide."""


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
        return known or triton_kernels.unsupported(problem)

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        space, bits = swept()["triton"], problem.a_dtype.bits
        space = {**space, "cta_k": [wide // bits for wide in space["cta_k"]]}
        return tuple(
            replace(config, warps=warps)
            for config in configs_of(space, raster="along_m", kernel=self.name, fast_accum=bits == 8)
            for warps in _warps(config.cta_m, config.cta_n)
            if smem_bytes(problem, config) <= SMEM_BYTES
        )

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        return triton_kernels.kernel_of(problem, _require_config(problem, config))

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        kernel = triton_kernels.kernel_of(problem, _require_config(problem, config))
        triton_kernels.compiled(kernel, compute_capability)

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        return triton_kernels.prepare(problem, _require_config(problem, config), operands)

    def describe(self, problem: GemmProblem, config: Config, _: Operands) -> Mapping[str, Any]:
        ran = _require_config(problem, config)
        described = triton_kernels.described(triton_kernels.built(problem, ran))
        return {"cta_k": ran.cta_k, "stages": ran.stages, "warps": ran.warps, **described}


def smem_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Shared memory of a CTA: the ring of operands and a whole output tile, as Triton 3.6 lays it out."""
    of_operands = config.stages * (config.cta_m + config.cta_n) * config.cta_k * problem.a_dtype.bits // 8
    return of_operands + config.cta_m * config.cta_n * problem.out_dtype.bits // 8


def _warps(cta_m: int, cta_n: int) -> tuple[int, ...]:
    """Warps worth trying: a warp group holds at most 64 x 256 or 128 x 128 sums in registers."""
    groups = (4,) if cta_m * cta_n <= 64 * 128 else (4, 8) if cta_m * cta_n <= 128 * 128 else (8,)
    return (*groups, SPECIALIZED_WARPS) if cta_m == 128 else groups


def _require_config(problem: GemmProblem, config: Config) -> KernelConfig:
    """The configuration with what the model takes where it leaves the k tile, stages or warps open."""
    if not isinstance(config, KernelConfig):
        raise KernelError("Triton needs a tile in m and n")
    if problem.a_dtype.bits == 8 and not config.fast_accum:
        raise UnsupportedError(
            "the triton provider's fp8 sums stay in the accumulators: expected fast_accum 1"
        )
    if config.pdl:
        raise UnsupportedError("the triton provider launches without PDL")
    return triton_config(problem, config)
