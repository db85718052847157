"""CUTLASS 3's SM90 kernels as a provider of the benchmark."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from gemm_model.bench.cutlass import build
from gemm_model.bench.cutlass.names import grouped_cells
from gemm_model.bench.kind_tensors import keeping_result
from gemm_model.bench.launched_kernels import named_kernels
from gemm_model.bench.problem_kinds import ALPHA, BETA, beyond, epilogue_words, group_rows
from gemm_model.bench.provider import (
    Config,
    KernelError,
    Launch,
    Operands,
    UnsupportedError,
    configs_of,
    swept,
)
from gemm_model.bench.torch_library import as_kernel_errors
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

HOPPER = 9
RASTERS = {"heuristic": 0, "along_m": 1, "along_n": 2}
DECOMPOSITIONS = {"static": 0, "split_k": 1, "stream_k": 2}
STATUS = {1: "misaligned operand", 2: "invalid data type", 3: "invalid layout", 4: "invalid problem"}
"""The first of cutlass::Status (cutlass/cutlass.h)."""


class LaunchArguments(ctypes.Structure):
    """What a launch is asked to do, in the order of kernel.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "d")),
        *(
            (name, ctypes.c_int)
            for name in ("m", "n", "k", "raster", "max_swizzle", "splits", "decomposition")
        ),
        *((name, ctypes.c_void_p) for name in ("c", "bias")),
        *((name, ctypes.c_float) for name in ("alpha", "beta")),
    )


class CutlassProvider:
    """Collective-builder kernels; `swizzle` is CUTLASS's max_swizzle_size.

    A grouped problem without a tile runs the kernel that torch.nn.functional.grouped_mm picks, one of
    CUTLASS's; its time holds the kernel that prepares the groups.

    A kernel that splits k zeroes its locks before each launch, as CUTLASS's own adapter does, so its time
    holds that memset.
    """

    name = "cutlass"

    def __init__(self) -> None:
        build.headers()
        build.compiler()
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        if compute_capability[0] != HOPPER:
            return "these CUTLASS kernels are built for compute capability 9.0 alone"
        if problem.batch != 1 or problem.a_scale is not None or problem.b_scale is not None:
            return "the cutlass provider runs single problems of types without scales"
        if (problem.a_major, problem.b_major, problem.c_major) != ("k", "k", "n"):
            return "the cutlass provider takes A and B contiguous along k and C along n"
        for dtype in (problem.a_dtype, problem.out_dtype):
            if dtype.name not in build.CXX_TYPES:
                return f"the cutlass provider has no type for {dtype.name}"
        if problem.a_dtype != problem.b_dtype or problem.acc_dtype.name != "fp32":
            return "the cutlass provider takes operands of one type and sums in fp32"
        if group_rows(problem):
            typed = problem.a_dtype.name == problem.out_dtype.name == "bf16"
            return beyond(problem, "groups") if typed else "torch's grouped_mm multiplies bf16 into bf16"
        if epilogue_words(problem) not in build.FUSIONS:
            return (
                f"the cutlass provider fuses {'; '.join(','.join(words) for words in build.FUSIONS if words)}"
            )
        return beyond(problem, "epilogue")

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        cta_k, fast = build.TILE_K_BYTES * 8 // problem.a_dtype.bits, problem.a_dtype.bits == 8
        return configs_of(swept()["cutlass"], cta_k=cta_k, kernel=self.name, fast_accum=fast)

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        return "grouped_mm" if group_rows(problem) else build.macros(problem, _require_config(config))

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        if not group_rows(problem):
            build.build(problem, _require_config(config))

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        if group_rows(problem):
            return keeping_result(operands, _grouped(operands))
        config = _require_config(config)
        library = _library(build.build(problem, config))
        asked = LaunchArguments(
            *(operands.a.data_ptr(), operands.b.data_ptr(), operands.out.data_ptr()),
            *(problem.m, problem.n, problem.k),
            *(RASTERS[config.raster], config.swizzle, config.split_k, DECOMPOSITIONS[config.scheduler]),
            **_epilogue_arguments(problem, operands),
        )
        status = library.gemm_can_implement(ctypes.byref(asked))
        if status != 0:
            raise UnsupportedError(f"CUTLASS refuses: {STATUS.get(status, f'status {status}')}")
        workspace = self._room(library.gemm_workspace_bytes(ctypes.byref(asked)), operands.a.device)
        return _Prepared(library, asked, workspace)

    def describe(self, problem: GemmProblem, config: Config, operands: Operands) -> Mapping[str, Any]:
        if group_rows(problem):
            named = named_kernels(_grouped(operands))
            return named | grouped_cells(named.get("kernel_name", ""))
        values = (ctypes.c_int * 4)()
        _library(build.build(problem, _require_config(config))).gemm_resources(values)
        stages, threads, smem_bytes, clusters = values
        resources = f"smem={smem_bytes} resident_clusters={clusters}"
        return {"stages": stages, "warps": threads // 32, "algorithm": resources}

    def _room(self, size: int, device: torch.device) -> torch.Tensor:
        """Workspace of at least `size` bytes; launches of one stream take turns in it."""
        if self._workspace.numel() < size:
            with as_kernel_errors():
                self._workspace = torch.empty(size, dtype=torch.uint8, device=device)
        return self._workspace


class _Prepared:
    """A kernel with its parameters on the host; calling it launches."""

    def __init__(self, library: ctypes.CDLL, asked: LaunchArguments, workspace: torch.Tensor) -> None:
        self._library = library
        self._workspace = workspace
        self._handle: int | None = None
        status = ctypes.c_int()
        self._handle = library.gemm_create(
            ctypes.byref(asked), workspace.data_ptr(), _stream(), ctypes.byref(status)
        )
        if self._handle is None:
            raise KernelError(f"CUTLASS cannot set the kernel up (status {status.value})")

    def __call__(self) -> None:
        status = self._library.gemm_launch(self._handle, _stream())
        if status != 0:
            raise KernelError(f"CUTLASS cannot launch the kernel (status {status})")

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.gemm_destroy(self._handle)


def _epilogue_arguments(problem: GemmProblem, operands: Operands) -> dict[str, Any]:
    """Pointers and factors that the fused epilogue reads; the plain one has alpha 1 and no C."""
    words, tensors = epilogue_words(problem), operands.extras
    c = tensors.get("beta", tensors.get("residual"))
    bias = tensors.get("bias_n")
    return {
        "c": None if c is None else c.data_ptr(),
        "bias": None if bias is None else bias.data_ptr(),
        "alpha": ALPHA if "alpha" in words else 1.0,
        "beta": BETA if "beta" in words else float(c is not None),
    }


def _grouped(operands: Operands) -> Callable[[], torch.Tensor]:
    ends = operands.extras["bounds"][1:].contiguous()
    return partial(torch._grouped_mm, operands.a, operands.b.mT, offs=ends, out_dtype=operands.out.dtype)


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


@lru_cache(maxsize=256)
def _library(path: Path) -> ctypes.CDLL:
    """A kernel's shared library with the types of its functions."""
    torch.cuda.current_stream()  # makes torch's context the current one
    library = ctypes.CDLL(str(path))
    pointer, asked = ctypes.c_void_p, ctypes.POINTER(LaunchArguments)
    signatures: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
        "gemm_resources": (None, (ctypes.POINTER(ctypes.c_int),)),
        "gemm_can_implement": (ctypes.c_int, (asked,)),
        "gemm_workspace_bytes": (ctypes.c_int64, (asked,)),
        "gemm_create": (pointer, (asked, pointer, pointer, ctypes.POINTER(ctypes.c_int))),
        "gemm_launch": (ctypes.c_int, (pointer, pointer)),
        "gemm_destroy": (None, (pointer,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _require_config(config: Config) -> KernelConfig:
    if not isinstance(config, KernelConfig):
        raise KernelError("CUTLASS needs a tile and a cluster")
    if config.pdl and config.scheduler != "static":
        raise UnsupportedError("the cutlass provider launches kernels that share tiles without PDL")
    return config
