"""`gemm-model solve`: the tile and ring buffer that run fastest, the runner-up, and why.

The machine that runs the pipeline and its work are those of `simulate` too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from gemm_model.commands import common
from gemm_model.config.plain_yaml import parse_yaml
from gemm_model.core.batch import COLUMNS, BoolArray, GemmBatch, batch_of
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import AUTO_KERNEL, KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.kernels import feasibility
from gemm_model.kernels.registry import family_of
from gemm_model.pipeline import machine as machines
from gemm_model.pipeline.model import PipelineModel
from gemm_model.pipeline.steady_state import load_of_step, time_per_k_tile
from gemm_model.report.document import Document
from gemm_model.solve.exact import Candidates, Choice, solve_exact
from gemm_model.solve.smt import solve_smt

PIPELINE, CALIBRATED = "PipelineModel", "KernelModel"
WHY_CALIBRATED = (
    f"trust {CALIBRATED}: it knows waves, traffic and the clock, and errs by 3.4 % in the mean on kernels of "
    f"an H200 that no fit had seen, {PIPELINE} by 10.5 %"
)
"""Which of two models that disagree to trust (docs/evidence/accuracy.md, docs/models/pipeline.md)."""


def _schedule(args: argparse.Namespace) -> dict[str, Any]:
    given = {"consumers": args.consumers, "dma_warps": args.dma_warps}
    return {name: value for name, value in given.items() if value is not None}


def changed_machine(name_or_path: str, words: Sequence[str]) -> machines.PipelineMachine:
    """A machine with the parameters that `parameter=value` words replace."""
    pairs = (word.lstrip("+").split("=", 1) for word in words)
    return machines.with_parameters(
        machines.load_machine(name_or_path),
        {name: parse_yaml(text, name, infinite=True) for name, text in pairs},
    )


def named_machine(args: argparse.Namespace) -> machines.PipelineMachine | None:
    """The machine of `--machine` with its `parameter=value` words, or None where a GPU runs the kernel."""
    if args.machine is None:
        return None
    for option in common.SETTINGS:
        if option in args.given:
            raise InputError(f"--machine comes with --{option}; expected one of them")
    return machines.with_parameters(changed_machine(args.machine, args.overrides), _schedule(args))


def gpu_model(args: argparse.Namespace) -> tuple[Settings, PipelineModel]:
    """The pipeline model of `--gpu` with its options."""
    chosen = common.settings(args)
    if chosen.model != PIPELINE:
        raise InputError(f"model is {chosen.model}; expected {PIPELINE}, whose pipeline is simulated")
    options = dict(chosen.options)
    options["parameters"] = {**(options.get("parameters") or {}), **_schedule(args)}
    return chosen, PipelineModel(chosen.gpu, **options)


def machine_on_gpu(model: PipelineModel, batch: GemmBatch) -> machines.PipelineMachine:
    """The machine that a GPU is for the first kernel of a batch; all its parameters are scalars."""
    machine = model.machine_of(batch, machines.CONSUMERS[int(model.consumers_of(batch)[0])])
    arrays = {spec.name: getattr(machine, spec.name) for spec in fields(machine)}
    return machines.with_parameters(
        machine, {name: float(values[0]) for name, values in arrays.items() if isinstance(values, np.ndarray)}
    )


def work_of(
    machine: machines.PipelineMachine,
    problem: GemmProblem,
    tile: tuple[int, int, int],
    stages: int,
    cluster: tuple[int, int],
) -> machines.Workload:
    """The work that a problem gives a machine's busiest SM in tiles of m x n x k, through so many stages."""
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k", "batch")}
    tiles = dict(
        zip(("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n"), (*tile, *cluster), strict=True)
    )
    return machines.workload(machine, machines.PipelineKernel(**sizes, **tiles, stages=stages))


def machine_and_work(args: argparse.Namespace) -> tuple[machines.PipelineMachine, machines.Workload, str]:
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


def _completed(config: KernelConfig, machine: machines.PipelineMachine) -> KernelConfig:
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


MAX_STAGES = 12
TILE_STEP = 16
MAX_TILE = 256

Allowed = Callable[[Candidates], BoolArray]


def run(args: argparse.Namespace) -> Document:
    common.check_document(args)
    if args.method == "exact" and "timeout" in args.given:
        raise InputError("--timeout is for Z3; expected it with --method smt or both")
    problem = common.problem(args)
    notes: list[str] = []
    machine, allowed, cluster = named_machine(args), None, (1, 1)
    if machine is None:
        if args.method != "exact":
            raise InputError(f"--method {args.method} without --machine; expected a machine for Z3 to solve")
        chosen, model = gpu_model(args)
        cluster = _cluster(args)
        machine, allowed = kernels_on_gpu(chosen.gpu, model, args.schedule, problem, cluster)
        notes.append(
            f"the optimum is {PIPELINE}'s, `rank` asks {CALIBRATED}: where they differ, {WHY_CALIBRATED}"
        )
    else:
        for option in ("cluster", "schedule"):
            if option in args.given:
                raise InputError(f"--{option} comes with --machine; expected it with a GPU's kernels")
    choices: list[Choice] = []
    proven = True
    sizes = (problem.m, problem.n, problem.k)
    if args.method != "smt":
        started = perf_counter()
        found = solve_exact(
            sizes, machine, args.objective, batch=problem.batch, cluster=cluster, allowed=allowed
        )
        spent_ms = (perf_counter() - started) * 1e3
        choices = [found.best] if found.runner_up is None else [found.best, found.runner_up]
        notes.append(f"exact search: best of {found.candidates} tiles and rings, {spent_ms:.1f} ms")
    if args.method != "exact":
        started = perf_counter()
        proof = solve_smt(sizes, machine, args.objective, batch=problem.batch, timeout_s=args.timeout)
        proven = proof.proven
        verdict = "proven optimal" if proven else "time ran out, not proven"
        notes.append(
            f"Z3: {proof.best}, {verdict}, {proof.queries} queries, {perf_counter() - started:.2f} s"
        )
        if choices and proven and proof.best != choices[0]:
            raise AssertionError(f"exact search found {choices[0]}, Z3 {proof.best}")
        choices = choices or [proof.best]
    rows = [_explained(choice, problem, machine, cluster) for choice in choices]
    return _answer(args, rows, notes, proven=proven)


def _answer(
    args: argparse.Namespace, rows: list[dict[str, object]], notes: list[str], *, proven: bool
) -> Document:
    if len(rows) > 1:
        notes = [*notes, _why(rows[0], rows[1], args.objective)]
    names = ["optimum", "runner-up"][: len(rows)]
    return Document(
        gpu=None if args.machine else common.settings(args).gpu.name,
        model=PIPELINE,
        result={"machine": args.machine, "objective": args.objective, "method": args.method},
        rows=[{"rank": name, **row} for name, row in zip(names, rows, strict=True)],
        notes=notes,
        partial="" if proven else f"Z3 found no proof within {args.timeout:g} s; the best found is above",
    )


def _cluster(args: argparse.Namespace) -> tuple[int, int]:
    default = "2x1" if args.schedule == "2cta" else "1x1"
    cluster_m, cluster_n = parse_extent(args.cluster or default, "--cluster")
    return cluster_m, cluster_n


def kernels_on_gpu(
    gpu: GpuSpec, model: PipelineModel, schedule: str, problem: GemmProblem, cluster: tuple[int, int] = (1, 1)
) -> tuple[machines.PipelineMachine, Allowed]:
    """The machine that a GPU is for kernels of a schedule, and which tiles and rings they offer there."""
    config = KernelConfig(cta_m=128, cta_n=128, cluster_m=cluster[0], cluster_n=cluster[1], schedule=schedule)
    kernel = batch_of([(problem, config)])
    family = family_of(AUTO_KERNEL, gpu)
    default_k = int(np.asarray(feasibility.resources_of(kernel, gpu, family).cta_k)[0])
    ctas = 2 if schedule == "2cta" else 1
    space = machines.TileSpace(
        tile_m=(64, 128, 192, 256),
        tile_n=tuple(range(TILE_STEP, MAX_TILE + 1, TILE_STEP)),
        tile_k=(default_k // 2, default_k, 2 * default_k),
        smem_bytes=gpu.smem_bytes_per_cta,
        max_stages=MAX_STAGES,
    )
    machine = replace(machine_on_gpu(model, kernel), tiles=space)

    def allowed(candidates: Candidates) -> BoolArray:
        columns: dict[str, Any] = {
            name: np.repeat(getattr(kernel, name), len(candidates)) for name in COLUMNS
        }
        columns |= {
            "cta_m": candidates.tile_m,
            "cta_n": candidates.tile_n,
            "cta_k": candidates.tile_k,
            "mma_m": ctas * candidates.tile_m,
            "mma_n": candidates.tile_n,
            "stages": candidates.stages,
        }
        return feasibility.feasible_mask(GemmBatch(**columns), gpu, family)

    return machine, allowed


def _explained(
    choice: Choice, problem: GemmProblem, machine: machines.PipelineMachine, cluster: tuple[int, int]
) -> dict[str, object]:
    """The figures that tell why a choice takes as long as it does."""
    tile = (choice.tile_m, choice.tile_n, choice.tile_k)
    work = work_of(machine, problem, tile, choice.stages, cluster)
    load, math = float(load_of_step(work.full, machine.dma_warps)), float(work.full.math)
    step = float(time_per_k_tile(load, float(work.latency), math, float(choice.stages)))
    bound = "math" if step == math else "load" if step == load else "latency"
    return {
        "tile": f"{choice.tile_m}x{choice.tile_n}x{choice.tile_k}",
        "stages": choice.stages,
        "predicted_us": choice.runtime_us,
        "wait_us": choice.wait_us,
        "tiles_per_sm": int(work.waves),
        "k_tiles": int(work.steps),
        "us_per_k_tile": step / machines.PS_PER_US,
        "bound_by": bound,
        "load_us": load / machines.PS_PER_US,
        "math_us": math / machines.PS_PER_US,
        "epilogue_us": float(work.epilogue) / machines.PS_PER_US,
    }


def _why(best: dict[str, object], other: dict[str, object], objective: str) -> str:
    column = "predicted_us" if objective == "time" else "wait_us"
    slower = float(str(other[column])) / max(float(str(best[column])), 1e-12) - 1

    def words(row: dict[str, object]) -> str:
        return (
            f"{row['tiles_per_sm']} x {row['k_tiles']} k tiles of {row['us_per_k_tile']:.4g} us, "
            f"bound by {row['bound_by']}"
        )

    what = "takes as long" if slower < 1e-9 else f"takes {slower:.2%} more {objective}"
    return f"{best['tile']}: {words(best)}; the runner-up {other['tile']} {what}: {words(other)}"
