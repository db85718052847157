"""Pruning for Triton's autotuner: `triton.autotune(..., prune_configs_by=prune_configs_by("h200", top_k=4))`.

Triton calls `perf_model(**named_args, **kwargs, **config.all_kwargs())` for each configuration, keeps the
`top_k` with the smallest results, and compiles and times only those. Nothing here imports Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_model.config import read_toml
from gemm_model.core.batch import GemmBatch, batch_of
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, RefusedKernelError
from gemm_model.kernels.compiled_code import compiled_code
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from gemm_model.kernels.triton import DEFAULT_NUM_STAGES
from gemm_model.models import DEFAULT_MODEL, Model, create_model

SIZE_NAMES = {"m": ("M", "m"), "n": ("N", "n"), "k": ("K", "k")}
"""Names under which kernels commonly take the sizes of the problem."""

META_NAMES: Mapping[str, Sequence[str]] = read_toml("other_names")["triton"]
"""Names under which kernels commonly take their tile."""

THREADS_PER_WARP = 32
DEFAULT_NUM_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPerfModel:
    """The predicted runtime in microseconds of a Triton matmul with given arguments: `perf_model`.

    A configuration that does not fit or cannot run is predicted to take for ever. `dtype` is the operand
    type; None takes it from the first tensor among the arguments. `output_tile_in_smem` says that the kernel
    keeps room for its output tile beside the pipeline, as persistent kernels with TMA stores do.
    """

    gpu: GpuSpec
    model: Model
    dtype: str | None = None
    output_tile_in_smem: bool = False

    def __call__(self, **arguments: Any) -> float:
        batch = self._fitting(arguments)
        try:
            return float("inf") if batch is None else float(self.model.predict_batch(batch).runtime_us[0])
        except RefusedKernelError:
            return float("inf")

    def early_config_prune(
        self, configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
    ) -> list[Any]:
        """The configurations that fit; all of them where none does, because Triton needs at least one."""
        given = {**named_args, **kwargs}
        kept = [each for each in configs if self._fitting({**given, **each.all_kwargs()}) is not None]
        return kept or list(configs)

    def _fitting(self, arguments: Mapping[str, Any]) -> GemmBatch | None:
        """A batch of the one kernel; None where it does not fit."""
        batch = batch_of([(problem_from(arguments, self.dtype), config_from(arguments))])
        warps = _whole(arguments.get("num_warps") or DEFAULT_NUM_WARPS, "num_warps")
        fit = fits(batch, warps, self.gpu, output_tile_in_smem=self.output_tile_in_smem)
        return batch if fit else None


def triton_perf_model(
    gpu: GpuSpec | str | Path = "h200",
    *,
    model: str = DEFAULT_MODEL,
    options: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    output_tile_in_smem: bool = False,
) -> TritonPerfModel:
    """The `perf_model` for `prune_configs_by`: sizes are taken from M, N, K, tiles from BLOCK_M and the like.

    Raises InputError for an unknown GPU, model or type.
    """
    spec = as_gpu(gpu)
    found = create_model(model, spec, options)
    return TritonPerfModel(gpu=spec, model=found, dtype=dtype, output_tile_in_smem=output_tile_in_smem)


def prune_configs_by(
    gpu: GpuSpec | str | Path = "h200", *, top_k: int | float = 4, **how: Any
) -> dict[str, Any]:
    """The whole `prune_configs_by` argument of `triton.autotune`; `how` as `triton_perf_model` takes it."""
    perf_model = triton_perf_model(gpu, **how)
    return {"perf_model": perf_model, "top_k": top_k, "early_config_prune": perf_model.early_config_prune}


def problem_from(arguments: Mapping[str, Any], dtype: str | None = None) -> GemmProblem:
    """The GEMM that a kernel's arguments describe."""
    sizes = {size: _whole(_lookup(arguments, names, size), size) for size, names in SIZE_NAMES.items()}
    return _problem(sizes["m"], sizes["n"], sizes["k"], dtype or _tensor_dtype(arguments))


@lru_cache(maxsize=256)
def _problem(m: int, n: int, k: int, dtype: str) -> GemmProblem:
    return GemmProblem.of(m, n, k, dtype)


def config_from(arguments: Mapping[str, Any]) -> KernelConfig:
    """The kernel configuration that a Triton configuration describes.

    Triton's usual grouped order walks GROUP_M tile rows together, m fastest: that is raster along_m with
    swizzle GROUP_M. All warps share one tile, so that the schedule is the cooperative one. The cluster of
    `num_ctas` CTAs splits a tile along m.
    """
    clusters = _whole(arguments.get("num_ctas") or 1, "num_ctas")
    return KernelConfig(
        cta_m=max(_meta(arguments, "cta_m") // clusters, 1),
        cta_n=_meta(arguments, "cta_n"),
        cta_k=_meta(arguments, "cta_k"),
        cluster_m=clusters,
        stages=_whole(arguments.get("num_stages") or DEFAULT_NUM_STAGES, "num_stages"),
        raster="along_m",
        swizzle=_meta(arguments, "swizzle", 1),
        split_k=_meta(arguments, "split_k", 1),
        kernel="triton",
        fast_accum=True,
    )


def fits(batch: GemmBatch, warps: int, gpu: GpuSpec, *, output_tile_in_smem: bool) -> bool:
    """Whether stages (and output tile) fit into shared memory and accumulators into the threads' registers.

    All warps share a tile, whose accumulators are in registers where the GPU has no tensor memory.
    """
    tile = float(batch.cta_m[0] * batch.cta_n[0])
    stage_bytes = resources_of(batch, gpu, family_of("triton", gpu)).stage_bytes
    smem_bytes = float((batch.stages * stage_bytes)[0])
    if output_tile_in_smem:
        smem_bytes += tile * float(batch.out_bits[0]) / 8.0
    accumulators = 0.0 if gpu.tmem_columns else tile / (warps * THREADS_PER_WARP)
    spilled = accumulators + compiled_code("triton").working_registers > gpu.registers_per_thread
    return smem_bytes <= gpu.smem_bytes_per_cta and not spilled


def _meta(arguments: Mapping[str, Any], name: str, default: int | None = None) -> int:
    return _whole(_lookup(arguments, META_NAMES[name], name, default), name)


def _lookup(arguments: Mapping[str, Any], names: Sequence[str], what: str, default: int | None = None) -> Any:
    for name in names:
        if name in arguments:
            return arguments[name]
    if default is not None:
        return default
    raise InputError(f"Triton kernel without an argument for {what}; expected one of {', '.join(names)}")


def _whole(value: Any, what: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}; expected a whole number") from None


def _tensor_dtype(arguments: Mapping[str, Any]) -> str:
    """Name of the type of the first tensor among the arguments (a tensor descriptor holds one as `base`)."""
    for value in arguments.values():
        dtype = getattr(getattr(value, "base", value), "dtype", None)
        if dtype is not None:
            return str(dtype).removeprefix("torch.")
    raise InputError("no tensor among the kernel's arguments; expected one, or the argument dtype='bf16'")
