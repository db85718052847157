"""A measured time beside its prediction, and where the difference could come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemm_model.config.mechanisms import CLOCK, NUMBERS
from gemm_model.core.prediction import Prediction
from gemm_model.errors import InputError
from gemm_model.kernel_model.question import World, parse_change

WORTH_TELLING = 1e-3
"""Elasticity, and share of the time that intervals move [1]; what is less is left out; chosen."""
FASTER_CLOCK = 1.01
"""The clock whose time tells its elasticity, of the kernel's own [1]; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A resource, or a mechanism that is part of none, from which a difference could come."""

    name: str
    elasticity: float | None
    """None of a mechanism; the clock's lies across those of the resources that it turns."""
    slowdown: float | None
    """How many times as long the resource would have to take if all came from it [1]; None if that is not enough."""
    alike_us: float | None
    """Of the difference, if all took as many times as long: in us that add up; None of the clock and of mechanisms."""
    interval_us: float
    """What the intervals of its numbers move the prediction by, as the root of their squares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured time beside a prediction."""

    measured_us: float
    prediction: Prediction
    causes: tuple[Cause, ...]
    """By what 1 % of them moves, then by their intervals."""

    @property
    def us(self) -> float:
        return self.measured_us - self.prediction.runtime_us

    @property
    def in_band(self) -> bool | None:
        """None where no band was measured."""
        band = self.prediction.error_band
        return None if band is None else abs(self.us) <= band * self.prediction.runtime_us


def beside_measured(world: World, measured_us: float) -> Measured:
    """A measured time [us] beside the prediction of a kernel.

    Raises InputError for a kernel that cannot run.
    """
    prediction, composed = world.predicted(), world.composed()
    faster = parse_change(f"clock x{FASTER_CLOCK}")(world)
    clock = (float(composed.times.runtime_us) / faster.composed_us() - 1.0) / (FASTER_CLOCK - 1.0)
    shares = {**composed.elasticities(), CLOCK: clock}
    return measured_beside(measured_us, prediction, shares, _moved_by_intervals(world))


def measured_beside(
    measured_us: float, prediction: Prediction, shares: Mapping[str, float], moved: Mapping[str, float]
) -> Measured:
    """The same of a kernel with these elasticities, and the shares of its time that intervals move [1]."""
    if not prediction.runtime_us:
        raise InputError("a problem without work is predicted to take no time; expected one with some")
    longer, causes = measured_us / prediction.runtime_us - 1.0, []
    for name in sorted({*shares, *moved}):
        share, by_intervals = float(shares.get(name, 0.0)), moved.get(name, 0.0)
        if max(share, by_intervals) > WORTH_TELLING:
            slowdown = 1.0 + longer / share if share > 0.0 else 0.0
            known = {"elasticity": shares.get(name), "slowdown": slowdown if slowdown > 0.0 else None}
            known["alike_us"] = None if name == CLOCK or not share else share * longer * prediction.runtime_us
            causes.append(Cause(name=name, interval_us=by_intervals * prediction.runtime_us, **known))
    causes.sort(key=lambda each: (-(each.elasticity or 0.0), -each.interval_us))
    return Measured(measured_us=measured_us, prediction=prediction, causes=tuple(causes))


def _moved_by_intervals(world: World) -> dict[str, float]:
    """By resource, or mechanism of none: the share of the time that the intervals of its numbers move."""
    composed = world.composed()
    values, squares = composed.kernel.numbers.values(), dict[str, float]()
    time_us = float(composed.times.runtime_us)
    for name, width in world.intervals().items():
        if values[name] == NUMBERS[name].neutral:  # of a mechanism that these kernels lack
            continue
        moved_us = replace(world, values={name: values[name] + width}).composed_us() - time_us
        whose = NUMBERS[name].resource or name.partition(".")[0]
        squares[whose] = squares.get(whose, 0.0) + (moved_us / time_us) ** 2
    return {whose: math.sqrt(square) for whose, square in squares.items()}
