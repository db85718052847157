"""Throughput matching: bytes that each stage delivers to the datapath, over those that it demands.

Bandwidth amplification is how many times each byte that a level delivers is used below it. Its formulas hold for
an output-stationary tile of m x n outputs: each step of k brings m elements of A and n of B, and every one of its
m n FMAs takes one of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt

from gemm_model.errors import require_one_of
from gemm_model.hierarchy.blocking import OPERANDS_FROM_SMEM, WARP, Blocking
from gemm_model.hierarchy.instructions import LINE_BYTES, operand_wavefronts, work_per_k
from gemm_model.hierarchy.levels import Machine

OUTPUT_MODES = ("ignored", "once", "each_slice")
"""Traffic of C: ignored (the text's assumption), written once, or partial sums written and read again after
each slice of k (no output-stationary dataflow)."""


def tiling(m: float, n: float, a_bytes: float, b_bytes: float) -> float:
    """Bytes that the FMAs of a tile take over bytes that the tile loads: m n (a + b) / (m a + n b).

    A square tile of side s amplifies by s, whatever the widths; a single output by 1.
    """
    return m * n * (a_bytes + b_bytes) / (m * a_bytes + n * b_bytes)


def multicast(
    m: float, n: float, sharers_m: float, sharers_n: float, a_bytes: float, b_bytes: float
) -> float:
    """Amplification by sharing one read among several tiles of m x n.

    `sharers_m` x `sharers_n` tiles stand together: A's rows are shared along n, B's along m. It is the
    amplification of the whole group's tile over that of one.
    """
    return tiling(m * sharers_m, n * sharers_n, a_bytes, b_bytes) / tiling(m, n, a_bytes, b_bytes)


def output_bytes_per_fma(depth: float, bytes_each_way: float, *, stationary: bool) -> float:
    """Bytes of output that cross a level's boundary for one FMA.

    Output-stationary: each output leaves once, after all `depth` = K products. Otherwise the partial sum is
    read and written again for every slice of `depth` products.
    """
    return bytes_each_way * (1.0 if stationary else 2.0) / depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """CTA tiles that run at once and the depth K, on which reuse in L2 and output traffic depend."""

    rows: int
    columns: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the pipeline DRAM -> L2 -> shared memory -> registers -> datapath.

    Bytes per clock are one SM's. `tiling` and `multicast` multiply; output traffic is subtracted.
    """

    name: str
    bytes_per_clk: float
    tile_m: float
    tile_n: float
    tiling: float
    multicast: float
    amplification: float
    """Operand bytes that the datapath takes for each byte that crosses this stage."""
    demanded_bytes_per_clk: float

    @property
    def tile(self) -> str:
        return f"{self.tile_m:g}x{self.tile_n:g}"

    @property
    def delivered_bytes_per_clk(self) -> float:
        return self.bytes_per_clk * self.amplification

    @property
    def fraction(self) -> float:
        """Share of the datapath's peak that this stage alone allows; above 1 it has headroom."""
        return self.delivered_bytes_per_clk / self.demanded_bytes_per_clk

    @property
    def required(self) -> float:
        """The amplification that this stage needs."""
        return self.demanded_bytes_per_clk / self.bytes_per_clk

    @property
    def enough_bytes_per_clk(self) -> float:
        """The rate at which this stage feeds the datapath with these tiles: dataflow fixed, hardware sought."""
        return self.demanded_bytes_per_clk / self.amplification


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All stages of a blocking on a machine."""

    stages: tuple[Stage, ...]
    caveats: tuple[str, ...] = ()

    @property
    def limiting(self) -> Stage:
        """The stage that allows the least; the outermost among ties."""
        return min(self.stages, key=lambda stage: stage.fraction)

    @property
    def fraction_of_peak(self) -> float:
        return min(1.0, self.limiting.fraction)


def resident_grid(
    machine: Machine, blocking: Blocking, ctas_per_sm: int, shape: tuple[int, int, int]
) -> Grid:
    """The CTA tiles that run at once: as square as the problem's own grid of tiles allows."""
    m, n, k = shape
    rows, columns = ceil(m / blocking.cta_m), ceil(n / blocking.cta_n)
    resident = min(machine.gpu.sm_count * ctas_per_sm, rows * columns)
    side = max(1, isqrt(resident))
    rows_at_once = min(rows, side)
    columns_at_once = min(columns, resident // rows_at_once)
    return Grid(rows=min(rows, resident // columns_at_once), columns=columns_at_once, k=k)


def match(
    machine: Machine,
    blocking: Blocking,
    grid: Grid,
    *,
    reuse_in_l2: bool = True,
    output: str = "ignored",
    out_bytes: float = 4.0,
) -> Matching:
    """Delivered against demanded at each stage.

    With `reuse_in_l2` DRAM feeds L2 and the tiles that run at once share what it brings; without it DRAM
    feeds shared memory directly, which is the text's picture. A level whose rate is unknown is left out and
    named in the caveats. Raises InputError for an unknown output mode.
    """
    require_one_of(f"output is {output!r}", output, OUTPUT_MODES)
    cta = (blocking.cta_m, blocking.cta_n)
    cluster = (blocking.cluster_m, blocking.cluster_n)
    held = (1, 1) if blocking.stages == 0 else cta
    dram = machine.level("dram").bytes_per_clk
    l2 = machine.level("l2")
    below = "l1" if blocking.stages == 0 else "smem"
    steps: list[_Step] = []
    if reuse_in_l2:
        steps.append(_Step("dram -> l2", dram, cta, (grid.rows, grid.columns), blocking.cta_k, grid.k))
        steps.append(_Step("l2 -> all SMs", l2.bytes_per_clk, cta, cluster, blocking.cta_k, grid.k))
        steps.append(_Step("l2 -> one SM", l2.port_bytes_per_clk, cta, (1, 1), blocking.cta_k, grid.k))
    else:
        steps.append(_Step(f"dram -> {below}", dram, held, cluster, blocking.cta_k, grid.k))
    steps.append(_operand_step(machine, blocking))
    caveats = tuple(
        f"GPU {machine.gpu.name}: the rate of {step.name} is not known; left out"
        for step in steps
        if step.bytes_per_clk is None
    )
    known = (step for step in steps if step.bytes_per_clk is not None)
    stages = [_stage(machine, step, output, out_bytes) for step in known]
    stages.append(_datapath_stage(machine, blocking))
    return Matching(stages=tuple(stages), caveats=caveats)


@dataclass(frozen=True, slots=True)
class _Step:
    """A stage before its figures: the tile that reuses, how many share a read, and the depths of k."""

    name: str
    bytes_per_clk: float | None
    tile: tuple[int, int]
    sharers: tuple[int, int]
    slice_depth: int
    """Products that the level below sums before partial sums would return."""
    full_depth: int | None
    """Products of the whole sum; None where the finished outputs do not pass this stage."""
    multicast: float | None = None
    """Bandwidth factor of the loads' width, for stages without `sharers`."""


def _operand_step(machine: Machine, blocking: Blocking) -> _Step:
    """Shared memory feeds threads (CUDA cores), the MMA itself, or a warp's registers (before Hopper).

    On CUDA cores a wavefront of 128 bytes serves a warp's load, half of it, or (unstaged, one line for each
    row) little of it. The factor is the bytes a warp gets for its wavefronts over those without sharing.
    """
    smem = machine.level("smem").bytes_per_clk
    depth = blocking.cta_k
    if blocking.thread_m:
        thread = (blocking.thread_m, blocking.thread_n)
        loaded_bytes = WARP * (thread[0] * machine.datapath.a_bytes + thread[1] * machine.datapath.b_bytes)
        shared = loaded_bytes / (operand_wavefronts(blocking) * LINE_BYTES)
        name = "l1 -> registers" if blocking.stages == 0 else "smem -> registers"
        return _Step(name, smem, thread, (1, 1), 1, None, shared)
    if machine.gpu.kernel_architecture in OPERANDS_FROM_SMEM:
        return _Step("smem -> mma", smem, (blocking.mma_m, blocking.mma_n), (1, 1), depth, None)
    return _Step("smem -> registers", smem, (blocking.warp_m, blocking.warp_n), (1, 1), depth, None)


def _stage(machine: Machine, step: _Step, output: str, out_bytes: float) -> Stage:
    path = machine.datapath
    assert step.bytes_per_clk is not None
    m, n = step.tile
    tiled = tiling(m, n, path.a_bytes, path.b_bytes)
    shared = step.multicast
    if shared is None:
        shared = multicast(m, n, *step.sharers, path.a_bytes, path.b_bytes)
    operand_bytes = path.a_bytes + path.b_bytes
    bytes_per_fma = operand_bytes / (tiled * shared)
    if output == "once" and step.full_depth is not None:
        bytes_per_fma += output_bytes_per_fma(step.full_depth, out_bytes, stationary=True)
    elif output == "each_slice":
        bytes_per_fma += output_bytes_per_fma(step.slice_depth, path.acc_bytes, stationary=False)
    return Stage(
        name=step.name,
        bytes_per_clk=step.bytes_per_clk,
        tile_m=float(m * step.sharers[0]),
        tile_n=float(n * step.sharers[1]),
        tiling=tiled,
        multicast=shared,
        amplification=operand_bytes / bytes_per_fma,
        demanded_bytes_per_clk=path.demand_bytes_per_clk,
    )


def _datapath_stage(machine: Machine, blocking: Blocking) -> Stage:
    """Registers to the units: on CUDA cores every FMA takes an instruction slot, and so does all else.

    A slot starts the FMAs of a warp, which take 32 x (a + b) operand bytes; the share of FMAs among the
    instructions is what loads, copies and addresses leave. A tensor-core instruction holds thousands of FMAs.
    """
    path = machine.datapath
    if blocking.thread_m:
        share = work_per_k(blocking).fma_share
        supply = machine.gpu.warp_instructions_per_clk_per_sm * WARP * (path.a_bytes + path.b_bytes)
        name = "instruction slots"
    else:
        share, supply, name = 1.0, path.demand_bytes_per_clk, "registers -> datapath"
    return Stage(
        name=name,
        bytes_per_clk=supply,
        tile_m=float(blocking.thread_m or blocking.mma_m),
        tile_n=float(blocking.thread_n or blocking.mma_n),
        tiling=share,
        multicast=1.0,
        amplification=share,
        demanded_bytes_per_clk=path.demand_bytes_per_clk,
    )
