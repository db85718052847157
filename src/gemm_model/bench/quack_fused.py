"""QuACK's kernels with epilogues and groups of rows (its variable length along m)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import quack.gemm as quack_gemm
import quack.gemm_runtime.host as quack_host
import torch
from quack.gemm_config import GemmConfig

from gemm_model.bench import problem_kinds as kinds
from gemm_model.bench.block_scaled import scale_shape
from gemm_model.bench.provider import Launch, Operands
from gemm_model.bench.torch_library import torch_dtype
from gemm_model.config import read_toml
from gemm_model.core.epilogue import GATED_ACTIVATIONS, SOURCES
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.emit import quack_arguments

ORDER = ("alpha", "beta", "bias_n", "bias_m", "residual", "activation")
"""Order in which QuACK applies an epilogue; beta and residual both use its single C operand."""

ACTIVATION_NAMES: Mapping[str, str] = read_toml("other_names")["quack"]
HOPPER = 9


def unsupported(problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
    """Why QuACK cannot run such a problem; empty if it can."""
    words, activation = kinds.epilogue_words(problem), kinds.activation_of(problem)
    places = ["activation" if word == activation else word for word in words]
    if any(place not in ORDER for place in places) or set(SOURCES) <= set(words):
        return f"QuACK fuses {', '.join(ORDER)} and one of beta and residual"
    if places != sorted(places, key=ORDER.index):
        return f"QuACK applies an epilogue in the order {', '.join(ORDER)}"
    if activation and "beta" in words:
        return "QuACK's activations take C as it is; expected residual in place of beta"
    if problem.a_scale is not None or compute_capability[0] != HOPPER:
        return "QuACK's epilogues are benchmarked on compute capability 9.0, without scales"
    return kinds.beyond(problem, "epilogue", "groups")


def kernel_key(problem: GemmProblem) -> tuple[Any, ...]:
    """Parts of the compiled kernel's key beside those of a plain GEMM."""
    return (kinds.epilogue_words(problem), bool(kinds.group_rows(problem)))


def plan_of(problem: GemmProblem, config: KernelConfig, operands: Operands) -> Any:
    """QuACK's launch plan, good for all operands of the problem; a linear one launches once meanwhile."""
    tensors, c = _named_tensors(problem, operands), _c_operand(operands)
    activation = kinds.activation_of(problem)
    if activation:
        # QuACK's fused kernels choose their k tile and do not split K.
        asked = Candidate(config=replace(config, cta_k=0, split_k=1))
        stores = {"mAuxOut": operands.out}
        settings = GemmConfig(**quack_arguments(asked, load_gpu("h200")))
        fused = _fused(problem, activation)
        return fused.plan(operands.a, operands.b.mT, c, out=stores, config=settings, **tensors)
    matrices = (operands.a, operands.b, operands.out, c)
    tile = (config.mma_m, config.cta_n, config.cluster_m, config.cluster_n)
    pingpong = config.schedule == "pingpong"
    return quack_gemm.gemm(
        *matrices, None, *tile, pingpong=pingpong, max_swizzle_size=config.swizzle, **tensors
    )


def launch_of(plan: Any, problem: GemmProblem, operands: Operands) -> Launch:
    """A callable that launches the plan's kernel on the operands."""
    tensors, c = _named_tensors(problem, operands), _c_operand(operands)
    if kinds.activation_of(problem):
        stores = {"mAuxOut": operands.out}
        return partial(plan.run, operands.a, operands.b.mT, c, out=stores, **tensors)
    return partial(quack_gemm.run_gemm_plan, plan, operands.a, operands.b, operands.out, c, **tensors)


def _fused(problem: GemmProblem, activation: str) -> Any:
    """QuACK's fused activation: the output is its second store, the product itself is not stored."""
    # QuACK fingerprints its epilogues at their import, which fails for packages outside of a `site-packages`.
    from quack.epilogue.library import linear_act_mod

    words = kinds.epilogue_words(problem)
    return linear_act_mod(
        ACTIVATION_NAMES[activation],
        gated=activation in GATED_ACTIVATIONS,
        has_c="residual" in words,
        has_rowvec="bias_n" in words,
        has_colvec="bias_m" in words,
        has_alpha="alpha" in words,
    )


def _named_tensors(problem: GemmProblem, operands: Operands) -> dict[str, Any]:
    """Operands of the epilogue and bounds of groups, under the names of QuACK's arguments."""
    words, extras = kinds.epilogue_words(problem), operands.extras
    activated = bool(kinds.activation_of(problem))
    found: dict[str, Any] = {}
    if "bias_n" in words:
        # The bias of each group, which here is one and the same.
        bias = extras["bias_n"].expand(len(kinds.group_rows(problem)) or 1, -1).contiguous()
        found["mRowVecBroadcast" if activated else "rowvec_bias"] = bias
    if "bias_m" in words:
        bias = extras["bias_m"] if kinds.group_rows(problem) else extras["bias_m"].unsqueeze(0)
        found["mColVecBroadcast" if activated else "colvec_bias"] = bias
    found |= {
        word: factor for word, factor in (("alpha", kinds.ALPHA), ("beta", kinds.BETA)) if word in words
    }
    if kinds.group_rows(problem):
        found["cu_seqlens_m"] = extras["bounds"]
    return found


def _c_operand(operands: Operands) -> torch.Tensor | None:
    found = operands.extras.get("beta")
    return operands.extras.get("residual") if found is None else found


def meta_operands(problem: GemmProblem) -> Operands:
    """Operands that have shapes and types but no memory."""

    def empty(name: str, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch_dtype(name), device="meta")

    groups, lead = len(kinds.group_rows(problem)), (problem.batch,) * (problem.batch > 1)
    words, out_name = kinds.epilogue_words(problem), problem.out_dtype.name
    extras: dict[str, Any] = {
        word: empty(out_name, problem.m, problem.n) for word in SOURCES if word in words
    }
    sizes = {"bias_n": problem.n, "bias_m": problem.m}
    extras |= {word: empty("bf16", size) for word, size in sizes.items() if word in words}
    if groups:
        extras["bounds"] = torch.empty(groups + 1, dtype=torch.int32, device="meta")
    scales, columns = {}, problem.k
    if problem.a_scale is not None:
        columns = problem.k * problem.a_dtype.bits // 8
        scales = {
            name: empty(problem.a_scale.dtype.name, *scale_shape(rows, problem.k, problem))
            for name, rows in (("a_scale", problem.m), ("b_scale", problem.n))
        }
    return Operands(
        a=empty(problem.a_dtype.name, *lead, problem.m, columns),
        b=empty(problem.b_dtype.name, *((groups,) if groups else lead), problem.n, columns),
        out=empty(out_name, *lead, problem.m, kinds.output_columns(problem)),
        extras=extras,
        **scales,
    )


@contextmanager
def without_gpu(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Make QuACK's plans without launching and without queries to a GPU, for processes that compile."""
    with (
        patch.object(quack_gemm, "get_device_capacity", return_value=compute_capability),
        patch.object(quack_gemm, "get_max_active_clusters", return_value=1),
        patch.object(quack_host, "get_max_active_clusters", return_value=1),
        patch.object(quack_gemm, "run_gemm_plan"),
    ):
        yield
