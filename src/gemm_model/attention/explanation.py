"""Explanation of an attention kernel: elasticities of its units, and predicted times of other options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import log2

from gemm_model.attention.kernels import SPLITS, refusal, resolved
from gemm_model.attention.model import PARTS, UNITS, AttentionModel, elasticities, with_speeds
from gemm_model.attention.silicon import silicon_of
from gemm_model.core.attention import FLAGS, SCHEDULERS, AttentionConfig, AttentionProblem, value_of
from gemm_model.core.gpu import QUANTITIES, GpuSpec
from gemm_model.core.prediction import Prediction
from gemm_model.errors import InputError
from gemm_model.kernel_model.comparison import REST, Difference, differing_card, mixed_card, shapley
from gemm_model.kernel_model.explanation import Mechanism, WhatIf
from gemm_model.kernel_model.question import SYNONYMS, UNLIMITED, gpu_having, number_of

WITH_TILE = ("tile_m", "tile_n", "consumer_groups", "stages", "pv_from_registers")
"""Fields that are the tile to a user: what of it fits depends on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionExplanation:
    """A prediction, its units by falling elasticity, and its what-ifs by rising runtime."""

    prediction: Prediction
    units: tuple[Mechanism, ...]
    what_if: tuple[WhatIf, ...]


@dataclass(frozen=True, slots=True)
class AttentionWorld:
    """All that the predicted time of an attention kernel is a function of; the configuration is resolved."""

    problem: AttentionProblem
    config: AttentionConfig
    model: AttentionModel

    @classmethod
    def of(cls, problem: AttentionProblem, config: AttentionConfig, model: AttentionModel) -> AttentionWorld:
        """A kernel with its library's defaults filled in; raises InputError if the GPU has none."""
        return cls(problem, resolved(problem, config, model.gpu), model)

    def predicted(self) -> Prediction:
        return self.model.predict([(self.problem, self.config)]).row(0)

    def on(self, gpu: GpuSpec) -> AttentionWorld:
        """The same on another card, with its numbers."""
        return replace(self, model=replace(self.model, gpu=gpu, silicon=None))

    def faster(self, unit: str, factor: float) -> AttentionWorld:
        """The same with a unit so many times as fast."""
        model = self.model
        silicon = model.silicon or silicon_of(model.gpu, self.problem.dtype.math_kind)
        silicon, numbers = with_speeds(silicon, model.numbers, {unit: factor})
        return replace(self, model=replace(model, silicon=silicon, numbers=numbers))

    def asked(self, text: str) -> AttentionWorld:
        """The same but for 'dram x1.5', 'no exponentials', 'sms 66' or 'num_splits 4'.

        Raises InputError for a name that is no unit's and no field's of GPU or configuration, and for bad values.
        """
        name, _, value = text.replace("no softcap", "softcap 0").partition(" ")
        unit = (value if name == "no" else name).replace("_", " ").upper()
        if unit in UNITS and (name == "no" or value.startswith("x")):
            return self.faster(unit, UNLIMITED if name == "no" else number_of(text, value[1:]))
        if name == "softcap" and self.problem.softcap and not value.startswith("x"):
            return replace(self, problem=replace(self.problem, softcap=value_of(name, value)))
        if (name := SYNONYMS.get(name, name)) in QUANTITIES:
            return self.on(gpu_having(self.model.gpu, name, value, text))
        try:
            return self.of(self.problem, self.config.having(f"{name}={value}"), self.model)
        except InputError as error:
            known = f"is on no unit ({', '.join(UNITS)}) and no field of the GPU"
            raise InputError(f"what-if {text!r} {known}; {error}") from None


def explain_attention(world: AttentionWorld, what_if: Sequence[str] = ()) -> AttentionExplanation:
    """Elasticities of the units and what-ifs of one kernel; raises InputError if it, or one asked for, cannot run."""
    found, units = world.predicted(), []
    base_us = found.runtime_us
    for name, share in sorted(elasticities(found).items(), key=lambda each: -each[1]):
        figures = {"time_us": share * base_us, "share_of_runtime": share, "elasticity": share}
        units.append(Mechanism(name=name, meaning=UNITS[name]["meaning"], **figures))
    changed = {words: world.asked(words) for words in what_if} | dict(_other_ways(world))
    times_us = {words: other.predicted().runtime_us for words, other in changed.items()}
    answers = [
        WhatIf(change=words, runtime_us=time_us, relative=time_us / base_us if base_us else 1.0)
        for words, time_us in sorted(times_us.items(), key=lambda each: each[1])
    ]
    return AttentionExplanation(prediction=found, units=tuple(units), what_if=tuple(answers))


def attention_difference(first: AttentionWorld, second: AttentionWorld) -> Difference:
    """How much longer the second kernel takes than the first, and why: by setting, and by unit.

    Raises InputError for kernels of different problems, or one that cannot run.
    """
    if first.problem != second.problem:
        both = f"{first.problem.name} and {second.problem.name}"
        raise InputError(f"two kernels of different problems, {both}; expected one problem")
    settings, gpus = _settings(first, second), (first.model.gpu, second.model.gpu)

    def time_us(chosen: Set[str]) -> float:
        parts = {part for name in chosen for part in settings[name]}
        config = {name: getattr(second.config, name) for name in parts if hasattr(first.config, name)}
        mixed = replace(first, config=replace(first.config, **config)).on(mixed_card(*gpus, parts))
        return mixed.predicted().runtime_us

    before, after = first.predicted(), second.predicted()
    by_unit = {name: after.details[part] - before.details[part] for name, part in PARTS.items()}
    felt = {name: added_us for name, added_us in by_unit.items() if abs(added_us) > 1e-9}
    parts = {"by_setting": shapley(list(settings), time_us), "by_resource": felt}
    return Difference(first_us=before.runtime_us, second_us=after.runtime_us, **parts)


def _settings(first: AttentionWorld, second: AttentionWorld) -> dict[str, list[str]]:
    """What differs, by name: fields of the configuration and quantities of the card that change together."""
    one, other = first.config.fields, second.config.fields
    differing = [name for name in one if one[name] != other[name]]
    found: dict[str, list[str]] = {}
    for name in differing:
        found.setdefault("tile" if name in WITH_TILE else name, []).append(name)
    if {"kernel", "cluster"} & set(differing):
        found = {"kernel": differing}
    gpus = first.model.gpu, second.model.gpu
    card = {name: [name] for name in differing_card(*gpus)}
    if differing and gpus[0].kernel_architecture != gpus[1].kernel_architecture:
        found = {f"kernel and {REST}": [*differing, *card.pop(REST)]}
    return found | card


def _other_ways(world: AttentionWorld) -> Iterator[tuple[str, AttentionWorld]]:
    """Kernels that can run and differ in one option, by the words of --what-if."""
    problem, options = world.problem, world.config.fields
    flips = (f"{name} {1 - options[name]}" for name in FLAGS[1:] if name != "pack_gqa" or problem.group > 1)
    words = [*flips, "tile_m 64", "exp_emulated 0.5", "cluster 1"]
    words += [f"scheduler {order}" for order in SCHEDULERS[1:] if problem.causal]
    words += [f"num_splits {splits}" for splits in SPLITS if problem.seq_q == 1]
    if problem.softcap:  # A power of two needs no division.
        words += ["no softcap", f"softcap {2.0 ** round(log2(problem.softcap)):g}"]
    for other, each in zip(map(world.asked, words), words, strict=True):
        if other != world and refusal(problem, other.config, world.model.gpu) is None:
            yield each, other
