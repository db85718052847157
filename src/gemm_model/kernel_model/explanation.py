"""Explanation of a predicted time: its mechanisms, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemm_model.core.batch import batch_of
from gemm_model.core.further_work import asked_of
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.model import LIMITERS, SITUATION_OF, KernelModel
from gemm_model.kernels.mechanisms import FURTHER_STAGES, FUSED_EPILOGUE
from gemm_model.kernels.registry import family_of

SPILLING = "SPILLING"
MEANINGS = {
    "TENSOR": "tensor cores: the MMAs of the longest chain of tiles",
    "EPILOGUE": "storing the tiles of that chain",
    "PORT": "bringing operands into the SM",
    "LATENCY": "load latency that the stages do not hide",
    "L2": "L2 bandwidth of the device",
    "DRAM": "DRAM bandwidth",
    "LAUNCH": "launch, first load, last store",
    "SPILLING": "registers beyond a thread's budget that go to memory and back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One mechanism's own time, as if it were alone; mechanisms overlap, so their times do not add up."""

    name: str
    time_us: float
    share_of_runtime: float
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A what-if question: the kernel's time after one change, and its ratio to the predicted time."""

    change: str
    runtime_us: float
    relative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A prediction with its mechanisms (longest first), wave occupancy, and what-if table (best first)."""

    prediction: Prediction
    limiter: str
    """The mechanism that takes longest alone: the prediction's limiter, or SPILLING, a part of it."""
    mechanisms: tuple[Mechanism, ...]
    wave_occupancy: float
    """Tiles over the resident clusters of all waves, the partial one included."""
    tile_order: str
    """Order in which the kernel's tiles are walked."""
    tile_scheduler: str
    """How tiles are assigned to resident clusters."""
    what_if: tuple[WhatIf, ...]


def explain(
    problem: GemmProblem,
    config: KernelConfig,
    gpu: GpuSpec | str | Path,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """Explain one kernel with the kernel model; `options` are `KernelModel`'s.

    `gpu` is a GpuSpec, a name or a YAML file. Raises InputError as `predict` does.
    """
    gpu, chosen = as_gpu(gpu), dict(options or {})
    prediction = _predict(problem, config, gpu, chosen)
    details = prediction.details
    mechanisms = _mechanisms(problem, config, gpu, chosen, prediction)
    spilling = mechanisms[0].name == SPILLING
    last = details["last_wave_tiles"]
    order = family_of(config.kernel, gpu).tile_order
    places = details["tiles_per_wave"] * (details["full_waves"] + (1.0 if last > 0 else 0.0))
    occupancy = (details["full_waves"] * details["tiles_per_wave"] + last) / places
    worlds = _worlds(problem, config, gpu, int(details["stages"]))
    changes = []
    for change, world in worlds.items():
        runtime_us = world(problem, chosen)
        relative = runtime_us / prediction.runtime_us
        changes.append(WhatIf(change=change, runtime_us=runtime_us, relative=relative))
    return Explanation(
        prediction=prediction,
        limiter=SPILLING if spilling else prediction.limiter,
        mechanisms=mechanisms,
        wave_occupancy=min(occupancy, 1.0),
        tile_order=order.name,
        tile_scheduler=order.scheduler.name,
        what_if=tuple(sorted(changes, key=lambda each: each.runtime_us)),
    )


def _mechanisms(
    problem: GemmProblem,
    config: KernelConfig,
    gpu: GpuSpec,
    options: Mapping[str, Any],
    prediction: Prediction,
) -> tuple[Mechanism, ...]:
    """Each mechanism's own time, longest first; if the kernel spills, the others' times exclude spilling."""
    times_us = {name: prediction.details[f"{name.lower()}_us"] for name in LIMITERS}
    if prediction.details["spilled_registers"] > 0:
        left_out = {*options.get("without", ()), "spilling"}
        fitting = _predict(problem, config, gpu, {**options, "without": tuple(left_out)})
        times_us = {name: fitting.details[f"{name.lower()}_us"] for name in LIMITERS}
        times_us[SPILLING] = prediction.runtime_us - fitting.runtime_us
    found = [
        Mechanism(
            name=name,
            time_us=time_us,
            share_of_runtime=time_us / prediction.runtime_us,
            meaning=MEANINGS[name],
        )
        for name, time_us in times_us.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.time_us))


_World = Callable[[GemmProblem, dict[str, Any]], float]

WITHOUT = {
    "tensor cores of unlimited rate": ("tensor", "narrow_mma", "promotion", "round_trip", "spilling"),
    "no epilogue": ("epilogue", "fused_epilogue", "slow_division"),
    "no load latency": ("latency",),
    "unlimited L2-to-SM bandwidth": ("port", "line_crossing", "k_tail"),
    "L2 of unlimited bandwidth": ("l2",),
    "DRAM of unlimited bandwidth": ("dram",),
    "no wave quantization": ("whole_waves",),
    "no loss of clock under load": ("clock",),
    "no launch overhead": ("launch", "first_loads"),
    "no spilled registers": ("spilling",),
}
"""Mechanisms switched off by a what-if question."""
FURTHER_CHANGES = {
    FUSED_EPILOGUE: "nothing fused into the epilogue",
    "grouped": "no table of groups",
    "software_scales": "scales that take no time",
}
"""The same for kernels of other kinds of problem."""


def _worlds(problem: GemmProblem, config: KernelConfig, gpu: GpuSpec, stages: int) -> dict[str, _World]:
    def without(names: tuple[str, ...]) -> _World:
        def world(problem: GemmProblem, options: dict[str, Any]) -> float:
            left_out = {*options.get("without", ()), *names}
            return _predict(problem, config, gpu, {**options, "without": tuple(left_out)}).runtime_us

        return world

    def changed(new_config: KernelConfig, new_gpu: GpuSpec, **more: Any) -> _World:
        return lambda problem, options: _predict(problem, new_config, new_gpu, {**options, **more}).runtime_us

    twice_the_smem = replace(
        gpu, smem_bytes_per_cta=2 * gpu.smem_bytes_per_cta, smem_bytes_per_sm=2 * gpu.smem_bytes_per_sm
    )
    asked = {SITUATION_OF.get(word, FUSED_EPILOGUE) for word in asked_of(problem)}
    further = {
        change: without(FURTHER_STAGES[name]) for name, change in FURTHER_CHANGES.items() if name in asked
    }
    return (
        {change: without(names) for change, names in WITHOUT.items()}
        | further
        | {
            "twice the L2 capacity": changed(config, replace(gpu, l2_bytes=2 * gpu.l2_bytes)),
            "twice the stages": changed(replace(config, stages=2 * stages), twice_the_smem),
            "operands warm in L2": changed(config, gpu, l2="warm"),
        }
    )


def _predict(
    problem: GemmProblem, config: KernelConfig, gpu: GpuSpec, options: Mapping[str, Any]
) -> Prediction:
    return KernelModel(gpu, **options).predict_batch(batch_of([(problem, config)])).row(0)
