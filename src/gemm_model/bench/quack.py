"""QuACK's CuTeDSL persistent GEMM kernels: SM90 cooperative and ping-pong, SM100 1- and 2-CTA, SM120.

QuACK keeps compiled kernels on disk (environment variable QUACK_CACHE_DIR), keyed by types, tile, cluster and
schedule but not by sizes, so every process of a benchmark shares them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import quack.gemm as quack_gemm
import quack.gemm_tvm_ffi_utils as quack_ffi
import torch
from quack.cache import async_compile, jit_cache
from quack.cute_dsl_utils import get_max_active_clusters, torch2cute_dtype_map
from quack.gemm_default_epi import GemmDefaultEpiMixin, GemmDefaultSm90

from gemm_model.bench import quack_fused
from gemm_model.bench.problem_kinds import BATCH_COLUMNS, beyond
from gemm_model.bench.provider import (
    CompileError,
    Config,
    KernelError,
    Launch,
    Operands,
    UnsupportedError,
    configs_of,
)
from gemm_model.bench.tensors import ALIGNMENT_BYTES
from gemm_model.bench.torch_library import as_kernel_errors, torch_dtype
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import K_BYTES_PER_STAGE, resources_of, runnable_mask
from gemm_model.kernels.registry import family_of

SWEPT_CLUSTER = 2
"""Most CTAs of a swept cluster along each extent [1]; sweeps; chosen."""
MOST_ACCUMULATORS = 255.0
"""Most accumulators of a thread [registers]; sweeps, in which kernels that spill other registers take part;
PTX ISA."""
GPUS = {9: "h200", 10: "b200_sxm", 12: "rtx_5090"}
"""A GPU of each compute capability that QuACK has kernels for: all of one offer the same tiles and stages."""

DENSE_TYPES = {
    9: ("bf16", "fp16", "e4m3", "e5m2"),
    10: ("bf16", "fp16", "e4m3", "e5m2"),
    12: ("bf16", "fp16"),
}
BLOCK_FORMATS = {
    ("e4m3", "e8m0", 32): "mxfp8_e4m3",
    ("e2m1", "e8m0", 32): "mxfp4",
    ("e2m1", "e4m3", 16): "nvfp4",
}
"""(element, scale, vector size) -> QuACK's name of the block-scaled format."""
_ERRORS = (RuntimeError, ValueError, TypeError, AssertionError)
"""What QuACK and the DSL raise where a kernel cannot be built."""


class QuackProvider:
    """Kernels of the `quack-kernels` package; the raster order follows its own rules.

    So do the stages, unless fewer are asked for: a ring of that many is compiled here.
    """

    name = "quack"

    def __init__(self) -> None:
        self._latest: tuple[tuple[GemmProblem, KernelConfig], Any] | None = None
        """The latest launch plan or variant: further operands of the same problem need no new one."""

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        major = compute_capability[0]
        if major not in DENSE_TYPES:
            return f"QuACK has no kernel for compute capability {major}.{compute_capability[1]}"
        if problem.acc_dtype.name != "fp32":
            return f"QuACK accumulates in fp32, not {problem.acc_dtype.name}"
        if (scale := problem.a_scale or problem.b_scale) is not None:
            key = (problem.a_dtype.name, scale.dtype.name, scale.vec_size)
            known = major == 10 and key in BLOCK_FORMATS and problem.a_scale == problem.b_scale
            return (
                beyond(problem)
                if known
                else f"QuACK has no {problem.a_dtype.name} block-scaled kernel for SM{major}0"
            )
        if problem.a_dtype.name not in DENSE_TYPES[major] or problem.a_dtype.bits != problem.b_dtype.bits:
            return f"QuACK multiplies no {problem.a_dtype.name} x {problem.b_dtype.name} on SM{major}0"
        if problem.a_dtype.bits == 16 and problem.a_dtype != problem.b_dtype:
            return "QuACK takes 16-bit operands of one type only"
        if problem.batch > 1:
            return beyond(problem, *BATCH_COLUMNS)
        return "" if problem.plain else quack_fused.unsupported(problem, compute_capability)

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        gpu = load_gpu(GPUS[compute_capability[0]])
        return tuple(_configs(problem, gpu, family_of(self.name, gpu)))

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        config = _require_config(config)
        types = (problem.a_dtype, problem.b_dtype, problem.out_dtype, problem.a_scale, problem.b_scale)
        cluster = (config.cluster_m, config.cluster_n)
        tile = _tile(problem, config)
        variant = (config.fast_accum, config.pdl is not False, config.stages)
        around = (problem.batch > 1, *quack_fused.kernel_key(problem))
        return (types, tile, cluster, config.schedule, config.split_k, *variant, *around)

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        pin_target(compute_capability)
        config = _require_config(config)
        with as_kernel_errors(*_ERRORS, OSError, wanted=CompileError):
            if not _fused(problem) and _compiled_here(problem, config, compute_capability):
                _compiled(problem, config, compute_capability)
                return
            # Tensors without memory are enough for QuACK to compile.
            operands = quack_fused.meta_operands(problem)
            with quack_fused.without_gpu(compute_capability):
                if _fused(problem):
                    _fewer_stages(problem, config, compute_capability)
                    quack_fused.plan_of(problem, config, operands)
                else:
                    _plan_of(problem, config, operands, compute_capability[0])

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        config = _require_config(config)
        if config.raster != "heuristic" or config.warps:
            raise UnsupportedError("QuACK chooses raster and warps itself; expected neither")
        with as_kernel_errors(*_ERRORS):
            return self._prepared(problem, config, operands)

    def _prepared(self, problem: GemmProblem, config: KernelConfig, operands: Operands) -> Launch:
        if _fused(problem):
            plan = self._kept(problem, config, lambda: quack_fused.plan_of(problem, config, operands))
            return quack_fused.launch_of(plan, problem, operands)
        capability = torch.cuda.get_device_capability(operands.a.device)
        if _compiled_here(problem, config, capability):
            kernel, *constants = self._kept(problem, config, lambda: _variant(problem, config, capability))
            return partial(kernel, operands.a, operands.b, operands.out, None, *constants)
        plan = self._kept(problem, config, lambda: _plan_of(problem, config, operands, capability[0]))
        matrices = _matrices(problem, config, operands)
        launch = partial(quack_gemm.run_gemm_plan, plan, *matrices, None, **_scales(operands))
        if operands.scratch is None or config.split_k == 1:
            return launch
        return partial(_launch_in_scratch, operands.scratch, launch)

    def _kept(self, problem: GemmProblem, config: KernelConfig, make: Callable[[], Any]) -> Any:
        """The latest plan or variant where it is of this kernel, else a new one."""
        if self._latest is None or self._latest[0] != (problem, config):
            self._latest = ((problem, config), make())
        return self._latest[1]


def _launch_in_scratch(scratch: torch.Tensor, launch: Launch) -> None:
    """Launch a split kernel with its counters and partial sums in `scratch`.

    QuACK allocates them at each launch, wherever torch has room.
    """
    allocate = quack_gemm._split_k_buffers
    quack_gemm._split_k_buffers = lambda *arguments: placed_in(scratch, allocate(*arguments))
    try:
        launch()
    finally:
        quack_gemm._split_k_buffers = allocate


def placed_in(scratch: torch.Tensor, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Buffers of the same shapes, one after another in `scratch`, with cleared counters; unchanged if it is
    too small.
    """
    sizes = [-(-buffer.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for buffer in buffers]
    if sum(sizes) > scratch.nbytes:
        return list(buffers)
    places = zip(torch.split(scratch[: sum(sizes)], sizes), buffers, strict=True)
    found = [place[: like.nbytes].view(like.dtype).view(like.shape) for place, like in places]
    for buffer in found:
        if not buffer.is_floating_point():
            buffer.zero_()
    return found


def pin_target(compute_capability: tuple[int, int]) -> None:
    """Make QuACK and the DSL trace and assemble for this architecture, whatever GPU is (not) here."""
    major, minor = compute_capability
    os.environ["QUACK_ARCH"] = f"{major}{minor}"
    os.environ["CUTE_DSL_ARCH"] = f"sm_{major}{minor}a"
    async_compile._pin_dsl_arch(os.environ["CUTE_DSL_ARCH"])


def _require_config(config: Config) -> KernelConfig:
    if not isinstance(config, KernelConfig):
        raise KernelError("QuACK needs a tile and a cluster")
    return config


def _configs(problem: GemmProblem, gpu: GpuSpec, family: KernelFamily) -> Iterator[KernelConfig]:
    """All runnable kernels of the family, with their own number of stages, in each of their tile orders."""
    space = family.space
    clusters = [cluster for cluster in space.clusters if max(cluster) <= SWEPT_CLUSTER]
    tiles = {"schedule": space.schedules, "cta_m": space.cta_m, "cta_n": space.cta_n}
    kernels = configs_of({**tiles, "cluster_m cluster_n": clusters}, kernel=family.name)
    batch = batch_of([(problem, kernel) for kernel in kernels])
    found = resources_of(batch, gpu, family)
    swept = runnable_mask(batch, gpu, family) & (found.accumulator_registers <= MOST_ACCUMULATORS)
    cta_k, stages = np.asarray(found.cta_k), np.asarray(found.stages)
    for row in np.flatnonzero(swept):
        as_run = replace(kernels[row], cta_k=int(cta_k[row]), stages=int(stages[row]))
        for swizzle in sorted(space.swizzles):
            yield replace(as_run, swizzle=swizzle)


def _fused(problem: GemmProblem) -> bool:
    """Whether the problem has an epilogue or groups, which QuACK's library of epilogues computes."""
    return problem.epilogue is not None or problem.groups is not None


def _uses_fast_fp8(problem: GemmProblem, config: KernelConfig, compute_capability: tuple[int, int]) -> bool:
    """QuACK's entry point always promotes fp8 sums on SM90; the kernel itself also offers the fast way."""
    return compute_capability[0] == 9 and problem.a_dtype.bits == 8 and config.fast_accum


def _compiled_here(problem: GemmProblem, config: KernelConfig, compute_capability: tuple[int, int]) -> bool:
    """Whether the kernel is one that QuACK's entry point does not offer."""
    without_pdl = compute_capability[0] == 9 and config.pdl is False
    shorter = _fewer_stages(problem, config, compute_capability) > 0
    return without_pdl or shorter or _uses_fast_fp8(problem, config, compute_capability)


@lru_cache(maxsize=4096)
def _own_stages(problem: GemmProblem, config: KernelConfig, major: int) -> int:
    """Stages of the ring that QuACK chooses itself, as `GemmSm90._compute_stages` and its like count them."""
    gpu = load_gpu(GPUS[major])
    own = replace(config, stages=0, kernel="quack")
    found = resources_of(batch_of([(problem, own)]), gpu, family_of("quack", gpu))
    return int(np.asarray(found.stages).item())


def _fewer_stages(problem: GemmProblem, config: KernelConfig, compute_capability: tuple[int, int]) -> int:
    """Stages that are asked for where they are fewer than QuACK's own; 0 where they are those.

    Raises UnsupportedError for a ring that cannot be had.
    """
    if config.stages == 0:
        return 0
    own = _own_stages(problem, replace(config, stages=0), compute_capability[0])
    if config.stages == own:
        return 0
    if config.stages > own or compute_capability[0] != 9 or _fused(problem):
        raise UnsupportedError(f"the kernel has {own} stages here; {config.stages} cannot be asked for")
    return config.stages


def _tile_k(problem: GemmProblem, config: KernelConfig) -> int | None:
    """Tile K if it differs from QuACK's default of 128 bytes."""
    return None if config.cta_k in (0, int(K_BYTES_PER_STAGE) * 8 // problem.a_dtype.bits) else config.cta_k


def _tile(problem: GemmProblem, config: KernelConfig) -> tuple[int, ...]:
    tile_k = _tile_k(problem, config)
    return (config.mma_m, config.cta_n) if tile_k is None else (config.mma_m, config.cta_n, tile_k)


def _matrices(problem: GemmProblem, config: KernelConfig, operands: Operands) -> list[torch.Tensor]:
    """A, B and the output as QuACK takes them: kernels that split k multiply batches."""
    found = [operands.a, operands.b, operands.out]
    return [each.unsqueeze(0) for each in found] if config.split_k > 1 and problem.batch == 1 else found


def _scales(operands: Operands) -> dict[str, Any]:
    return {} if operands.a_scale is None else {"SFA": operands.a_scale, "SFB": operands.b_scale}


def _plan_of(problem: GemmProblem, config: KernelConfig, operands: Operands, major: int) -> Any:
    """QuACK's launch plan; its entry point launches once while it makes the plan, which warms up the kernel."""
    return quack_gemm.gemm(
        *(*_matrices(problem, config, operands), None, None),
        *(config.mma_m, config.cta_n, config.cluster_m, config.cluster_n),
        tile_K=_tile_k(problem, config),
        pingpong=config.schedule == "pingpong",
        is_dynamic_persistent=major > 9,
        max_swizzle_size=config.swizzle,
        split_k=config.split_k,
        **_scales(operands),
        **_block_formats(problem),
    )


def _compiled(problem: GemmProblem, config: KernelConfig, compute_capability: tuple[int, int]) -> Any:
    """A kernel that QuACK's entry point does not offer, from the cache on disk where it is there."""
    if config.split_k > 1 or problem.batch > 1:
        raise UnsupportedError(
            "split-K and batches with another ring, without PDL or with fast accumulation are not "
            "compiled here"
        )
    types = (problem.a_dtype, problem.b_dtype, problem.out_dtype)
    stages = _fewer_stages(problem, config, compute_capability)
    fast_fp8 = _uses_fast_fp8(problem, config, compute_capability)
    return _compile_variant(
        tuple(torch2cute_dtype_map[torch_dtype(dtype.name)] for dtype in types),
        _tile(problem, config),
        (config.cluster_m, config.cluster_n, 1),
        config.schedule == "pingpong",
        (fast_fp8, config.pdl is not False, stages),
    )


@jit_cache
def _compile_variant(
    types: tuple[Any, Any, Any],
    tile: tuple[int, ...],
    cluster: tuple[int, ...],
    pingpong: bool,
    variant: tuple[bool, bool, int],
) -> Any:
    """An SM90 kernel for types of A, B and the output; `variant`: fast fp8 accumulation, PDL, number of stages.

    0 stages are QuACK's own; the epilogue's buffers are those beside QuACK's own ring.
    """
    fast_fp8, pdl, stages = variant
    m_a, m_b, m_out, *_ = quack_ffi.make_fake_gemm_tensors(*types, None, "k", "k", "n", None, batched=False)

    def vary(kernel: Any) -> None:
        kernel.use_pdl = pdl
        if fast_fp8:
            kernel.fp8_slow_accum = False
        if stages:
            kernel._compute_stages = partial(_shortened, kernel._compute_stages, stages)

    # A persistent kernel that gathers no rows of A and has static tiles.
    kernel = (GemmDefaultSm90, types[0], tile, cluster, pingpong, True, False, False, (9, 0))
    return quack_ffi.compile_gemm_kernel(
        *(*kernel, m_a, m_b, m_out, None),
        _plain_epilogue(),
        quack_ffi.make_fake_scheduler_args(False, False, None, has_ag=False),
        quack_ffi.make_fake_varlen_args(False, False, False, None),
        post_init=vary,
    )


def _shortened(compute_stages: Any, stages: int, *arguments: Any, **named: Any) -> tuple[int, int, int]:
    """QuACK's count of stages and buffers with a shorter ring."""
    own, stored, read = compute_stages(*arguments, **named)
    if stages > own:
        raise ValueError(f"shared memory holds {own} stages, not {stages}")
    return stages, stored, read


def _plain_epilogue() -> Any:
    names = (
        *("alpha", "beta", "mRowVecBroadcast", "mColVecBroadcast"),
        *("add_to_output", "rounding_mode", "sr_seed"),
    )
    return GemmDefaultEpiMixin.EpilogueArguments(**dict.fromkeys(names))


def _variant(
    problem: GemmProblem, config: KernelConfig, compute_capability: tuple[int, int]
) -> tuple[Any, ...]:
    """A kernel compiled here, and its arguments behind the matrices."""
    clusters = get_max_active_clusters(config.ctas_per_cluster, device_capacity=compute_capability)
    scheduler = quack_ffi.make_scheduler_args(clusters, config.swizzle, None, None)
    varlen = quack_ffi.make_varlen_args(None, None, None)
    kernel = _compiled(problem, config, compute_capability)
    return kernel, _plain_epilogue(), scheduler, varlen, None, None


def _block_formats(problem: GemmProblem) -> dict[str, str]:
    if problem.a_scale is None:
        return {}
    name = BLOCK_FORMATS[(problem.a_dtype.name, problem.a_scale.dtype.name, problem.a_scale.vec_size)]
    return {"bs_format_a": name, "bs_format_b": name}
