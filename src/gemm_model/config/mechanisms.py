"""The mechanisms of a kernel's time, and the empirical numbers that each of them owns.

`config/mechanisms.toml` has a table for each mechanism, which describes its numbers: unit, start value, bounds,
meaning and source; a calibration holds the values, in a record for each mechanism. A mechanism is switched off by
its neutral values: what-if questions, ablation and families without the mechanism use them, so no formula tests
whether it exists.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from gemm_model.config import read_toml
from gemm_model.errors import InputError

DESCRIPTIONS = read_toml("mechanisms")
CARD, CARD_AND_TYPE, KERNEL = "card", "card_and_type", "kernel"
"""Scope of a number: the card, whichever kernel runs; the card and the rate class; the kernel's code."""

TENSOR, MMA_WARPS, SPILLING, EPILOGUE = "TENSOR", "MMA_WARPS", "SPILLING", "EPILOGUE"
SMEM, SM_INGRESS, GPC_INGRESS, FILL = "SMEM", "SM_INGRESS", "GPC_INGRESS", "FILL"
LATENCY, L2, DRAM, LAUNCH = "LATENCY", "L2", "DRAM", "LAUNCH"
CLOCK, NO_RESOURCE = "CLOCK", ""
"""Resources. A runtime is attributed to all but the clock, which sets the speed of most others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A hardware resource that a kernel waits for, and the fields of `GpuSpec` that set its speed."""

    meaning: str
    gpu_rates: tuple[str, ...] = ()
    """Rates: a faster resource multiplies these fields of `GpuSpec`."""
    gpu_times: tuple[str, ...] = ()
    """Times: a faster resource divides these fields of `GpuSpec`."""


def _resource(meaning: str, gpu_rates: Sequence[str] = (), gpu_times: Sequence[str] = ()) -> Resource:
    return Resource(meaning=meaning, gpu_rates=tuple(gpu_rates), gpu_times=tuple(gpu_times))


RESOURCES: Mapping[str, Resource] = {
    name: _resource(**found) for name, found in DESCRIPTIONS["resources"].items()
}
"""Resources that share a runtime (`kernel_model/elasticity.py`), by name."""
TIMES, RATES = ("us", "clk"), ("B/clk", "1/clk")
"""Units of numbers that a faster resource divides, and of those that it multiplies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """Description of one empirical number: unit, start, bounds, scope and source."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    neutral: float | None
    """The value that switches the mechanism off; None if the mechanism's other numbers do that alone."""
    fitted: bool
    """Whether a calibration fits it by default."""
    of: str
    """Scope: CARD, CARD_AND_TYPE or KERNEL."""
    meaning: str
    source: str
    resource: str
    """The resource whose time or rate it is; NO_RESOURCE if it is neither."""


class Record:
    """Numbers of a mechanism, by the names that its table gives them."""

    if TYPE_CHECKING:

        def __init__(self, **numbers: float) -> None: ...

        def __getattr__(self, _name: str) -> float: ...


Made = TypeVar("Made")


def _with_fields(kind: type[Made], names: Iterable[str]) -> type[Made]:
    """A class as the frozen dataclass of some fields, which pickle finds in this module."""
    kind.__annotations__ = dict.fromkeys(names, Record)
    kind.__module__ = __name__
    globals()[kind.__name__] = kind
    return dataclass(frozen=True, kw_only=True)(kind)


def _numbers_of(mechanism: str, prefix: str = "") -> tuple[Number, ...]:
    """The description of each number in a table of DESCRIPTIONS."""
    table, found = DESCRIPTIONS[mechanism], []
    usual = {"resource": table.get("resource", NO_RESOURCE), "of": KERNEL, "fitted": False, "neutral": None}
    for name, entry in table.items():
        if isinstance(entry, Mapping):
            low, high = entry["bounds"]
            known = {**usual, **entry, "name": prefix + name, "low": low, "high": high}
            found.append(Number(**{each.name: known[each.name] for each in fields(Number)}))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One mechanism: name, meaning, numbers, and the resource to which its time belongs."""

    name: str
    meaning: str
    numbers: tuple[Number, ...]
    resource: str
    step: str
    """Of the way to the peak, where it is switched on apart from its resource; else none."""
    what_if: str
    """The words of the what-if that switches it off, beside others that have them; else none."""


MECHANISMS = tuple(
    Mechanism(
        name=name,
        meaning=table["meaning"],
        numbers=_numbers_of(name, f"{name}."),
        resource=table["resource"],
        step=table.get("step", ""),
        what_if=table.get("what_if", ""),
    )
    for name, table in DESCRIPTIONS.items()
    if "meaning" in table
)
"""All mechanisms, roughly in the order of a launch."""

MECHANISM_NAMES = tuple(mechanism.name for mechanism in MECHANISMS)


class WithinPhases(Record):
    """Times within phases, for timelines: no runtime depends on these numbers, and no fit moves them.

    They are read off traces of 40 kernels (QuACK on H200s, `data/measurements/h200/traces`) and judged on
    26 others.
    """


class KernelNumbers:
    """All empirical numbers of a kernel family on a GPU, for one rate class of operand types: by mechanism."""

    if TYPE_CHECKING:

        def __init__(self, **records: Record) -> None: ...

        def __getattr__(self, _name: str) -> Record: ...

    def without(self, names: Collection[str]) -> KernelNumbers:
        """These numbers with some mechanisms switched off."""
        if not names:
            return self
        off = {name: replace(getattr(self, name), **_neutral_values(name)) for name in names}
        return KernelNumbers(**{**vars(self), **off})

    def having(self, values: Mapping[str, float]) -> KernelNumbers:
        """These numbers with some values replaced, by full name; the caller checks the bounds."""
        changed: dict[str, Any] = {}
        for name, value in values.items():
            mechanism, _, rest = name.partition(".")
            record = changed.get(mechanism, getattr(self, mechanism))
            changed[mechanism] = replace(record, **{rest: value})
        return KernelNumbers(**{**vars(self), **changed})

    def faster(self, resource: str, factor: float) -> KernelNumbers:
        """These numbers with a resource `factor` times as fast: shorter times, higher rates.

        Efficiencies stay: they are shares of rates in the GPU's description.
        """
        values = self.values()
        changed = {}
        for spec in NUMBERS.values():
            if spec.resource == resource:
                by = factor if spec.unit in RATES else 1.0 / factor if spec.unit in TIMES else 1.0
                changed[spec.name] = values[spec.name] * by
        return self.having(changed)

    def at_clock(self, slower: float) -> KernelNumbers:
        """These numbers with an SM clock period `slower` times as long."""
        if slower == 1.0:
            return self
        values = self.values()
        return self.having({name: values[name] * slower for name in LAUNCHING})

    def values(self) -> dict[str, float]:
        """Values by full name, such as 'launch.kernel_us'."""
        return {spec.name: getattr(getattr(self, part), rest) for part, rest, spec in _places()}


LAUNCHING = (
    *("launch.kernel_us", "launch.full_grid_us", "launch.clusters_us", "chain.boundary_us"),
    *("chain.cooperative_us", "chain.gap_us", "split_k.second_kernel_us"),
)
"""Launch times that take a fixed number of clocks: front end, CTAs, barriers, descriptors. Their values in us
hold at the clock of the calibration's card. First loads, which wait for DRAM, are not among them."""


KERNEL_MECHANISMS = frozenset(name for name, table in DESCRIPTIONS.items() if table.get("of_code"))
"""Mechanisms whose numbers belong to the kernel's code: libraries differ in them on one card."""


FUSED_EPILOGUE = "fused_epilogue"
SLOW_DIVISION = "slow_division"
GROUPED = "grouped"
KIND_STAGES: Mapping[str, tuple[str, ...]] = {
    FUSED_EPILOGUE: (FUSED_EPILOGUE, "scaled_outputs", SLOW_DIVISION),
    GROUPED: (GROUPED, "pointer_stores"),
    "software_scales": ("software_scales",),
}
"""Kinds of problem beyond a plain product, and the mechanisms that rows of that kind identify."""
KIND_MECHANISMS = tuple(name for found in KIND_STAGES.values() for name in found)
"""All mechanisms of kinds of problem beyond a plain product."""
IMPLICIT_GEMM = "implicit_gemm"
"""Convolutions: they have no mechanism of their own, since gathered operands arrive as others do."""
PROBLEM_KINDS = (*KIND_STAGES, IMPLICIT_GEMM)
"""Kinds of problem with their own error band; a kernel of two kinds has the band of the later one."""


CLOCK_MECHANISMS = tuple(mechanism.name for mechanism in MECHANISMS if mechanism.resource == CLOCK)
"""Mechanisms that lower the SM clock below that of the GPU's description."""
OF_LIBRARIES = tuple(
    name
    for name in MECHANISM_NAMES
    if name not in ("device_descriptors", "matrix_scales", "pointer_stores", SLOW_DIVISION)
)
"""Mechanisms of kernels whose tensor descriptors the host makes and whose outputs are stored by TMA."""
NUMBERS: Mapping[str, Number] = {spec.name: spec for mechanism in MECHANISMS for spec in mechanism.numbers}
"""All numbers by their full names."""
SILICON_NUMBERS = tuple(name for name, spec in NUMBERS.items() if spec.of != KERNEL)
"""Names of the card's numbers, which all families share."""


@cache
def _places() -> tuple[tuple[str, str, Number], ...]:
    return tuple((*name.split("."), spec) for name, spec in NUMBERS.items())  # type: ignore[misc]


@cache
def _neutral_values(mechanism: str) -> dict[str, float]:
    return {
        rest: spec.neutral for part, rest, spec in _places() if part == mechanism and spec.neutral is not None
    }


WITHIN_PHASES: Mapping[str, Number] = {spec.name: spec for spec in _numbers_of("within_phases")}
"""The numbers of timelines, by name."""
RECORDS: Mapping[str, type[Record]] = {
    each.name: _with_fields(
        type(f"{each.name}_numbers", (Record,), {}), [spec.name.partition(".")[2] for spec in each.numbers]
    )
    for each in MECHANISMS
}
"""The records of mechanisms, by name."""
_with_fields(KernelNumbers, RECORDS)
_with_fields(WithinPhases, WITHIN_PHASES)


def within_phases(values: Mapping[str, float]) -> WithinPhases:
    """The record from values by name; a missing value takes its start value.

    Raises InputError for a value that is not finite or outside its bounds.
    """
    return WithinPhases(
        **{name: checked(spec, values.get(name, spec.start)) for name, spec in WITHIN_PHASES.items()}
    )


def kernel_numbers(values: Mapping[str, float]) -> KernelNumbers:
    """The records from values by full name.

    Raises InputError for a missing or unknown name, or a value that is not finite or outside its bounds.
    """
    for name in values:
        if name not in NUMBERS:
            raise InputError(f"unknown number {name!r}; expected one of {', '.join(NUMBERS)}")
    arguments: dict[str, dict[str, float]] = {name: {} for name in MECHANISM_NAMES}
    for part, rest, spec in _places():
        if spec.name not in values:
            raise InputError(f"number {spec.name} is missing")
        arguments[part][rest] = checked(spec, values[spec.name])
    return KernelNumbers(**{name: RECORDS[name](**found) for name, found in arguments.items()})


def checked(spec: Number, value: object) -> float:
    """The value as a float; raises InputError if it is outside the bounds of its number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not spec.low <= value <= spec.high:  # type: ignore[operator]
        unit = "" if spec.unit == "1" else f" {spec.unit}"
        raise InputError(f"number {spec.name} is {value!r}; expected {spec.low:g} to {spec.high:g}{unit}")
    return float(value)  # type: ignore[arg-type]


def start_values() -> dict[str, float]:
    """The start value of each number, by full name."""
    return {name: spec.start for name, spec in NUMBERS.items()}
