"""The mechanisms of a kernel's time, and the empirical numbers that each of them owns.

Each mechanism is one record. `config/mechanisms.toml` describes each field of it: unit, start value, bounds,
meaning and source; a calibration holds the values. A mechanism is switched off by its neutral values: what-if
questions, ablation and families without the mechanism use them, so no formula tests whether it exists.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, dataclass_transform, get_type_hints

from gemm_model.config import CONFIG_DIR
from gemm_model.core.errors import InputError

DESCRIPTIONS = CONFIG_DIR / "mechanisms.toml"
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


@cache
def _descriptions() -> dict[str, Any]:
    return tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))


def _resource(meaning: str, gpu_rates: Sequence[str] = (), gpu_times: Sequence[str] = ()) -> Resource:
    return Resource(meaning=meaning, gpu_rates=tuple(gpu_rates), gpu_times=tuple(gpu_times))


RESOURCES: Mapping[str, Resource] = {
    name: _resource(**found) for name, found in _descriptions()["resources"].items()
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


RESOURCE_OF: dict[type, str] = {}
"""The resource to which the time of each mechanism's record belongs."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """A mechanism's numbers; its time belongs to a resource."""

    def __init_subclass__(cls, resource: str) -> None:
        RESOURCE_OF[cls] = resource
        dataclass(frozen=True, kw_only=True)(cls)


class Launch(Record, resource=LAUNCH):
    """Launch of a kernel: its grid, its clusters, its first load and its last store."""

    kernel_us: float
    full_grid_us: float
    events_us: float
    clusters_us: float


class DeviceDescriptors(Record, resource=LAUNCH):
    """Tensor descriptors that the kernel makes on the device before its first load."""

    start_us: float


class FirstLoads(Record, resource=LAUNCH):
    """The first loads of a kernel miss in the TLBs and in DRAM's row buffers."""

    ramp_us: float
    ramp_k_tiles: float


class Tensor(Record, resource=TENSOR):
    """The MMAs."""

    efficiency: float
    issue_clk: float


class NarrowMma(Record, resource=TENSOR):
    """Operand reads from shared memory bound narrow MMA instructions."""

    bound_columns: float


class Promotion(Record, resource=MMA_WARPS):
    """Slow fp8 accumulation: the sums of each k tile are added to a second set of registers."""

    adds_per_clk: float
    alone: float
    drain_clk: float


class RoundTrip(Record, resource=MMA_WARPS):
    """Barrier round trips between producer and consumers of a cluster bound a k tile."""

    single_clk: float


class Spilling(Record, resource=SPILLING):
    """Registers beyond a thread's budget are stored and loaded again at each k tile."""

    register_clk: float
    wait_clk: float
    sharing: float
    l2_bytes_per_byte: float


class Port(Record, resource=SM_INGRESS):
    """L2-to-SM bandwidth: A and B tiles on their way into one SM."""

    efficiency: float


class LineCrossing(Record, resource=SM_INGRESS):
    """Rows of 128 bytes that do not start on a cache line take more L2-to-SM bandwidth."""

    line_cost: float


class KTail(Record, resource=SM_INGRESS):
    """Rows of a tile's last k tile that extend beyond K."""

    row_clk: float


class Latency(Record, resource=LATENCY):
    """Load latency: the bytes in flight bound the rate of loads from DRAM (Little's law)."""

    load_clk: float


class EpilogueStores(Record, resource=EPILOGUE):
    """Conversion and stores of a tile's accumulators."""

    store_bytes_per_clk: float
    store_clk: float
    tile_clk: float
    apart: float


class L2Bandwidth(Record, resource=L2):
    """L2 bandwidth of the device: requests, fills and writes share it; few SMs do not saturate it."""

    efficiency: float
    gpc_efficiency: float


class Coalescing(Record, resource=L2):
    """Equal requests of the SMs of one GPC merge before L2."""

    share: float
    loss_per_ms: float
    first_load: float


class Overlap(Record, resource=NO_RESOURCE):
    """Overlap of resources: their joint time is the norm, of some order, of their times."""

    port_l2_order: float
    loads_dram_order: float
    math_loads_order: float


class Misalignment(Record, resource=L2):
    """Output rows that do not start on 64-byte boundaries are written to L2 in more pieces."""

    write_cost: float


class EdgeTiles(Record, resource=FILL):
    """Out-of-bounds fill: a tile's rows outside the matrix take longer than rows inside."""

    row_clk: float
    further_sm: float
    further_sm_in_step: float
    further_sm_of_pairs: float
    drift_gain: float
    drift_k_tiles: float
    shared_cost: float
    two_way_cost: float
    two_way_hidden: float


class L2Capacity(Record, resource=L2):
    """L2 capacity that holds panels from one wave to the next."""

    share: float


class DramBandwidth(Record, resource=DRAM):
    """DRAM bandwidth."""

    efficiency: float


class Clock(Record, resource=CLOCK):
    """The SM clock sags with the current that the kernel draws."""

    light_share: float
    droop_mma: float
    droop_memory: float
    droop_us: float


class Chain(Record, resource=LAUNCH):
    """Launches back to back: the kernel before hides most of a launch."""

    boundary_us: float
    cold_us: float
    cooperative_us: float
    gap_us: float


class Power(Record, resource=CLOCK):
    """Power cap: idle power, and the energy of the work at the voltage of the clock."""

    pj_per_flop: float
    pj_per_l2_byte: float
    pj_per_dram_byte: float
    voltage_floor: float
    steady_share: float


class SplitK(Record, resource=EPILOGUE):
    """Splits of a tile add their partial sums in turn, through a workspace in L2."""

    second_kernel_us: float
    turn_clk: float
    bytes_per_clk: float


class WholeWaves(Record, resource=NO_RESOURCE):
    """A partial last wave takes the time of a whole tile, however few its tiles are."""

    quantized: float


class ScaleFactors(Record, resource=SM_INGRESS):
    """Loads of block-scale factors, in rows of 16 bytes."""

    row_bytes: float


class FusedEpilogue(Record, resource=EPILOGUE):
    """Work of an epilogue beyond converting and storing the accumulators."""

    tangent_clk: float
    sigmoid_clk: float
    gate_clk: float
    reduction_clk: float
    alone: float
    source_bytes_per_clk: float
    source_clk: float
    ring_share: float
    vector_clk: float


class ScaledOutputs(Record, resource=EPILOGUE):
    """Outputs that an epilogue scales by the largest value of their block."""

    scale_clk: float


class Grouped(Record, resource=LAUNCH):
    """Grouped problems: reading the table of groups, and finding the group of each tile."""

    start_us: float
    tile_clk: float


class SlowDivision(Record, resource=EPILOGUE):
    """Division of a silu whose quotient is denormal: accumulators below -87."""

    warp_clk: float


class PointerStores(Record, resource=EPILOGUE):
    """Outputs of groups stored through masked pointers in place of a tensor map."""

    output_clk: float
    spill_clk: float
    spilled_registers: float


class SoftwareScales(Record, resource=MMA_WARPS):
    """Accumulators of each k tile are multiplied by scale factors as they are added."""

    latency_clk: float
    miss_clk: float
    sums_clk: float
    columns_clk: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinPhases:
    """Times within phases, for timelines: no runtime depends on these numbers, and no fit moves them.

    They are read off traces of 40 kernels (QuACK on H200s, `data/measurements/h200/traces`) and judged on
    26 others.
    """

    prologue_us: float
    cluster_prologue_us: float
    first_load_us: float
    own_pages_us: float
    first_turn_us: float
    issue_us: float
    mean_share: float
    spilled_wait_us: float
    drain_us: float
    alone: float
    together: float
    beside_mmas: float
    spilled: float
    spilled_together: float
    split_turn_us: float
    start_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNumbers:
    """All empirical numbers of a kernel family on a GPU, for one rate class of operand types."""

    launch: Launch
    device_descriptors: DeviceDescriptors
    first_loads: FirstLoads
    tensor: Tensor
    narrow_mma: NarrowMma
    promotion: Promotion
    round_trip: RoundTrip
    spilling: Spilling
    port: Port
    line_crossing: LineCrossing
    k_tail: KTail
    latency: Latency
    epilogue: EpilogueStores
    l2: L2Bandwidth
    coalescing: Coalescing
    overlap: Overlap
    misalignment: Misalignment
    edge_tiles: EdgeTiles
    l2_capacity: L2Capacity
    split_k: SplitK
    whole_waves: WholeWaves
    dram: DramBandwidth
    clock: Clock
    chain: Chain
    power: Power
    scale_factors: ScaleFactors
    fused_epilogue: FusedEpilogue
    scaled_outputs: ScaledOutputs
    slow_division: SlowDivision
    grouped: Grouped
    pointer_stores: PointerStores
    software_scales: SoftwareScales

    def without(self, names: Collection[str]) -> KernelNumbers:
        """These numbers with some mechanisms switched off."""
        if not names:
            return self
        off = {name: replace(getattr(self, name), **_neutral_values(name)) for name in names}
        return replace(self, **off)

    def having(self, values: Mapping[str, float]) -> KernelNumbers:
        """These numbers with some values replaced, by full name; the caller checks the bounds."""
        changed: dict[str, Any] = {}
        for name, value in values.items():
            mechanism, _, rest = name.partition(".")
            record = changed.get(mechanism, getattr(self, mechanism))
            changed[mechanism] = replace(record, **{rest: value})
        return replace(self, **changed)

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


KERNEL_MECHANISMS = frozenset(
    {
        *(
            *("launch", "device_descriptors", "first_loads", "tensor", "promotion", "round_trip"),
            *("spilling", "k_tail", "latency"),
        ),
        *("epilogue", "split_k"),
        *("fused_epilogue", "scaled_outputs", "slow_division"),
        *("grouped", "pointer_stores", "software_scales"),
    }
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One mechanism: name, meaning, numbers, and the resource to which its time belongs."""

    name: str
    meaning: str
    numbers: tuple[Number, ...]
    resource: str


def _mechanisms() -> tuple[Mechanism, ...]:
    records = get_type_hints(KernelNumbers)
    return tuple(
        Mechanism(
            name=name,
            meaning=(record.__doc__ or "").strip(),
            numbers=_numbers_of(record, name, f"{name}."),
            resource=RESOURCE_OF[record],
        )
        for name, record in records.items()
    )


def _numbers_of(record: Any, mechanism: str, prefix: str = "") -> tuple[Number, ...]:
    """The description of each field of a record; InputError where the file describes others."""
    described, names = _descriptions()[mechanism], [spec.name for spec in fields(record)]
    if list(described) != names:
        raise InputError(
            f"{DESCRIPTIONS.name}: {mechanism} has {', '.join(described)}; expected {', '.join(names)}"
        )
    of_record = {
        "resource": RESOURCE_OF.get(record, NO_RESOURCE),
        "of": KERNEL,
        "fitted": False,
        "neutral": None,
    }
    found = []
    for name, entry in described.items():
        low, high = entry["bounds"]
        known = {**of_record, **entry, "low": low, "high": high}
        found.append(
            Number(name=prefix + name, **{each.name: known[each.name] for each in fields(Number)[1:]})
        )
    return tuple(found)


MECHANISMS: tuple[Mechanism, ...] = _mechanisms()
"""All mechanisms, roughly in the order of a launch."""
MECHANISM_NAMES = tuple(mechanism.name for mechanism in MECHANISMS)
CLOCK_MECHANISMS = tuple(mechanism.name for mechanism in MECHANISMS if mechanism.resource == CLOCK)
"""Mechanisms that lower the SM clock below that of the GPU's description."""
OF_LIBRARIES = tuple(
    name for name in MECHANISM_NAMES if name not in ("device_descriptors", "pointer_stores", SLOW_DIVISION)
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


WITHIN_PHASES: Mapping[str, Number] = {spec.name: spec for spec in _numbers_of(WithinPhases, "within_phases")}
"""The numbers of timelines, by name."""


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
    records = get_type_hints(KernelNumbers)
    return KernelNumbers(**{name: records[name](**found) for name, found in arguments.items()})


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
