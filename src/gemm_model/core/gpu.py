"""The description of a GPU: what its datasheet says and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.errors import InputError

BITS_PER_BYTE = 8
TRANSFERS_PER_CLK = 2
"""DRAM moves data on both clock edges."""
L2_GB_PER_S_PER_SM = 11300.0 / 132
"""L2 bandwidth by SM [GB/s]; a GPU for which it was not measured; the H200's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU. Every number's origin stands in `sources` under the field's name.

    Clocks in MHz, capacities in bytes, rates in FLOP (or FMA, or bytes) per clock of one SM unless the
    name says otherwise. A field of None is not known for this GPU; a model that needs it says so.
    """

    name: str
    architecture: str
    sm_count: int
    sm_clk_mhz: float
    """The SM clock that predictions assume: a locked clock, else the boost clock."""
    dram_bus_bits: int
    dram_clk_mhz: float
    flop_per_clk_per_sm: Mapping[str, float]
    cuda_core_fma_per_clk_per_sm: float
    l2_bytes: float
    smem_bytes_per_sm: int
    smem_bytes_per_cta: int
    smem_bytes_per_clk_per_sm: float
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_sm: int = 2048
    ctas_per_sm: int = 32
    tmem_columns: int = 0
    """Columns of tensor memory (128 lanes of 4 bytes each); 0 where accumulators live in registers."""
    max_cluster_size: int = 1
    resident_clusters: Mapping[int, int] = field(default_factory=dict)
    """How many clusters of a size run at once, where the occupancy query was asked; else whole clusters."""
    tpc_rounds: tuple[tuple[int, ...], ...] = ()
    """GPC of each TPC, in the order in which the launcher gives them CTAs: rounds of TPCs, of which a grid
    fills one SM each, then the other, before it goes on."""
    l2_bytes_per_clk_per_sm: float = 64.0
    """What one SM can read from L2 per SM clock."""
    l2_gb_per_s: float | None = None
    """What all SMs together can read from L2; None: `L2_GB_PER_S_PER_SM` for each SM."""
    clock_recovery_us: float | None = None
    """Where the SM clock is locked: how long the supply takes to restore it under load. None: not locked."""
    power_cap_w: float | None = None
    idle_power_w: float | None = None
    validated: bool = False
    """Whether predictions for this GPU were compared with measurements."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "sm_count",
            "dram_bus_bits",
            "smem_bytes_per_sm",
            "smem_bytes_per_cta",
            "registers_per_sm",
        ):
            _require_positive(self.name, name, getattr(self, name), whole=True)
        for name in ("sm_clk_mhz", "dram_clk_mhz", "l2_bytes", "smem_bytes_per_clk_per_sm"):
            _require_positive(self.name, name, getattr(self, name))
        _require_positive(self.name, "cuda_core_fma_per_clk_per_sm", self.cuda_core_fma_per_clk_per_sm)
        if self.clock_recovery_us is not None:
            _require_positive(self.name, "clock_recovery_us", self.clock_recovery_us)
        for kind, rate in self.flop_per_clk_per_sm.items():
            if kind not in MATH_KINDS:
                raise InputError(f"GPU {self.name}: flop_per_clk_per_sm.{kind}; expected one of {MATH_KINDS}")
            _require_positive(self.name, f"flop_per_clk_per_sm.{kind}", rate)
        for size, clusters in self.resident_clusters.items():
            _require_positive(self.name, f"resident_clusters.{size}", clusters, whole=True)

    @property
    def dram_bytes_per_us(self) -> float:
        """Peak DRAM bandwidth: bus width x two transfers per memory clock."""
        return self.dram_bus_bits / BITS_PER_BYTE * TRANSFERS_PER_CLK * self.dram_clk_mhz

    @property
    def l2_bytes_per_us(self) -> float:
        """L2 bandwidth of the whole GPU; it does not follow the SM clock."""
        known = self.l2_gb_per_s
        return 1e3 * (known if known is not None else L2_GB_PER_S_PER_SM * self.sm_count)

    @property
    def dram_gb_per_s(self) -> float:
        return self.dram_bytes_per_us / 1e3

    def flop_per_us(self, kind: str) -> float:
        """Peak FLOP per microsecond of the whole GPU; raises InputError where the GPU lacks the type."""
        rate = self.flop_per_clk_per_sm.get(kind)
        if rate is None:
            known = ", ".join(self.flop_per_clk_per_sm)
            raise InputError(f"GPU {self.name} has no {kind} math; expected one of {known}")
        return rate * self.sm_count * self.sm_clk_mhz

    def clusters_at_once(self, ctas_per_cluster: int) -> int:
        """Clusters of this size that are resident together, one CTA per SM.

        The occupancy query's answer where it is known, else whole clusters in the SM count.
        """
        known = self.resident_clusters.get(ctas_per_cluster)
        return known if known is not None else self.sm_count // ctas_per_cluster

    @property
    def caveats(self) -> tuple[str, ...]:
        if self.validated:
            return ()
        return (f"GPU {self.name}: not validated against measurements",)


def _require_positive(gpu: str, name: str, value: object, *, whole: bool = False) -> None:
    good = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
    if not good or (whole and not isinstance(value, int)):
        expected = "a positive whole number" if whole else "a positive number"
        raise InputError(f"GPU {gpu}: {name} is {value!r}; expected {expected}")


def gpu_from_mapping(values: Mapping[str, Any]) -> GpuSpec:
    """A GpuSpec from plain values (a `config/gpu/*.yaml`); raises InputError for a missing or unknown key."""
    label = values.get("name", "<unnamed>")
    known = {spec.name: spec for spec in fields(GpuSpec)}
    for key in values:
        if key not in known:
            raise InputError(f"GPU {label}: unknown key {key!r}; expected one of {', '.join(known)}")
    arguments = dict(values)
    for key in ("flop_per_clk_per_sm", "resident_clusters", "sources"):
        if key in arguments:
            if not isinstance(arguments[key], Mapping):
                raise InputError(f"GPU {label}: {key} is {arguments[key]!r}; expected a mapping")
            arguments[key] = MappingProxyType(dict(arguments[key]))
    if "tpc_rounds" in arguments:
        arguments["tpc_rounds"] = _rounds(label, arguments["tpc_rounds"])
    try:
        return GpuSpec(**arguments)
    except TypeError as error:
        missing = str(error).partition("argument")[2].lstrip("s: ")
        raise InputError(f"GPU {label}: missing key {missing}") from None


def _rounds(label: str, value: object) -> tuple[tuple[int, ...], ...]:
    """`tpc_rounds` from a list of lists."""
    rounds: list[tuple[int, ...]] = []
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, list) or not all(isinstance(gpc, int) and gpc >= 0 for gpc in each):
            raise InputError(f"GPU {label}: tpc_rounds holds {each!r}; expected lists of GPC numbers from 0")
        rounds.append(tuple(each))
    return tuple(rounds)


def load_gpu(name_or_path: str) -> GpuSpec:
    """The GPU of that name in the package's configuration, or described by a YAML file."""
    from gemm_model.config import load_gpu_mapping

    return gpu_from_mapping(load_gpu_mapping(name_or_path))
