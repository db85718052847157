"""A chosen configuration as text to paste into the tool that runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from gemm_model.config import read_toml
from gemm_model.core.batch import numbers_of
from gemm_model.core.dtypes import names_in
from gemm_model.core.fields import problem_fields
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, require_one_of
from gemm_model.kernels import triton
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.feasibility import K_BYTES_PER_STAGE, check
from gemm_model.kernels.registry import family_of
from gemm_model.kernels.tile_scheduler import FIRST_COME

WARPS_PER_WARPGROUP = 4
DEVICE_CAPACITY = {"sm90": 9, "sm100": 10, "sm120": 12}
CUTLASS_ARCH = {"sm90": "Sm90", "sm100": "Sm100"}
CUTLASS_TYPES = {name: theirs for theirs, name in names_in("cpp").items()}


def emit(target: str, problem: GemmProblem, candidate: Candidate, gpu: GpuSpec) -> str:
    """The configuration for 'quack', 'triton', 'cutlass', 'cublas' or as 'json'.

    Raises InputError for other words, for a library that has no kernels for the GPU, and for a kernel that
    this library does not have.
    """
    require_one_of(f"cannot emit {target!r}", target, EMITTERS)
    if target != "json" and candidate.config.kernel != target:
        reason = check(problem, replace(candidate.config, kernel=target), gpu)
        if reason is not None:
            raise InputError(f"{target}: {reason}; expected --family {target}")
    return EMITTERS[target](problem, candidate, gpu)


def quack_arguments(candidate: Candidate, gpu: GpuSpec) -> dict[str, object]:
    """Arguments of QuACK's `GemmConfig`: its tile_m is that of the MMA, shared by a pair of CTAs."""
    config = candidate.config
    arguments: dict[str, object] = {
        "tile_m": config.mma_m,
        "tile_n": config.cta_n,
        "pingpong": config.schedule == "pingpong",
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "swap_ab": candidate.swap_ab,
        "max_swizzle_size": config.swizzle,
        "split_k": config.split_k,
        "is_dynamic_persistent": family_of("quack", gpu).tile_order.scheduler is FIRST_COME,
        "device_capacity": DEVICE_CAPACITY[gpu.kernel_architecture],
    }
    if config.cta_k:
        arguments["tile_k"] = config.cta_k
    return arguments


def _quack(_: GemmProblem, candidate: Candidate, gpu: GpuSpec) -> str:
    words = ", ".join(f"{name}={value!r}" for name, value in quack_arguments(candidate, gpu).items())
    return f"GemmConfig({words})"


def _triton(problem: GemmProblem, candidate: Candidate, _: GpuSpec) -> str:
    config = triton_config(problem, _unswapped(candidate, "triton"))
    meta = {
        "BLOCK_M": config.cta_m,
        "BLOCK_N": config.cta_n,
        "BLOCK_K": config.cta_k,
        "GROUP_M": config.swizzle,
    }
    if config.split_k > 1:
        meta["SPLIT_K"] = config.split_k
    return f"triton.Config({json.dumps(meta)}, num_warps={config.warps}, num_stages={config.stages})"


def triton_config(problem: GemmProblem, config: KernelConfig) -> KernelConfig:
    """The configuration with the k tile, stages and warps that a model takes where it leaves them open."""
    return replace(
        config,
        cta_k=k_tile(problem, config),
        stages=config.stages or triton.DEFAULT_NUM_STAGES,
        warps=config.warps or WARPS_PER_WARPGROUP * int(triton.warpgroups(numbers_of(problem, config))),
    )


def k_tile(problem: GemmProblem, config: KernelConfig) -> int:
    """Elements of K in a pipeline stage: the configuration's, or 128 bytes."""
    return config.cta_k or int(K_BYTES_PER_STAGE) * 8 // max(problem.a_dtype.bits, problem.b_dtype.bits)


def _cutlass(problem: GemmProblem, candidate: Candidate, gpu: GpuSpec) -> str:
    config = _unswapped(candidate, "cutlass")
    mainloop, epilogue = _cutlass_schedules(config, problem, gpu)
    types = {name: CUTLASS_TYPES[getattr(problem, f"{name}_dtype").name] for name in ("a", "b", "out", "acc")}
    raster = {"along_m": "AlongM", "along_n": "AlongN"}.get(config.raster, "Heuristic")
    stages = (
        f"cutlass::gemm::collective::StageCount<{config.stages}>"
        if config.stages
        else "cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(\n"
        "        sizeof(typename CollectiveEpilogue::SharedStorage))>"
    )
    arch = CUTLASS_ARCH[gpu.kernel_architecture]
    align = {name: max(128 // getattr(problem, f"{name}_dtype").bits, 1) for name in ("a", "b", "out")}
    majors = {
        "A": "RowMajor" if problem.a_major == "k" else "ColumnMajor",
        "B": "ColumnMajor" if problem.b_major == "k" else "RowMajor",
        "D": "RowMajor" if problem.c_major == "n" else "ColumnMajor",
    }
    layout = {name: f"cutlass::layout::{major}" for name, major in majors.items()}
    words = {"config": config, "k": k_tile(problem, config), "arch": arch, "types": types, "layout": layout}
    words |= {"align": align, "stages": stages, "mainloop": mainloop, "epilogue": epilogue, "raster": raster}
    text: str = read_toml("emit")["cutlass"]
    return text.format_map(words)


def _cutlass_schedules(config: KernelConfig, problem: GemmProblem, gpu: GpuSpec) -> tuple[str, str]:
    if problem.a_scale or problem.b_scale:
        raise InputError("cutlass: block-scaled kernels are not emitted; expected a dense type, or json")
    if gpu.kernel_architecture == "sm100":
        pair = "2Sm" if config.schedule == "2cta" else "1Sm"
        return (
            f"cutlass::gemm::KernelTmaWarpSpecialized{pair}Sm100",
            f"cutlass::epilogue::TmaWarpSpecialized{pair}",
        )
    if gpu.kernel_architecture != "sm90":
        raise InputError(f"cutlass: no collective is emitted for {gpu.architecture}; expected sm90 or sm100")
    way = "Pingpong" if config.schedule == "pingpong" else "Cooperative" if config.cta_m > 64 else ""
    fast = "FP8FastAccum" if problem.math_kind == "fp8" and config.fast_accum else ""
    epilogue = "cutlass::epilogue::TmaWarpSpecialized" + ("Cooperative" if way == "Cooperative" else "")
    return f"cutlass::gemm::KernelTmaWarpSpecialized{way}{fast}", epilogue


def _unswapped(candidate: Candidate, target: str) -> KernelConfig:
    if candidate.swap_ab:
        raise InputError(
            f"{target}: the choice swaps A and B, which its text cannot say; expected --family {target}"
        )
    return candidate.config


def _json(problem: GemmProblem, candidate: Candidate, gpu: GpuSpec) -> str:
    config = {**asdict(candidate.config), "swap_ab": candidate.swap_ab}
    return json.dumps({"gpu": gpu.name, "problem": problem_fields(problem), "config": config}, indent=2)


def _cublas(problem: GemmProblem, candidate: Candidate, gpu: GpuSpec) -> str:
    """The kernel's name as a pattern, because the launched kernel identifies an algorithm of cuBLASLt.

    nvjet names tile, k tile x stages, cluster and raster, the extent along n first.
    """
    if gpu.kernel_architecture != "sm90":
        raise InputError(f"cublas: no kernel names are known for {gpu.architecture}; expected sm90, or json")
    config = candidate.config
    extents = f"{config.cta_n}x{config.cta_m}_{k_tile(problem, config)}x{config.stages or '*'}"
    cluster = f"{config.cluster_n}x{config.cluster_m}_{'v' if config.raster == 'along_n' else 'h'}"
    words = "*coop" if config.schedule == "cooperative" else ""
    words += "*splitK" if config.split_k > 1 else ""
    pattern = f"nvjet_sm90_*_{extents}_{cluster}_*{words}*_T??"
    return pattern + (f" with SPLITK_NUM {config.split_k}" if config.split_k > 1 else "")


EMITTERS: Mapping[str, Callable[[GemmProblem, Candidate, GpuSpec], str]] = {
    "quack": _quack,
    "triton": _triton,
    "cutlass": _cutlass,
    "cublas": _cublas,
    "json": _json,
}
