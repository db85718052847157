"""The description of a GPU: quantities that a datasheet, the driver or a microbenchmark states of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from gemm_model.config import gpu_names, is_yaml_file, load_gpu_mapping
from gemm_model.config.numbers import room_numbers
from gemm_model.config.quantity import Quantity
from gemm_model.core.dtypes import MATH_KINDS, OPERANDS, DataType
from gemm_model.core.records import record_from
from gemm_model.errors import InputError, require_one_of

BITS_PER_BYTE = 8
TRANSFERS_PER_CLK = 2
"""Transfers per clock of DRAM [1/clk]; all GPUs: data move on both edges; JEDEC HBM and GDDR."""
WITHOUT_BF16 = ("sm60", "sm61", "sm70", "sm75")
"""Architectures whose tensor cores, if any, multiply fp16 and no bf16 (PTX ISA, mma: `.bf16` from sm_80 on)."""
ARCHITECTURES = (*WITHOUT_BF16, "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
"""Architectures whose shared memory, clusters and tensor memory the kernels' rules know."""
WITH_TENSOR_MEMORY = ("sm100", "sm103")
NARROWING = ("tf32", "fp16", "fp8", "fp4")
"""Kinds of math of which none is slower than one before it; int8 is on sm_103."""
KERNELS_OF = {"sm103": "sm100", "sm121": "sm120"}
"""Architectures that run another's kernels."""
WITH_OWN_MMAS = ("sm90", "sm100", "sm103")
"""Architectures whose own kernels multiply by other instructions than `mma.sync`."""
WHOLE_COPY_BYTES = 16.0
"""What a thread copies at most at once [B]; all GPUs from sm80 on; `cp.async`."""
WITH_CLUSTERS = ("sm90", "sm100", "sm103", "sm120", "sm121")

INTERVAL = Quantity(unit="1", low=0, high=1)
TENSOR_FLOP = Quantity(unit="FLOP/clk", low=16, high=262144)


def number(
    unit: str, low: float, high: float, *, assumed: str = "", interval: str = "", **default: Any
) -> Any:
    """A number of a description with its unit and range; `assumed` is the one taken where it is left out.

    `interval` is that of a card that was not measured, where its description tells none; each is the name of a
    number of `config/numbers/gpu.yaml`.
    """
    if assumed:
        default["default_factory"] = lambda: getattr(room_numbers("gpu"), assumed)
    quantity = Quantity(unit=unit, low=low, high=high)
    return field(metadata={"quantity": quantity, "interval": interval, "assumed": assumed}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU. Every number's origin stands in `sources` under the field's name.

    Each quantity is one that can be measured; `docs/gpus.md` defines it with its protocol, `QUANTITIES` has
    its unit and range. A field of None is not known for this GPU; a model that needs it says so.
    """

    name: str
    architecture: str
    device_names: tuple[str, ...] = ()
    """What the driver calls cards of this description; none where it is of a card set up in a special way."""
    sm_count: int = number("SMs", 1, 1024)
    sm_clk_mhz: float = number("MHz", 100, 5000)
    """The highest SM clock that the card reaches under a light load, or the one that it is locked at."""
    mma_clk_share: float = number("1", 0.4, 1, assumed="mma_clk_share")
    """The clock inside MMAs on a quarter of the SMs over `sm_clk_mhz`: how far the supply sags, no power cap
    near; the H200's where it was not measured."""
    dram_bus_bits: int = number("bits", 32, 32768)
    dram_clk_mhz: float = number("MHz", 100, 50000)
    dram_read_gb_per_s: float = number("GB/s", 10, 100000, interval="dram_interval")
    """What all SMs together read of a buffer far larger than L2."""
    dram_latency_ns: float | None = number("ns", 50, 5000, default=None, interval="latency_interval")
    """One bulk load of 128 bytes that no cache holds."""
    flop_per_clk_per_sm: Mapping[str, float] = field(hash=False, metadata={"interval": "tensor_interval"})
    """Dense tensor FLOP by kind of math."""
    cuda_core_fma_per_clk_per_sm: float = number("FMA/clk", 1, 1024)
    warp_instructions_per_clk_per_sm: float = number("1/clk", 1, 16, default=4.0)
    """What the schedulers of an SM start; one for each of its four parts since Volta."""
    fp32_settled_share: float | None = number("1", 0.05, 1, default=None)
    """FMA rate of large fp32 products on CUDA cores under the power cap, over the peak; None: no cap is met."""
    l2_bytes: float = number("bytes", 2**17, 2**34)
    """As the runtime reports it."""
    l2_read_gb_per_s: float = number("GB/s", 100, 200000, interval="l2_interval")
    """What all SMs together read of a quarter of L2 that they share."""
    l2_read_bytes_per_clk_per_sm: float | None = number(
        "bytes/clk", 8, 1024, default=None, interval="sm_interval"
    )
    """What one SM reads from L2 while the others are silent."""
    l2_read_bytes_per_clk_of_eight: float | None = number(
        "bytes/clk", 8, 1024, default=None, interval="sm_interval"
    )
    """What each of eight SMs of one GPC reads from L2 at once; what one alone reads where not known."""
    tensor_load_gain: float = number("1", 1, 2, assumed="tensor_load_gain")
    """What L2, and the way into an SM, deliver to loads by tensor maps over these bulk reads; the H200's where it was
    not measured."""
    l2_write_gb_per_s: float | None = number("GB/s", 100, 200000, default=None)
    """What all SMs together store to L2; None where it was not measured: no bound."""
    l2_write_bytes_per_clk_per_sm: float | None = number(
        "bytes/clk", 4, 1024, default=None, interval="sm_interval"
    )
    """What one SM stores to L2 while the others are silent."""
    smem_fill_bytes_per_clk_per_sm: float | None = number(
        "bytes/clk", 8, 1024, default=None, interval="sm_interval"
    )
    """What arrives in the shared memory of an SM, of its own loads and by multicast; None where that is no
    bound."""
    l2_latency_clk: float | None = number("clk", 50, 5000, default=None, interval="latency_interval")
    """One bulk load of 128 bytes that L2 holds."""
    l2_merging_sms: float = number("SMs", 1, 18, assumed="l2_merging_sms")
    """SMs of a GPC whose equal requests at one time L2 serves as one; the H200's where none were counted."""
    l2_kept_share: float = number("1", 0.05, 1.25, default=0.5)
    """Size of the operands over that of L2 at which half of them are still in L2 at the next launch."""
    l2_kept_order: float = number("1", 1, 64, default=4.0)
    """How steeply that ends: of x times as many bytes 1 / (1 + x^order) are still there."""
    l2_unwritten_share: float = number("1", 0, 1, default=0.0)
    """Share of L2 that may hold outputs not yet in DRAM when a kernel ends; 0 where it was not counted."""
    l2_spilled_share: float = number("1", 0, 2, default=0.0)
    """Spilled registers over L2's size of which half reach DRAM before they are overwritten; 0 where not counted."""
    l2_spilled_order: float = number("1", 1, 64, default=3.0)
    """How steeply that begins: of x times as many bytes 1 - 1 / (1 + x^order) reach DRAM."""
    l2_launch_bytes: float = number("bytes", 0, 1e8, default=0.0)
    """What each launch moves through L2 beside its matrices (code, parameters); 0 where it was not counted."""
    dram_launch_bytes: float = number("bytes", 0, 1e8, default=0.0)
    """What a launch reads from DRAM beside its matrices, unless L2 holds it; 0 where it was not counted."""
    profiler_left_bytes: float = number("bytes", 0, 1e8, default=0.0)
    """What a profiler has written to L2 and not to DRAM before the kernel; 0 where it was not counted."""
    profiler_quiet_tpcs: int = number("TPCs", 0, 100, default=0)
    """TPCs (pairs of SMs) at work up to which the clock stays at its boost while a profiler counts."""
    smem_bytes_per_sm: int = number("bytes", 2**14, 2**22)
    smem_bytes_per_cta: int = number("bytes", 2**14, 2**22)
    smem_bytes_per_clk_per_sm: float = number("bytes/clk", 16, 1024)
    registers_per_sm: int = number("registers", 2**14, 2**20, default=65536)
    registers_per_thread: int = number("registers", 32, 1024, default=255)
    threads_per_sm: int = number("threads", 512, 4096, default=2048)
    ctas_per_sm: int = number("CTAs", 1, 128, default=32)
    tmem_columns: int = number("columns", 0, 4096, default=0)
    """Columns of tensor memory (128 lanes of 4 bytes each); 0 where accumulators live in registers."""
    max_cluster_size: int = number("CTAs", 1, 64, default=1)
    resident_clusters: Mapping[int, int] = field(default_factory=dict, hash=False)
    """How many clusters of a size run at once, where the occupancy query was asked; else whole clusters."""
    tpc_rounds: tuple[tuple[int, ...], ...] = ()
    """GPC of each TPC, in the order in which the launcher gives them CTAs: rounds of TPCs, of which a grid
    fills one SM each, then the other, before it goes on."""
    graph_launch_us: float = number("us", 0.05, 50, assumed="graph_launch_us", interval="launch_interval")
    """From one empty kernel to the next within a CUDA graph; the H200's where it was not measured."""
    small_kernel_us: float | None = number("us", 0.1, 50, default=None)
    """From one kernel that reads and writes 64 KB to the next within a CUDA graph."""
    event_pair_us: float = number("us", 0, 50, assumed="event_pair_us")
    """What a pair of events around an empty kernel reads beyond that; rows that tell what their own host read
    go before it."""
    next_cluster_us: float | None = number("us", 0.01, 20, default=None)
    """From asking for a cluster that waits to be launched to the answer which (cluster launch control); None
    where there is no such query, or where it was not measured: no bound."""
    clock_recovery_us: float | None = number("us", 1, 1e5, default=None)
    """Where the SM clock is locked: how long the supply takes to restore it under load. None: not locked."""
    pj_per_flop: float | None = number("pJ", 0.05, 10, default=None)
    """Energy of a 16-bit FLOP at the boost clock; the calibration's card's where large products do not tell."""
    power_cap_w: float | None = number("W", 10, 5000, default=None)
    idle_power_w: float | None = number("W", 1, 1000, default=None)
    """Clocks up, nothing running; None where it was not measured: `resting_w` then is a share of the cap."""
    validated: bool = False
    """Whether predictions for this GPU were compared with measurements."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    intervals: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Half-width over the number of the interval that holds it nine times in ten, by field; `interval` has
    what is assumed of the others."""
    note: str = ""
    """What is said wherever the card is used; '' where there is nothing to say."""
    file: str = field(default="", compare=False)
    """The user's file that describes it; '' where none does. No key of a description."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"GPU name is {self.name!r}; expected a text")
        require_one_of(
            f"GPU {self.name}: architecture is {self.architecture!r}", self.architecture, ARCHITECTURES
        )
        if not isinstance(self.validated, bool):
            raise InputError(f"GPU {self.name}: validated is {self.validated!r}; expected true or false")
        for name, quantity in QUANTITIES.items():
            quantity.require(f"GPU {self.name}", name, getattr(self, name))
        for kind, rate in self.flop_per_clk_per_sm.items():
            require_one_of(f"GPU {self.name}: flop_per_clk_per_sm.{kind}", kind, MATH_KINDS)
            TENSOR_FLOP.require(f"GPU {self.name}", f"flop_per_clk_per_sm.{kind}", rate)
        self._require_no_narrower_kind_slower()
        for size, clusters in self.resident_clusters.items():
            QUANTITIES["max_cluster_size"].require(f"GPU {self.name}", "a size of resident_clusters", size)
            most = Quantity(unit="clusters", low=1, high=self.sm_count // size, whole=True)
            most.require(f"GPU {self.name}", f"resident_clusters.{size}", clusters)
        if any(gpc < 0 for each in self.tpc_rounds for gpc in each):
            raise InputError(f"GPU {self.name}: tpc_rounds holds a GPC below 0; expected GPC numbers from 0")
        if not all(self.tpc_rounds):
            raise InputError(f"GPU {self.name}: tpc_rounds holds an empty round; expected a GPC for each TPC")
        _require_intervals(self)
        for contradiction in _contradictions(self):
            raise InputError(f"GPU {self.name}: {contradiction}")

    def _require_no_narrower_kind_slower(self) -> None:
        rates = [(kind, self.flop_per_clk_per_sm.get(kind, 0.0)) for kind in NARROWING]
        for (wide, most), (narrow, rate) in combinations(rates, 2):
            if 0 < rate < most:
                raise InputError(
                    f"GPU {self.name}: flop_per_clk_per_sm.{wide} is {most:g}; expected at most that of {narrow}, "
                    f"{rate:g}"
                )

    def interval(self, name: str) -> float:
        """Half-width over the number `name` of the interval that holds it nine times in ten [1].

        None of a measured card's: the bands of its calibrations hold what its numbers are off.
        """
        if self.validated:
            return 0.0
        return float(self.intervals.get(name, getattr(room_numbers("gpu"), ASSUMED_INTERVALS[name])))

    @property
    def words(self) -> str:
        """The card in a sentence that refuses something: its name and the file that describes it."""
        return f"GPU {self.name}" + (f" ({self.file})" if self.file else "")

    @property
    def kernel_architecture(self) -> str:
        """The architecture whose kernels it runs."""
        return KERNELS_OF.get(self.architecture, self.architecture)

    @property
    def resting_w(self) -> float:
        """Board power without work, clocks up [W]; 0 where neither it nor a power cap is known."""
        return self.idle_power_w or room_numbers("gpu").idle_power_share * (self.power_cap_w or 0.0)

    @property
    def dram_bytes_per_us(self) -> float:
        """Peak DRAM bandwidth: bus width x two transfers per memory clock."""
        return self.dram_bus_bits / BITS_PER_BYTE * TRANSFERS_PER_CLK * self.dram_clk_mhz

    @property
    def l2_read_bytes_per_us(self) -> float:
        """L2 bandwidth of the whole GPU; it does not follow the SM clock."""
        return self.l2_read_gb_per_s * 1e3

    @property
    def dram_read_bytes_per_us(self) -> float:
        """DRAM bandwidth of bulk reads."""
        return self.dram_read_gb_per_s * 1e3

    @property
    def dram_gb_per_s(self) -> float:
        return self.dram_bytes_per_us / 1e3

    def multiplies(self, element: DataType) -> bool:
        """Whether it has a rate for products of an element type."""
        missing = element.name == "bf16" and self.architecture in WITHOUT_BF16
        known = element.name in OPERANDS and element.math_kind in self.flop_per_clk_per_sm
        return known and not missing

    def lacking(self, kind: str) -> InputError:
        """The error of a product whose kind of math the GPU lacks."""
        known = ", ".join(self.flop_per_clk_per_sm)
        return InputError(f"{self.words} has no {kind} math; expected one of {known}")

    def flop_per_clk(self, kind: str) -> float:
        """Peak FLOP per clock of one SM for a kind of math; raises InputError where the GPU lacks it."""
        if kind not in self.flop_per_clk_per_sm:
            raise self.lacking(kind)
        return float(self.flop_per_clk_per_sm[kind])

    def flop_per_us(self, kind: str) -> float:
        """Peak FLOP per microsecond of the whole GPU; raises InputError where the GPU lacks the type."""
        return self.flop_per_clk(kind) * self.sm_count * self.sm_clk_mhz

    def known(self, name: str) -> float:
        """The optional number `name`; raises InputError where it is not known of this GPU."""
        value = getattr(self, name)
        if value is None:
            unit = QUANTITIES[name].unit
            raise InputError(f"GPU {self.name}: {name} is not known; expected a number of {unit}")
        return float(value)

    def clusters_at_once(self, ctas_per_cluster: int) -> int:
        """Clusters of this size that are resident together, one CTA per SM.

        The occupancy query's answer where it is known, else whole clusters in the SM count.
        """
        return self.resident_clusters.get(ctas_per_cluster, self.sm_count // ctas_per_cluster)

    @property
    def caveats(self) -> tuple[str, ...]:
        unvalidated = f"GPU {self.name}: not validated against measurements"
        found: tuple[str, ...] = () if self.validated else (unvalidated,)
        if self.clock_recovery_us is not None:
            found += (f"GPU {self.name}: a card whose SM clock is locked at {self.sm_clk_mhz:g} MHz",)
        return (*found, self.note) if self.note else found


QUANTITIES: Mapping[str, Quantity] = {
    spec.name: replace(spec.metadata["quantity"], whole=spec.type == "int", optional="None" in str(spec.type))
    for spec in fields(GpuSpec)
    if "quantity" in spec.metadata
}
"""Every number of a description by its field. Definitions and protocols: `docs/gpus.md`."""
LEFT_OUT = (
    *("dram_latency_ns", "l2_latency_clk", "l2_read_bytes_per_clk_of_eight", "l2_write_gb_per_s"),
    *("l2_unwritten_share", "l2_spilled_share", "l2_launch_bytes", "dram_launch_bytes", "tpc_rounds"),
)
"""Numbers of a card without which the model leaves out what they tell."""
LENT = ("small_kernel_us", "pj_per_flop")
"""Numbers of a card in whose place the calibration's card serves."""
ASSUMED = {spec.name: found for spec in fields(GpuSpec) if (found := spec.metadata.get("assumed"))}
"""Numbers of a card in whose place those of `config/numbers/gpu.yaml` serve, by its field: the H200's."""
ASSUMED_INTERVALS = {spec.name: found for spec in fields(GpuSpec) if (found := spec.metadata.get("interval"))}
"""Which number is the interval of a number of a card that was not measured. That of `flop_per_clk_per_sm` is the
rate's in work: the clock's under MMAs."""


def _require_intervals(gpu: GpuSpec) -> None:
    """Raises InputError for an interval of no number that has one, or that is no share."""
    for name, width in gpu.intervals.items():
        require_one_of(f"GPU {gpu.name}: intervals.{name}", name, ASSUMED_INTERVALS)
        INTERVAL.require(f"GPU {gpu.name}", f"intervals.{name}", width)


def _require_rates_of_sms(gpu: GpuSpec) -> None:
    """Raises InputError where a card is described with more than its SMs give, by number, clock and width.

    A card as described: what a what-if makes of its SMs leaves the rates of its memory as they are.
    """
    for way in ("read", "write"):
        whole, of_sm = f"l2_{way}_gb_per_s", f"l2_{way}_bytes_per_clk_per_sm"
        rate, width = getattr(gpu, whole), of_sm if getattr(gpu, of_sm) else "smem_bytes_per_clk_per_sm"
        most = gpu.sm_count * gpu.sm_clk_mhz * getattr(gpu, width) / 1e3
        if rate is not None and rate > most:
            raise InputError(
                f"GPU {gpu.name}: {whole} is {rate:g}; expected at most {most:.0f}, sm_count x sm_clk_mhz x "
                f"{width}"
            )
    for narrow, wide in (
        ("dram_read_gb_per_s", "l2_read_gb_per_s"),
        ("l2_read_bytes_per_clk_of_eight", "l2_read_bytes_per_clk_per_sm"),
        ("l2_read_bytes_per_clk_per_sm", "smem_bytes_per_clk_per_sm"),
        ("smem_fill_bytes_per_clk_per_sm", "smem_bytes_per_clk_per_sm"),
    ):
        rate, most = getattr(gpu, narrow), getattr(gpu, wide)
        if rate is not None and most is not None and rate > most:
            raise InputError(f"GPU {gpu.name}: {narrow} is {rate:g}; expected at most {wide}, {most:g}")


def _contradictions(gpu: GpuSpec) -> list[str]:
    """What two fields of a description say against each other, as sentences."""
    found = []
    of_cta, of_sm = gpu.smem_bytes_per_cta, gpu.smem_bytes_per_sm
    if of_cta > of_sm:
        found.append(f"smem_bytes_per_cta is {of_cta}; expected at most smem_bytes_per_sm, {of_sm}")
    if (gpu.tmem_columns > 0) != (gpu.architecture in WITH_TENSOR_MEMORY):
        expected = "more than 0" if gpu.tmem_columns == 0 else "0"
        found.append(f"tmem_columns is {gpu.tmem_columns}; expected {expected} on {gpu.architecture}")
    if gpu.max_cluster_size > 1 and gpu.architecture not in WITH_CLUSTERS:
        found.append(f"max_cluster_size is {gpu.max_cluster_size}; expected 1 on {gpu.architecture}")
    if gpu.dram_read_gb_per_s > gpu.dram_gb_per_s:
        found.append(
            f"dram_read_gb_per_s is {gpu.dram_read_gb_per_s:g}; expected at most {gpu.dram_gb_per_s:.0f}, "
            "the bus width times two transfers of dram_clk_mhz"
        )
    sms, tpcs = gpu.sm_count, sum(map(len, gpu.tpc_rounds))
    if (alone := gpu.resident_clusters.get(1, sms)) != sms:
        found.append(f"resident_clusters.1 is {alone}; expected sm_count, {sms}")
    if 0 < 2 * tpcs < sms:
        found.append(f"tpc_rounds holds {tpcs} TPCs of two SMs; expected those of sm_count, {sms}")
    idle_w, cap_w = gpu.idle_power_w, gpu.power_cap_w
    if cap_w is not None and gpu.resting_w >= cap_w:
        found.append(f"idle_power_w is {idle_w:g}; expected less than power_cap_w, {cap_w:g}")
    return found


def gpu_from_mapping(values: Mapping[str, Any], file: str = "") -> GpuSpec:
    """A GpuSpec from plain values (a `config/gpu/*.yaml`); raises InputError for what none can say."""
    where = f"GPU {values.get('name', '<unnamed>')}"
    if "file" in values:
        raise InputError(f"{where}: unknown key 'file'")
    return replace(record_from(GpuSpec, values, where), file=file)


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """The GPU of that name in the package's configuration, in any case, or described by a YAML file.

    `gemm_model.gpus()` lists the names; units stand in the names of the fields. Raises InputError for an
    unknown name, and for a file with a key that is missing, unknown or impossible.

    >>> from gemm_model import load_gpu
    >>> gpu = load_gpu("H200")
    >>> gpu.sm_count, gpu.smem_bytes_per_sm, gpu.architecture
    (132, 233472, 'sm90')
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"gpu is {name_or_path!r}; expected a name or a YAML file")
    values = load_gpu_mapping(name_or_path)
    try:
        gpu = gpu_from_mapping(values, str(name_or_path) if is_yaml_file(name_or_path) else "")
        _require_rates_of_sms(gpu)
        _require_own_names(gpu)
    except InputError as error:
        raise InputError(f"{name_or_path}: {error}") from None
    return gpu


def _require_own_names(gpu: GpuSpec) -> None:
    """Raises InputError where a user's card has the driver's name of one of another architecture, or of two."""
    owners: dict[str, str] = {}
    for name in gpu_names() if gpu.file else ():
        known = load_gpu_mapping(name)
        for alias in set(gpu.device_names).intersection(known.get("device_names", ())):
            owners[name] = alias
            if known["architecture"] != gpu.architecture:
                raise InputError(
                    f"GPU {gpu.name}: device_names holds {alias!r}, which is {name} of {known['architecture']}; "
                    f"expected a card of {gpu.architecture}"
                )
    if len(owners) > 1:
        words = " and ".join(f"{alias!r} of {name}" for name, alias in sorted(owners.items()))
        raise InputError(f"GPU {gpu.name}: device_names holds {words}; expected the names of one card")


@cache
def _described(name: str) -> GpuSpec:
    return load_gpu(name)


def is_as_described(gpu: GpuSpec) -> bool:
    """Whether a GPU has the numbers of the packaged description of its name, or some SMs of that card.

    A name that the package does not describe is its owner's.
    """
    if gpu.name not in gpu_names():
        return True
    known = _described(gpu.name)
    of_sms = ("sm_count", "max_cluster_size", "resident_clusters")
    of_no_rate = ("sources", "device_names", "validated", "note")
    own = replace(gpu, **{name: getattr(known, name) for name in of_sms + of_no_rate})
    return own == known and gpu.sm_count <= known.sm_count


def as_gpu(gpu: GpuSpec | str | Path) -> GpuSpec:
    """The GPU itself, or the one of that name or file. Raises InputError for anything else."""
    if not isinstance(gpu, GpuSpec | str | Path):
        raise InputError(f"gpu is {gpu!r}; expected a GpuSpec, a name or a YAML file")
    return gpu if isinstance(gpu, GpuSpec) else load_gpu(gpu)


def smem_words(gpu: GpuSpec) -> str:
    """A CTA's shared memory in a sentence that refuses a kernel: bytes, key and card."""
    return f"the {gpu.smem_bytes_per_cta} bytes of smem_bytes_per_cta of {gpu.words}"


def gpu_of_device(device_name: str) -> str:
    """Name of the packaged description that lists what the driver calls a card. Raises InputError."""
    for name in gpu_names():
        if device_name in load_gpu(name).device_names:
            return name
    raise InputError(f"no description is of {device_name!r}; expected one of {', '.join(gpu_names())}")


def with_sms(gpu: GpuSpec, sms: int) -> GpuSpec:
    """The GPU as a kernel sees it that may use only `sms` SMs; memory and L2 stay whole.

    A cluster has each CTA on an SM of its own here, so that it has no more CTAs than there are SMs.
    """
    if isinstance(sms, bool) or not isinstance(sms, int) or not 1 <= sms <= gpu.sm_count:
        raise InputError(f"sms is {sms!r}; expected 1 to {gpu.sm_count}, the SMs of {gpu.name}")
    clusters = {size: min(count, sms // size) for size, count in gpu.resident_clusters.items()}
    return replace(
        gpu,
        sm_count=sms,
        max_cluster_size=min(gpu.max_cluster_size, sms),
        resident_clusters={size: count for size, count in clusters.items() if count},
    )


def before_hopper(gpu: GpuSpec, copied_bytes: float = WHOLE_COPY_BYTES) -> GpuSpec:
    """The GPU as kernels for cards before Hopper see it: they multiply by `mma.sync`, slower than the card can, and
    their threads copy operands, so many bytes at once.
    """
    if gpu.kernel_architecture not in WITH_OWN_MMAS:
        return gpu
    numbers = room_numbers("gpu")
    share = min(numbers.mma_sync_flop_per_clk / gpu.flop_per_clk("fp16"), 1.0)
    filled = numbers.copies_per_clk * min(copied_bytes, WHOLE_COPY_BYTES)
    return replace(
        gpu,
        name=f"{gpu.name}_sm80",
        architecture="sm80",
        flop_per_clk_per_sm={kind: rate * share for kind, rate in gpu.flop_per_clk_per_sm.items()},
        smem_fill_bytes_per_clk_per_sm=max(filled, QUANTITIES["smem_fill_bytes_per_clk_per_sm"].low),
        device_names=(),
        max_cluster_size=1,
        tmem_columns=0,
        validated=False,
    )
