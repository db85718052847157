"""Persistent Triton kernels with tensor descriptors (TMA): plain products with and without warp specialization,
epilogues, groups of rows, batches, block scales that software applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gemm_model.bench import problem_kinds as kinds
from gemm_model.bench.kind_tensors import LARGEST_E4M3
from gemm_model.bench.provider import CompileError, Launch, Operands, UnsupportedError
from gemm_model.bench.torch_library import as_kernel_errors, first_line
from gemm_model.core.block_scaling import BLOCK_K
from gemm_model.core.epilogue import QUANTIZED, QUANTIZED_COLUMNS, REDUCTIONS, SOURCES, VECTORS
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

ORDER = (
    *("alpha", "beta", "bias_n", "bias_m", "residual"),
    *("activation", "output_scale", "quantize_1x128", "sum"),
)
"""Places of an epilogue's words in the kernel."""

ACTIVATION_CODES = {"": 0, "relu": 1, "gelu": 2, "silu": 3, "tanh": 4}
POINTERS = {"bf16": "*bf16", "fp16": "*fp16", "e4m3": "*fp8e4nv", "fp32": "*fp32", "i32": "*i32"}
GROUP_TENSORS = ("starts", "ends")
SPECIALIZED_WARPS = 12
"""Warps of a specialized kernel [1]; Hopper: a group of four that loads and two groups that multiply;
Triton."""
WARPS_PER_GROUP = 4
ALIGNED = ["tt.divisibility", 16]

_ALPHA = tl.constexpr(kinds.ALPHA)
_BETA = tl.constexpr(kinds.BETA)
_OUTPUT_SCALE = tl.constexpr(kinds.OUTPUT_SCALE)
_LARGEST = tl.constexpr(LARGEST_E4M3)
_QUANTIZED = tl.constexpr(QUANTIZED_COLUMNS)
_SCALE_BLOCK = tl.constexpr(BLOCK_K)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == 2:
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == 3:
        x = x * tl.sigmoid(x)
    elif ACTIVATION == 4:
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return x


@triton.jit
def _offsets(tile, tiles_m, tiles_n, GROUP_M, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """First row and column of a tile by its place in the grouped order."""
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    tall = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first_m + within % tall) * BLOCK_M, (within // tall) * BLOCK_N


@triton.jit
def _product(
    a, b, offset_m, row_b, offset_n, M, N, K, a_scale_ptr, b_scale_ptr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, B_SCALE_ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of one tile; scaled kernels multiply each partial sum of 128 k by the scales of both operands."""
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    rows = offset_m + tl.arange(0, BLOCK_M)
    columns = offset_n + tl.arange(0, BLOCK_N)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a_tile = a.load([offset_m, step * BLOCK_K])
        b_tile = b.load([row_b, step * BLOCK_K])
        if a_scale_ptr is None:
            accumulator = tl.dot(a_tile, b_tile.T, accumulator)
        else:
            a_scale = tl.load(a_scale_ptr + step * M + rows, mask=rows < M, other=0.0)
            if B_SCALE_ROWS == 1:
                b_scale = tl.load(b_scale_ptr + step * N + columns, mask=columns < N, other=0.0)
                accumulator += tl.dot(a_tile, b_tile.T) * a_scale[:, None] * b_scale[None, :]
            else:
                b_scale = tl.load(b_scale_ptr + offset_n // _SCALE_BLOCK * tl.cdiv(K, _SCALE_BLOCK) + step)
                accumulator += tl.dot(a_tile, b_tile.T) * (a_scale * b_scale)[:, None]
    return accumulator


@triton.jit
def _finished(
    x, offset_m, offset_n, end_m, N, beta_ptr, residual_ptr, bias_n_ptr, bias_m_ptr, quantize_ptr,
    row_sum_ptr, col_sum_ptr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALPHA: tl.constexpr, ACTIVATION: tl.constexpr,
    GATED: tl.constexpr, OUT_SCALE: tl.constexpr,
):  # fmt: skip
    """The tile after its epilogue."""
    rows = offset_m + tl.arange(0, BLOCK_M)
    columns = offset_n + tl.arange(0, BLOCK_N)
    inside = (rows < end_m)[:, None] & (columns < N)[None, :]
    places = rows.to(tl.int64)[:, None] * N + columns[None, :]
    if ALPHA:
        x = x * _ALPHA
    if beta_ptr is not None:
        x += _BETA * tl.load(beta_ptr + places, mask=inside, other=0.0).to(tl.float32)
    if bias_n_ptr is not None:
        x += tl.load(bias_n_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if bias_m_ptr is not None:
        x += tl.load(bias_m_ptr + rows, mask=rows < end_m, other=0.0).to(tl.float32)[:, None]
    if residual_ptr is not None:
        x += tl.load(residual_ptr + places, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        gate, up = tl.split(tl.reshape(x, (BLOCK_M, BLOCK_N // 2, 2)))
        x = _activated(gate, ACTIVATION) * up
        columns = offset_n // 2 + tl.arange(0, BLOCK_N // 2)
        N = N // 2
    else:
        x = _activated(x, ACTIVATION)
    if OUT_SCALE:
        x = x * _OUTPUT_SCALE
    if quantize_ptr is not None:
        scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-12) / _LARGEST
        x = x / scale[:, None]
        first = tl.min(columns, axis=0) // _QUANTIZED
        tl.store(quantize_ptr + rows * (N // _QUANTIZED) + first, scale, mask=rows < end_m)
    if row_sum_ptr is not None:
        tl.atomic_add(row_sum_ptr + rows, tl.sum(x, axis=1), mask=rows < end_m, sem="relaxed")
    if col_sum_ptr is not None:
        kept = tl.where((rows < end_m)[:, None], x, 0.0)
        tl.atomic_add(col_sum_ptr + columns, tl.sum(kept, axis=0), mask=columns < N, sem="relaxed")
    return x


@triton.jit
def matmul_persistent(
    a_ptr, b_ptr, d_ptr, beta_ptr, residual_ptr, bias_n_ptr, bias_m_ptr, quantize_ptr, row_sum_ptr,
    col_sum_ptr, a_scale_ptr, b_scale_ptr, M, N, K, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, B_SCALE_ROWS: tl.constexpr,
    ALPHA: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, OUT_SCALE: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """D = epilogue(A[M, K] x B[N, K]^T); a program takes every num_programs-th tile of the grouped order."""
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    OUT_N: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    out_n = N // 2 if GATED else N
    d = tl.make_tensor_descriptor(d_ptr, shape=[M, out_n], strides=[out_n, 1], block_shape=[BLOCK_M, OUT_N])
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(
        tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0),
        flatten=not WARP_SPECIALIZE, warp_specialize=WARP_SPECIALIZE,
    ):  # fmt: skip
        offset_m, offset_n = _offsets(tile, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        x = _product(
            a, b, offset_m, offset_n, offset_n, M, N, K, a_scale_ptr, b_scale_ptr,
            BLOCK_M, BLOCK_N, BLOCK_K, B_SCALE_ROWS,
        )  # fmt: skip
        x = _finished(
            x, offset_m, offset_n, M, N, beta_ptr, residual_ptr, bias_n_ptr, bias_m_ptr, quantize_ptr,
            row_sum_ptr, col_sum_ptr, BLOCK_M, BLOCK_N, ALPHA, ACTIVATION, GATED, OUT_SCALE,
        )  # fmt: skip
        d.store([offset_m, offset_n // 2 if GATED else offset_n], x.to(d_ptr.dtype.element_ty))


@triton.jit
def matmul_grouped(
    a_ptr, b_ptr, d_ptr, beta_ptr, residual_ptr, bias_n_ptr, bias_m_ptr, quantize_ptr, row_sum_ptr,
    col_sum_ptr, a_scale_ptr, b_scale_ptr, starts_ptr, ends_ptr, M, N, K, GROUP_M, GROUPS,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, B_SCALE_ROWS: tl.constexpr,
    ALPHA: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, OUT_SCALE: tl.constexpr,
):  # fmt: skip
    """Rows starts[g] to ends[g] of A times B[g]; programs take the tiles of all groups in turn."""
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(
        b_ptr, shape=[GROUPS * N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K]
    )
    OUT_N: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    out_n = N // 2 if GATED else N
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first_tile = 0
    for group in range(GROUPS):
        start = tl.load(starts_ptr + group)
        end_m = tl.load(ends_ptr + group)
        tiles_m = tl.cdiv(end_m - start, BLOCK_M)
        end_tile = first_tile + tiles_m * tiles_n
        while tile < end_tile:
            local = tile - first_tile
            row, offset_n = _offsets(local, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
            offset_m = start + row
            x = _product(
                a, b, offset_m, group * N + offset_n, offset_n, M, N, K, a_scale_ptr, b_scale_ptr,
                BLOCK_M, BLOCK_N, BLOCK_K, B_SCALE_ROWS,
            )  # fmt: skip
            x = _finished(
                x, offset_m, offset_n, end_m, N, beta_ptr, residual_ptr, bias_n_ptr, bias_m_ptr, quantize_ptr,
                row_sum_ptr, col_sum_ptr, BLOCK_M, BLOCK_N, ALPHA, ACTIVATION, GATED, OUT_SCALE,
            )  # fmt: skip
            rows = offset_m + tl.arange(0, BLOCK_M)
            columns = offset_n * OUT_N // BLOCK_N + tl.arange(0, OUT_N)
            # A descriptor's store would write the next group's rows as well.
            inside = (rows < end_m)[:, None] & (columns < out_n)[None, :]
            places = d_ptr + rows.to(tl.int64)[:, None] * out_n + columns[None, :]
            tl.store(places, x.to(d_ptr.dtype.element_ty), mask=inside)
            tile += tl.num_programs(0)
        first_tile = end_tile


@triton.jit
def matmul_batched(
    a_ptr, b_ptr, d_ptr, M, N, K, GROUP_M, BATCH, A_MATRICES, A_STRIDE, A_PITCH, B_MATRICES, B_STRIDE,
    B_PITCH, D_STRIDE, D_PITCH,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """D[i] = A[i] x B[i]^T, one matrix after the other; an operand of one matrix is shared by all."""
    a = tl.make_tensor_descriptor(
        a_ptr, shape=[A_MATRICES, M, K], strides=[A_STRIDE, A_PITCH, 1], block_shape=[1, BLOCK_M, BLOCK_K]
    )
    b = tl.make_tensor_descriptor(
        b_ptr, shape=[B_MATRICES, N, K], strides=[B_STRIDE, B_PITCH, 1], block_shape=[1, BLOCK_N, BLOCK_K]
    )
    d = tl.make_tensor_descriptor(
        d_ptr, shape=[BATCH, M, N], strides=[D_STRIDE, D_PITCH, 1], block_shape=[1, BLOCK_M, BLOCK_N]
    )
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), BATCH * tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        matrix = tile // (tiles_m * tiles_n)
        local = tile % (tiles_m * tiles_n)
        offset_m, offset_n = _offsets(local, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        a_matrix = tl.minimum(matrix, A_MATRICES - 1)
        b_matrix = tl.minimum(matrix, B_MATRICES - 1)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a_tile = a.load([a_matrix, offset_m, step * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            b_tile = b.load([b_matrix, offset_n, step * BLOCK_K]).reshape(BLOCK_N, BLOCK_K)
            accumulator = tl.dot(a_tile, b_tile.T, accumulator)
        out = accumulator.to(d_ptr.dtype.element_ty).reshape(1, BLOCK_M, BLOCK_N)
        d.store([matrix, offset_m, offset_n], out)


KERNELS = {"single": matmul_persistent, "grouped": matmul_grouped, "batched": matmul_batched}


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """What one compiled kernel depends on."""

    kind: str
    """Of KERNELS."""
    pointers: tuple[tuple[str, str], ...]
    """Names of the pointers that the kernel has and their element types."""
    constants: tuple[tuple[str, int], ...]
    stages: int
    warps: int


def unsupported(problem: GemmProblem) -> str:
    """Why the kernels cannot run such a problem; empty where they can."""
    words = kinds.epilogue_words(problem)
    if words and (problem.batch > 1 or kinds.masked(problem)):
        return "the triton provider runs batches and masked groups without an epilogue"
    named = {kinds.activation_of(problem): "activation", **dict.fromkeys(REDUCTIONS, "sum")}
    places = [ORDER.index(named.get(word, word)) for word in words]
    if places != sorted(places):
        return f"the triton provider applies an epilogue in the order {', '.join(ORDER)}"
    scaling = problem.block_scaling
    if scaling is not None and (scaling.a_rows != 1 or problem.groups is not None or problem.batch > 1):
        return "the triton provider scales blocks of 1x128 of A, in a single product"
    return ""


def kernel_of(problem: GemmProblem, config: KernelConfig) -> TritonKernel:
    """The kernel of a problem. Raises UnsupportedError where tile or warps do not fit what is beyond a GEMM."""
    words, specialized = kinds.epilogue_words(problem), config.warps == SPECIALIZED_WARPS
    scaling, gated = problem.block_scaling, bool(problem.epilogue and problem.epilogue.gated)
    if specialized and kinds.extras(problem):
        raise UnsupportedError("the triton provider specializes the warps of plain products alone")
    out_tile = config.cta_n // 2 if gated else config.cta_n
    if QUANTIZED in words and out_tile != QUANTIZED_COLUMNS:
        raise UnsupportedError(f"output tiles of {out_tile} columns are not quantized by {QUANTIZED_COLUMNS}")
    if scaling is not None and (config.cta_k != BLOCK_K or config.cta_n > BLOCK_K):
        raise UnsupportedError("block-scaled tiles have 128 of k and at most 128 columns")
    source = problem.out_dtype.name if problem.out_dtype.bits >= 16 else "bf16"
    pointers = {"a": problem.a_dtype.name, "b": problem.b_dtype.name, "d": problem.out_dtype.name}
    pointers |= {word: source for word in SOURCES if word in words}
    pointers |= {word: "bf16" for word in VECTORS if word in words}
    pointers |= {word: "fp32" for word in (QUANTIZED, *REDUCTIONS) if word in words}
    if scaling is not None:
        pointers |= {"a_scale": "fp32", "b_scale": "fp32"}
    kind = "grouped" if problem.groups else "batched" if problem.batch > 1 else "single"
    if problem.groups:
        pointers |= dict.fromkeys(GROUP_TENSORS, "i32")
    constants = {
        "BLOCK_M": config.cta_m,
        "BLOCK_N": config.cta_n,
        "BLOCK_K": config.cta_k,
        "B_SCALE_ROWS": scaling.b_rows if scaling else 0,
        "ALPHA": int("alpha" in words),
        "ACTIVATION": ACTIVATION_CODES[kinds.activation_of(problem).removeprefix("gated_")],
        "GATED": int(gated),
        "OUT_SCALE": int("output_scale" in words),
        "WARP_SPECIALIZE": specialized,
    }
    return TritonKernel(
        kind=kind,
        pointers=tuple(pointers.items()),
        constants=tuple(constants.items()),
        stages=config.stages,
        warps=config.warps or WARPS_PER_GROUP,
    )


@lru_cache(maxsize=1024)
def compiled(kernel: TritonKernel, compute_capability: tuple[int, int]) -> Any:
    """The compiled kernel, from Triton's cache on disk where it is there. Raises CompileError.

    Pointers that the kernel does not have are None.
    """
    function, constants = KERNELS[kernel.kind], dict(kernel.constants)
    types = {_argument(name): POINTERS[dtype] for name, dtype in kernel.pointers}
    signature, fixed = {}, {}
    for name in function.arg_names:
        if name in types:
            signature[name] = types[name]
        elif name in constants or name.endswith("_ptr"):
            signature[name], fixed[name] = "constexpr", constants.get(name)
        else:
            signature[name] = "i32"
    names = list(signature)
    source = ASTSource(
        function,
        signature,
        {(names.index(name),): value for name, value in fixed.items()},
        {(names.index(name),): [ALIGNED] for name, dtype in types.items() if dtype != "*i32"},
    )
    target = GPUTarget("cuda", compute_capability[0] * 10 + compute_capability[1], 32)
    specialized = kernel.warps == SPECIALIZED_WARPS
    options = {"num_warps": WARPS_PER_GROUP if specialized else kernel.warps, "num_stages": kernel.stages}
    try:
        found = triton.compile(source, target=target, options=options)
    except Exception as error:  # Triton's passes fail with exceptions of many kinds
        raise CompileError(first_line(error)) from error
    if specialized and found.metadata.num_warps != SPECIALIZED_WARPS:
        raise CompileError("this Triton does not specialize the warps of this kernel")
    return found


def prepare(problem: GemmProblem, config: KernelConfig, operands: Operands) -> Launch:
    """A callable that launches the kernel on the stream of the moment; nothing is launched yet."""
    triton.set_allocator(_workspace)
    sm_count = torch.cuda.get_device_properties(operands.a.device).multi_processor_count
    with as_kernel_errors(RuntimeError, triton.runtime.OutOfResources, wanted=UnsupportedError):
        run = built(problem, config)[(min(tiles(problem, config), sm_count), 1, 1)]
    passed = arguments(problem, config, operands)

    def launch() -> None:
        run(*passed, stream=torch.cuda.current_stream().cuda_stream)

    return launch


def built(problem: GemmProblem, config: KernelConfig) -> Any:
    return compiled(kernel_of(problem, config), torch.cuda.get_device_capability())


def _workspace(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    """Workspace for the tensor descriptors that a kernel makes."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


def arguments(problem: GemmProblem, config: KernelConfig, operands: Operands) -> tuple[Any, ...]:
    """What the kernel is called with: tensors, sizes and constants in its order, None for what it lacks."""
    kernel = kernel_of(problem, config)
    tensors = {"a": operands.a, "b": operands.b, "d": operands.out}
    tensors |= operands.extras | _scales(problem, operands)
    values: dict[str, Any] = {_argument(name): tensor for name, tensor in tensors.items()}
    values |= {
        "M": kinds.rows_in_memory(problem),
        "N": problem.n,
        "K": problem.k,
        "GROUP_M": config.swizzle,
    }
    values |= {"GROUPS": len(kinds.group_rows(problem)), **dict(kernel.constants)}
    if problem.batch > 1:
        for operand, layout in zip("ABD", problem.layouts, strict=True):
            values[f"{operand}_MATRICES"] = layout.matrices
            # A descriptor wants a stride even where there is one matrix.
            stride = layout.stride or layout.rows * layout.pitch
            values |= {f"{operand}_STRIDE": stride, f"{operand}_PITCH": layout.pitch}
        values["BATCH"] = problem.batch
    return tuple(values.get(name) for name in KERNELS[kernel.kind].arg_names)


def tiles(problem: GemmProblem, config: KernelConfig) -> int:
    """Output tiles of all groups, or of the whole batch."""
    rows = kinds.group_rows(problem) or (problem.m,)
    return problem.batch * sum(-(-count // config.cta_m) for count in rows) * -(-problem.n // config.cta_n)


def described(kernel: Any) -> dict[str, Any]:
    """Table cells of a compiled kernel."""
    resources = f"smem={kernel.metadata.shared} registers={kernel.n_regs} spills={kernel.n_spills}"
    return {"algorithm": resources}


def _scales(problem: GemmProblem, operands: Operands) -> dict[str, Any]:
    """Scales as the kernel reads them: those of single rows contiguous along the rows."""
    scaling = problem.block_scaling
    if scaling is None:
        return {}
    rows = {"a_scale": scaling.a_rows, "b_scale": scaling.b_rows}
    return {name: operands.extras[name].t().contiguous() for name, count in rows.items() if count == 1}


def _argument(name: str) -> str:
    return f"{name.removesuffix('_1x128')}_ptr"
