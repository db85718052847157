"""QuACK: its `GemmConfig` for a problem, and a pruner for its autotuner (written for quack-kernels 0.6).

config = gemm_config(GemmProblem.of(4096, 4096, 4096), "h200")
out = quack.gemm_interface.gemm(a, b, config=config)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemm_model.choice.selection import rank
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import InputError, importing
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.emit import quack_arguments
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of
from gemm_model.models import DEFAULT_MODEL, create_model

if TYPE_CHECKING:
    from quack.gemm_config import GemmConfig


def gemm_config(
    problem: GemmProblem,
    gpu: GpuSpec | str | Path = "h200",
    *,
    model: str = DEFAULT_MODEL,
    sms: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> GemmConfig:
    """The `quack.gemm_config.GemmConfig` that is predicted to be the fastest for a problem.

    Raises MissingExtraError if QuACK is not installed, InputError if no configuration is legal.
    """
    with importing("a GemmConfig needs the package quack-kernels: pip install quack-kernels"):
        from quack.gemm_config import GemmConfig
    ranking = rank(problem, gpu, 1, model=model, family="quack", sms=sms, options=options)
    return GemmConfig(**quack_arguments(ranking.best.candidate, ranking.gpu))


def candidate_of(config: Any) -> Candidate:
    """The candidate that a QuACK `GemmConfig` describes; its tile_m is that of the MMA."""
    cta_m = config.tile_m
    schedule = "pingpong" if config.pingpong else "cooperative"
    if config.device_capacity in (10, 11) and config.cluster_m % 2 == 0 and config.tile_m in (128, 256):
        # An even cluster_m selects the 2-CTA MMA, which splits tile_m between the two CTAs.
        cta_m, schedule = config.tile_m // 2, "2cta"
    kernel = KernelConfig(
        cta_m=cta_m,
        cta_n=config.tile_n,
        cta_k=config.tile_k or 0,
        mma_m=config.tile_m,
        cluster_m=config.cluster_m,
        cluster_n=config.cluster_n,
        schedule=schedule,
        swizzle=config.max_swizzle_size,
        split_k=config.split_k,
        kernel="quack",
    )
    return Candidate(config=kernel, swap_ab=config.swap_ab)


def swapped(problem: GemmProblem) -> GemmProblem:
    """The same product as D^T = B A^T."""
    return GemmProblem(
        m=problem.n,
        n=problem.m,
        k=problem.k,
        batch=problem.batch,
        a_dtype=problem.b_dtype,
        b_dtype=problem.a_dtype,
        out_dtype=problem.out_dtype,
        acc_dtype=problem.acc_dtype,
        a_scale=problem.b_scale,
        b_scale=problem.a_scale,
        a_major="k" if problem.b_major == "k" else "m",
        b_major="k" if problem.a_major == "k" else "n",
        c_major="m" if problem.c_major == "n" else "n",
    )


def early_config_prune(
    gpu: GpuSpec | str | Path = "h200",
    *,
    top_k: int = 4,
    model: str = DEFAULT_MODEL,
    options: Mapping[str, Any] | None = None,
    after: Callable[..., list[Any]] | None = None,
) -> Callable[..., list[Any]]:
    """An `early_config_prune` for `quack.autotuner.autotune`: the `top_k` configurations predicted fastest.

    QuACK's GEMMs take A (m, k) and B (k, n) under these names. `after` is a pruner that runs before this one,
    such as `quack.gemm_interface.prune_invalid_gemm_configs`. Configurations with equal predicted times keep
    their order; the list is never empty.
    """
    if top_k < 1:
        raise InputError(f"top_k is {top_k}; expected a positive whole number")
    spec = as_gpu(gpu)
    predictor = create_model(model, spec, options)

    def prune(configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        valid = list(configs) if after is None else after(configs, dict(named_args), **kwargs)
        if len(valid) <= top_k:
            return valid
        problem = problem_of({**named_args, **kwargs})
        candidates = [candidate_of(config.kwargs["config"]) for config in valid]
        exchanged = swapped(problem)
        batch = batch_of([(exchanged if each.swap_ab else problem, each.config) for each in candidates])
        legal = feasible_mask(batch, spec, family_of("quack", spec))
        times_us = np.full(len(batch), np.inf)
        if legal.any():
            times_us[legal] = predictor.predict_batch(batch[legal]).runtime_us
        return [valid[index] for index in np.argsort(times_us, kind="stable")[:top_k]]

    return prune


def problem_of(arguments: Mapping[str, Any]) -> GemmProblem:
    """The GEMM of the arguments A (..., m, k) and B (..., k, n) of QuACK's interface."""
    for name in ("A", "B"):
        if arguments.get(name) is None:
            raise InputError(f"QuACK call without {name}; expected tensors A and B")
    a, b = arguments["A"], arguments["B"]
    out = arguments.get("out")
    dtype = str(a.dtype).removeprefix("torch.")
    out_dtype = None if out is None else str(out.dtype).removeprefix("torch.")
    batch = int(a.shape[0]) if len(a.shape) == 3 else 1
    return GemmProblem.of(int(a.shape[-2]), int(b.shape[-1]), int(a.shape[-1]), dtype, out_dtype, batch=batch)
