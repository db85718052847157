"""The machine that runs the pipeline, and the work that a GEMM gives it.

Inside, all times are whole picoseconds: sums and maxima of them are exact in double precision, so that the
recurrence, its closed form, the event simulation and the solvers can be held to equality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.config import CONFIG_DIR, is_yaml_file, read_yaml_mapping
from gemm_model.core.batch import FloatArray
from gemm_model.core.records import mapped
from gemm_model.errors import InputError, require_one_of

PS_PER_US = 1e6

CONSUMERS = ("single", "cooperative", "pingpong")
"""How consumers share an SM's tiles.

single: one tile after the other, the pipeline starts empty for each (the paper's waves);
cooperative: one tile after the other, the producer runs ahead into the next tile;
pingpong: two consumers take tiles in turn, one's epilogue runs under the other's math.
"""

Number = float | FloatArray
_NUMBERS: tuple[tuple[tuple[str, ...], Callable[[FloatArray], Any], str], ...] = (
    (
        ("mac_per_us", "load_bytes_per_us", "device_load_bytes_per_us", "epilogue_elements_per_us"),
        lambda v: v > 0,
        "a positive rate",
    ),
    (
        ("math_startup_us", "load_startup_us", "load_latency_us", "epilogue_us", "init_us"),
        lambda v: (v >= 0) & np.isfinite(v),
        "a time of at least 0",
    ),
    (("a_element_bytes", "b_element_bytes"), lambda v: (v > 0) & np.isfinite(v), "a positive number"),
    (("sm_count",), lambda v: np.isfinite(v) & (v >= 1) & (v == np.floor(v)), "a number of SMs"),
)
"""Numbers of a machine, what is allowed of them, and the sentence that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSpace:
    """The legal tiles and ring buffers of a machine."""

    tile_m: tuple[int, ...] = (32, 64, 128)
    tile_n: tuple[int, ...] = (32, 64, 128)
    tile_k: tuple[int, ...] = (32, 64, 128)
    smem_bytes: int = 101376
    """Shared memory for the ring buffer."""
    max_stages: int = 8
    max_accumulators: int = 65536
    """Elements of the output tile that the registers hold."""

    def __post_init__(self) -> None:
        for name in ("tile_m", "tile_n", "tile_k"):
            sizes = getattr(self, name)
            good = isinstance(sizes, list | tuple) and all(_whole(size) for size in sizes)
            if not good or not sizes or len(set(sizes)) < len(sizes):
                raise InputError(f"{name} is {sizes!r}; expected distinct positive whole numbers")
            object.__setattr__(self, name, tuple(sorted(sizes)))
        for name in ("smem_bytes", "max_stages", "max_accumulators"):
            if not _whole(getattr(self, name)):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected a positive whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMachine:
    """Rates, latencies and rules of one machine; rates are those of one SM and may be infinite.

    Every number may be an array, one entry for each kernel of a batch.
    T_MATH = tile_m tile_n tile_k / mac_per_us + math_startup_us, and
    T_LOAD-A = tile_m tile_k a_element_bytes / load_bytes_per_us + load_startup_us, B alike.
    """

    name: str = "machine"
    sm_count: Number = 1
    mac_per_us: Number = math.inf
    math_startup_us: Number = 0.0
    load_bytes_per_us: Number = math.inf
    load_startup_us: Number = 0.0
    """Time that a load keeps its DMA warp busy besides its bytes (the paper's LoadStartupLatency)."""
    load_latency_us: Number = 0.0
    """Delay until the data arrive, during which the DMA warp issues more loads (0 in the paper)."""
    device_load_bytes_per_us: Number = math.inf
    """Load rate that all busy SMs share; multicast bytes count once."""
    device_fresh_bytes_per_us: Number = math.inf
    """Shared rate for bytes that no SM has loaded before: DRAM's, if a cache serves the others."""
    epilogue_us: Number = 0.0
    epilogue_elements_per_us: Number = math.inf
    init_us: Number = 0.0
    a_element_bytes: Number = 2.0
    b_element_bytes: Number = 2.0
    dma_warps: int = 1
    """1: one DMA warp loads A, then B; 2: one DMA warp for each."""
    consumers: str = "single"
    counts_last_math: bool = True
    """False: a wave ends T_EPILOGUE after its last math *starts*, as the paper's formula is printed."""
    pads_k: bool = False
    """Whether a last k tile that reaches beyond K costs as much as a full one, because of zero fill."""
    tiles: TileSpace = field(default_factory=TileSpace)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for names, good, expected in _NUMBERS:
            for name in names:
                _require(self.name, name, getattr(self, name), good, expected)
        if self.dma_warps not in (1, 2):
            raise InputError(f"machine {self.name}: dma_warps is {self.dma_warps!r}; expected 1 or 2")
        require_one_of(f"machine {self.name}: consumers is {self.consumers!r}", self.consumers, CONSUMERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineKernel:
    """A GEMM and the kernel that computes it; sizes in elements, scalars or arrays of one length."""

    m: Number
    n: Number
    k: Number
    tile_m: Number
    tile_n: Number
    tile_k: Number
    stages: Number
    batch: Number = 1.0
    cluster_m: Number = 1.0
    cluster_n: Number = 1.0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "stages", "batch", "tile_m", "tile_n", "tile_k"):
            _require("kernel", name, getattr(self, name), lambda v: v >= 1, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long one k tile takes: loading its A and B tile, and its math; ps, scalars or arrays."""

    load_a: Number
    load_b: Number
    math: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of the busiest SM; times in ps, all fields scalars or arrays of one length.

    The SM computes `waves` output tiles of `steps` k tiles each through a ring of `stages`. Its last
    tile belongs to the last wave, where fewer SMs may share the device's load rate: `tail` and `tail_last`
    are the steps of that tile, `full` and `full_last` those of the others; `*_last` is the last k tile of a
    tile, which may be ragged.
    """

    waves: Number
    steps: Number
    stages: Number
    full: StepTimes
    full_last: StepTimes
    tail: StepTimes
    tail_last: StepTimes
    latency: Number
    epilogue: Number
    init: Number
    ctas: Number = 1.0
    """CTAs of the whole kernel."""
    ctas_per_wave: Number = 1.0

    def each(self, change: Callable[[Any], Any]) -> Workload:
        """The same work with each of its numbers changed."""
        return mapped(self, lambda v: mapped(v, change) if isinstance(v, StepTimes) else change(v))

    def row(self, index: int) -> Workload:
        """The work of one kernel of a batch, all fields scalars."""
        return self.each(lambda v: float(v) if np.ndim(v) == 0 else float(v[index]))


def machine_names() -> list[str]:
    """Names of the packaged machines."""
    return sorted(path.stem for path in (CONFIG_DIR / "pipeline").glob("*.yaml"))


def load_machine(name_or_path: str) -> PipelineMachine:
    """A machine of the package, or one described by a YAML file; raises InputError for one that is none."""
    path = Path(name_or_path)
    if not is_yaml_file(name_or_path):
        if name_or_path not in machine_names():
            known = ", ".join(machine_names())
            raise InputError(f"unknown machine {name_or_path!r}; expected a YAML file or one of {known}")
        path = CONFIG_DIR / "pipeline" / f"{name_or_path}.yaml"
    values = read_yaml_mapping(path, "a pipeline machine", infinite=True)
    return with_parameters(PipelineMachine(name=str(values.get("name", "machine"))), values)


def with_parameters(machine: PipelineMachine, values: Mapping[str, Any]) -> PipelineMachine:
    """The machine with some of its parameters replaced; those of `tiles` in a mapping of their own."""
    known = [spec.name for spec in fields(PipelineMachine)]
    for key in values:
        require_one_of(f"machine {machine.name}: unknown parameter {key!r}", key, known)
    changed = dict(values)
    if "tiles" in changed:
        space, names = changed["tiles"], [spec.name for spec in fields(TileSpace)]
        for key in space if isinstance(space, Mapping) else [repr(space)]:
            require_one_of(f"machine {machine.name}: unknown parameter tiles.{key}", key, names)
        changed["tiles"] = replace(machine.tiles, **space)
    return replace(machine, **changed)


def workload(machine: PipelineMachine, kernel: PipelineKernel, *, whole: bool = True) -> Workload:
    """The work of a GEMM's busiest SM.

    Times are rounded to whole picoseconds unless `whole` is False: a fit needs smooth times.

    Tiles at the edge of M and N are computed in full, as real kernels do. A wave has one tile on each SM;
    clusters are never split. Raises InputError for a cluster of more CTAs than the machine has SMs.
    """
    clusters, resident = _clusters(machine, kernel)
    cluster = kernel.cluster_m * kernel.cluster_n
    waves = np.ceil(clusters / resident)
    # The last wave has fewer SMs at work, which then share the device's rates among fewer.
    tail_sms = (clusters - (waves - 1) * resident) * cluster
    full_sms = np.where(waves > 1, resident * cluster, tail_sms)
    steps = np.ceil(kernel.k / kernel.tile_k)
    last_k = np.where(machine.pads_k, kernel.tile_k, kernel.k - (steps - 1) * kernel.tile_k)

    def ps(time_us: Number) -> Number:
        return np.rint(time_us * PS_PER_US) if whole else time_us * PS_PER_US

    def step_times(depth: Number, sms: Number) -> StepTimes:
        a_us, b_us, math_us = _step_us(machine, kernel, depth, sms, clusters)
        return StepTimes(load_a=ps(a_us), load_b=ps(b_us), math=ps(math_us))

    tile = kernel.tile_m * kernel.tile_n
    return Workload(
        waves=waves,
        steps=steps,
        stages=kernel.stages,
        full=step_times(kernel.tile_k, full_sms),
        full_last=step_times(last_k, full_sms),
        tail=step_times(kernel.tile_k, tail_sms),
        tail_last=step_times(last_k, tail_sms),
        latency=ps(machine.load_latency_us),
        epilogue=ps(machine.epilogue_us + tile / machine.epilogue_elements_per_us),
        init=ps(machine.init_us),
        ctas=clusters * cluster,
        ctas_per_wave=resident * cluster,
    )


def _clusters(machine: PipelineMachine, kernel: PipelineKernel) -> tuple[Number, Number]:
    """Clusters of the whole kernel, and how many of them run at once."""
    rows = np.ceil(np.ceil(kernel.m / kernel.tile_m) / kernel.cluster_m)
    columns = np.ceil(np.ceil(kernel.n / kernel.tile_n) / kernel.cluster_n)
    resident = np.floor(machine.sm_count / (kernel.cluster_m * kernel.cluster_n))
    expected = f"at most {machine.sm_count} CTAs, the machine's SMs"
    _require("work", "cluster", resident, lambda v: v >= 1, expected)
    return rows * columns * kernel.batch, resident


def _step_us(
    machine: PipelineMachine, kernel: PipelineKernel, depth: Number, sms: Number, clusters: Number
) -> tuple[Number, Number, Number]:
    """Us of loading A and B of a k tile of `depth` while `sms` load, and of its math."""
    a_bytes, b_bytes = machine.a_element_bytes, machine.b_element_bytes
    a_row, b_row = kernel.tile_m * a_bytes, kernel.tile_n * b_bytes
    # A slice of A is shared by the CTAs along n of a cluster, a slice of B by those along m.
    cluster_row = a_row / kernel.cluster_n + b_row / kernel.cluster_m
    fresh_row = (kernel.m * a_bytes + kernel.n * b_bytes) * kernel.batch
    loaded_row = clusters * kernel.cluster_m * kernel.cluster_n * cluster_row
    fresh = np.minimum(fresh_row / loaded_row, 1.0)
    # DRAM limits only the fresh share of bytes; the cache serves the rest at the device's load rate.
    device_us_per_byte = np.maximum(
        1.0 / machine.device_load_bytes_per_us, fresh / machine.device_fresh_bytes_per_us
    )
    # Multicast bytes count once for the device but arrive at each SM in full.
    shared = cluster_row / (a_row + b_row)
    us_per_byte = np.maximum(1.0 / machine.load_bytes_per_us, device_us_per_byte * (sms * shared))
    macs = kernel.tile_m * kernel.tile_n * depth
    return (
        a_row * depth * us_per_byte + machine.load_startup_us,
        b_row * depth * us_per_byte + machine.load_startup_us,
        macs / machine.mac_per_us + machine.math_startup_us,
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _require(owner: str, name: str, value: Any, good: Any, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number | np.ndarray):
        raise InputError(f"{owner}: {name} is {value!r}; expected {expected}")
    met = good(np.asarray(value, dtype=np.float64))
    if not np.all(met):
        first = value if np.ndim(value) == 0 else np.asarray(value)[int(np.argmin(met))]
        raise InputError(f"{owner}: {name} is {first:g}; expected {expected}")
