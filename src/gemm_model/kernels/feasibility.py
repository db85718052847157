"""What can run: shared memory, registers, tensor memory, clusters, tile shapes. The only source of validity.

`check` says why one configuration cannot run, `feasible_mask` marks the rows of a batch that can. Both go
through the same rules. The rules of the sm90 family are those of QuACK's Hopper GEMM (version 0.6.5), the
rules of sm100 those of the CuTe DSL persistent dense GEMM for Blackwell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from gemm_model.core.batch import BoolArray, GemmBatch, batch_of
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import (
    Values,
    ceil,
    floor,
    maximum,
    minimum,
    negated,
    power_of_two_divisor,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import SCHEDULES, KernelConfig
from gemm_model.core.problem import GemmProblem

COOPERATIVE, PINGPONG, TWO_CTA = range(len(SCHEDULES))

K_BYTES_PER_STAGE = 128.0
"""Bytes of K in one row of a pipeline stage: one 128-byte swizzle atom."""
BARRIER_BYTES = 1024.0
"""Shared memory that the barriers and the tile scheduler take."""
MIN_STAGES = 2
"""A stage is released one k step after it was consumed, so a ring of one would never turn."""
EPILOGUE_BUFFERS = 2.0
WARPGROUP_THREADS = 128.0
TMEM_LANES = 128
SCALE_BLOCK_ROWS = 128.0
"""Rows of an operand whose scale factors lie, are loaded and are kept together."""
SCALE_BYTES_PER_COLUMN = 128.0
"""Scale factors in one column of tensor memory: each quarter of its lanes holds the same."""
REGISTER_BITS = 32
WORKING_REGISTERS = 30.0
"""Registers of an MMA thread beside its accumulators: addresses, descriptors, barrier phases."""
MMA_REGISTERS = 232.0
HEAVY_MMA_REGISTERS = 240.0
"""`setmaxnreg` of an MMA thread with at least 208 accumulators."""
THREE_WARPGROUP_REGISTERS = 160.0
MAX_CLUSTER_DIM = {"sm90": 4, "sm100": 16}
WARP_SPECIALIZED = ("sm90", "sm100", "sm120")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one CTA takes; each field a number or an array."""

    cta_k: Values
    stage_bytes: Values
    """A and B tiles, with their scale factors, of one k step."""
    scale_bytes: Values
    """The scale factors of them."""
    epilogue_bytes: Values
    store_elements: Values
    """Outputs that one store of the epilogue writes."""
    stages: Values
    """Pipeline stages; below MIN_STAGES the kernel does not fit."""
    warpgroups: Values
    """MMA warpgroups that share one tile."""
    columns_split: Values
    """Whether they share its columns, not its rows."""
    accumulator_registers: Values
    """Per MMA thread; slow fp8 accumulation keeps a second set. 0 where they live in tensor memory."""
    slow_sums: Values
    """Whether a second set of registers takes the sums of each k step (slow fp8 accumulation)."""
    spilled_registers: Values
    tmem_columns: Values
    """Tensor-memory columns of one accumulator tile; 0 where there is none."""
    scale_columns: Values
    """Tensor-memory columns of the scale factors of one k step."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Kernels in several tile orders, as columns that broadcast to (tile orders, kernels).

    A formula computes what does not depend on the order once for all orders, and what is alike for all
    kernels, which stays a number, once. The kernels may be those of several problems, one after another's.
    """

    batch: GemmBatch
    orders: int
    resources: Resources
    """Of the kernels: no problem's sizes change them."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.orders, len(self.batch)

    def rows(self) -> GemmBatch:
        """One kernel after another, each in all orders, as columns of equal length."""
        columns = ((spec.name, getattr(self.batch, spec.name)) for spec in fields(self.batch))
        return GemmBatch(
            **{name: np.broadcast_to(values, self.shape).T.reshape(-1) for name, values in columns}
        )


def warpgroups_per_tile(batch: GemmBatch, gpu: GpuSpec) -> Values:
    """MMA warpgroups (128 threads) that share a tile: the kernel's layout of MMA atoms.

    Ping-pong gives each tile to one. Source: QuACK `GemmSm90.__init__`; two elsewhere.
    """
    if gpu.kernel_architecture != "sm90":
        return where(batch.cta_m > 0, 2.0, 2.0)
    rows = minimum(floor(maximum(batch.cta_m, 64.0) / 64.0), 2.0)
    three = (batch.cta_m == 192) & (batch.cta_n <= 128)
    cooperative = where(three, 3.0, where(batch.cta_m > 64, 2.0, rows))
    return where(batch.schedule == PINGPONG, 1.0, cooperative)


def columns_split(batch: GemmBatch, warpgroups: Values) -> Values:
    """Whether the warpgroups of a tile share its columns, not its rows (QuACK `_setup_tiled_mma`)."""
    return (warpgroups > 1) & (((batch.cta_m == 192) & (batch.cta_n > 128)) | (batch.cta_m == 320))


def epilogue_tile_elements(batch: GemmBatch, warpgroups: Values, by_columns: Values) -> Values:
    """Elements of the tile that one epilogue buffer holds (QuACK `_compute_tile_shape_or_override`)."""
    rows_split = (warpgroups > 1) & negated(by_columns)
    divisor = power_of_two_divisor(batch.cta_n)
    narrow = minimum(divisor, 32.0)
    wide = where(batch.out_bits == 8, minimum(divisor, 64.0), narrow)
    tall = where(batch.cta_m == 192, 192.0, 128.0)
    return where(rows_split, tall * narrow, 64.0 * wide)


def resources(batch: GemmBatch, gpu: GpuSpec) -> Resources:
    """Shared memory, stages, registers and tensor memory of each row.

    A requested number of stages or cta_k is taken as it is; otherwise cta_k is 128 bytes, and the stages are
    what shared memory holds after barriers and two epilogue buffers.
    """
    k_bits = maximum(batch.a_bits, batch.b_bits)
    default_k = K_BYTES_PER_STAGE * 8.0 / k_bits
    cta_k = where(batch.cta_k > 0, batch.cta_k, default_k)
    # A pair of CTAs on one MMA keeps half of B in each, but all scales of B.
    b_rows = batch.cta_n * where(batch.schedule == TWO_CTA, 0.5, 1.0)
    scale_bytes = _scale_bytes(batch) * cta_k
    stage_bytes = (batch.cta_m * batch.a_bits + b_rows * batch.b_bits) / 8.0 * cta_k + scale_bytes
    warpgroups = warpgroups_per_tile(batch, gpu)
    by_columns = columns_split(batch, warpgroups)
    buffer = epilogue_tile_elements(batch, warpgroups, by_columns)
    buffers = minimum(batch.cta_m * batch.cta_n / buffer, EPILOGUE_BUFFERS)
    epilogue_bytes = maximum(buffers, 1.0) * buffer * batch.out_bits / 8.0
    free = float(gpu.smem_bytes_per_cta) - BARRIER_BYTES - epilogue_bytes
    stages = where(batch.stages > 0, batch.stages, maximum(floor(free / stage_bytes), 0.0))

    in_tmem = gpu.tmem_columns > 0
    eight_bit = (k_bits == 8) & (batch.math_kind == MATH_KINDS.index("fp8"))
    two_sets = eight_bit & negated(batch.fast_accum)
    tile_registers = where(two_sets, 2.0, 1.0) * batch.cta_m * batch.cta_n / (WARPGROUP_THREADS * warpgroups)
    accumulators = 0.0 * tile_registers if in_tmem else tile_registers
    heavy = where(accumulators >= 208, HEAVY_MMA_REGISTERS, MMA_REGISTERS)
    budget = where(warpgroups == 3, THREE_WARPGROUP_REGISTERS, heavy)
    return Resources(
        cta_k=cta_k,
        stage_bytes=stage_bytes,
        scale_bytes=scale_bytes,
        epilogue_bytes=epilogue_bytes,
        store_elements=buffer,
        stages=stages,
        warpgroups=warpgroups,
        columns_split=by_columns,
        accumulator_registers=accumulators,
        slow_sums=two_sets & (not in_tmem),
        spilled_registers=maximum(accumulators + WORKING_REGISTERS - budget, 0.0),
        tmem_columns=batch.cta_n * (1.0 if in_tmem else 0.0),
        scale_columns=scale_bytes / SCALE_BYTES_PER_COLUMN * (1.0 if in_tmem else 0.0),
    )


def _scale_bytes(batch: GemmBatch) -> Values:
    """Scale factors that one element of K brings to a CTA, in whole blocks of rows."""
    a_rows = ceil(batch.cta_m / SCALE_BLOCK_ROWS) * SCALE_BLOCK_ROWS
    b_rows = ceil(batch.cta_n / SCALE_BLOCK_ROWS) * SCALE_BLOCK_ROWS
    return (a_rows * batch.a_scale_bits + b_rows * batch.b_scale_bits) / 8.0


@dataclass(frozen=True, slots=True)
class _Rule:
    """`broken` marks the rows that break it; `reason` is the sentence for one such row."""

    broken: Callable[[GemmBatch, GpuSpec, Resources], Values]
    reason: Callable[[GemmBatch, GpuSpec, Resources], str]


def _tile(batch: GemmBatch) -> str:
    return f"{batch.cta_m[0]:.0f}x{batch.cta_n[0]:.0f}"


def _cluster(batch: GemmBatch) -> str:
    return f"{batch.cluster_m[0]:.0f}x{batch.cluster_n[0]:.0f}"


def _power_of_two(values: Values) -> Values:
    whole = np.asarray(values, dtype=np.int64)
    return (whole & (whole - 1)) == 0


def _type_missing(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    known = np.array([kind in gpu.flop_per_clk_per_sm for kind in MATH_KINDS])
    return ~known[batch.math_kind]


def _mixed_widths(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    return (batch.a_bits != batch.b_bits) & (gpu.kernel_architecture != "sm100")


def _scales_missing(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    scaled = (batch.a_scale_bits > 0) | (batch.b_scale_bits > 0)
    return scaled & (gpu.kernel_architecture not in ("sm100", "sm120"))


def _not_k_major(batch: GemmBatch, _: GpuSpec, __: Resources) -> Values:
    return (np.minimum(batch.a_bits, batch.b_bits) < 16) & ~(batch.a_k_major & batch.b_k_major)


def _schedule_missing(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    two_cta = (batch.schedule == TWO_CTA) & (gpu.kernel_architecture != "sm100")
    pingpong = (batch.schedule == PINGPONG) & (gpu.kernel_architecture not in ("sm90", "sm120"))
    return two_cta | pingpong


def _cluster_too_large(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    limit = min(gpu.max_cluster_size, MAX_CLUSTER_DIM.get(gpu.kernel_architecture, 1))
    size = batch.cluster_m * batch.cluster_n
    return (size > limit) | ~_power_of_two(batch.cluster_m) | ~_power_of_two(batch.cluster_n)


def _pair_odd(batch: GemmBatch, _: GpuSpec, __: Resources) -> Values:
    return (batch.schedule == TWO_CTA) & (batch.cluster_m % 2 != 0)


def _sm90_tile_wrong(batch: GemmBatch) -> Values:
    """Tile limits of QuACK's `GemmSm90.__init__`."""
    m, n = batch.cta_m, batch.cta_n
    two_columns = np.isin(m, (192, 320))
    widest = np.where(m == 192, 256, 160)
    cooperative = np.where(
        two_columns,
        (n % 32 == 0) & (n <= widest),
        np.isin(m, (64, 128, 256)) & (((n % 16 == 0) & (n <= 256)) | ((n % 32 == 0) & (n <= 512))),
    )
    widest_turn = np.select([m == 64, m == 128], [256, 208], 128)
    pingpong = np.isin(m, (64, 128, 192)) & (n % 16 == 0) & (n <= widest_turn)
    return ~np.where(batch.schedule == PINGPONG, pingpong, cooperative)


def _sm100_tile_wrong(batch: GemmBatch) -> Values:
    """MMA shapes of tcgen05: 64 or 128 rows a CTA, N a multiple of 16 up to 256."""
    two = batch.schedule == TWO_CTA
    rows = np.where(two, np.isin(batch.mma_m, (128, 256)), np.isin(batch.mma_m, (64, 128)))
    return ~(rows & (batch.cta_n % 16 == 0) & (batch.cta_n <= 256) & (batch.cta_n >= 16))


def _tile_wrong(batch: GemmBatch, gpu: GpuSpec, _: Resources) -> Values:
    if gpu.kernel_architecture == "sm90":
        return _sm90_tile_wrong(batch)
    if gpu.kernel_architecture == "sm100":
        return _sm100_tile_wrong(batch)
    return (batch.cta_m % 16 != 0) | (batch.cta_n % 8 != 0) | (batch.cta_m > 256) | (batch.cta_n > 256)


def _mma_k_wrong(batch: GemmBatch, _: GpuSpec, found: Resources) -> Values:
    mma_k = 256.0 / np.maximum(batch.a_bits, batch.b_bits)
    return found.cta_k % mma_k != 0


def _smem_exceeded(_: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    used = BARRIER_BYTES + found.epilogue_bytes + np.maximum(found.stages, MIN_STAGES) * found.stage_bytes
    return used > gpu.smem_bytes_per_cta


def _too_few_stages(_: GemmBatch, __: GpuSpec, found: Resources) -> Values:
    return found.stages < MIN_STAGES


def _spills(_: GemmBatch, __: GpuSpec, found: Resources) -> Values:
    return found.spilled_registers > 0


def _tmem_exceeded(_: GemmBatch, gpu: GpuSpec, found: Resources) -> Values:
    return found.tmem_columns + found.scale_columns > max(gpu.tmem_columns, 0)


def _split_too_deep(batch: GemmBatch, _: GpuSpec, found: Resources) -> Values:
    return batch.split_k > np.maximum(np.ceil(batch.k / found.cta_k), 1)


_RULES = (
    _Rule(
        _type_missing,
        lambda b, g, _: f"GPU {g.name} has no {MATH_KINDS[int(b.math_kind[0])]} math",
    ),
    _Rule(
        _mixed_widths,
        lambda b, g, _: (
            f"operands of {b.a_bits[0]:.0f} and {b.b_bits[0]:.0f} bits; {g.architecture} needs equal widths"
        ),
    ),
    _Rule(
        _scales_missing,
        lambda _, g, __: f"block-scaled types need sm100 or later; {g.name} is {g.architecture}",
    ),
    _Rule(_not_k_major, lambda _, __, ___: "operands of 8 bits or fewer must be K-major"),
    _Rule(
        _schedule_missing,
        lambda b, g, _: f"schedule {SCHEDULES[int(b.schedule[0])]} does not exist on {g.architecture}",
    ),
    _Rule(
        _cluster_too_large,
        lambda b, g, _: (
            f"cluster {_cluster(b)}; expected powers of two with a product of at most "
            f"{min(g.max_cluster_size, MAX_CLUSTER_DIM.get(g.kernel_architecture, 1))} on {g.name}"
        ),
    ),
    _Rule(_pair_odd, lambda b, _, __: f"cluster {_cluster(b)}; a 2-CTA MMA needs an even cluster_m"),
    _Rule(
        _tile_wrong,
        lambda b, g, _: (
            f"tile {_tile(b)} with schedule {SCHEDULES[int(b.schedule[0])]} is not one that the "
            f"{g.architecture} kernels offer"
        ),
    ),
    _Rule(
        _mma_k_wrong, lambda b, _, __: f"cta_k {b.cta_k[0]:.0f} is not a multiple of the MMA instruction's K"
    ),
    _Rule(
        _smem_exceeded,
        lambda b, g, r: (
            f"tile {_tile(b)} needs {r.stage_bytes[0]:.0f} bytes of shared memory a stage and "
            f"{r.epilogue_bytes[0]:.0f} for the epilogue; {g.smem_bytes_per_cta} bytes do not hold "
            f"{max(float(r.stages[0]), MIN_STAGES):.0f} stages"
        ),
    ),
    _Rule(
        _too_few_stages,
        lambda _, __, r: f"{r.stages[0]:.0f} stages; the pipeline needs at least {MIN_STAGES}",
    ),
    _Rule(
        _spills,
        lambda b, _, r: (
            f"tile {_tile(b)} needs {r.accumulator_registers[0]:.0f} accumulator registers a thread and "
            f"would spill {r.spilled_registers[0]:.0f} of them"
        ),
    ),
    _Rule(
        _tmem_exceeded,
        lambda b, g, r: (
            f"tile {_tile(b)} needs {r.tmem_columns[0] + r.scale_columns[0]:.0f} tensor-memory columns; "
            f"{g.name} has {g.tmem_columns}"
        ),
    ),
    _Rule(
        _split_too_deep,
        lambda b, _, r: (
            f"split_k {b.split_k[0]:.0f}; expected at most one for each k step of {r.cta_k[0]:.0f}"
        ),
    ),
)


def first_impossible(batch: GemmBatch, gpu: GpuSpec) -> tuple[int, str] | None:
    """The first row that no kernel of any family could run, and why; None where there is no such row.

    Accumulators must fit an SM's tensor memory, or else its registers; a cluster, the GPU's limit.
    """
    no_room, too_large = impossible(batch, gpu)
    either = no_room | too_large
    if not either.any():
        return None
    row = int(np.argmax(either))
    one = batch[row : row + 1]
    if no_room[row]:
        return row, f"tile {_tile(one)} has more accumulators than an SM of {gpu.name} has room for"
    return row, f"cluster {_cluster(one)}; expected at most {gpu.max_cluster_size} CTAs on {gpu.name}"


def impossible(batch: GemmBatch, gpu: GpuSpec) -> tuple[Values, Values]:
    """Whether a tile has too many accumulators for an SM, and whether a cluster is too large for the GPU."""
    cells = gpu.tmem_columns * TMEM_LANES if gpu.tmem_columns else gpu.registers_per_sm
    no_room = batch.cta_m * batch.cta_n * batch.acc_bits > cells * REGISTER_BITS
    return no_room, batch.cluster_m * batch.cluster_n > gpu.max_cluster_size


def check(problem: GemmProblem, config: KernelConfig, gpu: GpuSpec) -> str | None:
    """None where the kernel can run on the GPU, else one sentence that says why not."""
    batch = batch_of([(problem, config)])
    found = resources(batch, gpu)
    for rule in _RULES:
        if bool(np.any(rule.broken(batch, gpu, found))):
            return rule.reason(batch, gpu, found)
    return None


def feasible_mask(batch: GemmBatch, gpu: GpuSpec) -> BoolArray:
    """Which rows can run on the GPU."""
    found = resources(batch, gpu)
    mask = np.ones(len(batch), dtype=bool)
    for rule in _RULES:
        mask &= ~rule.broken(batch, gpu, found)
    return mask
