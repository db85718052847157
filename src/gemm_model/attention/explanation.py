"""Explanation of an attention kernel: elasticities of its units, and predicted times of other options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemm_model.attention.kernels import refusal, resolved
from gemm_model.attention.model import AttentionModel
from gemm_model.attention.silicon import Silicon, silicon_of
from gemm_model.config.numbers import Numbers
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import QUANTITIES, GpuSpec
from gemm_model.core.prediction import Prediction
from gemm_model.kernel_model.explanation import Mechanism, WhatIf
from gemm_model.kernel_model.question import SYNONYMS, UNLIMITED, gpu_having, number_of

FASTER = 1.1
"""Factor by which a unit's rate is raised to measure its elasticity [1]; elasticities; chosen: small."""

UNITS = {
    "TENSOR": ("tensor cores: Q K^T and P V", "flop_per_clk", 1.0),
    "EXPONENTIALS": ("special function units: one exponential a score", "exponentials_per_clk", 1.0),
    "SOFTMAX": ("instructions of the softmax: maxima, scales, sums, conversions", "score_slots", -1.0),
    "BARRIERS": ("barriers of a key block, and draining its products", "round_trip_clk", -1.0),
    "TILE STARTS": ("from one CTA of an SM to the next", "cta_start_us", -1.0),
    "L2": ("L2 bandwidth of the device", "l2_bytes_per_us", 1.0),
    "DRAM": ("DRAM bandwidth", "dram_bytes_per_us", 1.0),
    "LAUNCH": ("from one kernel to the next", "launch_us", -1.0),
}
"""Meaning of each unit, its number, and 1 where that is a rate, -1 where it is what the unit takes."""


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


@dataclass(frozen=True, slots=True)
class _World:
    """All that the predicted time of an attention kernel is a function of."""

    problem: AttentionProblem
    config: AttentionConfig
    gpu: GpuSpec
    silicon: Silicon
    numbers: Numbers
    settled: bool

    def predicted(self) -> Prediction:
        model = AttentionModel(self.gpu, self.numbers, self.silicon, settled=self.settled)
        return model.predict([(self.problem, self.config)]).row(0)

    def faster(self, unit: str, factor: float) -> _World:
        """The same with a unit so many times as fast."""
        _, number, sign = UNITS[unit]
        if hasattr(self.silicon, number):
            rate = getattr(self.silicon, number) * factor**sign
            return replace(self, silicon=replace(self.silicon, **{number: rate}))
        return replace(
            self, numbers=self.numbers.having(**{number: getattr(self.numbers, number) * factor**sign})
        )

    def asked(self, text: str) -> _World:
        """The same but for 'dram x1.5', 'no exponentials', 'sms 66' or 'num_splits 4'.

        Raises InputError for a name that is no unit's and no field's of GPU or configuration, and for bad values.
        """
        name, _, value = text.partition(" ")
        unit = (value if name == "no" else name).replace("_", " ").upper()
        if unit in UNITS and (name == "no" or value.startswith("x")):
            return self.faster(unit, UNLIMITED if name == "no" else number_of(text, value[1:]))
        if (name := SYNONYMS.get(name, name)) in QUANTITIES:
            gpu = gpu_having(self.gpu, name, value, text)
            return replace(self, gpu=gpu, silicon=silicon_of(gpu, self.problem.dtype.math_kind))
        try:
            return replace(self, config=self.config.having(f"{name}={value}"))
        except InputError as error:
            known = f"is on no unit ({', '.join(UNITS)}) and no field of the GPU"
            raise InputError(f"what-if {text!r} {known}; {error}") from None


def explain_attention(
    problem: AttentionProblem, config: AttentionConfig, model: AttentionModel, what_if: Sequence[str] = ()
) -> AttentionExplanation:
    """Elasticities of the units and what-ifs of one kernel; raises InputError if it, or one asked for, cannot run."""
    gpu, config = model.gpu, resolved(problem, config, model.gpu)
    silicon = silicon_of(gpu, problem.dtype.math_kind)
    world = _World(problem, config, gpu, silicon, model.numbers, model.settled)
    found = world.predicted()
    base_us = found.runtime_us
    units = []
    for name, (meaning, *_) in UNITS.items():
        faster_us = world.faster(name, FASTER).predicted().runtime_us
        elasticity = (base_us - faster_us) / base_us / (1.0 - 1.0 / FASTER) if base_us else 0.0
        share = {"time_us": elasticity * base_us, "share_of_runtime": elasticity, "elasticity": elasticity}
        units.append(Mechanism(name=name, meaning=meaning, **share))
    changed = {words: world.asked(words) for words in what_if}
    for words, other in _other_ways(problem, config).items():
        if other != config and refusal(problem, other, gpu) is None:
            changed[words] = replace(world, config=other)
    times_us = {words: other.predicted().runtime_us for words, other in changed.items()}
    answers = [
        WhatIf(change=words, runtime_us=time_us, relative=time_us / base_us if base_us else 1.0)
        for words, time_us in sorted(times_us.items(), key=lambda each: each[1])
    ]
    units.sort(key=lambda unit: -unit.elasticity)
    return AttentionExplanation(prediction=found, config=config, units=tuple(units), what_if=tuple(answers))


def _other_ways(problem: AttentionProblem, config: AttentionConfig) -> dict[str, AttentionConfig]:
    """Changes of one option, by their names."""
    overlap, registers = bool(config.overlap_in_group), bool(config.pv_from_registers)
    found = {
        f"{'no ' * overlap}overlap inside a group": replace(config, overlap_in_group=not overlap),
        f"P from {('registers', 'shared memory')[registers]}": replace(
            config, pv_from_registers=not registers
        ),
        "one consumer group": replace(config, tile_m=64),
        "half of the exponentials computed by FMAs": replace(config, exp_emulated=0.5),
        "loads of K and V apart": replace(config, cluster=1),
    }
    if problem.group > 1:
        packed = config.pack_gqa
        found[f"query heads {'apart' if packed else 'packed'}"] = replace(config, pack_gqa=not packed)
    if problem.causal:
        order = "in_order" if config.scheduler == "longest_first" else "longest_first"
        found[f"tiles {order.replace('_', ' ')}"] = replace(config, scheduler=order)
    if problem.seq_q == 1:
        found |= {f"{splits} splits": replace(config, num_splits=splits) for splits in (1, 2, 4, 8, 16)}
    return found
