"""The mechanisms of a kernel's time, and the empirical numbers that each of them owns.

Each mechanism is one record. Each field of it is a number with its unit, start value, bounds, meaning and
source; a calibration holds the values. A mechanism is switched off by its neutral values: what-if questions,
ablation and families without the mechanism use them, so no formula tests whether a mechanism exists.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, get_type_hints

from gemm_model.core.errors import InputError

INFINITE = math.inf
CARD, CARD_AND_TYPE, KERNEL = "card", "card_and_type", "kernel"
"""Scope of a number: the card, whichever kernel runs; the card and the rate class; the kernel's code."""
HARDEST = 16.0
"""Order of a norm that serves as a maximum [1]; 4 % above the maximum of two equal times; chosen."""

TENSOR, SPILLING, EPILOGUE = "TENSOR", "SPILLING", "EPILOGUE"
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


RESOURCES: Mapping[str, Resource] = {
    TENSOR: Resource(
        meaning="tensor cores: MMAs, and the MMA warps' other work at each k tile",
        gpu_rates=("flop_per_clk_per_sm",),
    ),
    SPILLING: Resource(meaning="registers beyond a thread's budget, stored to memory and loaded again"),
    EPILOGUE: Resource(
        meaning="converting, scaling and storing the tiles of one SM",
        gpu_rates=("l2_write_bytes_per_clk_per_sm",),
    ),
    SMEM: Resource(
        meaning="filling the shared memory of one SM", gpu_rates=("smem_fill_bytes_per_clk_per_sm",)
    ),
    SM_INGRESS: Resource(meaning="L2-to-SM bandwidth of one SM", gpu_rates=("l2_read_bytes_per_clk_per_sm",)),
    GPC_INGRESS: Resource(
        meaning="L2-to-SM bandwidth of one GPC", gpu_rates=("l2_read_bytes_per_clk_of_eight",)
    ),
    FILL: Resource(meaning="filling rows of tiles that lie outside the matrix"),
    LATENCY: Resource(
        meaning="load latency that the stages of the ring do not hide",
        gpu_times=("dram_latency_ns", "l2_latency_clk"),
    ),
    L2: Resource(meaning="L2 bandwidth of the device", gpu_rates=("l2_read_gb_per_s",)),
    DRAM: Resource(
        meaning="DRAM bandwidth, and L2 writes of the bytes that DRAM delivers or receives",
        gpu_rates=("dram_read_gb_per_s", "dram_clk_mhz", "l2_write_gb_per_s"),
    ),
    LAUNCH: Resource(
        meaning="launch, descriptors, first load, last store",
        gpu_times=("graph_launch_us", "event_pair_us", "next_cluster_us"),
    ),
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


def number(
    unit: str,
    start: float,
    bounds: tuple[float, float],
    meaning: str,
    source: str,
    *,
    neutral: float | None = None,
    fitted: bool = False,
    of: str = KERNEL,
    resource: str | None = None,
) -> Any:
    """A field of a mechanism's record; `resource` defaults to that of the record."""
    low, high = bounds
    return field(
        metadata={
            "number": {
                "unit": unit,
                "start": start,
                "low": low,
                "high": high,
                "neutral": neutral,
                "fitted": fitted,
                "of": of,
                "meaning": meaning,
                "source": source,
                "resource": resource,
            }
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch of a kernel: its grid, its clusters, its first load and its last store."""

    resource: ClassVar[str] = LAUNCH

    kernel_us: float = number(
        "us",
        4.0,
        (0.5, 12.0),
        "launch, first load and last store of a kernel that starts on an idle GPU",
        "grid ramp 1.2 us and DRAM latency",
        neutral=0.0,
        fitted=True,
    )
    full_grid_us: float = number(
        "us",
        0.35,
        (0.0, 2.0),
        "time to launch a grid that fills the GPU, beyond that of a single CTA",
        "kernels of one wave on 1 to 132 SMs (h200 wide)",
        neutral=0.0,
        of=CARD,
    )
    events_us: float = number(
        "us",
        1.5,
        (0.0, 5.0),
        "overhead of an event pair around an empty kernel that kernel_us includes",
        "bursts on hosts that read 4.15 us lie 2.15 us above counters of the same rows (h200)",
        of=CARD,
    )
    clusters_us: float = number(
        "us",
        0.3,
        (0.0, 2.0),
        "time to launch clusters of several CTAs, with their final barrier, beyond that of single CTAs",
        "kernels of few k tiles, clusters against single CTAs",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescriptors:
    """Tensor descriptors that the kernel makes on the device before its first load."""

    resource: ClassVar[str] = LAUNCH

    start_us: float = number(
        "us",
        2.5,
        (0.0, 10.0),
        "time to make the descriptors of three matrices, beyond a kernel whose host makes them",
        "Triton 3.6: 1.8 to 3.1 us on 132 SMs of an H200 with a cold L2 (h200 triton_start)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLoads:
    """The first loads of a kernel miss in the TLBs and in DRAM's row buffers."""

    resource: ClassVar[str] = LAUNCH

    ramp_us: float = number(
        "us",
        0.95,
        (0.0, 3.0),
        "extra time of the first loads in a kernel of many k tiles",
        "kernels of a single wave (h200 wide)",
        neutral=0.0,
        of=CARD,
    )
    ramp_k_tiles: float = number(
        "k tiles",
        7.0,
        (0.5, 32.0),
        "k tiles after which half of ramp_us has passed",
        "as ramp_us",
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """The MMAs."""

    resource: ClassVar[str] = TENSOR

    efficiency: float = number(
        "1",
        0.97,
        (0.75, 1.0),
        "sustained share of the peak MMA rate",
        "WGMMA microbenchmarks: N/2 + 1 clocks",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )
    issue_clk: float = number(
        "clk",
        14.0,
        (0.0, 100.0),
        "time of a k tile in the MMA warps beside the MMAs: barriers of a stage, and issuing its MMAs",
        "large tiles of long K (h200 burst)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowMma:
    """Operand reads from shared memory bound narrow MMA instructions."""

    resource: ClassVar[str] = TENSOR

    bound_columns: float = number(
        "columns",
        75.0,
        (0.0, 128.0),
        "width of a 64-row MMA below which operand reads bound it, while loads write shared memory",
        "an instruction of 64 x N takes max(N/2, 16 + N/4) clocks; tiles of 32 to 96 columns (h200 wide)",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Slow fp8 accumulation: the sums of each k tile are added to a second set of registers."""

    resource: ClassVar[str] = TENSOR

    adds_per_clk: float = number(
        "1/clk",
        84.0,
        (20.0, 256.0),
        "fp32 additions of one warpgroup a clock, cooperative kernels",
        "e4m3 kernels on few SMs",
        neutral=INFINITE,
    )
    pingpong_adds_per_clk: float = number(
        "1/clk", 62.0, (20.0, 256.0), "adds_per_clk of ping-pong kernels", "as adds_per_clk", neutral=INFINITE
    )
    drain_clk: float = number(
        "clk",
        75.0,
        (0.0, 300.0),
        "emptying the MMA pipe at each k tile",
        "e4m3 tiles of 64 rows and 32 to 192 columns",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """Barrier round trips between producer and consumers of a cluster bound a k tile."""

    resource: ClassVar[str] = TENSOR

    single_clk: float = number(
        "clk",
        147.0,
        (0.0, 600.0),
        "least time of a k tile",
        "tiles of 64x32 on few SMs",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilling:
    """Registers beyond a thread's budget are stored and loaded again at each k tile."""

    resource: ClassVar[str] = SPILLING

    register_clk: float = number(
        "clk",
        23.5,
        (0.0, 100.0),
        "time to store and load one register of one warpgroup at a k tile",
        "e4m3 tile 128x128 in ping-pong: 64 registers, 2030 clocks",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    wait_clk: float = number(
        "clk",
        220.0,
        (0.0, 1000.0),
        "latency of a load of a spilled register that the thread waits for",
        "spilling e4m3 kernels of 1 to 53 waits: between L1 and the 318 of L2",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    sharing: float = number(
        "1",
        0.77,
        (0.0, 1.0),
        "exponent of the number of warpgroups that spill at once: 1 if they take turns, 0 if none waits",
        "spilling e4m3 kernels of one warpgroup and two",
        of=CARD,
    )
    l2_bytes_per_byte: float = number(
        "1",
        2.35,
        (0.0, 8.0),
        "L2 bytes for each spilled byte: a write, which L2 counts one and a half times, and a read",
        "spilling e4m3 kernels on all SMs",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """L2-to-SM bandwidth: A and B tiles on their way into one SM."""

    resource: ClassVar[str] = SM_INGRESS

    efficiency: float = number(
        "1",
        1.1,
        (0.4, 3.0),
        "rate at which one SM reads A and B from L2, over its rate in bulk reads",
        "bulk reads of one SM: 88 B/clk (h200)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCrossing:
    """Rows of 128 bytes that do not start on a cache line take more L2-to-SM bandwidth."""

    resource: ClassVar[str] = SM_INGRESS

    line_cost: float = number(
        "1",
        0.25,
        (0.0, 1.0),
        "extra cost of a row for each additional start offset within a line, over an aligned row",
        "K pitches of multiples of 64, 32 and 16 bytes on few SMs: 0.2, 0.52, 1.5",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KTail:
    """Rows of a tile's last k tile that extend beyond K."""

    resource: ClassVar[str] = SM_INGRESS

    row_clk: float = number(
        "clk",
        3.0,
        (0.0, 20.0),
        "time of each row of the last k tile, whichever CTA of the cluster requests it",
        "K beyond multiples of the k tile by 16 to 112 bytes: 3.0 to 4.2 clk (h200 wide)",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Load latency: the bytes in flight bound the rate of loads from DRAM (Little's law)."""

    resource: ClassVar[str] = LATENCY

    load_clk: float = number(
        "clk",
        900.0,
        (100.0, 4000.0),
        "latency of a load from DRAM",
        "bulk loads of 4 to 32 KB from DRAM: 880 to 1260 clk (h200, h100)",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpilogueStores:
    """Conversion and stores of a tile's accumulators."""

    resource: ClassVar[str] = EPILOGUE

    store_bytes_per_clk: float = number(
        "B/clk",
        24.0,
        (8.0, 128.0),
        "rate at which one SM converts and stores a tile's outputs",
        "16-bit and fp32 outputs leave at 23 to 24",
        neutral=INFINITE,
        fitted=True,
    )
    store_clk: float = number(
        "clk",
        50.0,
        (0.0, 400.0),
        "fixed time of each store of a part of the tile",
        "tiles of 208 columns, whose stores are half as large as others'",
        neutral=0.0,
        fitted=True,
    )
    tile_clk: float = number(
        "clk",
        400.0,
        (0.0, 2000.0),
        "fixed time of a tile: its index or the other consumer's signal, first MMAs, draining the last ones",
        "kernels of few k tiles (h200 wide)",
        neutral=0.0,
    )
    apart: float = number(
        "1",
        0.3,
        (0.0, 1.0),
        "hidden share of the shorter of epilogue and next mainloop, as warpgroups of one tile drift apart",
        "cooperative kernels of many tiles (h200 burst)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Bandwidth:
    """L2 bandwidth of the device: requests, fills and writes share it; few SMs do not saturate it."""

    resource: ClassVar[str] = L2

    efficiency: float = number(
        "1",
        1.21,
        (0.5, 3.2),
        "L2 bandwidth of a GEMM over that of bulk reads whose requests do not merge",
        "counters: GEMMs reach 11.3 TB/s, bulk reads 8.9 (h200)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )
    gpc_efficiency: float = number(
        "1",
        1.0,
        (0.5, 1.5),
        "what a GPC takes in for a GEMM over what it does in bulk reads",
        "bulk reads of eight SMs of one GPC, on three cards",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
        resource=GPC_INGRESS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalescing:
    """Equal requests of the SMs of one GPC merge before L2."""

    resource: ClassVar[str] = L2

    share: float = number(
        "1",
        0.9,
        (0.0, 1.0),
        "share of equal requests that merge while tiles are in lock-step",
        "pairs of SMs that stream the same bytes: all; L2 counters of kernels: 0.6 to 0.9",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    loss_per_ms: float = number(
        "1/ms",
        1.0,
        (0.0, 20.0),
        "rate at which tiles that wait for L2 lose lock-step, after which their requests no longer merge",
        "counters: L2 reads over requests rise from 0.7 in kernels of 50 us to 1.1 in those of 1 ms",
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Overlap of resources: their joint time is the norm, of some order, of their times."""

    resource: ClassVar[str] = NO_RESOURCE

    port_l2_order: float = number(
        "1",
        2.0,
        (1.0, 16.0),
        "order for queues in series: an SM's ingress and L2, DRAM and the latency of its loads",
        "26,000 timings fit it better than any sharper order (h200 burst)",
        of=CARD,
        neutral=HARDEST,
    )
    loads_dram_order: float = number(
        "1",
        8.0,
        (1.0, 16.0),
        "order for loads and DRAM, MMAs and their barriers, L2's bandwidth and the rate of few SMs",
        "kernels bound by both",
        of=CARD,
        neutral=HARDEST,
    )
    l2_dram_loss: float = number(
        "1",
        0.1,
        (0.0, 0.5),
        "exposed share of the shorter of L2 and DRAM time",
        "kernels bound by both",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Misalignment:
    """Output rows that do not start on 64-byte boundaries are written to L2 in more pieces."""

    resource: ClassVar[str] = L2

    write_cost: float = number(
        "1",
        0.9,
        (0.0, 4.0),
        "extra cost of writing an output row, for each additional piece",
        "output pitches of odd multiples of 16 bytes cost 3.7 times the aligned ones",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTiles:
    """Out-of-bounds fill: a tile's rows outside the matrix take longer than rows inside."""

    resource: ClassVar[str] = FILL

    row_clk: float = number(
        "clk",
        6.5,
        (0.0, 30.0),
        "time to fill a row of 128 bytes outside the matrix in every SM of the device, at the boost clock",
        "decode shapes with all SMs busy: 3.3 ns a row and SM, with the slower L2 of an H100 too",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    further_sm: float = number(
        "1",
        0.14,
        (0.0, 1.0),
        "fill time that a TPC's second SM adds, over that of the first one; single CTAs with producer warps",
        "decode shapes, alike in 16-bit and e4m3",
        of=CARD,
    )
    further_sm_in_step: float = number(
        "1",
        0.7,
        (0.0, 1.5),
        "fill time that a TPC's second SM adds, over that of the first one; CTAs whose MMA warps load",
        "decode shapes of Triton; boxes that 132 CTAs load in step take twice as long as one k tile apart",
        of=CARD,
    )
    further_sm_of_pairs: float = number(
        "1",
        0.3,
        (0.0, 1.0),
        "fill time that a TPC's second SM adds, over that of the first one; clusters of two (1 in larger ones)",
        "as further_sm",
        of=CARD,
    )
    crowd_ctas: float = number(
        "CTAs",
        32.0,
        (1.0, 132.0),
        "readers of one box without multicast from which on its fill costs in full; in proportion below",
        "boxes of 128 rows, 8 inside: none of the cost up to 4 readers, half at 16, two thirds at 32, all at 132",
        neutral=1.0,
        of=CARD,
    )
    whole_box_cost: float = number(
        "1",
        1.16,
        (0.3, 3.0),
        "time of a box wholly outside, over that of the same rows without multicast",
        "decode shapes in clusters (h200 burst)",
        neutral=1.0,
        of=CARD,
    )
    shared_cost: float = number(
        "1",
        0.6,
        (0.0, 2.0),
        "time of outside rows beside a box wholly outside, or multicast to four CTAs or more, over others",
        "decode shapes in clusters (h200 burst)",
        neutral=1.0,
        of=CARD,
    )
    two_way_cost: float = number(
        "1",
        1.38,
        (0.3, 4.0),
        "time of outside rows in clusters that share both operands, over those in others",
        "clusters of 2x2",
        neutral=1.0,
        of=CARD,
    )
    gpc_share: float = number(
        "1",
        0.41,
        (0.0, 1.0),
        "share of the fill time that clusters of four share with their GPC, not with the whole device",
        "its time steps up from 16 clusters to 17 and from 23 to 24 (h200 burst)",
        neutral=0.0,
        of=CARD,
    )
    two_way_hidden: float = number(
        "1",
        0.63,
        (0.0, 1.0),
        "overlap of fill and loads in such clusters, as a share of half their harmonic mean",
        "clusters of 2x2",
        neutral=0.0,
        of=CARD,
    )
    fixed_rows: float = number(
        "rows of clusters",
        8.0,
        (0.0, 64.0),
        "rows of clusters up to which a resident cluster can stay on its row of the output",
        "decode shapes walked along their rows (h200 burst)",
        neutral=0.0,
        of=CARD,
    )
    out_of_step_rows: float = number(
        "rows",
        90.0,
        (1.0, 1000.0),
        "outside rows of one CTA from which on its requests no longer merge with its neighbours'",
        "m of 1 to 256 on one weight matrix (h200 burst)",
        neutral=INFINITE,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Capacity:
    """L2 capacity that holds panels from one wave to the next."""

    resource: ClassVar[str] = L2

    share: float = number(
        "1",
        0.75,
        (0.08, 1.0),
        "share of L2 that keeps a panel until its reuse",
        "two partitions hold copies",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DramBandwidth:
    """DRAM bandwidth."""

    resource: ClassVar[str] = DRAM

    efficiency: float = number(
        "1",
        0.93,
        (0.4, 1.04),
        "DRAM bandwidth of a GEMM over that of bulk reads",
        "copy: 4.3 TB/s, bulk reads: 4.6 (h200)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The SM clock sags with the current that the kernel draws."""

    resource: ClassVar[str] = CLOCK

    light_share: float = number(
        "1",
        0.924,
        (0.8, 1.0),
        "in-kernel clock under light load, over the boost clock",
        "counters: 1.75-1.80 GHz",
        neutral=1.0,
        fitted=True,
        of=CARD,
    )
    droop_mma: float = number(
        "1",
        2.3,
        (0.0, 6.8),
        "clock lost at the full MMA rate, over that lost with MMAs on a quarter of the SMs",
        "counters: 1.4-1.6 GHz",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    droop_memory: float = number(
        "1",
        1.4,
        (0.0, 5.6),
        "clock lost at the full L2 rate, and at the full DRAM rate, in the same unit",
        "counters",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    droop_us: float = number(
        "us",
        45.0,
        (0.0, 200.0),
        "time constant with which the clock follows the load",
        "counters: 46 us at 0.69 of peak read 1.74 GHz",
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Launches back to back: the kernel before hides most of a launch."""

    resource: ClassVar[str] = LAUNCH

    boundary_us: float = number(
        "us",
        0.6,
        (0.0, 8.0),
        "time from the end of a kernel to the start of the next, with programmatic dependent launch",
        "kernels of 2 to 15 us back to back (h200 graph)",
        neutral=0.0,
        fitted=True,
    )
    cold_us: float = number(
        "us",
        0.3,
        (0.0, 2.0),
        "cold start: first loads from DRAM, which hide the grid's ramp; twice this if DRAM is busy in "
        "kernels and idles between them",
        "kernels of 2 to 200 us back to back (h200 and h100_sxm graph)",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    cooperative_us: float = number(
        "us",
        0.5,
        (0.0, 4.0),
        "extra boundary time if the warpgroups of a CTA share each tile and end it together",
        "kernels of 2 to 40 us back to back (h200 graph)",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    gap_us: float = number(
        "us",
        0.8,
        (0.0, 4.0),
        "extra boundary time without programmatic dependent launch, whatever the schedule: "
        "dispatch, grid ramp, prologue",
        "published: programmatic dependent launch saves 0.5 to 1 us a pair",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power cap: idle power, and the energy of the work at the voltage of the clock."""

    resource: ClassVar[str] = CLOCK

    pj_per_flop: float = number(
        "pJ",
        0.6,
        (0.05, 3.0),
        "energy of a FLOP of the widest type of a rate class at the boost clock",
        "sustained rows",
        neutral=0.0,
        fitted=True,
        of=CARD_AND_TYPE,
    )
    pj_per_l2_byte: float = number(
        "pJ",
        20.0,
        (0.0, 200.0),
        "energy of a byte that SMs request from L2",
        "sustained rows",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    pj_per_dram_byte: float = number(
        "pJ",
        60.0,
        (0.0, 300.0),
        "energy of a byte from or to DRAM",
        "sustained rows",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    voltage_floor: float = number(
        "1",
        0.62,
        (0.3, 1.0),
        "lowest voltage over that at boost: below it, power falls with the clock alone",
        "settled clocks of sustained rows",
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitK:
    """Splits of a tile add their partial sums in turn, through a workspace in L2."""

    resource: ClassVar[str] = EPILOGUE

    second_kernel_us: float = number(
        "us",
        3.4,
        (0.0, 20.0),
        "time of a second small kernel, which clears the tiles' counters first or adds the partial sums last",
        "split against whole kernels (h200 variants)",
        neutral=0.0,
        fitted=True,
        resource=LAUNCH,
    )
    turn_clk: float = number(
        "clk",
        1900.0,
        (0.0, 10000.0),
        "fixed time of one split's turn: wait for the split before, and signal the next",
        "two latencies of L2, a fence and a barrier",
        neutral=0.0,
        fitted=True,
    )
    bytes_per_clk: float = number(
        "B/clk",
        29.0,
        (1.0, 128.0),
        "rate at which one SM adds its partial sums to the workspace",
        "split against whole kernels (h200 variants)",
        neutral=INFINITE,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeWaves:
    """A partial last wave takes the time of a whole tile, however few its tiles are."""

    resource: ClassVar[str] = NO_RESOURCE

    quantized: float = number(
        "1",
        1.0,
        (0.0, 1.0),
        "time of a partial wave: 1 that of a whole tile, 0 in proportion to the number of its tiles",
        "a static schedule: no tile is shared",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFactors:
    """Loads of block-scale factors, in rows of 16 bytes."""

    resource: ClassVar[str] = SM_INGRESS

    row_bytes: float = number(
        "B",
        32.0,
        (16.0, 128.0),
        "L2-to-SM bytes that a row of 16 bytes of scale factors occupies",
        "a sector of L2 is 32 bytes (CUDA C++ Best Practices Guide)",
        neutral=16.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedEpilogue:
    """Work of an epilogue beyond converting and storing the accumulators."""

    resource: ClassVar[str] = EPILOGUE

    tangent_clk: float = number(
        "clk",
        40.0,
        (0.0, 1000.0),
        "time of a thousand hyperbolic tangents on one SM: gelu, tanh",
        "an instruction of the special function units for each: 16 a clock, beside a few others",
        neutral=0.0,
        fitted=True,
    )
    sigmoid_clk: float = number(
        "clk",
        60.0,
        (0.0, 2000.0),
        "time of a thousand sigmoids on one SM: silu",
        "a tangent, or an exponential and a division, which libraries write out",
        neutral=0.0,
        fitted=True,
    )
    gate_clk: float = number(
        "clk",
        20.0,
        (0.0, 400.0),
        "time to multiply gate and up of a thousand accumulators, and to pack the products",
        "a product and a move for two sums: 128 a clock",
        neutral=0.0,
        fitted=True,
    )
    reduction_clk: float = number(
        "clk",
        30.0,
        (0.0, 400.0),
        "time to add a thousand outputs over columns, whose rows several warps hold, on one SM",
        "an addition and a share of a shuffle for each, and a sum through shared memory",
        neutral=0.0,
        fitted=True,
    )
    alone: float = number(
        "1",
        1.5,
        (1.0, 3.0),
        "time of this work if one warpgroup has a tile to itself, over that of two that share it",
        "a warp of a scheduler waits for its own results, while two of them take turns",
        neutral=1.0,
        fitted=True,
    )
    source_bytes_per_clk: float = number(
        "B/clk",
        48.0,
        (2.0, 512.0),
        "rate at which one SM reads an epilogue's other matrices from shared memory and adds them",
        "twice the rate of stores: nothing is converted twice",
        neutral=INFINITE,
        fitted=True,
    )
    source_clk: float = number(
        "clk",
        600.0,
        (0.0, 8000.0),
        "wait for the first part of an epilogue's other matrices, each tile",
        "a latency of DRAM",
        neutral=0.0,
        fitted=True,
    )
    ring_share: float = number(
        "1",
        0.5,
        (0.0, 1.0),
        "share of the loads in flight that the ring has room for during an epilogue; cooperative kernels",
        "all of them where loads set the pace, none where MMAs do and the ring is full",
        neutral=0.0,
        fitted=True,
    )
    vector_clk: float = number(
        "clk",
        900.0,
        (0.0, 4000.0),
        "wait for the part of a bias or another vector that a tile needs",
        "a latency of DRAM, and a barrier",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOutputs:
    """Outputs that an epilogue scales by the largest value of their block."""

    resource: ClassVar[str] = EPILOGUE

    scale_clk: float = number(
        "clk",
        30.0,
        (0.0, 400.0),
        "time to scale a thousand outputs by their largest value, on one SM",
        "a maximum, a product and a share of a shuffle for each: 128 a clock",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Grouped problems: reading the table of groups, and finding the group of each tile."""

    resource: ClassVar[str] = LAUNCH

    start_us: float = number(
        "us",
        0.5,
        (0.0, 20.0),
        "time to read the table of groups before the first tile",
        "a latency of DRAM",
        neutral=0.0,
        fitted=True,
    )
    tile_clk: float = number(
        "clk",
        600.0,
        (0.0, 20000.0),
        "time to find a tile's group and tensor maps, and to store it beside the next group's rows",
        "a latency of L2 that another tile hides in part",
        neutral=0.0,
        fitted=True,
        resource=EPILOGUE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDivision:
    """Division of a silu whose quotient is denormal: accumulators below -87."""

    resource: ClassVar[str] = EPILOGUE

    warp_clk: float = number(
        "clk",
        190.0,
        (0.0, 1000.0),
        "extra time of such a division, for each accumulator of a warp",
        "a call of some 40 instructions, each of which waits for the one before (SASS)",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerStores:
    """Outputs of groups stored through masked pointers in place of a tensor map."""

    resource: ClassVar[str] = EPILOGUE

    output_clk: float = number(
        "clk",
        60.0,
        (0.0, 1000.0),
        "time to store a thousand outputs on one SM, beyond that by TMA",
        "an address, a comparison and a store of its own for each (PTX of Triton's kernels)",
        neutral=0.0,
        fitted=True,
    )
    spill_clk: float = number(
        "clk",
        42.0,
        (0.0, 400.0),
        "time of each register of one warpgroup that addresses displace, stored and loaded once a tile",
        "kernels that spill by the register at each k tile: 41 to 43 (h200)",
        neutral=0.0,
        fitted=True,
    )
    spilled_registers: float = number(
        "registers",
        142.0,
        (0.0, 255.0),
        "registers of a thread that addresses displace if it has more than 64 accumulators",
        "kernels of groups that Triton 3.6 compiled: 255 registers and 142 spilled with 128 accumulators",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareScales:
    """Accumulators of each k tile are multiplied by scale factors as they are added."""

    resource: ClassVar[str] = TENSOR

    latency_clk: float = number(
        "clk",
        320.0,
        (0.0, 2000.0),
        "latency of the next k tile's scale factors from L2",
        "a latency of L2; none where they come with the operands, stages ahead",
        neutral=0.0,
        fitted=True,
    )
    miss_clk: float = number(
        "clk",
        380.0,
        (0.0, 2000.0),
        "extra latency of scale factors from DRAM",
        "a latency of DRAM less that of L2",
        neutral=0.0,
        fitted=True,
    )
    sums_clk: float = number(
        "clk",
        8.0,
        (0.0, 200.0),
        "time to scale a thousand accumulators, beyond adding them",
        "a product for each: 128 a clock",
        neutral=0.0,
        fitted=True,
    )
    columns_clk: float = number(
        "clk",
        20.0,
        (0.0, 400.0),
        "extra time of a thousand accumulators if each column has its own factor",
        "a product for each, and factors that fill registers",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinPhases:
    """Times within phases, for timelines: no runtime depends on these numbers, and no fit moves them.

    They are read off traces of 40 kernels (QuACK on H200s, `data/measurements/h200/traces`) and judged on
    26 others.
    """

    prologue_us: float = number(
        "us",
        0.67,
        (0.0, 3.0),
        "time from the start of a CTA to its first load: barriers, tensor maps",
        "median of the traced kernels without clusters: 0.58 to 0.83",
    )
    cluster_prologue_us: float = number(
        "us",
        0.25,
        (0.0, 2.0),
        "extra prologue of clusters of several CTAs, which wait for each other",
        "0.86 to 1.04 in 14 traced kernels with clusters",
    )
    first_load_us: float = number(
        "us",
        0.63,
        (0.0, 5.0),
        "time from the first load of the last CTA to the first MMAs, beyond a k tile for each SM from L2",
        "medians of the traced kernels by the size of a k tile: 0.55 to 0.6, half the start skew aside",
    )
    own_pages_us: float = number(
        "us",
        0.85,
        (0.0, 5.0),
        "extra first load with one row of tiles, where each SM reads its own pages",
        "1.7 to 2.2 in seven of eight traced kernels of 16 and 64 rows",
    )
    first_turn_us: float = number(
        "us",
        0.19,
        (0.0, 1.0),
        "time from the first load to a ping-pong warpgroup's first wait for data, after it took its turn",
        "0.13 to 0.26 in 14 traced kernels; 0.03 in 20 of 22 cooperative ones that are not split",
    )
    issue_us: float = number(
        "us",
        0.05,
        (0.0, 1.0),
        "time from the arrival of a k tile to the start of its MMAs, while those of the one before run",
        "0.05 to 0.06 in seven of eight traced kernels of narrow tiles that loads bound",
    )
    mean_share: float = number(
        "1",
        0.87,
        (0.2, 1.0),
        "load time of the mean CTA, over that of the slowest one, which ends the wave",
        "0.79 to 0.90 in nine traced kernels that loads bound by a factor of 1.5 or more",
    )
    spilled_wait_us: float = number(
        "us",
        0.03,
        (0.0, 1.0),
        "wait of a warp that spills registers for a k tile that has already arrived",
        "0.03 in four traced kernels of cooperative warpgroups, 0.01 to 0.04 in five of ping-pong ones",
    )
    drain_us: float = number(
        "us",
        0.14,
        (0.0, 1.0),
        "time from the last store of a CTA to its end, for each warpgroup that computes",
        "0.13 to 0.16 with one, 0.26 to 0.32 with two, 0.54 to 0.61 with three",
    )
    alone: float = number(
        "1",
        0.9,
        (0.2, 4.0),
        "epilogue of a tile that one warpgroup stores, over the runtime model's, which includes the drain",
        "0.8 to 1.05 in 12 traced kernels",
    )
    together: float = number(
        "1",
        0.7,
        (0.2, 4.0),
        "epilogue of a tile that several warpgroups store, over the runtime model's",
        "0.62 to 0.8 in 14 traced kernels",
    )
    beside_mmas: float = number(
        "1",
        2.15,
        (1.0, 8.0),
        "epilogue of one ping-pong warpgroup while the other's MMAs run, over the runtime model's",
        "2.05 to 2.25 in four traced kernels",
    )
    spilled: float = number(
        "1",
        1.75,
        (1.0, 8.0),
        "epilogue of warpgroups that spill registers, over the runtime model's; multiplies beside_mmas",
        "1.65 to 1.8 in six traced kernels of one wave, or in their last one",
    )
    spilled_together: float = number(
        "1",
        2.1,
        (1.0, 8.0),
        "epilogue of cooperative warpgroups that spill: one stores while the other's MMAs still run",
        "1.95 to 2.3 in four traced kernels",
    )
    split_turn_us: float = number(
        "us",
        2.0,
        (0.0, 10.0),
        "wait of a split tile's epilogue for each earlier split, to whose sums it adds its own",
        "1.6 to 2.2 in four traced kernels of two and four parts",
    )
    start_share: float = number(
        "1",
        0.5,
        (0.0, 1.0),
        "share of launch.full_grid_us during which CTAs start",
        "chosen: they end one after the other as well; traces of six H200s show 0.1 to 0.25 us of 0.39",
    )


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
        return replace(self, **{name: _switched_off(getattr(self, name)) for name in names})

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
            numbers=_numbers_of(record, f"{name}."),
            resource=record.resource,
        )
        for name, record in records.items()
    )


def _numbers_of(record: Any, prefix: str = "") -> tuple[Number, ...]:
    """The description of each field of a record."""
    found = []
    for spec in fields(record):
        told = dict(spec.metadata["number"])
        own = told.pop("resource")
        resource = getattr(record, "resource", NO_RESOURCE) if own is None else own
        found.append(Number(name=prefix + spec.name, resource=resource, **told))
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


WITHIN_PHASES: Mapping[str, Number] = {spec.name: spec for spec in _numbers_of(WithinPhases)}
"""The numbers of timelines, by name."""


def within_phases(values: Mapping[str, float]) -> WithinPhases:
    """The record from values by name; a missing value takes its start value.

    Raises InputError for a value that is not finite or outside its bounds.
    """
    return WithinPhases(
        **{name: checked(spec, values.get(name, spec.start)) for name, spec in WITHIN_PHASES.items()}
    )


def _switched_off(record: Any) -> Any:
    neutral = {
        spec.name: spec.metadata["number"]["neutral"]
        for spec in fields(record)
        if spec.metadata["number"]["neutral"] is not None
    }
    return replace(record, **neutral)


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
