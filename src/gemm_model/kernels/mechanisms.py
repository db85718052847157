"""The mechanisms of a kernel's time, and the empirical numbers that each of them owns.

One record a mechanism. A field is a number with its unit, start value, bounds, meaning and source; a
calibration holds the values. The neutral values of a mechanism switch it off: what-if questions, ablation and
families that lack it all use them, and no formula asks whether a mechanism is there.
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
"""Whose a number is: the silicon's, whichever kernel runs; the silicon's by rate class; the kernel's code."""
HARDEST = 16.0
"""Order of a norm that is as good as a maximum [1]; 4 % above it where two times are equal; chosen."""

TENSOR, SPILLING, EPILOGUE = "TENSOR", "SPILLING", "EPILOGUE"
SMEM, SM_INGRESS, GPC_INGRESS, FILL = "SMEM", "SM_INGRESS", "GPC_INGRESS", "FILL"
LATENCY, L2, DRAM, LAUNCH = "LATENCY", "L2", "DRAM", "LAUNCH"
CLOCK, NO_RESOURCE = "CLOCK", ""
"""Resources; the clock turns most others, so that it is none of those that a runtime is shared out to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What a kernel waits for, and where its speed stands beside the numbers of its mechanisms."""

    meaning: str
    gpu_rates: tuple[str, ...] = ()
    """Fields of `GpuSpec` that grow with it."""
    gpu_times: tuple[str, ...] = ()
    """Fields of `GpuSpec` that shrink with it."""


RESOURCES: Mapping[str, Resource] = {
    TENSOR: Resource(
        meaning="tensor cores: MMAs, and what the MMA warps do at each k tile besides",
        gpu_rates=("flop_per_clk_per_sm",),
    ),
    SPILLING: Resource(meaning="registers beyond a thread's budget that go to memory and back"),
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
        meaning="DRAM bandwidth, and L2's writes of what comes from there and goes there",
        gpu_rates=("dram_read_gb_per_s", "dram_clk_mhz", "l2_write_gb_per_s"),
    ),
    LAUNCH: Resource(
        meaning="launch, descriptors, first load, last store",
        gpu_times=("graph_launch_us", "event_pair_us", "next_cluster_us"),
    ),
}
"""What a runtime is shared out to (`kernel_model/elasticity.py`), by name."""
TIMES, RATES = ("us", "clk"), ("B/clk", "1/clk")
"""Units of numbers that shrink with a resource, and of those that grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """What is known of one empirical number before it is fitted."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    neutral: float | None
    """The value that switches its mechanism off; None where the others do that alone."""
    fitted: bool
    """Whether a calibration fits it unless told otherwise."""
    of: str
    """Whose it is: CARD, CARD_AND_TYPE or KERNEL."""
    meaning: str
    source: str
    resource: str
    """The resource that it is a time or a rate of; NO_RESOURCE where it is neither."""


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
    """A field of a mechanism's record; its `resource` is the record's own unless told."""
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
    """Launching a kernel: its grid, its clusters, its first load and its last store."""

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
        "launching a grid that fills the GPU, over one of a single CTA",
        "kernels of one wave on 1 to 132 SMs (h200 wide)",
        neutral=0.0,
        of=CARD,
    )
    events_us: float = number(
        "us",
        1.5,
        (0.0, 5.0),
        "of what events read around an empty kernel beyond the kernel, the part that kernel_us holds",
        "bursts on hosts that read 4.15 us lie 2.15 us above counters of the same rows (h200)",
        of=CARD,
    )
    clusters_us: float = number(
        "us",
        0.3,
        (0.0, 2.0),
        "a launch of clusters of several CTAs, and their barrier at the end, over one of single CTAs",
        "kernels of few k tiles, clusters against single CTAs",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescriptors:
    """Tensor descriptors that the kernel itself makes before its first load."""

    resource: ClassVar[str] = LAUNCH

    start_us: float = number(
        "us",
        2.5,
        (0.0, 10.0),
        "making the descriptors of three matrices, over a kernel whose host makes them",
        "Triton 3.6: 1.8 to 3.1 us on 132 SMs of an H200 with a cold L2 (triton_start.csv)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLoads:
    """The first loads of a kernel find no translations and no open pages."""

    resource: ClassVar[str] = LAUNCH

    ramp_us: float = number(
        "us",
        0.95,
        (0.0, 3.0),
        "what they take longer than later loads in a kernel of many k tiles",
        "kernels of a single wave (h200 wide)",
        neutral=0.0,
        of=CARD,
    )
    ramp_k_tiles: float = number(
        "k tiles",
        7.0,
        (0.5, 32.0),
        "k tiles after which half of that is taken",
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
        "of each k tile in the MMA warps beside the MMAs: barriers of a stage and the start of its MMAs",
        "large tiles of long K (h200 burst)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowMma:
    """Reading operands from shared memory bounds narrow MMA instructions."""

    resource: ClassVar[str] = TENSOR

    bound_columns: float = number(
        "columns",
        75.0,
        (0.0, 128.0),
        "columns of an instruction of 64 rows below which its reads bound it, beside the writes of the loads",
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
        "fp32 additions of one warpgroup in a clock, cooperative kernels",
        "e4m3 kernels on few SMs",
        neutral=INFINITE,
    )
    pingpong_adds_per_clk: float = number(
        "1/clk", 62.0, (20.0, 256.0), "the same in ping-pong kernels", "as adds_per_clk", neutral=INFINITE
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
    """Signals between producer and consumers bound a k tile, across the cluster."""

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
    """Registers beyond a thread's budget go to memory and come back at each k tile."""

    resource: ClassVar[str] = SPILLING

    register_clk: float = number(
        "clk",
        23.5,
        (0.0, 100.0),
        "storing and loading one register of one warpgroup at a k tile",
        "e4m3 tile 128x128 in ping-pong: 64 registers, 2030 clocks",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    wait_clk: float = number(
        "clk",
        220.0,
        (0.0, 1000.0),
        "a load of a spilled register that the thread waits for",
        "spilling e4m3 kernels of 1 to 53 waits: between L1 and the 318 of L2",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    sharing: float = number(
        "1",
        0.77,
        (0.0, 1.0),
        "power of the warpgroups that spill at once: 1 where they take turns, 0 where none waits",
        "spilling e4m3 kernels of one warpgroup and two",
        of=CARD,
    )
    l2_bytes_per_byte: float = number(
        "1",
        2.35,
        (0.0, 8.0),
        "work of L2 for a byte that is spilled: it is written, which counts one and a half times, and read",
        "spilling e4m3 kernels on all SMs",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """L2-to-SM bandwidth: bringing A and B tiles into one SM."""

    resource: ClassVar[str] = SM_INGRESS

    efficiency: float = number(
        "1",
        1.1,
        (0.4, 3.0),
        "what one SM takes from L2 over what it takes in bulk reads, beside what L2 takes itself",
        "bulk reads of one SM: 88 B/clk (h200)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCrossing:
    """Rows of 128 bytes whose pitch lets them start off a line cost the port more."""

    resource: ClassVar[str] = SM_INGRESS

    line_cost: float = number(
        "1",
        0.25,
        (0.0, 1.0),
        "cost of a row for each further place in a line where it may start, over an aligned row",
        "K pitches of multiples of 64, 32 and 16 bytes on few SMs: 0.2, 0.52, 1.5",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KTail:
    """Rows of a tile's last k tile that reach beyond K."""

    resource: ClassVar[str] = SM_INGRESS

    row_clk: float = number(
        "clk",
        3.0,
        (0.0, 20.0),
        "each row of the last k tile, whichever CTA of the cluster asks for it",
        "K beyond multiples of the k tile by 16 to 112 bytes: 3.0 to 4.2 clk (h200 wide)",
        neutral=0.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Load latency: what is under way at a time bounds the rate at which loads come from DRAM."""

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
    """Converting a tile's sums and storing them."""

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
        "fixed clocks of each store of a part of the tile",
        "tiles of 208 columns, whose stores are half as large as others'",
        neutral=0.0,
        fitted=True,
    )
    tile_clk: float = number(
        "clk",
        400.0,
        (0.0, 2000.0),
        "fixed clocks of a tile: its number or the other consumer's signal, first MMAs, draining the last",
        "kernels of few k tiles (h200 wide)",
        neutral=0.0,
    )
    apart: float = number(
        "1",
        0.3,
        (0.0, 1.0),
        "share of the shorter of epilogue and next mainloop that warpgroups of a tile hide of each other",
        "cooperative kernels of many tiles (h200 burst)",
        neutral=0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Bandwidth:
    """The device's L2: requests, fills and writes share its bandwidth; few SMs keep their own pace."""

    resource: ClassVar[str] = L2

    efficiency: float = number(
        "1",
        1.21,
        (0.5, 3.2),
        "L2 bandwidth of a GEMM over that of bulk reads, of which none merge",
        "counters: GEMMs reach 11.3 TB/s, bulk reads 8.9 (h200)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
    )
    gpc_efficiency: float = number(
        "1",
        1.3,
        (0.5, 3.0),
        "bandwidth of a GPC's way in for a GEMM over that for bulk reads, of which none merge",
        "kernels on 8 to 64 SMs (h200 wide)",
        neutral=INFINITE,
        fitted=True,
        of=CARD,
        resource=GPC_INGRESS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalescing:
    """Equal requests of SMs of one GPC merge on the way to L2."""

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
        "loss of lock-step of tiles that wait for L2, and with it of requests that merge",
        "counters: L2 reads over requests rise from 0.7 in kernels of 50 us to 1.1 in those of 1 ms",
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Resources hide each other: the norm of an order of their times, sharper for a higher order."""

    resource: ClassVar[str] = NO_RESOURCE

    port_l2_order: float = number(
        "1",
        2.0,
        (1.0, 16.0),
        "order for queues in a row: the port of an SM and L2, DRAM and the latency of its loads",
        "26,000 timings fit it better than any sharper order (h200 burst)",
        of=CARD,
        neutral=HARDEST,
    )
    loads_dram_order: float = number(
        "1",
        8.0,
        (1.0, 16.0),
        "order for loads and DRAM, MMAs and their signals, L2's bandwidth and the pace of few SMs",
        "kernels bound by both",
        of=CARD,
        neutral=HARDEST,
    )
    l2_dram_loss: float = number(
        "1",
        0.1,
        (0.0, 0.5),
        "share of the shorter of L2 and DRAM time that the longer does not hide",
        "kernels bound by both",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Misalignment:
    """Rows of the output that start off 64-byte boundaries fall into more pieces at L2."""

    resource: ClassVar[str] = L2

    write_cost: float = number(
        "1",
        0.9,
        (0.0, 4.0),
        "cost of writing a row of the output, for each further piece",
        "output pitches of odd multiples of 16 bytes cost 3.7 times the aligned ones",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTiles:
    """Out-of-bounds fill: rows of a tile outside the matrix take longer than rows inside."""

    resource: ClassVar[str] = FILL

    row_clk: float = number(
        "clk",
        6.5,
        (0.0, 30.0),
        "filling a row of 128 bytes outside the matrix in every SM of the device, at the boost clock",
        "decode shapes with all SMs busy: 3.3 ns a row and SM, with the slower L2 of an H100 too",
        neutral=0.0,
        fitted=True,
    )
    further_sm: float = number(
        "1",
        0.14,
        (0.0, 1.0),
        "what a second SM of a TPC adds to its time, over the first one: single CTAs",
        "decode shapes, alike in 16-bit and e4m3",
    )
    further_sm_of_pairs: float = number(
        "1",
        0.3,
        (0.0, 1.0),
        "the same in clusters of two (in larger ones it adds as much)",
        "as further_sm",
        of=CARD,
    )
    whole_box_cost: float = number(
        "1",
        1.16,
        (0.3, 3.0),
        "a box wholly outside, over the same rows without multicast",
        "decode shapes in clusters (h200 burst)",
        neutral=1.0,
        of=CARD,
    )
    shared_cost: float = number(
        "1",
        0.6,
        (0.0, 2.0),
        "rows outside that arrive beside a box wholly outside, or at four CTAs or more at once, over others",
        "decode shapes in clusters (h200 burst)",
        neutral=1.0,
        of=CARD,
    )
    two_way_cost: float = number(
        "1",
        1.38,
        (0.3, 4.0),
        "rows outside in clusters that share both operands, over those in others",
        "clusters of 2x2",
        neutral=1.0,
        of=CARD,
    )
    gpc_share: float = number(
        "1",
        0.41,
        (0.0, 1.0),
        "part of the fill's time that clusters of four share with their GPC, not with the whole device",
        "its time steps up from 16 clusters to 17 and from 23 to 24 (h200 burst)",
        neutral=0.0,
        of=CARD,
    )
    two_way_hidden: float = number(
        "1",
        0.63,
        (0.0, 1.0),
        "what the fill and loads hide of each other there, in parts of half their harmonic mean",
        "clusters of 2x2",
        neutral=0.0,
        of=CARD,
    )
    fixed_rows: float = number(
        "rows of clusters",
        8.0,
        (0.0, 64.0),
        "rows of clusters up to which a resident cluster can keep its row of the output",
        "decode shapes walked along their rows (h200 burst)",
        neutral=0.0,
        of=CARD,
    )
    out_of_step_rows: float = number(
        "rows",
        90.0,
        (1.0, 1000.0),
        "rows outside of one CTA from which on no request merges with its neighbours'",
        "m of 1 to 256 on one weight matrix (h200 burst)",
        neutral=INFINITE,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Capacity:
    """What L2 keeps between waves."""

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
    """DRAM."""

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
        "in-kernel clock under light load over the boost clock",
        "counters: 1.75-1.80 GHz",
        neutral=1.0,
        fitted=True,
        of=CARD,
    )
    droop_mma: float = number(
        "1",
        2.3,
        (0.0, 6.8),
        "loss of clock at the full MMA rate, over that of MMAs on a quarter of the SMs",
        "counters: 1.4-1.6 GHz",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    droop_memory: float = number(
        "1",
        1.4,
        (0.0, 5.6),
        "loss of clock at the full L2 rate, and at the full DRAM rate, in the same unit",
        "counters",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    droop_us: float = number(
        "us",
        45.0,
        (0.0, 200.0),
        "how long the clock takes to follow the load",
        "counters: 46 us at 0.69 of peak read 1.74 GHz",
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Launches back to back: most of a launch hides under the kernel before."""

    resource: ClassVar[str] = LAUNCH

    boundary_us: float = number(
        "us",
        0.6,
        (0.0, 8.0),
        "from the end of a kernel to the start of the next, with programmatic dependent launch",
        "kernels of 2 to 15 us back to back (h200 graph)",
        neutral=0.0,
        fitted=True,
    )
    cold_us: float = number(
        "us",
        0.3,
        (0.0, 2.0),
        "a cold start: first loads that come from DRAM, which hide the grid's ramp; twice where DRAM is busy "
        "all the time and idles between kernels",
        "kernels of 2 to 200 us back to back (h200 and h100_sxm graph)",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    cooperative_us: float = number(
        "us",
        0.5,
        (0.0, 4.0),
        "what this takes longer where the warpgroups of a CTA share each tile, and free it together",
        "kernels of 2 to 40 us back to back (h200 graph)",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )
    gap_us: float = number(
        "us",
        0.8,
        (0.0, 4.0),
        "what a launch without programmatic dependent launch takes longer, whatever the schedule: "
        "dispatch, grid ramp, prologue",
        "published: programmatic dependent launch saves 0.5 to 1 us a pair",
        neutral=0.0,
        fitted=True,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """The power cap: the energy of the work at the voltage of its clock, beside the card's idle power."""

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
        "energy of a byte that SMs ask of L2",
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
        "voltage over its boost value towards low clocks: power then falls with the clock alone",
        "settled clocks of sustained rows",
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitK:
    """Splits of a tile add up their partial sums in turn, through a workspace in L2."""

    resource: ClassVar[str] = EPILOGUE

    second_kernel_us: float = number(
        "us",
        3.4,
        (0.0, 20.0),
        "a small kernel beside: it clears the tiles' counters before, or adds up the partial sums behind",
        "split against whole kernels (h200 variants)",
        neutral=0.0,
        fitted=True,
        resource=LAUNCH,
    )
    turn_clk: float = number(
        "clk",
        1900.0,
        (0.0, 10000.0),
        "fixed clocks of one split's turn: waiting for the signal of the split before, and giving it",
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
    """A partial last wave takes as long as its tiles do, however few they are."""

    resource: ClassVar[str] = NO_RESOURCE

    quantized: float = number(
        "1",
        1.0,
        (0.0, 1.0),
        "time of a partial wave over that of its tiles: 1 as each takes it, 0 in proportion to their number",
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
        "bytes that a row of 16 bytes of scale factors takes of the loads' time",
        "a sector of L2 is 32 bytes (CUDA C++ Best Practices Guide)",
        neutral=16.0,
        of=CARD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedEpilogue:
    """What an epilogue does beyond converting and storing the sums."""

    resource: ClassVar[str] = EPILOGUE

    tangent_clk: float = number(
        "clk",
        40.0,
        (0.0, 1000.0),
        "a thousand values of a hyperbolic tangent, one SM: gelu, tanh",
        "an instruction of the special function units for each: 16 a clock, beside a few others",
        neutral=0.0,
        fitted=True,
    )
    sigmoid_clk: float = number(
        "clk",
        60.0,
        (0.0, 2000.0),
        "the same of a sigmoid: silu",
        "a tangent, or an exponential and a division, which libraries write out",
        neutral=0.0,
        fitted=True,
    )
    gate_clk: float = number(
        "clk",
        20.0,
        (0.0, 400.0),
        "multiplying gate and up of a thousand sums, and packing what is left",
        "a product and a move for two sums: 128 a clock",
        neutral=0.0,
        fitted=True,
    )
    reduction_clk: float = number(
        "clk",
        30.0,
        (0.0, 400.0),
        "adding up a thousand outputs over columns, whose rows several warps hold, one SM",
        "an addition and a share of a shuffle for each, and a sum through shared memory",
        neutral=0.0,
        fitted=True,
    )
    alone: float = number(
        "1",
        1.5,
        (1.0, 3.0),
        "what all this takes longer where one warpgroup has a tile to itself",
        "a warp of a scheduler waits for its own results, while two of them take turns",
        neutral=1.0,
        fitted=True,
    )
    source_bytes_per_clk: float = number(
        "B/clk",
        48.0,
        (2.0, 512.0),
        "rate at which one SM takes further matrices from shared memory and adds them",
        "twice the rate of stores: nothing is converted twice",
        neutral=INFINITE,
        fitted=True,
    )
    source_clk: float = number(
        "clk",
        600.0,
        (0.0, 8000.0),
        "waiting for the first part of further matrices, each tile",
        "a latency of DRAM",
        neutral=0.0,
        fitted=True,
    )
    ring_share: float = number(
        "1",
        0.5,
        (0.0, 1.0),
        "share of the loads under way that the ring has room for in an epilogue, of kernels that share tiles",
        "all of them where loads set the pace, none where MMAs do and the ring is full",
        neutral=0.0,
        fitted=True,
    )
    vector_clk: float = number(
        "clk",
        900.0,
        (0.0, 4000.0),
        "waiting for the part of a bias or another vector that a tile needs",
        "a latency of DRAM, and a barrier",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledOutputs:
    """Outputs that an epilogue scales by the largest of their block."""

    resource: ClassVar[str] = EPILOGUE

    scale_clk: float = number(
        "clk",
        30.0,
        (0.0, 400.0),
        "scaling a thousand outputs by their largest, one SM",
        "a maximum, a product and a share of a shuffle for each: 128 a clock",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Tiles of groups: the table of groups, and whose a tile is."""

    resource: ClassVar[str] = LAUNCH

    start_us: float = number(
        "us",
        0.5,
        (0.0, 20.0),
        "reading the table of groups before the first tile",
        "a latency of DRAM",
        neutral=0.0,
        fitted=True,
    )
    tile_clk: float = number(
        "clk",
        600.0,
        (0.0, 20000.0),
        "finding a tile's group, its tensor maps, and storing beside the next group's rows",
        "a latency of L2 that another tile hides in part",
        neutral=0.0,
        fitted=True,
        resource=EPILOGUE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDivision:
    """A silu that divides by numbers so large that the quotient is no normal one: of sums below -87."""

    resource: ClassVar[str] = EPILOGUE

    warp_clk: float = number(
        "clk",
        190.0,
        (0.0, 1000.0),
        "what such a division takes a warp longer, for each of its accumulators",
        "a call of some 40 instructions, each of which waits for the one before (SASS)",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerStores:
    """Outputs of groups that are stored by a pointer for each, masked, in place of a tensor map."""

    resource: ClassVar[str] = EPILOGUE

    output_clk: float = number(
        "clk",
        60.0,
        (0.0, 1000.0),
        "a thousand outputs, one SM, beyond storing them by TMA",
        "an address, a comparison and a store of its own for each (PTX of Triton's kernels)",
        neutral=0.0,
        fitted=True,
    )
    spill_clk: float = number(
        "clk",
        42.0,
        (0.0, 400.0),
        "each register of one warpgroup that addresses push out and that comes back, once a tile",
        "kernels that spill by the register at each k tile: 41 to 43 (h200)",
        neutral=0.0,
        fitted=True,
    )
    spilled_registers: float = number(
        "registers",
        142.0,
        (0.0, 255.0),
        "of a thread that they push out where it has more than 64 accumulators",
        "kernels of groups that Triton 3.6 compiled: 255 registers and 142 spilled with 128 accumulators",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareScales:
    """The sums of each k tile are multiplied by scale factors as they are added up."""

    resource: ClassVar[str] = TENSOR

    latency_clk: float = number(
        "clk",
        320.0,
        (0.0, 2000.0),
        "asking for the scale factors of the next k tile until they arrive out of L2",
        "a latency of L2; none where they come with the operands, stages ahead",
        neutral=0.0,
        fitted=True,
    )
    miss_clk: float = number(
        "clk",
        380.0,
        (0.0, 2000.0),
        "what that takes longer out of DRAM",
        "a latency of DRAM less that of L2",
        neutral=0.0,
        fitted=True,
    )
    sums_clk: float = number(
        "clk",
        8.0,
        (0.0, 200.0),
        "scaling a thousand sums, beyond adding them",
        "a product for each: 128 a clock",
        neutral=0.0,
        fitted=True,
    )
    columns_clk: float = number(
        "clk",
        20.0,
        (0.0, 400.0),
        "what a thousand sums take longer where columns have factors of their own",
        "a product for each, and factors that fill registers",
        neutral=0.0,
        fitted=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinPhases:
    """Where the time of a phase lies, for timelines: no runtime reads these numbers, and no fit moves them.

    Read off the traces of 40 kernels (QuACK on H200s, `data/measurements/h200/traces`), judged on 26 others.
    """

    prologue_us: float = number(
        "us",
        0.67,
        (0.0, 3.0),
        "from the start of a CTA to its first load: barriers, tensor maps",
        "median of the traced kernels without clusters: 0.58 to 0.83",
    )
    cluster_prologue_us: float = number(
        "us",
        0.25,
        (0.0, 2.0),
        "the same of clusters of several CTAs beyond it: they wait for each other",
        "0.86 to 1.04 in 14 traced kernels with clusters",
    )
    first_load_us: float = number(
        "us",
        0.63,
        (0.0, 5.0),
        "from the first load of the last CTA to the first MMAs, beside a k tile for each SM out of L2",
        "medians of the traced kernels by the size of a k tile: 0.55 to 0.6, half the start skew aside",
    )
    own_pages_us: float = number(
        "us",
        0.85,
        (0.0, 5.0),
        "the same beyond it with one row of tiles, of which each SM reads pages of its own",
        "1.7 to 2.2 in seven of eight traced kernels of 16 and 64 rows",
    )
    first_turn_us: float = number(
        "us",
        0.19,
        (0.0, 1.0),
        "from the first load to a ping-pong warpgroup's first wait for data: it asks for its turn before",
        "0.13 to 0.26 in 14 traced kernels; 0.03 in 20 of 22 cooperative ones that are not split",
    )
    issue_us: float = number(
        "us",
        0.05,
        (0.0, 1.0),
        "from the data of a k tile until its MMAs are under way, while those of the one before run",
        "0.05 to 0.06 in seven of eight traced kernels of narrow tiles that loads bound",
    )
    mean_share: float = number(
        "1",
        0.87,
        (0.2, 1.0),
        "loads of the mean CTA, over those of the slowest one, which a wave lasts",
        "0.79 to 0.90 in nine traced kernels that loads bound by a factor of 1.5 or more",
    )
    spilled_wait_us: float = number(
        "us",
        0.03,
        (0.0, 1.0),
        "what a warp that spills registers waits for each k tile, though it is there",
        "0.03 in four traced kernels of cooperative warpgroups, 0.01 to 0.04 in five of ping-pong ones",
    )
    drain_us: float = number(
        "us",
        0.14,
        (0.0, 1.0),
        "from the last store of a CTA to its end, for each warpgroup that computes",
        "0.13 to 0.16 with one, 0.26 to 0.32 with two, 0.54 to 0.61 with three",
    )
    alone: float = number(
        "1",
        0.9,
        (0.2, 4.0),
        "epilogue of a tile that one warpgroup stores, over that of the runtime, which holds the drain",
        "0.8 to 1.05 in 12 traced kernels",
    )
    together: float = number(
        "1",
        0.7,
        (0.2, 4.0),
        "the same of a tile that several warpgroups store",
        "0.62 to 0.8 in 14 traced kernels",
    )
    beside_mmas: float = number(
        "1",
        2.15,
        (1.0, 8.0),
        "epilogue of one ping-pong warpgroup while the other's MMAs run, over that of the runtime",
        "2.05 to 2.25 in four traced kernels",
    )
    spilled: float = number(
        "1",
        1.75,
        (1.0, 8.0),
        "epilogue of warpgroups that spill registers, over that of the runtime; beside MMAs on top",
        "1.65 to 1.8 in six traced kernels of one wave, or in their last one",
    )
    spilled_together: float = number(
        "1",
        2.1,
        (1.0, 8.0),
        "the same of cooperative warpgroups, of which one stores while the other's MMAs still run",
        "1.95 to 2.3 in four traced kernels",
    )
    split_turn_us: float = number(
        "us",
        2.0,
        (0.0, 10.0),
        "what a split tile's epilogue waits for each part before it, whose sums it adds to",
        "1.6 to 2.2 in four traced kernels of two and four parts",
    )
    start_share: float = number(
        "1",
        0.5,
        (0.0, 1.0),
        "of what a full grid adds to a runtime, the part in which its CTAs start",
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
        """The same with some mechanisms switched off."""
        if not names:
            return self
        return replace(self, **{name: _switched_off(getattr(self, name)) for name in names})

    def having(self, values: Mapping[str, float]) -> KernelNumbers:
        """The same with other values of some numbers, by full name; bounds are the caller's care."""
        changed: dict[str, Any] = {}
        for name, value in values.items():
            mechanism, _, rest = name.partition(".")
            record = changed.get(mechanism, getattr(self, mechanism))
            changed[mechanism] = replace(record, **{rest: value})
        return replace(self, **changed)

    def faster(self, resource: str, factor: float) -> KernelNumbers:
        """The same where a resource is so many times as fast: its times are shorter, its rates higher.

        Efficiencies stay: they are shares of rates that stand in the GPU's description.
        """
        values = self.values()
        changed = {}
        for spec in NUMBERS.values():
            if spec.resource == resource:
                by = factor if spec.unit in RATES else 1.0 / factor if spec.unit in TIMES else 1.0
                changed[spec.name] = values[spec.name] * by
        return self.having(changed)

    def at_clock(self, slower: float) -> KernelNumbers:
        """The same where a clock of the SMs lasts `slower` times as long."""
        if slower == 1.0:
            return self
        values = self.values()
        return self.having({name: values[name] * slower for name in LAUNCHING})

    def values(self) -> dict[str, float]:
        """Values by full name, such as 'launch.kernel_us'."""
        return {spec.name: getattr(getattr(self, part), rest) for part, rest, spec in _places()}


LAUNCHING = (
    "launch.kernel_us",
    "launch.full_grid_us",
    "launch.clusters_us",
    "chain.boundary_us",
    "chain.cooperative_us",
    "chain.gap_us",
    "split_k.second_kernel_us",
)
"""Times that pass in clocks of the chip and are told in us at the clock of the card that they were fitted on:
front end, CTAs, barriers, descriptors. First loads that wait for DRAM are not among them."""


KERNEL_MECHANISMS = frozenset(
    {
        *(
            "launch",
            "device_descriptors",
            "first_loads",
            "tensor",
            "promotion",
            "round_trip",
            "spilling",
            "k_tail",
            "latency",
        ),
        *("epilogue", "split_k", "edge_tiles"),
        *("fused_epilogue", "scaled_outputs", "slow_division"),
        *("grouped", "pointer_stores", "software_scales"),
    }
)
"""Mechanisms whose numbers are the kernel's doing: another library's kernels have others on the same card.

Edge tiles are among them: what is filled beside the matrix goes by the boxes of a kernel's TMA loads."""


FUSED_EPILOGUE = "fused_epilogue"
SLOW_DIVISION = "slow_division"
GROUPED = "grouped"
FURTHER_STAGES: Mapping[str, tuple[str, ...]] = {
    FUSED_EPILOGUE: (FUSED_EPILOGUE, "scaled_outputs", SLOW_DIVISION),
    GROUPED: (GROUPED, "pointer_stores"),
    "software_scales": ("software_scales",),
}
"""What goes beyond a plain product, and the mechanisms that its kernels tell of."""
FURTHER_MECHANISMS = tuple(name for found in FURTHER_STAGES.values() for name in found)
"""Mechanisms of what goes beyond a plain product."""
IMPLICIT_GEMM = "implicit_gemm"
"""What has no number of its own: operands that are gathered from images arrive as others do."""
FURTHER_SITUATIONS = (*FURTHER_STAGES, IMPLICIT_GEMM)
"""What has an error band of its own; of two that a kernel has the later one tells its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One mechanism: its name, what it is, its numbers, and the resource that it is a part of."""

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
    """What is known of each field of a record."""
    found = []
    for spec in fields(record):
        told = dict(spec.metadata["number"])
        own = told.pop("resource")
        resource = getattr(record, "resource", NO_RESOURCE) if own is None else own
        found.append(Number(name=prefix + spec.name, resource=resource, **told))
    return tuple(found)


MECHANISMS: tuple[Mechanism, ...] = _mechanisms()
"""All mechanisms, in the order in which a launch meets them."""
MECHANISM_NAMES = tuple(mechanism.name for mechanism in MECHANISMS)
CLOCK_MECHANISMS = tuple(mechanism.name for mechanism in MECHANISMS if mechanism.resource == CLOCK)
"""What lowers the SM clock below that of the GPU's description."""
OF_LIBRARIES = tuple(
    name for name in MECHANISM_NAMES if name not in ("device_descriptors", "pointer_stores", SLOW_DIVISION)
)
"""Mechanisms of kernels whose tensor descriptors the host makes, and whose outputs all leave by TMA."""
NUMBERS: Mapping[str, Number] = {spec.name: spec for mechanism in MECHANISMS for spec in mechanism.numbers}
"""All numbers by their full names."""
SILICON_NUMBERS = tuple(name for name, spec in NUMBERS.items() if spec.of != KERNEL)
"""Numbers of the card, which all families share."""


@cache
def _places() -> tuple[tuple[str, str, Number], ...]:
    return tuple((*name.split("."), spec) for name, spec in NUMBERS.items())  # type: ignore[misc]


WITHIN_PHASES: Mapping[str, Number] = {spec.name: spec for spec in _numbers_of(WithinPhases)}
"""The numbers that timelines read, by name."""


def within_phases(values: Mapping[str, float]) -> WithinPhases:
    """The record from values by name; one that is missing has its start value.

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
    """A value within the bounds of its number; raises InputError for any other."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not spec.low <= value <= spec.high:  # type: ignore[operator]
        unit = "" if spec.unit == "1" else f" {spec.unit}"
        raise InputError(f"number {spec.name} is {value!r}; expected {spec.low:g} to {spec.high:g}{unit}")
    return float(value)  # type: ignore[arg-type]


def start_values() -> dict[str, float]:
    """The start value of each number, by full name."""
    return {name: spec.start for name, spec in NUMBERS.items()}
