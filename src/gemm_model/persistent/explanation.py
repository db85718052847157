"""Why a kernel takes the time that the model predicts, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemm_model.core.batch import batch_of
from gemm_model.core.elementwise import minimum
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.model import LIMITERS, WarpSpecializedModel

MEANINGS = {
    "TENSOR": "tensor cores: the MMAs of the longest chain of tiles",
    "EPILOGUE": "storing the tiles of that chain",
    "PORT": "bringing operands into the SM",
    "LATENCY": "load latency that the stages do not hide",
    "L2": "L2 bandwidth of the device",
    "DRAM": "DRAM bandwidth",
    "LAUNCH": "launch, first load, last store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One mechanism's own time, as if it were alone: they overlap and do not add up."""

    name: str
    time_us: float
    share_of_runtime: float
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The same kernel in a changed world: its time, and the time over the predicted one."""

    change: str
    runtime_us: float
    relative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A prediction with its mechanisms (longest first), wave occupancy, and what-if table (best first)."""

    prediction: Prediction
    mechanisms: tuple[Mechanism, ...]
    wave_occupancy: float
    """Tiles over the slots of all waves, the partial one included."""
    tile_order: str
    """In which order the kernel's tiles are walked."""
    what_if: tuple[WhatIf, ...]


def explain(
    problem: GemmProblem,
    config: KernelConfig,
    gpu: GpuSpec,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """Explain one kernel with the calibrated model; `options` are `WarpSpecializedModel`'s."""
    chosen = dict(options or {})
    prediction = _predict(problem, config, gpu, chosen)
    details = prediction.details
    mechanisms = [
        Mechanism(
            name=name,
            time_us=details[f"{name.lower()}_us"],
            share_of_runtime=details[f"{name.lower()}_us"] / prediction.runtime_us,
            meaning=MEANINGS[name],
        )
        for name in LIMITERS
    ]
    last = details["last_wave_tiles"]
    slots = details["tiles_per_wave"] * (details["full_waves"] + (1.0 if last > 0 else 0.0))
    occupancy = (details["full_waves"] * details["tiles_per_wave"] + last) / slots
    worlds = _worlds(config, gpu, int(details["stages"]))
    changes = []
    for change, world in worlds.items():
        runtime_us = world(problem, chosen)
        relative = runtime_us / prediction.runtime_us
        changes.append(WhatIf(change=change, runtime_us=runtime_us, relative=relative))
    return Explanation(
        prediction=prediction,
        mechanisms=tuple(sorted(mechanisms, key=lambda each: -each.time_us)),
        wave_occupancy=minimum(occupancy, 1.0),
        tile_order=family_of(config.kernel, gpu).tile_order.name,
        what_if=tuple(sorted(changes, key=lambda each: each.runtime_us)),
    )


_World = Callable[[GemmProblem, dict[str, Any]], float]


def _worlds(config: KernelConfig, gpu: GpuSpec, stages: int) -> dict[str, _World]:
    def without(mechanism: str) -> _World:
        def world(problem: GemmProblem, options: dict[str, Any]) -> float:
            left_out = {*options.get("without", ()), mechanism}
            return _predict(problem, config, gpu, {**options, "without": tuple(left_out)}).runtime_us

        return world

    def changed(new_config: KernelConfig, new_gpu: GpuSpec, **more: Any) -> _World:
        return lambda problem, options: _predict(problem, new_config, new_gpu, {**options, **more}).runtime_us

    twice_the_smem = replace(gpu, smem_bytes_per_cta=2 * gpu.smem_bytes_per_cta)
    return {
        "tensor cores of unlimited rate": without("tensor"),
        "no epilogue": without("epilogue"),
        "no load latency": without("latency"),
        "an SM port of unlimited bandwidth": without("port"),
        "L2 of unlimited bandwidth": without("l2"),
        "DRAM of unlimited bandwidth": without("dram"),
        "no wave quantization": without("whole_waves"),
        "no loss of clock under load": without("clock"),
        "no launch overhead": without("launch"),
        "twice the L2 capacity": changed(config, replace(gpu, l2_bytes=2 * gpu.l2_bytes)),
        "twice the stages": changed(replace(config, stages=2 * stages), twice_the_smem),
        "operands warm in L2": changed(config, gpu, l2="warm"),
    }


def _predict(
    problem: GemmProblem, config: KernelConfig, gpu: GpuSpec, options: Mapping[str, Any]
) -> Prediction:
    return WarpSpecializedModel(gpu, **options).predict_batch(batch_of([(problem, config)])).row(0)
