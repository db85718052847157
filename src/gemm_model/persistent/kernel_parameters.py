"""The physical parameters of the calibrated kernel model: meaning, unit, bounds and start of each."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter: `source` says where start value and bounds come from."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    meaning: str
    source: str


_ROWS = (
    (
        "launch_us",
        "us",
        4.0,
        0.5,
        12.0,
        "launch, first load and last store of a kernel",
        "grid ramp 1.2 us and DRAM latency",
    ),
    (
        "cluster_launch_us",
        "us",
        0.3,
        0.0,
        2.0,
        "placing clusters of several CTAs, and their barrier at the end",
        "kernels of few k steps, clusters against single CTAs",
    ),
    (
        "mma_efficiency",
        "1",
        0.97,
        0.75,
        1.0,
        "sustained share of the peak MMA rate",
        "WGMMA microbenchmarks: N/2 + 1 clocks",
    ),
    (
        "spill_clk",
        "clk",
        35.0,
        0.0,
        400.0,
        "spilling of one register of one warpgroup at each k step",
        "128x128 ping-pong in fp8: 46 registers, 2030 clocks",
    ),
    (
        "port_bytes_per_clk",
        "B/clk",
        96.0,
        40.0,
        256.0,
        "what one SM takes from L2",
        "64 to 88 B/clk beside what L2 takes itself",
    ),
    (
        "latency_clk",
        "clk",
        365.0,
        100.0,
        4000.0,
        "load latency, hidden by the stages",
        "TMA load from L2 365 clk, from DRAM 703",
    ),
    (
        "l2_efficiency",
        "1",
        1.21,
        0.5,
        3.2,
        "L2 bandwidth of a GEMM over that of bulk reads, of which none merge",
        "counters: GEMMs reach 11.3 TB/s, bulk reads 8.9",
    ),
    (
        "coalescing",
        "1",
        0.9,
        0.0,
        1.0,
        "share of equal requests of SMs of a GPC that merge",
        "pairs of SMs that stream the same bytes: all; L2 counters of kernels: 0.6 to 0.9",
    ),
    (
        "lockstep_loss_per_ms",
        "1/ms",
        1.0,
        0.0,
        20.0,
        "loss of lock-step of tiles that wait for L2, and with it of requests that merge",
        "counters: L2 reads over requests rise from 0.7 in kernels of 50 us to 1.1 in those of 1 ms",
    ),
    ("fill_share", "1", 0.3, 0.0, 2.5, "L2 bandwidth that a byte filled from DRAM takes", "L2 counters"),
    (
        "memory_overlap_loss",
        "1",
        0.1,
        0.0,
        0.5,
        "share of the shorter of L2 and DRAM time that the longer does not hide",
        "kernels bound by both",
    ),
    (
        "read_misalignment",
        "1",
        0.15,
        0.0,
        1.0,
        "cost at L2 of reading rows that start off 64-byte boundaries, for each further piece",
        "K pitches of odd multiples of 16 bytes cost 1.6 times the aligned ones",
    ),
    (
        "write_misalignment",
        "1",
        0.9,
        0.0,
        4.0,
        "the same for writing rows of the output",
        "output pitches of odd multiples of 16 bytes cost 3.7 times the aligned ones",
    ),
    (
        "out_of_range_weight",
        "1",
        2.0,
        0.0,
        8.0,
        "what L2 does in the time in which a row outside the matrix is filled, in rows",
        "decode shapes with all SMs busy: 3.3 ns a row and SM, where L2 serves a row in 1.7",
    ),
    (
        "l2_capacity_share",
        "1",
        0.75,
        0.08,
        1.0,
        "share of L2 that keeps a panel until its reuse",
        "two partitions hold copies",
    ),
    (
        "dram_efficiency",
        "1",
        0.93,
        0.4,
        1.04,
        "DRAM bandwidth of a GEMM over that of bulk reads",
        "copy: 4.3 TB/s, bulk reads: 4.6",
    ),
    (
        "outputs_per_clk",
        "1/clk",
        11.5,
        3.0,
        100.0,
        "rate at which the epilogue converts and stores a tile's outputs",
        "kernels of few k steps",
    ),
    (
        "clock_share",
        "1",
        0.924,
        0.8,
        1.0,
        "in-kernel clock under light load over the boost clock",
        "counters: 1.75-1.80 GHz",
    ),
    ("droop_mma", "1", 0.2, 0.0, 0.6, "loss of clock at the full MMA rate", "counters: 1.4-1.6 GHz"),
    ("droop_l2", "1", 0.12, 0.0, 0.4, "loss of clock at the full L2 rate", "counters"),
    ("droop_dram", "1", 0.17, 0.0, 0.5, "loss of clock at the full DRAM rate", "counters"),
    (
        "droop_free",
        "1",
        0.13,
        0.0,
        0.3,
        "loss of clock that the supply makes up for",
        "counters: no loss up to a third of the MMA rate",
    ),
    (
        "droop_us",
        "us",
        45.0,
        0.0,
        200.0,
        "how long the clock takes to follow the load",
        "counters: 46 us at 0.69 of peak read 1.74 GHz",
    ),
)

PARAMETERS = tuple(
    Parameter(name=name, unit=unit, start=start, low=low, high=high, meaning=meaning, source=source)
    for name, unit, start, low, high, meaning, source in _ROWS
)
"""What a calibration fits, in the order in which a launch meets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameters:
    """Values of `PARAMETERS`, one set for each rate class of operand types."""

    launch_us: float
    cluster_launch_us: float
    mma_efficiency: float
    spill_clk: float
    port_bytes_per_clk: float
    latency_clk: float
    l2_efficiency: float
    coalescing: float
    lockstep_loss_per_ms: float
    fill_share: float
    memory_overlap_loss: float
    read_misalignment: float
    write_misalignment: float
    out_of_range_weight: float
    l2_capacity_share: float
    dram_efficiency: float
    outputs_per_clk: float
    clock_share: float
    droop_mma: float
    droop_l2: float
    droop_dram: float
    droop_free: float
    droop_us: float

    def __post_init__(self) -> None:
        for spec in PARAMETERS:
            value = getattr(self, spec.name)
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not spec.low <= value <= spec.high:
                unit = "" if spec.unit == "1" else f" {spec.unit}"
                raise InputError(
                    f"parameter {spec.name} is {value!r}; expected {spec.low} to {spec.high}{unit}"
                )


def start_values() -> dict[str, float]:
    return {spec.name: spec.start for spec in PARAMETERS}
