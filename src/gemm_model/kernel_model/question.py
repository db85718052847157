"""Questions to the model: the same kernel in a changed world, its residual as it is.

A question edits the records that a time is composed of (problem, configuration, GPU, numbers) and composes it
again. The residual's trees have seen the kernel as it is and nothing else, so that their correction, a
factor, is the kernel's own in each question.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gemm_model.config.mechanisms import CLOCK, CLOCK_MECHANISMS, MECHANISM_NAMES, RESOURCES, TENSOR
from gemm_model.core.batch import GemmBatch, batch_of, numbers_of
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.gpu import QUANTITIES, GpuSpec, with_sms
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernel_model.elasticity import LIMITERS, Composed
from gemm_model.kernel_model.kernel import geometry_of, kernel_on
from gemm_model.kernel_model.kernel_time import time_of
from gemm_model.kernel_model.knowledge import Knowledge
from gemm_model.kernel_model.launch_context import L2_STATES
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.residual import OFF
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_at

UNLIMITED = 1e9
"""How many times as fast a resource is that takes no time [1]; questions; chosen: finite, as powers ask."""
SYNONYMS = {"sms": "sm_count", "clock": "sm_clk_mhz", "ingress": "sm_ingress"}
"""Words of questions that fields and resources have other names for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that a composed time is a function of."""

    problem: GemmProblem
    config: KernelConfig
    gpu: GpuSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    """`KernelModel`'s: regime, l2, calibration, without."""
    without: frozenset[str] = frozenset()
    """Mechanisms that are off."""
    faster: Mapping[str, float] = field(default_factory=dict)
    """How many times as fast resources are."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Numbers by full name that have other values."""

    def predicted(self) -> Prediction:
        """What `KernelModel` says of the kernel as it is. Raises InputError for one that cannot run."""
        model = KernelModel(self.gpu, **self.options)
        return model.predict_batch(batch_of([(self.problem, self.config)])).row(0)

    def composed(self) -> Composed:
        """The times of this world, before a residual. Raises InputError for a type that the GPU lacks."""
        row, model, knowledge = self._known()
        numbers = knowledge.numbers.having(self.values).without(
            {*self.options.get("without", ()), *self.without}
        )
        family, kind = family_at(int(row.kernel), self.gpu), MATH_KINDS[row.math_kind]
        gpu, rate = self.gpu, self.gpu.flop_per_clk(kind)
        for resource, factor in self.faster.items():
            gpu, numbers = faster_gpu(gpu, resource, factor), numbers.faster(resource, factor)
            rate = rate * factor if resource == TENSOR else rate
        geometry = geometry_of(row, rate, gpu, family, resources_of(row, gpu, family))
        kernel = kernel_on(geometry, gpu, numbers, regime=model.regime, l2=model.l2)
        return Composed(kernel, time_of(kernel))

    def composed_us(self) -> float:
        return float(self.composed().times.runtime_us)

    def intervals(self) -> Mapping[str, float]:
        """Half-widths of the fitted numbers that serve this kernel, by full name."""
        knowledge = self._known()[2]
        return knowledge.calibration.intervals.get(knowledge.served, {})

    def rows(self) -> GemmBatch:
        """The kernel as a row of numbers."""
        return numbers_of(self.problem, self.config)

    def _known(self) -> tuple[GemmBatch, KernelModel, Knowledge]:
        """The kernel's row, its model without a residual, and what serves it."""
        options = {name: value for name, value in self.options.items() if name not in ("residual", "without")}
        model, row = KernelModel(self.gpu, **options, residual=OFF), self.rows()
        return row, model, model.knowledge(family_at(int(row.kernel), self.gpu), MATH_KINDS[row.math_kind])

    def but(self, *, without: tuple[str, ...] = (), faster: Mapping[str, float] | None = None) -> World:
        """The same with some mechanisms off and some resources faster."""
        return replace(self, without=self.without | set(without), faster={**self.faster, **(faster or {})})


def faster_gpu(gpu: GpuSpec, resource: str, factor: float) -> GpuSpec:
    """A GPU whose resource is so many times as fast; no such card need exist, so that nothing is checked."""
    known = RESOURCES[resource]
    rates = [name for name in known.gpu_rates if name != "flop_per_clk_per_sm"]
    changes = dict.fromkeys(rates, factor) | dict.fromkeys(known.gpu_times, 1.0 / factor)
    made = copy.copy(gpu)
    for name, by in changes.items():
        value = getattr(gpu, name)
        if value is not None:
            object.__setattr__(made, name, value * by)
    return made


Change = Callable[[World], World]
"""What a what-if makes of a world."""


def parse_change(text: str) -> Change:
    """A what-if by name: 'dram x1.5', 'l2_bytes x2', 'sms 66', 'stages 8', 'l2 warm', 'no epilogue'.

    A name is a resource's, a field's of GPU or configuration, or after 'no' a mechanism's or a resource's.
    Raises InputError for a name that does not exist, or a value that it cannot have.
    """
    words = text.split()
    if len(words) != 2:
        raise InputError(
            f"what-if {text!r}; expected a name and a value such as 'dram x1.5', 'stages 8' or 'no epilogue'"
        )
    first, second = words
    if first == "no":
        return _switched_off(second)
    name = SYNONYMS.get(first.lower(), first.lower())
    if name in QUANTITIES:
        number_of(text, second.removeprefix("x"))
        return lambda world: replace(world, gpu=gpu_having(world.gpu, name, second, text))
    if second.startswith("x"):
        return _scaled(name, number_of(text, second[1:]))
    if name == "l2":
        if second not in L2_STATES:
            raise InputError(f"what-if {text!r}; expected l2 to be one of {', '.join(L2_STATES)}, or 'l2 x2'")
        return lambda world: replace(world, options={**world.options, "l2": second})
    return _set(name, second, text)


def number_of(text: str, word: str) -> float:
    """The number of a what-if's word; raises InputError for others."""
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not 0.0 < value < UNLIMITED:
        raise InputError(f"what-if {text!r}; expected a number above 0 and below {UNLIMITED:g}, such as x1.5")
    return value


def _switched_off(name: str) -> Change:
    resource = ("sm_ingress" if name == "ingress" else name).upper()
    if resource == CLOCK:
        return lambda world: world.but(without=CLOCK_MECHANISMS)
    if name in MECHANISM_NAMES and resource not in RESOURCES:
        return lambda world: world.but(without=(name,))
    if resource in RESOURCES:
        # What a mechanism of the same name asks of other resources goes too.
        own = tuple(each for each in MECHANISM_NAMES if each.upper() == resource)
        return lambda world: world.but(without=own, faster={resource: UNLIMITED})
    raise InputError(
        f"what-if without {name!r}; expected one of {', '.join(LIMITERS)}, {', '.join(MECHANISM_NAMES)}"
    )


def _scaled(name: str, factor: float) -> Change:
    if name.upper() in RESOURCES:
        return lambda world: world.but(faster={name.upper(): factor})
    if name in {spec.name for spec in fields(KernelConfig) if spec.type == "int"}:
        return lambda world: _with_config(world, name, round(_own(world, name) * factor))
    raise _unknown(name)


def _own(world: World, name: str) -> int:
    """A field of a configuration, or what the family chooses for it."""
    given = int(getattr(world.config, name))
    if given:
        return given
    row = numbers_of(world.problem, world.config)
    found = resources_of(row, world.gpu, family_at(int(row.kernel), world.gpu))
    return int(getattr(found, name)) if hasattr(found, name) else 1


def _set(name: str, value: str, text: str) -> Change:
    kinds = {spec.name: spec.type for spec in fields(KernelConfig)}
    if name not in kinds:
        raise _unknown(name)
    if kinds[name] == "str":
        return lambda world: _with_config(world, name, value)
    if not value.isdecimal():
        raise InputError(f"what-if {text!r}; expected a whole number")
    number = int(value)
    return lambda world: _with_config(world, name, bool(number) if "bool" in kinds[name] else number)


def _unknown(name: str) -> InputError:
    resources = ", ".join(each.lower() for each in LIMITERS)
    config = ", ".join(spec.name for spec in fields(KernelConfig))
    return InputError(
        f"what-if on {name!r}, which does not exist; expected a resource ({resources}), a field of a "
        f"configuration ({config}), sms, clock, or a field of a GPU ({', '.join(QUANTITIES)})"
    )


def gpu_having(gpu: GpuSpec, name: str, word: str, text: str) -> GpuSpec:
    """A GPU with another value of a quantity, or so many times its own as 'x1.5'; `text` is the what-if."""
    scaled = word.startswith("x")
    value = number_of(text, word.removeprefix("x")) * (gpu.known(name) if scaled else 1.0)
    value = max(round(value), int(scaled)) if QUANTITIES[name].whole else value
    if name == "sm_count" and value <= gpu.sm_count:
        return with_sms(gpu, int(value))
    # Of a card with more SMs no occupancy query and no launcher's order is known.
    more: dict[str, Any] = {"resident_clusters": {}, "tpc_rounds": ()} if name == "sm_count" else {}
    return replace(gpu, **{name: value, **more})


def _with_config(world: World, name: str, value: Any) -> World:
    changed = {name: value, **({"mma_m": 0, "mma_n": 0} if name in ("cta_m", "cta_n", "schedule") else {})}
    return replace(world, config=replace(world.config, **changed))
