"""Where the difference of two kernels' times comes from, in us that add up: by setting, and by resource."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from itertools import chain, combinations
from math import comb
from typing import Any

from gemm_model.config import read_toml
from gemm_model.config.mechanisms import RESOURCES
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.problem import swapped
from gemm_model.errors import InputError
from gemm_model.kernel_model.elasticity import LIMITERS
from gemm_model.kernel_model.explanation import busy
from gemm_model.kernel_model.question import World

KNOWN = read_toml("explanations")
SETTINGS: Mapping[str, Sequence[str]] = KNOWN["settings"]
"""Fields of a configuration that are one setting to a user."""
CARD: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        chain.from_iterable(RESOURCES[part].gpu_rates if part in RESOURCES else (part,) for part in parts)
    )
    for name, parts in KNOWN["card"].items()
}
"""Fields of a GPU that are one quantity to a user; what is left comes with its calibration."""
REST = "card: the rest, with its calibration"
CONTEXT = "launch context"
RESIDUAL = "residual"
TURNED = "operands swapped"
WITH_OPERANDS = ("tile", "cluster", "tile order")
"""Settings along m and n, which change places where a kernel computes D^T = B A^T: they change together."""
WITH_SUMS = ("library", "tile", "sums")
"""Settings that change together where sums do: promoted ones need registers for a second tile, and some
libraries promote none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The predicted times of two kernels, and what their difference is made of [us]: each adds up to it."""

    first_us: float
    second_us: float
    by_setting: Mapping[str, float]
    """Shapley values: what a setting's change adds, on average over the orders of changing them."""
    by_resource: Mapping[str, float]
    """What the second kernel waits longer for; a runtime is shared out by elasticities."""
    by_unit: Mapping[str, float] = field(default_factory=dict)
    """What units take longer at their peaks, as a profiler counts them: they overlap, and do not add up."""

    @property
    def us(self) -> float:
        return self.second_us - self.first_us

    @property
    def rows(self) -> list[tuple[str, str, float]]:
        """By setting, by resource and by unit: which, its name, and what it adds [us], the largest first."""
        kinds = {"setting": self.by_setting, "resource": self.by_resource, "unit": self.by_unit}
        return [
            (by, name, added_us)
            for by, parts in kinds.items()
            for name, added_us in sorted(parts.items(), key=lambda part: -abs(part[1]))
        ]


def difference(first: World, second: World) -> Difference:
    """How much longer the second kernel takes than the first, and why.

    Either may compute D^T = B A^T. Raises InputError for kernels of different problems, or one that cannot run.
    """
    if second.problem not in (first.problem, swapped(first.problem)):
        sizes = (f"{p.m}x{p.n}x{p.k} {p.a_dtype.name}" for p in (first.problem, second.problem))
        raise InputError(f"two kernels of different problems, {' and '.join(sizes)}; expected one problem")
    first_us, second_us = (each.predicted().runtime_us for each in (first, second))
    parts = _differing(first, second)

    def mixed_us(some: Set[str]) -> float:
        return _mixed(first, second, {part for name in some for part in parts[name]}).composed_us()

    by_setting = shapley(list(parts), mixed_us)
    left_us = second_us - first_us - sum(by_setting.values())
    (before, taken), (after, takes) = (_of_resources(each) for each in (first, second))
    by_resource = {name: us for name in LIMITERS if abs(us := after[name] - before[name]) > 1e-9}
    if abs(left_us) > 1e-9:
        by_setting[RESIDUAL], by_resource[RESIDUAL] = left_us, left_us
    return Difference(
        first_us=first_us,
        second_us=second_us,
        by_setting=by_setting,
        by_resource=by_resource,
        by_unit={name: takes[name] - taken[name] for name in takes},
    )


def _of_resources(world: World) -> tuple[dict[str, float], dict[str, float]]:
    """What a kernel waits for each resource, and what its units take at their peaks [us]."""
    found = world.composed()
    time_us = float(found.times.runtime_us)
    waits = {name: float(share) * time_us for name, share in found.elasticities().items()}
    return waits, busy(found, world.gpu, 1.0)


def shapley(names: Sequence[str], time_us: Callable[[Set[str]], float]) -> dict[str, float]:
    """What each setting adds to a time (Shapley 1953) [us]; `time_us` of some settings changed, asked 2^n times."""
    count = len(names)
    subsets = (map(frozenset, combinations(names, size)) for size in range(count + 1))
    times_us = {chosen: time_us(chosen) for of_size in subsets for chosen in of_size}
    return {
        name: sum(
            (times_us[some | {name}] - time) / (count * comb(count - 1, len(some)))
            for some, time in times_us.items()
            if name not in some
        )
        for name in names
    }


def _differing(first: World, second: World) -> dict[str, tuple[str, ...]]:
    """What differs, by name: the settings that change together, or one quantity of the card."""
    settings = [name for name, parts in SETTINGS.items() if _differ(first.config, second.config, parts)]
    turned = [TURNED] if first.problem != second.problem else []
    together = WITH_OPERANDS if turned else WITH_SUMS if "sums" in settings else ()
    joint = (*(name for name in settings if name in together), *turned)
    alone = [name for name in settings if name not in joint] + differing_card(first.gpu, second.gpu)
    alone += [CONTEXT] if first.options != second.options else []
    return {**({" and ".join(joint): joint} if joint else {}), **{name: (name,) for name in alone}}


def differing_card(first: GpuSpec, second: GpuSpec) -> list[str]:
    """The quantities of CARD that two cards differ in, and REST where anything else does."""
    named = {part for parts in CARD.values() for part in parts}
    rest = tuple(spec.name for spec in fields(GpuSpec) if spec.name not in named)
    return [name for name, parts in {**CARD, REST: rest}.items() if _differ(first, second, parts)]


def mixed_card(first: GpuSpec, second: GpuSpec, chosen: Set[str]) -> GpuSpec:
    """The first card with some quantities of the second; no such card need exist, so that nothing is checked."""
    gpu = copy.copy(second if REST in chosen else first)
    for name, parts in CARD.items():
        source = second if name in chosen else first
        for part in parts:
            object.__setattr__(gpu, part, getattr(source, part))
    return gpu


def _differ(one: Any, other: Any, names: Sequence[str]) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _mixed(first: World, second: World, chosen: Set[str]) -> World:
    """The first kernel with some of the second one's settings; no such kernel need be able to run."""
    names = [part for name in chosen & SETTINGS.keys() for part in SETTINGS[name]]
    config = replace(first.config, **{name: getattr(second.config, name) for name in names})
    options = second.options if CONTEXT in chosen else first.options
    problem = (second if TURNED in chosen else first).problem
    gpu = mixed_card(first.gpu, second.gpu, chosen)
    return World(problem=problem, config=config, gpu=gpu, options=options)
