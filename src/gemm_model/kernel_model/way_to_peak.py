"""The way from the roofline to a prediction: what each mechanism adds, in us that add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemm_model.core.prediction import RESIDUAL_PHASE
from gemm_model.kernel_model.elasticity import LIMITERS, Composed
from gemm_model.kernel_model.question import UNLIMITED, World
from gemm_model.kernels.mechanisms import CLOCK_MECHANISMS, DRAM, TENSOR

WORTH_A_STEP = 1e-3
"""Least that a step adds [1, of the time]; ways to the peak; chosen: less is told with the next one."""
IDEAL = {TENSOR: {"tensor.efficiency": 1.0, "tensor.issue_clk": 0.0}, DRAM: {"dram.efficiency": 1.0}}
"""Numbers of a bound at its peak."""
STEPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("last wave", ("whole_waves",), ()),
    ("clock under load", CLOCK_MECHANISMS, ()),
    ("MMA issue and signals", ("narrow_mma", "round_trip"), ("MMA_WARPS",)),
    ("promotion and scaling of sums", ("promotion", "software_scales"), ()),
    ("spilled registers", (), ("SPILLING",)),
    ("tensor cores", (), (TENSOR,)),
    ("DRAM", (), (DRAM,)),
    ("load latency beyond the ring", (), ("LATENCY",)),
    ("L2 and the way to the SMs", (), ("L2", "SM_INGRESS", "GPC_INGRESS", "SMEM")),
    ("rows filled outside the matrix", (), ("FILL",)),
    ("epilogue", (), ("EPILOGUE",)),
    ("launch, first loads, last stores", (), ("LAUNCH",)),
)
"""What is added in turn: a name, mechanisms that are switched on, and resources that are as fast as they
are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the way: its name, and what it adds [us]."""

    name: str
    added_us: float


def way_to_peak(world: World, composed: Composed, residual_us: float) -> tuple[Step, ...]:
    """Steps from the roofline to the composed time and what a residual adds, which they add up to.

    The roofline is FLOP at the peak of the boost clock, or operands and outputs once at DRAM's peak. What adds
    less than a thousandth is told with the next step.
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
    off = {name for _, names, _ in STEPS for name in names}
    fast = {name: UNLIMITED for name in LIMITERS if name != bound}
    values = IDEAL[bound]
    ideal = replace(world, without=frozenset(off), faster=fast, values=values)
    first = "rows of tiles outside the matrix, idle SMs" if bound == TENSOR else "bytes beyond once"
    yield first, ideal.composed_us()
    for step, mechanisms, resources in STEPS:
        off -= set(mechanisms)
        fast = {name: factor for name, factor in fast.items() if name not in resources}
        if step == "MMA issue and signals":
            values = {}
        found = replace(world, without=frozenset(off), faster=fast, values=values)
        yield step, found.composed_us()
