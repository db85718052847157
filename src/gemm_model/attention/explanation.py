"""Explanation of an attention kernel: elasticities of its units, and predicted times of other options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gemm_model.attention.kernels import refusal, resolved
from gemm_model.attention.model import AttentionModel
from gemm_model.attention.silicon import Silicon, silicon_of
from gemm_model.config.numbers import Numbers
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.prediction import Prediction
from gemm_model.kernel_model.explanation import Mechanism, WhatIf

FASTER = 1.1
"""Factor by which a unit's rate is raised to measure its elasticity [1]; elasticities; chosen: small."""

_World = tuple[Silicon, Numbers]
UNITS = {
    "TENSOR": ("tensor cores: Q K^T and P V", "flop_per_clk", FASTER),
    "EXPONENTIALS": ("special function units: one exponential a score", "exponentials_per_clk", FASTER),
    "SOFTMAX": ("instructions of the softmax: maxima, scales, sums, conversions", "score_slots", 1 / FASTER),
    "BARRIERS": ("barriers of a key block, and draining its products", "round_trip_clk", 1 / FASTER),
    "TILE STARTS": ("from one CTA of an SM to the next", "cta_start_us", 1 / FASTER),
    "L2": ("L2 bandwidth of the device", "l2_bytes_per_us", FASTER),
    "DRAM": ("DRAM bandwidth", "dram_bytes_per_us", FASTER),
    "LAUNCH": ("from one kernel to the next", "launch_us", 1 / FASTER),
}
"""Meaning of each unit, the number of it and the factor that makes it faster."""


def _faster(world: _World, number: str, factor: float) -> _World:
    silicon, numbers = world
    if hasattr(silicon, number):
        return replace(silicon, **{number: getattr(silicon, number) * factor}), numbers
    return silicon, numbers.having(**{number: getattr(numbers, number) * factor})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionExplanation:
    """A prediction, its units by falling elasticity, and its what-ifs by rising runtime."""

    prediction: Prediction
    config: AttentionConfig
    units: tuple[Mechanism, ...]
    what_if: tuple[WhatIf, ...]

    @property
    def limiter(self) -> str:
        return self.units[0].name


def explain_attention(
    problem: AttentionProblem, config: AttentionConfig, model: AttentionModel
) -> AttentionExplanation:
    """Elasticities of the units and what-ifs of one kernel; raises InputError if it cannot run."""
    gpu, world = model.gpu, (silicon_of(model.gpu, problem.dtype.math_kind), model.numbers)

    def predicted(config: AttentionConfig, silicon: Silicon, numbers: Numbers) -> Prediction:
        found = AttentionModel(gpu, numbers, silicon, settled=model.settled)
        return found.predict([(problem, config)]).row(0)

    config = resolved(problem, config, gpu)
    prediction = predicted(config, *world)
    base_us = prediction.runtime_us
    units = []
    for name, (meaning, number, factor) in UNITS.items():
        faster_us = predicted(config, *_faster(world, number, factor)).runtime_us
        elasticity = (base_us - faster_us) / base_us / (1.0 - 1.0 / FASTER) if base_us else 0.0
        share = {"time_us": elasticity * base_us, "share_of_runtime": elasticity, "elasticity": elasticity}
        units.append(Mechanism(name=name, meaning=meaning, **share))
    what_if = []
    for words, changed in _other_ways(problem, config).items():
        other = replace(config, **changed)
        if other != config and refusal(problem, other, gpu) is None:
            runtime_us = predicted(other, *world).runtime_us
            relative = runtime_us / base_us if base_us else 1.0
            what_if.append(WhatIf(change=words, runtime_us=runtime_us, relative=relative))
    return AttentionExplanation(
        prediction=prediction,
        config=config,
        units=tuple(sorted(units, key=lambda unit: -unit.elasticity)),
        what_if=tuple(sorted(what_if, key=lambda each: each.runtime_us)),
    )


def _other_ways(problem: AttentionProblem, config: AttentionConfig) -> dict[str, dict[str, Any]]:
    """Changes of one option, by their names."""
    overlap, registers = bool(config.overlap_in_group), bool(config.pv_from_registers)
    found: dict[str, dict[str, Any]] = {
        f"{'no ' * overlap}overlap inside a group": {"overlap_in_group": not overlap},
        f"P from {'shared memory' if registers else 'registers'}": {"pv_from_registers": not registers},
        "one consumer group": {"tile_m": 64},
        "half of the exponentials computed by FMAs": {"exp_emulated": 0.5},
        "loads of K and V apart": {"cluster": 1},
    }
    if problem.group > 1:
        packed = config.pack_gqa
        found[f"query heads {'apart' if packed else 'packed'}"] = {"pack_gqa": not packed}
    if problem.causal:
        order = "in_order" if config.scheduler == "longest_first" else "longest_first"
        found[f"tiles {order.replace('_', ' ')}"] = {"scheduler": order}
    if problem.seq_q == 1:
        found |= {f"{splits} splits": {"num_splits": splits} for splits in (1, 2, 4, 8, 16)}
    return found
