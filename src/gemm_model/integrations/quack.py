"""QuACK: its `GemmConfig` for a problem, a pruner and a tuning cache for its autotuner (written for quack-kernels 0.6).

config = gemm_config(GemmProblem.of(4096, 4096, 4096), "h200")
out = quack.gemm_interface.gemm(a, b, config=config)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemm_model.choice.selection import rank
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.errors import InputError, importing
from gemm_model.integrations import stand_aside
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.emit import DEVICE_CAPACITY, quack_arguments
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of
from gemm_model.models import DEFAULT_MODEL, Model, create_model

if TYPE_CHECKING:
    from quack.gemm_config import GemmConfig

KNOWN = "to QuACK's own timing (we know quack-kernels 0.6)"
ARCHITECTURE = "QUACK_ARCH"
"""Variable with the architecture that QuACK takes where there is no card."""
CALL = {"dynamic_scheduler": False, "split_k": 1}
"""What `quack.gemm_interface.gemm(a, b)` hands to its tuned function, of the arguments that its cache tells apart."""


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
        try:
            times_us = _times_us(valid, problem_of({**named_args, **kwargs}), predictor, spec)
        except (AttributeError, KeyError) as reason:
            stand_aside(f"{len(valid)} configurations {KNOWN}", reason)
            return valid
        return [valid[index] for index in np.argsort(times_us, kind="stable")[:top_k]]

    return prune


def _times_us(
    configs: Sequence[Any], problem: GemmProblem, predictor: Model, gpu: GpuSpec
) -> NDArray[np.float64]:
    """Predicted time of each configuration of QuACK's autotuner; infinite where it cannot run."""
    candidates = [candidate_of(config.kwargs["config"]) for config in configs]
    exchanged = swapped(problem)
    batch = batch_of([(exchanged if each.swap_ab else problem, each.config) for each in candidates])
    legal = feasible_mask(batch, gpu, family_of("quack", gpu))
    times_us = np.full(len(batch), np.inf)
    if legal.any():
        times_us[legal] = predictor.predict_batch(batch[legal]).runtime_us
    return times_us


def write_tuning_cache(
    problems: Iterable[GemmProblem],
    gpu: GpuSpec | str | Path = "h200",
    *,
    model: str = DEFAULT_MODEL,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Write predictions where QuACK's autotuner keeps its times, so that it takes the fastest and times none.

    They answer `quack.gemm_interface.gemm(a, b)` of these problems, in QuACK's own folder (QUACK_CACHE_DIR,
    else ~/.quack/cache) and without a GPU; a problem that it has timed keeps its times. Returns how many were
    written. Raises MissingExtraError without QuACK, InputError for a card without kernels of QuACK, a second
    architecture in one process, and a folder that cannot be written. Another QuACK than is known gets none.
    """
    spec = as_gpu(gpu)
    family_of("quack", spec)
    predictor = create_model(model, spec, options)
    # What QuACK takes for the card's architecture where there is no card.
    before = os.environ.get(ARCHITECTURE)
    os.environ[ARCHITECTURE] = str(spec.kernel_architecture)
    try:
        tuner = _predicting_tuner(predictor, spec)
        return sum([tuner.write(problem) for problem in problems])
    except AttributeError as reason:
        stand_aside(f"its cache {KNOWN}", reason)
        return 0
    except OSError as error:
        raise InputError(f"QuACK's tuning cache cannot be written: {error}") from error
    finally:
        os.environ.pop(ARCHITECTURE)
        if before is not None:
            os.environ[ARCHITECTURE] = before


def _predicting_tuner(predictor: Model, gpu: GpuSpec) -> Any:
    """QuACK's autotuner of GEMMs that asks a model where it would time, and launches nothing."""
    with importing("a tuning cache needs quack-kernels 0.6: pip install 'quack-kernels==0.6.5'"):
        from quack.autotuner import Autotuner
        from quack.gemm_interface import SplitKMode, gemm_tuned

    @wraps(gemm_tuned.fn)
    def launch(*_: Any, **__: Any) -> None:
        """Nothing."""

    class PredictingTuner(Autotuner):  # type: ignore[misc]
        def write(self, problem: GemmProblem) -> bool:
            """Whether QuACK had no times of this problem."""
            self.problem = problem
            self.predicted = False
            m, n, k = problem.m, problem.n, problem.k
            a, b, out = (
                _meta(rows, columns, problem.batch, dtype.name, columns_first)
                for rows, columns, dtype, columns_first in (
                    (m, k, problem.a_dtype, problem.a_major == "m"),
                    (k, n, problem.b_dtype, problem.b_major == "k"),
                    (m, n, problem.out_dtype, problem.c_major == "m"),
                )
            )
            for mode in (SplitKMode.SERIAL, 0):  # of a call, and of a compiled one
                self.cache.clear()
                self(a, b, out, **{**dict.fromkeys(self.keys), **CALL, "split_k_mode": mode})
            return self.predicted

        def check_disk_cache(self, tuning_key: Any, configs: Sequence[Any], _: Callable[[], None]) -> None:
            capacities = {each.kwargs["config"].device_capacity for each in configs}
            if capacities != {DEVICE_CAPACITY[gpu.kernel_architecture]}:
                # QuACK asks for the architecture once a process.
                raise InputError(
                    "QuACK's tuning cache is written for one architecture a process; expected another process"
                )

            def predict() -> None:
                found = _times_us(configs, self.problem, predictor, gpu)
                self.configs_timings = {each: [us / 1e3] * 3 for each, us in zip(configs, found, strict=True)}
                self.cache[tuning_key] = configs[int(np.argmin(found))]
                self.predicted = True

            super().check_disk_cache(tuning_key, configs, predict)

    pruner = {"early_config_prune": gemm_tuned.early_config_prune}
    return PredictingTuner(launch, gemm_tuned.keys, gemm_tuned.configs, None, pruner, cache_results=True)


def _meta(rows: int, columns: int, batch: int, dtype: str, columns_first: bool) -> Any:
    """A matrix, or a batch of them, that has a type, sizes and strides only."""
    from torch import empty

    from gemm_model.bench.torch_library import torch_dtype

    lead = () if batch == 1 else (batch,)
    sizes = (columns, rows) if columns_first else (rows, columns)
    found = empty((*lead, *sizes), dtype=torch_dtype(dtype), device="meta")
    return found.mT if columns_first else found


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
