"""Shared by `simulate` and `solve`: the machine that runs the pipeline, and its work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from gemm_model.commands import common
from gemm_model.core.batch import GemmBatch, batch_of
from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.core.settings import Settings
from gemm_model.kernels import feasibility
from gemm_model.pipeline.machine import (
    CONSUMERS,
    PipelineKernel,
    PipelineMachine,
    Workload,
    load_machine,
    with_parameters,
    workload,
)
from gemm_model.pipeline.model import PipelineModel

PIPELINE, CALIBRATED = "PipelineModel", "KernelModel"
WHY_CALIBRATED = (
    f"trust {CALIBRATED}: it knows waves, traffic and the clock, and errs by 3.4 % in the mean on kernels of "
    f"an H200 that no fit had seen, {PIPELINE} by 10.5 %"
)
"""Which of two models that disagree to trust (docs/evidence/accuracy.md, docs/models/pipeline.md)."""


def _schedule(args: argparse.Namespace) -> dict[str, Any]:
    given = {"consumers": args.consumers, "dma_warps": args.dma_warps}
    return {name: value for name, value in given.items() if value is not None}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def changed_machine(name_or_path: str, words: Sequence[str]) -> PipelineMachine:
    """A machine with the parameters that `parameter=value` words replace."""
    pairs = (word.lstrip("+").split("=", 1) for word in words)
    return with_parameters(load_machine(name_or_path), {name: _value(text) for name, text in pairs})


def named_machine(args: argparse.Namespace) -> PipelineMachine | None:
    """The machine of `--machine` with its `parameter=value` words, or None where a GPU runs the kernel."""
    if args.machine is None:
        return None
    for option in common.SETTINGS:
        if option in args.given:
            raise InputError(f"--machine comes with --{option}; expected one of them")
    return with_parameters(changed_machine(args.machine, args.overrides), _schedule(args))


def gpu_model(args: argparse.Namespace) -> tuple[Settings, PipelineModel]:
    """The pipeline model of `--gpu` with its options."""
    chosen = common.settings(args)
    if chosen.model != PIPELINE:
        raise InputError(f"model is {chosen.model}; expected {PIPELINE}, whose pipeline is simulated")
    options = dict(chosen.options)
    options["parameters"] = {**(options.get("parameters") or {}), **_schedule(args)}
    return chosen, PipelineModel(chosen.gpu, **options)


def machine_on_gpu(model: PipelineModel, batch: GemmBatch) -> PipelineMachine:
    """The machine that a GPU is for the first kernel of a batch; all its parameters are scalars."""
    machine = model.machine_of(batch, CONSUMERS[int(model.consumers_of(batch)[0])])
    arrays = {spec.name: getattr(machine, spec.name) for spec in fields(machine)}
    return with_parameters(
        machine, {name: float(values[0]) for name, values in arrays.items() if isinstance(values, np.ndarray)}
    )


def work_of(
    machine: PipelineMachine,
    problem: GemmProblem,
    tile: tuple[int, int, int],
    stages: int,
    cluster: tuple[int, int],
) -> Workload:
    """The work that a problem gives a machine's busiest SM in tiles of m x n x k, through so many stages."""
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k", "batch")}
    tiles = dict(
        zip(("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"), (*tile, *cluster), strict=True)
    )
    return workload(machine, PipelineKernel(**sizes, **tiles, stages=stages))


def machine_and_work(args: argparse.Namespace) -> tuple[PipelineMachine, Workload, str]:
    """The machine, the work of the kernel that the arguments describe, and a title for both.

    Raises InputError where the kernel cannot run there.
    """
    problem, config = common.problem(args), common.config(args)
    size = f"{problem.m} x {problem.n} x {problem.k}"
    machine = named_machine(args)
    if machine is not None:
        config = _completed(config, machine)
        tile, cluster = (config.cta_m, config.cta_n, config.cta_k), (config.cluster_m, config.cluster_n)
        work = work_of(machine, problem, tile, config.stages, cluster)
        return machine, work, f"{size} on machine {machine.name}"
    chosen, model = gpu_model(args)
    reason = feasibility.check(problem, config, chosen.gpu)
    if reason is not None:
        raise InputError(f"{size} on {chosen.gpu.name}: {reason}")
    batch = batch_of([(problem, config)])
    machine = machine_on_gpu(model, batch)
    return machine, model.work_of(batch, machine).row(0), f"{size} on {chosen.gpu.name}"


def _completed(config: KernelConfig, machine: PipelineMachine) -> KernelConfig:
    """The configuration with tile K given and a ring that fits."""
    if not config.cta_k:
        raise InputError("--cta has no K; a machine needs all of MxNxK, such as 128x128x64")
    a_bytes, b_bytes = float(machine.a_element_bytes), float(machine.b_element_bytes)
    stage_bytes = (config.cta_m * a_bytes + config.cta_n * b_bytes) * config.cta_k
    fitting = int(np.floor(machine.tiles.smem_bytes / stage_bytes))
    stages = config.stages or min(fitting, machine.tiles.max_stages)
    if not 1 <= stages <= fitting:
        raise InputError(
            f"tile {config.cta_m}x{config.cta_n}x{config.cta_k} needs {stage_bytes:.0f} bytes a stage; "
            f"{machine.tiles.smem_bytes} bytes on {machine.name} do not hold {max(stages, 1)}"
        )
    if config.cta_m * config.cta_n > machine.tiles.max_accumulators:
        raise InputError(
            f"tile {config.cta_m}x{config.cta_n} needs {config.cta_m * config.cta_n} accumulators; "
            f"{machine.name} has {machine.tiles.max_accumulators}"
        )
    return replace(config, stages=stages)
