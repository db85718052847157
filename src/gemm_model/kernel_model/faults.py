"""What usually makes a kernel slower than it is thought to be, and which of it fits what was counted.

Each fault is an edit of the kernel that was meant. Composed, it says what a profiler would count; the fault
whose counts come closest to the measured ones is the one to look at first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.dtypes import element_type
from gemm_model.core.gpu import with_sms
from gemm_model.kernel_model.elasticity import Composed
from gemm_model.kernel_model.launch_context import COLD, WARM
from gemm_model.kernel_model.question import World
from gemm_model.kernels.registry import family_of

COUNTS: Mapping[str, Mapping[str, Any]] = {
    name: count for name, count in read_toml("explanations")["counts"].items() if "spread" in count
}
"""What a profiler counts of one kernel: `usually`, what makes it another than predicted, and `spread`, which of
`config/numbers/counts.yaml` is the standard deviation of log(counted / predicted) without a fault."""


def counts_of(found: Composed) -> dict[str, float]:
    """What the model says of each of COUNTS."""
    kernel, resources, moved = found.kernel, found.kernel.resources, found.times.traffic
    tiles, persistent = kernel.schedule.tiles, kernel.family.tile_period.persistent
    counted = {
        "duration_us": found.times.runtime_us,
        "dram_read_bytes": moved.dram_read_bytes,
        "l2_read_bytes": moved.l2_load_bytes - moved.l2_store_bytes,
        "l2_write_bytes": moved.l2_store_bytes,
        "smem_bytes_per_cta": resources.stage_bytes * resources.stages + resources.epilogue_bytes,
        "ctas": (kernel.schedule.resident if persistent else tiles) * kernel.cluster_size,
    }
    return {name: float(value) for name, value in counted.items()}


# A fault is the kernel with something that makes it slower, in degrees; none where it cannot have it. It has the
# fault's name, and says of itself what it is and what usually causes it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A fault, how far its counts are from the measured ones, its predicted time, and what usually causes it."""

    fault: str
    distance: float
    """Root of the mean square of deviations, each in units of its spread [1]."""
    predicted_us: float
    cause: str


def half_stages(world: World) -> Iterator[World]:
    """The ring has fewer stages: a larger epilogue buffer, a StageCount or num_stages that is set."""
    own = int(world.composed().kernel.resources.stages)
    for stages in range(2, own):
        yield replace(world, config=replace(world.config, stages=stages))


def no_multicast(world: World) -> Iterator[World]:
    """Each CTA loads its operands itself: a cluster of one, or a grid that no cluster divides."""
    if world.config.ctas_per_cluster > 1:
        yield replace(world, config=replace(world.config, cluster_m=1, cluster_n=1))


def bad_raster(world: World) -> Iterator[World]:
    """Neighbouring tiles share too little in L2: no swizzle, or a raster along the long extent."""
    for swizzle in (1, 2):
        if swizzle < world.config.swizzle:
            yield replace(world, config=replace(world.config, swizzle=swizzle))


def odd_pitch(world: World) -> Iterator[World]:
    """Rows start off 128-byte lines: a K or N that is no multiple of 64 elements of 16 bits."""
    elements = 128 // world.problem.a_dtype.bits
    yield replace(world, problem=replace(world.problem, k=world.problem.k + elements))


def spills(world: World) -> Iterator[World]:
    """Sums are promoted each k tile, whose second set of registers spills: fast_accum is off."""
    slow_sums = family_of(world.config.kernel, world.gpu).space.slow_sums
    if slow_sums and world.config.fast_accum and world.problem.a_dtype.bits == 8:
        yield replace(world, config=replace(world.config, fast_accum=False))


def half_sms(world: World) -> Iterator[World]:
    """The grid leaves SMs idle: a persistent grid of fewer CTAs, SMs that another kernel holds."""
    for share in (2, 4):
        yield replace(world, gpu=with_sms(world.gpu, world.gpu.sm_count // share))


def cold_l2(world: World) -> Iterator[World]:
    """Operands come from DRAM: other kernels, or a cache flush, ran in between."""
    if world.options.get("l2") == WARM:
        yield replace(world, options={**world.options, "l2": COLD})


def slow_epilogue(world: World) -> Iterator[World]:
    """Outputs take longer to store: a wider type, work that is fused into the epilogue."""
    if world.problem.out_dtype.bits < 32:
        yield replace(world, problem=replace(world.problem, out_dtype=element_type("fp32")))


FAULTS = (half_stages, no_multicast, bad_raster, odd_pitch, spills, half_sms, cold_l2, slow_epilogue)


WITHIN = 1.0
"""Distance up to which counts are those of a kernel [spreads]; none is a fault then; chosen: what a spread is."""


def suspects(world: World, counted: Mapping[str, float]) -> list[Suspect]:
    """The faults of the kernel that was meant, the one whose counts are closest to the counted ones first.

    `counted` holds some of COUNTS by name; those that are missing tell nothing.
    """
    found = []
    for fault in FAULTS:
        tried = [(distance_of(each, counted), each) for each in map(World.composed, fault(world))]
        if tried:
            distance, best = min(tried, key=lambda pair: pair[0])
            words = {"fault": fault.__name__, "cause": (fault.__doc__ or "").rstrip(".")}
            found.append(Suspect(distance=distance, predicted_us=float(best.times.runtime_us), **words))
    return sorted(found, key=lambda each: each.distance)


def distance_of(found: Composed, counted: Mapping[str, float]) -> float:
    """How far a kernel's counts are from the counted ones, in spreads [1]."""
    farthest = room_numbers("counts").farthest
    squares = [min(off, farthest) ** 2 for off in deviations(found, counted).values()]
    return math.sqrt(sum(squares) / max(len(squares), 1))


def deviations(found: Composed, counted: Mapping[str, float]) -> dict[str, float]:
    """How far each of a kernel's counts is from the counted one, in its spreads [1]."""
    numbers, spreads = room_numbers("counts"), {}
    for name, predicted in counts_of(found).items():
        if name in counted:
            least = numbers.fewest_bytes if name.endswith("_bytes") else 1.0
            off = math.log(max(counted[name], least) / max(predicted, least))
            spreads[name] = abs(off) / getattr(numbers, COUNTS[name]["spread"])
    return spreads
