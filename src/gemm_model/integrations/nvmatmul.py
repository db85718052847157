"""nvMatmulHeuristics beside this package's models: its predicted times and choices in the same shapes.

An optional baseline (wheel nvidia-matmul-heuristics, written for 0.1.0.27); nothing is fitted to its output.
It runs on a CPU. Destroying its interface object can crash the process, so one object for each GPU and type
is kept until the process ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, importing, require_one_of
from gemm_model.kernels.candidates import Candidate

ALIKE = ("h100_sxm", "a100_sxm_80gb", "rtx_4090", "rtx_5090", "rtx_a6000", "l40s")
"""GPUs whose names differ in case alone."""
GPUS = {"h200": "H200_SXM", "b200_sxm": "B200", **{name: name.upper() for name in ALIKE}}
"""This package's GPUs -> the library's names."""

PRECISIONS = {"fp32": "SSS", "fp16": "HSH", "bf16": "TST"}
"""Operand type -> A, compute and output type in the library's letters; fp8 is spelled with all five."""

EIGHT_BIT = {"e4m3": "Q", "e5m2": "R"}
OUTPUT = {"bf16": "T", "fp16": "H", "fp32": "S"}


class NvMatmulHeuristics:
    """The library for one GPU, its CUTLASS 3 kernels and row-major outputs of K-major operands."""

    def __init__(self, gpu: str = "h200") -> None:
        require_one_of(f"nvMatmulHeuristics does not know {gpu!r}", gpu, GPUS)
        self.gpu = gpu
        self._library = _library(gpu)

    def predict_us(self, problem: GemmProblem, configs: Sequence[KernelConfig]) -> FloatArray:
        """Its runtimes [us] of some kernel configurations; infinite if it gives none."""
        library, described = self._library, self._problem(problem)
        precision = precision_of(problem)
        library._ensure_discovery_loaded(library.target, precision, described.matmulLayout)
        times = [
            library.nvMatmulHeuristicsEstimateRuntime(
                library.handle,
                precision.encode("ascii"),
                ctypes.c_int(library.target),
                ctypes.byref(described),
                ctypes.byref(self._configuration(problem, config)),
                library.hardware_descriptor,
            )
            for config in configs
        ]
        seconds = np.array(times, dtype=np.float64)
        return np.where(seconds > 0, 1e6 * seconds, np.inf)

    def rank(self, problem: GemmProblem, top_k: int = 8) -> list[tuple[Candidate, float]]:
        """Its own choices, best first, each with its runtime in us."""
        found = self._library.get(self._problem(problem), top_k, precision=precision_of(problem))
        return [(Candidate(config=_config_of(entry["kernel"])), 1e6 * entry["runtime"]) for entry in found]

    def _problem(self, problem: GemmProblem) -> Any:
        if (problem.a_major, problem.b_major, problem.c_major) != ("k", "k", "n"):
            raise InputError("nvMatmulHeuristics is asked for K-major operands and row-major outputs only")
        from nvMatmulHeuristics import NvMatmulHeuristicsMatmulLayout as Layout

        sizes = (problem.m, problem.n, problem.k)
        return self._library.makeNvMatmulHeuristicsProblem(*sizes, Layout.TN_ROW_MAJOR, problem.batch)

    def _configuration(self, problem: GemmProblem, config: KernelConfig) -> Any:
        """The library's structure, with CUTLASS 3's warps and as many stages as shared memory holds."""
        described = self._library.nvmmhKernelConfiguration()
        bits = max(problem.a_dtype.bits, problem.b_dtype.bits)
        cta_k = config.cta_k or 1024 // bits
        described.cta[:] = (config.cta_m, config.cta_n, cta_k)
        described.warp[:] = (64, config.cta_n, cta_k)
        described.instr[:] = (64, config.cta_n, 256 // bits)
        described.splitK = config.split_k
        stage_bytes = (config.cta_m + config.cta_n) * cta_k * bits // 8
        described.loadStages = config.stages or max((228 - 32) * 1024 // stage_bytes, 2)
        described.gridSwizzle = config.swizzle
        described.ctaOrder = 0
        described.cluster[:] = (config.cluster_m, config.cluster_n)
        return described


def precision_of(problem: GemmProblem) -> str:
    """The library's letters for a problem's types; raises InputError for types that it does not have."""
    a, b, out = problem.a_dtype.name, problem.b_dtype.name, problem.out_dtype.name
    if problem.a_scale is None and problem.b_scale is None:
        if a in EIGHT_BIT and b in EIGHT_BIT and out in OUTPUT:
            return EIGHT_BIT[a] + EIGHT_BIT[b] + OUTPUT[out] + "S" + OUTPUT[out]
        if a == b and a in PRECISIONS and out == a:
            return PRECISIONS[a]
    raise InputError(f"nvMatmulHeuristics is not asked for {a} x {b} -> {out}")


@cache
def _library(gpu: str) -> Any:
    with importing(
        "the baseline needs the package nvidia-matmul-heuristics: pip install nvidia-matmul-heuristics"
    ):
        import nvMatmulHeuristics as NvMmh
    return NvMmh.NvMatmulHeuristicsInterfaceEx(
        backend=NvMmh.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=NvMmh.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=getattr(NvMmh.NvMatmulHeuristicsNvidiaGpu, GPUS[gpu]),
    )


def _config_of(kernel: Any) -> KernelConfig:
    return KernelConfig(
        cta_m=kernel.cta_tile_m,
        cta_n=kernel.cta_tile_n,
        cta_k=kernel.cta_tile_k,
        cluster_m=kernel.cluster_m,
        cluster_n=kernel.cluster_n,
        stages=kernel.stages,
        swizzle=max(kernel.swizzle_factor, 1),
        split_k=max(kernel.split_k, 1),
        raster="along_n" if kernel.cta_order else "along_m",
        kernel="cutlass",
        fast_accum=True,
    )
