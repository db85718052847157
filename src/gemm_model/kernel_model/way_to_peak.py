"""The way from the roofline to a prediction: what each mechanism adds, in us that add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gemm_model.config.mechanisms import DESCRIPTIONS, DRAM, MECHANISMS, TENSOR
from gemm_model.core.prediction import RESIDUAL_PHASE
from gemm_model.kernel_model.elasticity import LIMITERS, Composed
from gemm_model.kernel_model.question import UNLIMITED, World

WORTH_A_STEP = 1e-3
"""Least that a step adds [1, of the time]; ways to the peak; chosen: less joins the next one."""
IDEAL = {TENSOR: {"tensor.efficiency": 1.0, "tensor.issue_clk": 0.0}, DRAM: {"dram.efficiency": 1.0}}
"""Numbers of a bound at its peak."""
STEPS: Mapping[str, Sequence[str]] = DESCRIPTIONS["steps"]
"""What is added in turn, and resources that are as fast as they are from then on, as mechanisms with that step are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the way: its name, and what it adds [us]."""

    name: str
    added_us: float


def way_to_peak(world: World, composed: Composed, residual_us: float) -> tuple[Step, ...]:
    """Steps from the roofline to the composed time and what a residual adds, which they add up to.

    The roofline is FLOP at the peak of the boost clock, or operands and outputs once at DRAM's peak. A step
    that adds less than a thousandth is merged into the next one.
    """
    times = composed.times
    before_us, composed_us = float(times.floor_us), float(times.runtime_us)
    bound = DRAM if times.dram_floor_us >= times.floor_us else TENSOR
    name = "peak of the tensor cores" if bound == TENSOR else "operands and outputs once at DRAM's peak"
    steps = [Step(name=name, added_us=before_us)]
    for name, time_us in _times(world, bound):
        if abs(time_us - before_us) > WORTH_A_STEP * composed_us:
            steps.append(Step(name=name, added_us=time_us - before_us))
            before_us = time_us
    steps[-1] = replace(steps[-1], added_us=steps[-1].added_us + composed_us - before_us)
    return (*steps, *([Step(name=RESIDUAL_PHASE, added_us=residual_us)] if residual_us else ()))


def _times(world: World, bound: str) -> Iterator[tuple[str, float]]:
    """The times of worlds that hold ever more of what there is, from the bound of the roofline on."""
    off = {each.name for each in MECHANISMS if each.step}
    fast = {name: UNLIMITED for name in LIMITERS if name != bound}
    values = IDEAL[bound]
    ideal = replace(world, without=frozenset(off), faster=fast, values=values)
    first = "rows of tiles outside the matrix, idle SMs" if bound == TENSOR else "bytes beyond once"
    yield first, ideal.composed_us()
    for step, resources in STEPS.items():
        off -= {each.name for each in MECHANISMS if each.step == step}
        fast = {name: factor for name, factor in fast.items() if name not in resources}
        if step == "MMA issue and signals":
            values = {}
        found = replace(world, without=frozenset(off), faster=fast, values=values)
        yield step, found.composed_us()
