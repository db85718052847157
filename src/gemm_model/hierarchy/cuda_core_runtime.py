"""How long a CUDA-core GEMM kernel runs: the busiest unit of an SM, and the waits that CTAs do not hide.

A CTA alternates between keeping the SM's units busy and waiting: for its tile to arrive (one buffer) or at a
barrier (several). The CTAs of an SM share its units. That is a closed queueing network with one station and a
delay, whose throughput mean value analysis gives exactly (Reiser and Lavenberg, J. ACM 27(2), 1980).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError
from gemm_model.hierarchy.blocking import WARP, Blocking
from gemm_model.hierarchy.instructions import LINE_BYTES, work_per_k
from gemm_model.hierarchy.levels import Machine, machine_of

UNITS = ("issue", "smem", "l2", "dram")
LIMITERS = (*UNITS, "latency")
"""Limiters: instruction slots, the L1 / shared-memory SRAM, L2, DRAM, or latency if too few CTAs hide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeParameters:
    """The four numbers from measurements; all others are counted or describe the GPU."""

    issue_efficiency: float
    """Share of the instruction slots that compiled code uses: register banks and dispatch take the rest."""
    load_latency_clk: float
    """Wait for a tile that passes registers: load from L2 or DRAM, store, two barriers."""
    barrier_clk: float
    """Wait for a tile that is already there: one barrier and the first load from shared memory."""
    overlap_exponent: float
    """How well two units work at once: p of the p-norm of their times; infinite is perfectly."""

    def __post_init__(self) -> None:
        ranges = {"issue_efficiency": (0.0, 1.0), "overlap_exponent": (1.0, 1e3)}
        for name in self.__slots__:
            (low, high), value = ranges.get(name, (0.0, 1e6)), getattr(self, name)
            if not isinstance(value, int | float) or value is True or not low <= value <= high or value == 0:
                raise InputError(f"{name} is {value!r}; expected a positive number from {low:g} to {high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A kernel's predicted run."""

    runtime_us: float
    limiter: str
    fraction_of_peak: float
    dram_bytes: float
    l2_bytes: float
    clocks: Mapping[str, float] = field(default_factory=dict)
    """SM clocks that one CTA tile keeps each unit busy, and that it waits; of CUDA cores."""
    busy: float = 0.0
    """Share of the peak at the boost clock that FMAs reach, those of tiles' padding too; of CUDA cores."""


def runtime(
    machine: Machine,
    blocking: Blocking,
    shape: tuple[int, int, int],
    ctas_per_sm: int,
    parameters: RuntimeParameters,
    products: float = 1.0,
) -> Runtime:
    """Runtime of `products` equal GEMMs of `shape` (m, n, k) in one launch, `ctas_per_sm` CTAs on each SM at once.

    Under a power cap the clock falls until the kernel draws what the cap leaves; memory is then faster, counted in
    clocks.
    """
    m, n, k = shape
    tiles = products * ceil(m / blocking.cta_m) * ceil(n / blocking.cta_n)
    # The busiest SM sets the runtime; its tiles run in rounds of as many as it holds.
    most_tiles = ceil(tiles / machine.gpu.sm_count)
    resident = min(ctas_per_sm, most_tiles)
    rounds, left = divmod(most_tiles, resident)
    clocks = tile_clocks(machine, blocking, shape, resident, parameters)
    rate = _throughput_of(clocks, resident, parameters)
    total = rounds * resident / rate
    if left:
        # The last tiles of an SM have fewer others beside them: less latency hides, and fewer warps issue.
        last = tile_clocks(machine, blocking, shape, left, parameters)
        total += left / _throughput_of(last, left, parameters)
    busiest = max(UNITS, key=lambda unit: clocks[unit])
    peak = machine.datapath.fma_per_clk * machine.gpu.sm_count
    found = Runtime(
        runtime_us=total / machine.gpu.sm_clk_mhz,
        limiter=busiest if rate * clocks[busiest] >= room_numbers("hierarchy").busy_share else "latency",
        fraction_of_peak=products * m * n * k / (peak * total),
        busy=tiles * blocking.cta_m * blocking.cta_n * k / (peak * total),
        clocks=clocks,
        dram_bytes=tiles * clocks["dram"] * machine.dram_read_bytes_per_clk,
        l2_bytes=tiles * k * work_per_k(blocking).l2_bytes,
    )
    gpu, low, high = machine.gpu, 0.0, 1.0
    steps = int(room_numbers("hierarchy").clock_steps)
    for _ in range(steps if _drawn_share(gpu, found, 1.0) > 1.0 else 0):
        share = (low + high) / 2.0
        slower = replace(gpu, sm_clk_mhz=gpu.sm_clk_mhz * share, power_cap_w=None)
        again = machine_of(slower, machine.datapath), blocking, shape, ctas_per_sm, parameters, products
        found = runtime(*again)
        found = replace(found, fraction_of_peak=found.fraction_of_peak * share, busy=found.busy * share)
        low, high = (share, high) if _drawn_share(gpu, found, share) < 1.0 else (low, share)
    return found


def _drawn_share(gpu: GpuSpec, found: Runtime, clk_share: float) -> float:
    """Power over what the card's cap leaves beyond rest [1], at `clk_share` of the boost clock; 0 where not known.

    FMAs meet the cap at the rate `fp32_settled_share` over the peak. Their power goes with the rate and the square of
    the voltage, which falls with the clock down to a floor; DRAM's with its rate alone.
    """
    settled, cap_w, numbers = gpu.fp32_settled_share, gpu.power_cap_w, room_numbers("hierarchy")
    if settled is None or cap_w is None:
        return 0.0
    floor = numbers.voltage_floor
    dram_w = numbers.pj_per_dram_byte * found.dram_bytes / found.runtime_us * 1e-6
    voltage = max(clk_share, floor) / max(settled, floor)
    return found.busy / settled * voltage**2 + dram_w / (cap_w - gpu.resting_w)


def _throughput_of(clocks: Mapping[str, float], resident: int, parameters: RuntimeParameters) -> float:
    """CTA tiles per clock: units that work at the same time slow each other down by the p-norm."""
    exponent = parameters.overlap_exponent
    busy = sum(clocks[unit] ** exponent for unit in UNITS) ** (1.0 / exponent)
    return throughput(busy, clocks["latency"], resident)


def tile_clocks(
    machine: Machine,
    blocking: Blocking,
    shape: tuple[int, int, int],
    resident: int,
    parameters: RuntimeParameters,
) -> dict[str, float]:
    """Clocks of each unit for one CTA tile, each alone, and the waits between its slices of k.

    `resident` CTAs share the SM.
    """
    m, n, k = shape
    work = work_per_k(blocking)
    fma_clocks = work.fma_instructions * WARP / machine.datapath.fma_per_clk
    # A scheduler needs several warps to issue every clock, because a warp waits between its instructions.
    most = machine.gpu.warp_instructions_per_clk_per_sm
    slots = min(most, resident * blocking.warps / room_numbers("hierarchy").clocks_between_issues)
    issue_clocks = work.instructions / slots / parameters.issue_efficiency
    # The SM's ingress and its share of L2 both bound the loads.
    l2, smem_bytes_per_clk = machine.level("l2"), machine.gpu.smem_bytes_per_clk_per_sm
    l2_rates = [rate for rate in (l2.bytes_per_clk, l2.port_bytes_per_clk) if rate is not None]
    # Tiles that run at once lie along n: together they read some rows of A, and of B at most all of it.
    at_once = resident * machine.gpu.sm_count
    columns = min(ceil(n / blocking.cta_n), at_once)
    rows = min(ceil(m / blocking.cta_m), ceil(at_once / columns))
    # L2 serves panels that tiles share, so DRAM delivers each row of A and column of B once for all of them.
    dram_bytes = work.l2_bytes / (blocking.cta_m + blocking.cta_n)
    dram_bytes *= (rows * blocking.cta_m + columns * blocking.cta_n) / (rows * columns)
    outputs_bytes = blocking.cta_m * blocking.cta_n * machine.datapath.acc_bytes
    slices = ceil(k / blocking.cta_k)
    if blocking.stages == 0:
        wait = 0.0
    else:
        # With one buffer each slice waits for its load; with several only for a barrier.
        wait = slices * (parameters.load_latency_clk if blocking.stages == 1 else parameters.barrier_clk)
    return {
        "issue": k * max(fma_clocks, issue_clocks),
        "smem": k * work.wavefronts * LINE_BYTES / smem_bytes_per_clk,
        "l2": k * work.l2_bytes / min(l2_rates) if l2_rates else 0.0,
        "dram": (k * dram_bytes + outputs_bytes) / machine.dram_read_bytes_per_clk,
        "latency": wait + parameters.load_latency_clk,
    }


def throughput(busy: float, wait: float, customers: int) -> float:
    """CTA tiles per clock of an SM that holds `customers` of them (mean value analysis, one station).

    An arriving tile finds on average the queue of a network with one customer less.
    """
    queue = rate = 0.0
    for count in range(1, customers + 1):
        response = busy * (1.0 + queue)
        rate = count / (wait + response)
        queue = rate * response
    return rate
