"""cuBLASLt through nvmath-python: each kernel that its heuristic proposes for a problem can be run.

cuBLASLt is asked for D^T = B x A^T in its own column-major terms, as torch does it: the first operand is our
B, transposed, the second our A. `heuristic_rank` counts its proposals from 0, its favourite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from nvmath.bindings import cublasLt as cublaslt  # noqa: N813

from gemm_model.bench.cublas import CublasProvider, chosen_kernel
from gemm_model.bench.problem_kinds import BATCH_COLUMNS, beyond
from gemm_model.bench.provider import Config, Launch, LibraryChoice, Operands, UnsupportedError
from gemm_model.bench.torch_library import TorchLibrary, as_kernel_errors
from gemm_model.core.batch_strides import MatrixLayout
from gemm_model.core.problem import GemmProblem

PROPOSALS = 8
"""Kernels of one problem [1]; cuBLASLt's heuristic, best first; chosen."""
WORKSPACE_BYTES = 32 * 2**20
"""Workspace of a multiplication [B]; cuBLAS on Hopper; torch's default."""

DATA_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14, "e4m3": 28, "e5m2": 29}
"""cudaDataType_t (library_types.h)."""

COMPUTE_FP32 = 68
"""Code of sums in fp32 [1]; `cublasComputeType_t`; CUBLAS_COMPUTE_32F, cublas_api.h."""

TRANSPOSED, PLAIN = 1, 0
"""cublasOperation_t."""


class CublasLtProvider(TorchLibrary):
    """The first `PROPOSALS` kernels of cuBLASLt's heuristic; fp8 with unit scales and slow accumulation."""

    name = "cublaslt"

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[GemmProblem, Plan] = {}

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        known = beyond(problem, *BATCH_COLUMNS)
        return known or CublasProvider().unknown_to_cublas(problem, compute_capability)

    def configs(self, *_: object) -> Sequence[Config]:
        return tuple(LibraryChoice(rank=rank) for rank in range(PROPOSALS))

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        rank = config.rank if isinstance(config, LibraryChoice) else 0
        with as_kernel_errors(cublaslt.cuBLASLtError, RuntimeError):
            return self._plan(problem).launcher(rank, operands)

    def describe(self, problem: GemmProblem, config: Config, operands: Operands) -> Mapping[str, Any]:
        rank = config.rank if isinstance(config, LibraryChoice) else 0
        named = chosen_kernel(self.prepare(problem, config, operands))
        # Only the name shows raster and schedule; only the interface shows the splits.
        return {**self._plan(problem).proposals[rank].cells(), **named}

    def _plan(self, problem: GemmProblem) -> Plan:
        if problem not in self._plans:
            self._plans[problem] = Plan(problem)
        return self._plans[problem]


class Proposal:
    """One kernel of the heuristic's list, with its configuration from cuBLASLt."""

    def __init__(self, result: Any) -> None:
        self._algorithm = np.array(result["algo"])
        self.pointer: int = self._algorithm.ctypes.data
        self.workspace_bytes = int(np.ravel(result["workspace_size"])[0])
        self.waves = float(np.ravel(result["waves_count"])[0])

    def attribute(self, name: str) -> int:
        """A value of cublasLtMatmulAlgoConfigAttributes_t; 0 if this kernel has none."""
        which = getattr(cublaslt.MatmulAlgoConfigAttribute, name)
        value = np.zeros(1, dtype=cublaslt.get_matmul_algo_config_attribute_dtype(which))
        written = np.zeros(1, dtype=np.uint64)
        try:
            cublaslt.matmul_algo_config_get_attribute(
                self.pointer, which, value.ctypes.data, value.nbytes, written.ctypes.data
            )
        except cublaslt.cuBLASLtError:
            return 0
        return int(value[0])

    def cells(self) -> dict[str, Any]:
        """The columns of a benchmark table, with extents along our D as in `cublas_names`."""
        cta_n, cta_m = _extents(cublaslt.MatmulTile, self.attribute("TILE_ID"))
        cta_k, stages = _extents(cublaslt.MatmulStages, self.attribute("STAGES_ID"))
        cluster_n, cluster_m = _extents(cublaslt.ClusterShape, self.attribute("CLUSTER_SHAPE_ID"))
        split = self.attribute("SPLITK_NUM")
        names = ("ID", "CUSTOM_OPTION", "INNER_SHAPE_ID", "REDUCTION_SCHEME", "CTA_SWIZZLING")
        words = [f"{name.lower()}={self.attribute(name)}" for name in names]
        words += [f"workspace={self.workspace_bytes}", f"waves={self.waves:.3f}"]
        tile = {"cta_m": cta_m, "cta_n": cta_n, "mma_m": cta_m, "mma_n": cta_n} if cta_m else {}
        cluster = {"cluster_m": cluster_m, "cluster_n": cluster_n} if cluster_m else {}
        return {
            **tile,
            **cluster,
            "cta_k": cta_k or "",
            "stages": stages or "",
            "split_k": max(1, split),
            "scheduler": "split_k" if split > 1 else "static",
            "fast_accum": 0,
            "algorithm": " ".join(words),
        }


class Plan:
    """cuBLASLt's descriptors of one problem and the kernels that it proposes. Raises UnsupportedError."""

    _handle: int = 0
    _workspace: torch.Tensor
    _one: torch.Tensor

    def __init__(self, problem: GemmProblem) -> None:
        if not Plan._handle:
            Plan._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
            Plan._one = torch.ones((), dtype=torch.float32, device="cuda")
            Plan._handle = cublaslt.create()
        self._alpha = np.ones(1, dtype=np.float32)
        self._beta = np.zeros(1, dtype=np.float32)
        fp32 = DATA_TYPES["fp32"]
        a, b, d = (DATA_TYPES[t.name] for t in (problem.a_dtype, problem.b_dtype, problem.out_dtype))
        types = (a, b, d)
        self._second, self._first, self._result = (
            _layout(dtype, layout, problem.batch)
            for dtype, layout in zip(types, problem.layouts, strict=True)
        )
        self._operation = cublaslt.matmul_desc_create(COMPUTE_FP32, fp32)
        given = {"TRANSA": TRANSPOSED, "TRANSB": PLAIN}
        if problem.a_dtype.bits == 8:
            given |= dict.fromkeys(("A_SCALE_POINTER", "B_SCALE_POINTER"), Plan._one.data_ptr())
        _set("matmul_desc", cublaslt.MatmulDescAttribute, self._operation, given)
        self.proposals = self._ask()

    def launcher(self, rank: int, operands: Operands) -> Launch:
        """A launch of proposal `rank` on these operands. Raises UnsupportedError if there are fewer
        proposals.
        """
        if rank >= len(self.proposals):
            raise UnsupportedError(f"cuBLASLt proposes {len(self.proposals)} kernels here")
        alpha, beta = self._alpha.ctypes.data, self._beta.ctypes.data
        first = (operands.b.data_ptr(), self._first)
        second = (operands.a.data_ptr(), self._second)
        result = (operands.out.data_ptr(), self._result)
        workspace = (Plan._workspace.data_ptr(), WORKSPACE_BYTES)
        proposal = self.proposals[rank]
        before = (Plan._handle, self._operation, alpha, *first, *second, beta, *result, *result)

        def launch() -> None:
            cublaslt.matmul(*before, proposal.pointer, *workspace, torch.cuda.current_stream().cuda_stream)

        return launch

    def _ask(self) -> list[Proposal]:
        preference = cublaslt.matmul_preference_create()
        limit = {"MAX_WORKSPACE_BYTES": WORKSPACE_BYTES}
        results = cublaslt.MatmulHeuristicResult(PROPOSALS)
        count = np.zeros(1, dtype=np.int32)
        try:
            _set("matmul_preference", cublaslt.MatmulPreferenceAttribute, preference, limit)
            cublaslt.matmul_algo_get_heuristic(
                *(Plan._handle, self._operation, self._first, self._second, self._result, self._result),
                *(preference, PROPOSALS, results.ptr, count.ctypes.data),
            )
        except cublaslt.cuBLASLtError as error:
            raise UnsupportedError(f"cuBLASLt refuses: {error}") from error
        finally:
            cublaslt.matmul_preference_destroy(preference)
        return [Proposal(results._data[place]) for place in range(int(count[0]))]


def _set(kind: str, names: Any, descriptor: int, values: Mapping[str, int]) -> None:
    """Set attributes of one of cuBLASLt's descriptors, by their names in the enumeration `names`."""
    for name, value in values.items():
        which = getattr(names, name)
        buffer = np.array([value], dtype=getattr(cublaslt, f"get_{kind}_attribute_dtype")(which))
        getattr(cublaslt, f"{kind}_set_attribute")(descriptor, which, buffer.ctypes.data, buffer.nbytes)


def _layout(dtype: int, layout: MatrixLayout, batch: int) -> int:
    """CuBLASLt's descriptor: our rows are its columns. A batch of one needs no strides."""
    found: int = cublaslt.matrix_layout_create(dtype, layout.columns, layout.rows, layout.pitch)
    if batch > 1:
        strides = {"BATCH_COUNT": batch, "STRIDED_BATCH_OFFSET": layout.stride}
        _set("matrix_layout", cublaslt.MatrixLayoutAttribute, found, strides)
    return found


def _extents(names: Any, value: int) -> tuple[int, int]:
    """The first two extents of an enumerator such as TILE_128x256 or STAGES_64xAUTO; 0 if it has none."""
    try:
        words = re.findall(r"_(\d+)x(\d+|AUTO)", names(value).name)
    except ValueError:
        return 0, 0
    first, second = words[0] if words else ("0", "0")
    return int(first), int(second) if second.isdecimal() else 0
