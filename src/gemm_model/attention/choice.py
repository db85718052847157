"""Ranking of attention configurations by predicted runtime, and output of the choice for other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gemm_model.attention.explanation import AttentionWorld, attention_difference
from gemm_model.attention.kernels import candidates, kernel_of, kernels_on, refusal, resolved
from gemm_model.attention.model import AttentionModel
from gemm_model.core.attention import KERNELS, AttentionConfig, AttentionProblem
from gemm_model.core.fields import number_text
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import Prediction
from gemm_model.errors import InputError, require_one_of

ANY_KERNEL = "any"
SPLIT_NOTE = """\
# flash-attn-4 splits no keys on Hopper: view K and V as batch * num_splits sequences,
# call it with num_splits=1 and return_lse=True, then flash_attn_combine
"""
SPLIT_KEYS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Cache lengths in a table of splits [keys]; decode; chosen: powers of two that servers hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """One configuration and its prediction."""

    config: AttentionConfig
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRanking:
    """Configurations of one problem, the fastest first."""

    problem: AttentionProblem
    choices: tuple[AttentionChoice, ...]
    own: AttentionChoice
    """Heuristic choice of the first kernel's library."""

    @property
    def best(self) -> AttentionChoice:
        return self.choices[0]

    @property
    def gain(self) -> float:
        """Predicted share of the runtime of the heuristic choice that the best one saves [1]."""
        own_us = self.own.prediction.runtime_us
        return 1.0 - self.best.prediction.runtime_us / own_us if own_us else 0.0

    @property
    def reason(self) -> str:
        """One sentence: how the best configuration differs from the heuristic choice."""
        best, own = self.best, self.own
        if best.config == own.config:
            return f"the library's own choice, limited by {best.prediction.limiter}"
        now, was = best.config.fields, own.config.fields
        changed = [f"{name} {now[name]} in place of {was[name]}" for name in now if now[name] != was[name]]
        tiles, few = (each.prediction.details["tiles"] for each in (best, own))
        return f"{', '.join(changed)}: {tiles:.0f} tiles for {few:.0f}, limited by {best.prediction.limiter}"


def rank_attention(
    problem: AttentionProblem, gpu: GpuSpec, kernel: str = "auto", model: AttentionModel | None = None
) -> AttentionRanking:
    """All configurations of a kernel ('auto': the GPU's first, 'any': all), fastest first.

    Among equal times the library's heuristic choice comes first. Raises InputError for a kernel that the GPU
    lacks, and if no configuration can run the problem.
    """
    names = kernels_on(gpu)
    if kernel != ANY_KERNEL:
        first = (*names, *KERNELS)[0] if kernel == "auto" else kernel
        names = (kernel_of(AttentionConfig(kernel=first), gpu).name,)
    if not (configs := [config for name in names for config in candidates(problem, gpu, name)]):
        own = resolved(problem, AttentionConfig(kernel=names[0]), gpu)
        raise InputError(refusal(problem, own, gpu) or f"no configuration of {names[0]} fits")
    predicted = (model or AttentionModel(gpu)).predict([(problem, config) for config in configs])
    choices = [AttentionChoice(config=own, prediction=predicted.row(row)) for row, own in enumerate(configs)]
    ranked = sorted(choices, key=lambda each: each.prediction.runtime_us)
    return AttentionRanking(problem=problem, choices=tuple(ranked), own=choices[0])


def why_not(ranking: AttentionRanking, config: AttentionConfig, model: AttentionModel) -> str:
    """One sentence: why a configuration is not the best."""
    other = AttentionWorld.of(ranking.problem, config, model)
    if (reason := refusal(ranking.problem, other.config, model.gpu)) is not None:
        return f"it cannot run: {reason}"
    found = attention_difference(replace(other, config=ranking.best.config), other)
    if found.us <= 0.0:
        return f"it is as fast as the best: {number_text(found.second_us)} us"
    waits = [f"{name} {us:+.3g} us" for by, name, us in found.rows if by == "resource" and us > 0.0]
    more = f"{found.us / found.first_us:.1%} more than the best ({number_text(found.first_us)} us)"
    return f"predicted {number_text(found.second_us)} us, {more}: it waits for {', '.join(waits)}"


def flash_attn_arguments(problem: AttentionProblem, config: AttentionConfig) -> dict[str, object]:
    """Keyword arguments of flash-attn-4's `_flash_attn_fwd`; None where its own rule chooses."""
    words: dict[str, object] = {"causal": problem.causal and not problem.window}
    if problem.window:
        words |= {"window_size_left": problem.window, "window_size_right": 0}
    if problem.softcap:
        words["softcap"] = problem.softcap
    tile = (config.tile_m, config.tile_n)
    words |= {"tile_mn": tile if all(tile) else None, "mma_pv_is_rs": config.pv_from_registers}
    words |= {"intra_wg_overlap": config.overlap_in_group, "num_splits": config.num_splits}
    return words | {"pack_gqa": config.pack_gqa}


def _flash_attention(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> str:
    if config.kernel != "flash_attention":
        raise InputError(f"the best kernel is {config.kernel}; expected --family flash_attention")
    words = ", ".join(f"{name}={value!r}" for name, value in flash_attn_arguments(problem, config).items())
    split = config.num_splits > 1 and gpu.kernel_architecture == "sm90"
    return f"{SPLIT_NOTE * split}flash_attn.cute.interface._flash_attn_fwd(q, k, v, {words})"


def _splits(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> str:
    """The number of splits that is predicted fastest for a decode batch, by cache length [keys]."""
    if problem.seq_q != 1:
        raise InputError(f"seq_q is {problem.seq_q}; expected 1 for a table of splits")
    longer = {keys: replace(problem, seq_kv=keys, lengths=()) for keys in SPLIT_KEYS}
    table = {
        keys: rank_attention(each, gpu, config.kernel).best.config.num_splits for keys, each in longer.items()
    }
    fields = {name: getattr(problem, name) for name in ("batch", "heads", "kv_heads", "head_dim")}
    fields |= {"max_num_splits": max(table.values()), "num_splits_by_seq_kv": table}
    sizes = {keys: -(-keys // splits) for keys, splits in table.items()}
    return json.dumps({**fields, "fixed_split_size_by_seq_kv": sizes})


EMITTERS: Mapping[str, Callable[[AttentionProblem, AttentionConfig, GpuSpec], str]] = {
    **{"flash_attention": _flash_attention, "splits": _splits},
    "json": lambda problem, config, _: json.dumps({"problem": problem.name, **config.fields}),
}


def emitted(target: str, problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> str:
    """The choice as a call of flash-attn-4, as a table of splits for FlashInfer and vLLM, or as JSON.

    Raises InputError for an unknown target, and for a choice that the target cannot express.
    """
    require_one_of(f"cannot emit {target!r} for attention", target, EMITTERS)
    return EMITTERS[target](problem, config, gpu)
