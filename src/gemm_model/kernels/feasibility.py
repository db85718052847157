"""Which kernels can run: shared memory, registers, tensor memory, clusters, tile shapes. The one predicate.

`check` explains why a configuration cannot run, `refused` finds the first row of a batch that cannot, and
`feasible_mask` marks the rows worth choosing from. All use the same rules, which read the kernel family
(`kernels.family.ResourceRules`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from gemm_model.config import read_toml
from gemm_model.core.batch import BoolArray, GemmBatch, IntArray, numbers_of
from gemm_model.core.dtypes import MATH_KINDS, kind_said
from gemm_model.core.elementwise import (
    Flags,
    Values,
    any_of,
    ceil,
    floor,
    is_multiple,
    is_number,
    maximum,
    minimum,
    negated,
    one_of,
    scattered,
    where,
)
from gemm_model.core.epilogue import QUANTIZED_COLUMNS
from gemm_model.core.gpu import WITHOUT_BF16, GpuSpec, smem_words
from gemm_model.core.kernel_config import SCHEDULES, TWO_CTA, KernelConfig
from gemm_model.core.kind_columns import bits_of, every_word
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import formula_record, mapped
from gemm_model.errors import RefusedKernelError
from gemm_model.kernels.compiled_code import compiled_code
from gemm_model.kernels.family import KernelFamily, ResourceRules
from gemm_model.kernels.registry import by_family, families, family_of

K_BYTES_PER_STAGE = 128.0
"""Bytes of K in one row of a pipeline stage [B]; k tiles that the family chooses; one 128-byte atom of the
smem swizzle."""
WARPGROUP_THREADS = 128.0
MMA_K_BITS = 256.0
"""Bits of K in one MMA instruction [bit]; all types; PTX ISA, wgmma."""
TMEM_LANES = 128
SCALE_BLOCK_ROWS = 128.0
"""Rows of an operand whose scale factors are loaded and kept together [rows]; block-scaled operands; PTX
ISA."""
SCALE_BYTES_PER_COLUMN = 128.0
"""Bytes of scale factors in a column of tensor memory [B]; sm100, where each quarter of the lanes holds a
copy; PTX ISA."""
REGISTER_BITS = 32

SOURCE_BUFFERS = 4.0
"""Most buffers of an epilogue's source matrix [1]; CUTLASS on Hopper; `sm90_get_tma_dispatch_policy`."""

MMA_ROWS = 64.0
"""Rows of an instruction of a warpgroup [rows]; wgmma m64nNk16 and m64nNk32; PTX ISA."""


@formula_record
class Resources:
    """Resources of one CTA; each field is a number or an array."""

    cta_k: Values
    """Elements of K in one stage of the ring; one load's if a k tile has several loads."""
    b_holders: Values
    """`GemmBatch.b_holders`."""
    clusters_at_once: Values
    """Clusters of its size resident at once on the GPU (at least one)."""
    stage_bytes: Values
    """A and B tiles, with their scale factors, of one k tile."""
    scale_bytes: Values
    """Scale factors of one k tile [bytes]."""
    epilogue_bytes: Values
    store_elements: Values
    """Outputs that one store of the epilogue writes."""
    stages: Values
    """Pipeline stages; below `ResourceRules.fewest_stages` the kernel does not fit."""
    loads_under_way: Values
    """Stages that can have a load in flight (at least one)."""
    math_in_round_trip: Values
    """Share of a k tile's MMAs that a load waits for beside those of held stages [1]."""
    in_step: Values
    """`ResourceRules.in_step`."""
    k_tile_loads: Values
    """`ResourceRules.loads_of_k_tile`."""
    stored_sector_share: Values
    """`ResourceRules.stored_sector_share`."""
    short_ring: Flags
    """Whether a stage's round trip bounds the loads."""
    awaited_math: Values
    """Share of a warpgroup's own MMAs that it waits for before it frees their stage [1]."""
    warpgroups: Values
    """MMA warpgroups that share one tile."""
    mma_columns: Values
    """Columns of a warpgroup's MMA instructions."""
    accumulator_registers: Values
    """Per MMA thread; slow fp8 accumulation keeps a second set. 0 if accumulators live in tensor memory."""
    slow_sums: Flags
    """Whether a second set of registers takes the sums of each k tile (slow fp8 accumulation)."""
    blocks_in_turn: Values
    """Blocks of rows that a warpgroup promotes in turn, each but the last beside the MMAs of the next."""
    split_waits: Values
    """Additional waits for MMAs at each k tile of slow accumulation, if the compiler waits for each MMA."""
    beside_drain_clk: Values
    """Clocks of other instructions while the MMA pipe drains, which such waits do not spend."""
    spilled_registers: Values
    """Registers of an MMA thread beyond its budget."""
    moved_registers: Values
    """Registers that the compiler stores and loads at each k tile, including others that make room."""
    spill_waits: Values
    """Loads of spilled registers that a thread waits for one by one at each k tile."""
    tmem_columns: Values
    """Tensor-memory columns of one accumulator tile; 0 where there is none."""
    scale_columns: Values
    """Tensor-memory columns of the scale factors of one k tile."""


RESOURCES = tuple(spec.name for spec in fields(Resources))


@dataclass(frozen=True, slots=True)
class Grid:
    """Kernels in several tile orders, as columns that broadcast to (tile orders, kernels).

    A formula computes values without a tile order once for all orders, and values common to all kernels,
    which stay numbers, once. The kernels may belong to several problems, one problem after another.
    """

    batch: GemmBatch
    orders: int
    resources: Resources
    """Resources of the kernels, which do not depend on the problem's sizes."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.orders, len(self.batch)

    def of_kernels(self, kernels: IntArray) -> Grid:
        """Some of the kernels, by their positions."""

        def some(values: Any) -> Any:
            return values[kernels] if isinstance(values, np.ndarray) and values.ndim == 1 else values

        batch = self.batch.mapped(lambda _, values: some(values))
        return Grid(batch, self.orders, mapped(self.resources, some))

    def rows(self) -> GemmBatch:
        """One kernel after another, each in all orders, as columns of equal length."""
        return self.batch.mapped(lambda _, values: np.broadcast_to(values, self.shape).T.reshape(-1))


def at_cells(values: Any, orders: Any, kernels: Any) -> Any:
    """What is of some cells of a grid, by their tile orders and kernels; of values in tuples of each."""
    if isinstance(values, tuple):
        return tuple([at_cells(each, orders, kernels) for each in values])
    if not isinstance(values, np.ndarray):
        return values
    return values[kernels] if values.ndim == 1 else values[orders, kernels if values.shape[1] > 1 else 0]


def resources_of(batch: GemmBatch, gpu: GpuSpec, family: KernelFamily) -> Resources:
    """Shared memory, stages, registers and tensor memory of each row of a family's kernels.

    Stages and cta_k are as asked for; else cta_k is 128 bytes, and the stages fill what the epilogue leaves.
    """
    rules, code = family.resources, compiled_code(family.name)
    loads = rules.loads_of_k_tile(batch)
    cta_k = where(batch.cta_k > 0, batch.cta_k / loads, K_BYTES_PER_STAGE * 8.0 / _k_bits(batch))
    scale_bytes = _scale_bytes(batch) * cta_k
    stage_bytes = _row_bytes(batch) * cta_k + scale_bytes
    warpgroups, sector_share = rules.warpgroups(batch), rules.stored_sector_share(batch)
    by_columns = rules.splits_columns(batch, warpgroups)
    mma_columns = rules.mma_columns(batch, by_columns)
    parts = rules.epilogue_tile(batch, (warpgroups > 1) & negated(by_columns))
    epilogue_bytes = _epilogue_bytes(batch, rules, parts, sector_share)
    stages = _stages(batch, gpu, rules, stage_bytes, epilogue_bytes)
    return Resources(
        cta_k=cta_k,
        b_holders=batch.b_holders,
        clusters_at_once=_clusters_at_once(batch.cluster_m * batch.cluster_n, gpu),
        stage_bytes=stage_bytes,
        scale_bytes=scale_bytes,
        epilogue_bytes=epilogue_bytes,
        store_elements=parts[0] * parts[1],
        stages=stages,
        loads_under_way=maximum(stages - rules.held_stages(batch), 1.0),
        math_in_round_trip=_math_in_round_trip(batch, rules, cta_k, warpgroups),
        in_step=rules.in_step(batch),
        k_tile_loads=loads,
        stored_sector_share=sector_share,
        short_ring=rules.short_ring,
        awaited_math=rules.awaited_math(batch),
        warpgroups=warpgroups,
        mma_columns=mma_columns,
        blocks_in_turn=_blocks_in_turn(batch, rules, mma_columns, warpgroups),
        split_waits=where(batch.split_k > 1.0, code.split_waits or 0.0, 0.0),
        beside_drain_clk=code.beside_drain_clk or 0.0,
        **_registers(batch, family, warpgroups, mma_columns),
        **_tensor_memory(batch, family, scale_bytes),
    )


def _k_bits(batch: GemmBatch) -> Values:
    """The wider operand fills the 128 bytes of a row, so its type sets the depth of a k tile."""
    return maximum(batch.a_bits, batch.b_bits)


def _tensor_memory(batch: GemmBatch, family: KernelFamily, scale_bytes: Values) -> dict[str, Any]:
    """Columns of a tile's accumulators and scale factors in tensor memory."""
    used = 1.0 if family.tile_period.in_tensor_memory else 0.0
    return {
        "tmem_columns": batch.cta_n * used,
        "scale_columns": scale_bytes / SCALE_BYTES_PER_COLUMN * used,
    }


def _row_bytes(batch: GemmBatch) -> Values:
    """Bytes of a CTA's A and B for one element of K: of a pair of CTAs on one MMA, each keeps half of B."""
    return (batch.cta_m * batch.a_bits + batch.cta_n / batch.b_holders * batch.b_bits) / 8.0


def _epilogue_bytes(
    batch: GemmBatch, rules: ResourceRules, part: tuple[Values, Values], sector_share: Values
) -> Values:
    """Bytes of the epilogue's shared-memory buffers; each holds `rows` x `columns` outputs of a tile."""
    rows, columns = part
    buffer = rows * columns
    # A small tile has fewer parts than the family has buffers.
    buffers = minimum(batch.cta_m * batch.cta_n / buffer, rules.epilogue_buffers(columns))
    # Stores that bypass shared memory (a share below 1) need no buffers.
    outputs: Values = buffers * buffer * batch.stored_bits / 8.0 * (sector_share >= 1.0)
    sources = _source_buffers(batch, buffer, buffers)
    return maximum(outputs, sources) if rules.outputs_replace_sources else outputs + sources


def _stages(
    batch: GemmBatch, gpu: GpuSpec, rules: ResourceRules, stage_bytes: Values, epilogue_bytes: Values
) -> Values:
    """Stages asked for, or the whole ones that fit into what barriers and epilogue leave."""
    free = float(gpu.smem_bytes_per_cta) - rules.barrier_bytes - epilogue_bytes
    held = maximum(floor(free / (stage_bytes + rules.stage_barrier_bytes)), 0.0)
    return where(batch.stages > 0, batch.stages, minimum(held, rules.most_stages))


def _registers(
    batch: GemmBatch, family: KernelFamily, warpgroups: Values, mma_columns: Values
) -> dict[str, Any]:
    """Accumulators of an MMA thread, and which registers spill."""
    rules, in_tmem = family.resources, family.tile_period.in_tensor_memory
    eight_bit = maximum(batch.a_bits, batch.b_bits) == 8
    two_sets = eight_bit & (batch.math_kind == MATH_KINDS.index("fp8")) & negated(batch.fast_accum)
    two_sets = two_sets | batch.kinds.software_scales
    # Slow fp8 accumulation promotes into a second set of registers as large as the first.
    tile_registers = where(two_sets, 2.0, 1.0) * batch.cta_m * batch.cta_n / (WARPGROUP_THREADS * warpgroups)
    accumulators = 0.0 * tile_registers if in_tmem else tile_registers
    # Addresses, counters and the like take working registers beside the accumulators.
    needed = accumulators + compiled_code(family.name).working_registers
    spilled = maximum(needed - rules.mma_registers(accumulators, warpgroups), 0.0)
    moved, waits = rules.spilled_code(spilled, accumulators, mma_columns, two_sets)
    return {
        "accumulator_registers": accumulators,
        "slow_sums": two_sets & (not in_tmem),
        "spilled_registers": spilled,
        "moved_registers": moved,
        "spill_waits": waits,
    }


def _math_in_round_trip(batch: GemmBatch, rules: ResourceRules, cta_k: Values, warpgroups: Values) -> Values:
    """The family's rule, or the share of MMAs that the tensor cores have not queued when a load is issued."""
    share = rules.math_in_round_trip(batch)
    if (mmas_ahead := rules.mmas_ahead()) == float("inf"):
        return share
    # Each warpgroup issues its own instructions, even if the tile has fewer than 64 rows for it.
    instructions = maximum(batch.cta_m / MMA_ROWS, warpgroups) * (cta_k * _k_bits(batch)) / MMA_K_BITS
    return maximum(share, 1.0 - mmas_ahead / instructions)


def _blocks_in_turn(
    batch: GemmBatch, rules: ResourceRules, mma_columns: Values, warpgroups: Values
) -> Values:
    """Blocks promoted in turn; scaled sums wait for the MMAs of all blocks, so they are one."""
    if not rules.promotes_by_block:
        return 1.0
    blocks = ceil(batch.cta_m * batch.cta_n / (MMA_ROWS * mma_columns * warpgroups))
    return where(batch.kinds.software_scales, 1.0, blocks)


def _clusters_at_once(cluster_size: Values, gpu: GpuSpec) -> Values:
    """Clusters of a size that run at once (at least one)."""
    if is_number(cluster_size):
        return float(max(gpu.clusters_at_once(int(cluster_size)), 1))
    # A cluster may have more CTAs than the GPU has SMs here; a later rule refuses it.
    sizes = np.minimum(cluster_size, gpu.sm_count + 1.0).astype(np.int64)
    table = np.array([1.0, *(max(gpu.clusters_at_once(size), 1) for size in range(1, int(sizes.max()) + 1))])
    return table.take(sizes)


def resources_by_row(batch: GemmBatch, gpu: GpuSpec) -> Resources:
    """Resources of rows from several families, as columns."""
    families, rows = zip(*by_family(batch, gpu), strict=True)
    found = [resources_of(batch[some], gpu, family) for family, some in zip(families, rows, strict=True)]
    columns = {name: [getattr(each, name) for each in found] for name in RESOURCES}
    return Resources(**{name: scattered(rows, parts, len(batch)) for name, parts in columns.items()})


def _source_buffers(batch: GemmBatch, buffer: Values, buffers: Values) -> Values:
    """Bytes of the buffers for an epilogue's source matrix.

    Four buffers if a tile has that many parts: CUTLASS `sm90_get_tma_dispatch_policy` (StagesC); QuACK does
    the same. No buffers if outputs use none either.
    """
    parts = minimum(batch.cta_m * batch.cta_n / buffer, SOURCE_BUFFERS)
    return where(buffers > 0.0, parts * buffer * batch.source_bits / 8.0, 0.0)


def _scale_bytes(batch: GemmBatch) -> Values:
    """Scale bytes for one element of K in a CTA, in whole blocks of rows."""
    a_rows = ceil(batch.cta_m / SCALE_BLOCK_ROWS) * SCALE_BLOCK_ROWS
    b_rows = ceil(batch.cta_n / SCALE_BLOCK_ROWS) * SCALE_BLOCK_ROWS
    return (a_rows * batch.a_scale_bits + b_rows * batch.b_scale_bits) / 8.0


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Rows that are checked, or one of them as numbers."""

    batch: GemmBatch
    gpu: GpuSpec
    family: KernelFamily
    resources: Resources

    @property
    def largest_cluster(self) -> int:
        return min(self.gpu.max_cluster_size, self.family.resources.largest_cluster)

    @property
    def fewest_stages(self) -> float:
        return self.family.resources.fewest_stages


def _words(k: _Kernels) -> dict[str, Any]:
    """What sentences about one row name."""
    batch, family, gpu = k.batch, k.family, k.gpu
    asked = every_word(batch.kinds.asked)
    missing = [word for word in asked if word not in family.knows]
    return {
        "math": kind_said(int(batch.math_kind), max(float(batch.a_bits), float(batch.b_bits))),
        "tile": f"{batch.cta_m:.0f}x{batch.cta_n:.0f}",
        "cluster": f"{batch.cluster_m:.0f}x{batch.cluster_n:.0f}",
        "schedule": SCHEDULES[int(batch.schedule)],
        "schedules": ", ".join(family.space.schedules),
        "sums": " and slow fp8 sums (without fast_accum)" if k.resources.slow_sums else "",
        "smem": smem_words(gpu),
        "ring_stages": max(float(k.resources.stages), k.fewest_stages),
        "columns": float(k.resources.tmem_columns + k.resources.scale_columns),
        "no_room": _no_room(batch, gpu),
        "kernels": f"{family.name} kernels on {gpu.architecture}",
        "unknown_work": unknown_work(missing, family, gpu) if missing else "",
        "quantized_columns": QUANTIZED_COLUMNS,
    }


_Rule = Callable[[_Kernels], Flags]
"""Marks the rows that break it."""
SENTENCES: Mapping[str, str] = read_toml("refusals")
"""Why a rule refuses one row, `k`, in the words of `_words`: by the rule's name."""


def _reason(rule: _Rule, one: _Kernels) -> str:
    return SENTENCES[rule.__name__.lstrip("_")].format(k=one, **_words(one))


@cache
def _missing(names: tuple[str, ...], offered: frozenset[str]) -> tuple[int, ...]:
    """Positions of the names that are not offered."""
    return tuple(code for code, name in enumerate(names) if name not in offered)


def _type_missing(k: _Kernels) -> Flags:
    return one_of(k.batch.math_kind, _missing(MATH_KINDS, frozenset(k.gpu.flop_per_clk_per_sm)))


def _bf16_missing(k: _Kernels) -> Flags:
    return (k.gpu.architecture in WITHOUT_BF16) & k.batch.multiplies_bf16


def _mixed_widths(k: _Kernels) -> Flags:
    # tcgen05.mma kind::f8f6f4.
    mixed: Flags = k.batch.a_bits != k.batch.b_bits
    together = k.family.resources.mixed_widths & (maximum(k.batch.a_bits, k.batch.b_bits) <= 8)
    return mixed & negated(together)


def _scales_missing(k: _Kernels) -> Flags:
    scaled = (k.batch.a_scale_bits > 0) | (k.batch.b_scale_bits > 0)
    scaled = scaled & negated(k.batch.kinds.software_scales)
    return (not k.family.resources.block_scaled) & scaled


def _not_k_major(k: _Kernels) -> Flags:
    narrow = (k.batch.a_bits < 16) | (k.batch.b_bits < 16)
    return narrow & negated(k.batch.a_k_major & k.batch.b_k_major)


def _schedule_missing(k: _Kernels) -> Flags:
    return one_of(k.batch.schedule, _missing(SCHEDULES, frozenset(k.family.space.schedules)))


@cache
def _powers_of_two(largest: int) -> tuple[float, ...]:
    return tuple(2.0**power for power in range(largest.bit_length()))


def _cluster_wrong(k: _Kernels) -> Flags:
    # If the product of two whole numbers is a power of two, both are powers of two.
    return negated(one_of(k.batch.cluster_m * k.batch.cluster_n, _powers_of_two(k.largest_cluster)))


def _pair_odd(k: _Kernels) -> Flags:
    if "2cta" not in k.family.space.schedules:
        return False
    paired: Flags = k.batch.schedule == TWO_CTA
    return paired & negated(is_multiple(k.batch.cluster_m, 2.0))


def _mma_k_wrong(k: _Kernels) -> Flags:
    mma_k = 256.0 / maximum(k.batch.a_bits, k.batch.b_bits)
    return negated(is_multiple(k.resources.cta_k, mma_k))


def _smem_exceeded(k: _Kernels) -> Flags:
    found = k.resources
    ring = maximum(found.stages, k.fewest_stages) * found.stage_bytes
    return k.family.resources.barrier_bytes + found.epilogue_bytes + ring > k.gpu.smem_bytes_per_cta


def _tmem_exceeded(k: _Kernels) -> Flags:
    if not k.family.tile_period.in_tensor_memory:
        return False
    return k.resources.tmem_columns + k.resources.scale_columns > k.gpu.tmem_columns


def _sums_missing(k: _Kernels) -> Flags:
    slow: Flags = k.resources.slow_sums & negated(k.batch.fast_accum)
    slow = slow & negated(k.batch.kinds.software_scales)
    return (not k.family.space.slow_sums) & slow


def _work_unknown(k: _Kernels) -> Flags:
    missing: Flags = (k.batch.kinds.asked & ~bits_of(k.family.knows)) != 0
    return missing


def unknown_work(missing: Sequence[str], family: KernelFamily, gpu: GpuSpec) -> str:
    """The sentence that a family lacks some KIND_WORDS, with the families that have them."""
    others = [name for name in families(gpu) if family_of(name, gpu).knows.issuperset(missing)]
    able = f"kernels of {' and '.join(others)} do" if others else f"no kernels on {gpu.architecture} do"
    return f"{family.name} kernels on {gpu.architecture} do no {', '.join(missing)}; {able}"


def _scaled_outputs_cut(k: _Kernels) -> Flags:
    """Outputs that are scaled by the largest of their block lie in one tile."""
    kinds = k.batch.kinds
    outputs = k.batch.cta_n * kinds.output_share
    return (kinds.quantized > 0.0) & negated(is_multiple(outputs, float(QUANTIZED_COLUMNS)))


def _tile_missing(k: _Kernels) -> Flags:
    return negated(k.family.resources.offers_tile(k.batch))


def _stages_too_few(k: _Kernels) -> Flags:
    return k.resources.stages < k.fewest_stages


def _accumulators_exceed(k: _Kernels) -> Flags:
    return accumulators_exceed(k.batch, k.gpu)


def _split_too_deep(k: _Kernels) -> Flags:
    return k.batch.split_k > deepest_split(k.batch.k, k.resources.cta_k)


def _stream_k_missing(k: _Kernels) -> Flags:
    return (not k.family.space.stream_k) & k.batch.stream_k


def _stream_k_split(k: _Kernels) -> Flags:
    return k.batch.stream_k & (k.batch.split_k > 1.0)


def _spills(k: _Kernels) -> Flags:
    return k.resources.spilled_registers > 0


_RULES: tuple[_Rule, ...] = (
    *(_type_missing, _bf16_missing, _mixed_widths, _scales_missing, _not_k_major, _schedule_missing),
    *(_cluster_wrong, _pair_odd, _tile_missing, _mma_k_wrong, _smem_exceeded, _stages_too_few),
    *(_accumulators_exceed, _tmem_exceeded, _split_too_deep, _stream_k_missing, _sums_missing),
    *(_work_unknown, _scaled_outputs_cut, _stream_k_split),
)
"""Rules without which a kernel does not exist or does not start. Beside them `check` refuses a kernel that spills: it
runs, but takes several times as long."""


def deepest_split(k: Values, cta_k: Values) -> Values:
    """Largest number of parts of K: each needs a k tile."""
    return maximum(ceil(k / cta_k), 1.0)


def accumulators_exceed(batch: GemmBatch, gpu: GpuSpec) -> Flags:
    """Whether a tile has more accumulators than the SM's tensor memory (or registers, without one) can
    hold.
    """
    cells = gpu.tmem_columns * TMEM_LANES if gpu.tmem_columns else gpu.registers_per_sm
    return batch.cta_m * batch.cta_n * batch.acc_bits > cells * REGISTER_BITS


def refuse_in_any_family(batch: GemmBatch, gpu: GpuSpec) -> None:
    """Raise RefusedKernelError for the rows that no kernel of any family could run.

    For models that know no kernel family: accumulators must fit an SM, a cluster the GPU's limit.
    """
    no_room = accumulators_exceed(batch, gpu)
    refused = no_room | (batch.cluster_m * batch.cluster_n > gpu.max_cluster_size)
    if not any_of(refused):
        return
    rows = np.flatnonzero(refused)
    one = _row_of(batch, int(rows[0]))
    cluster = f"cluster {one.cluster_m:.0f}x{one.cluster_n:.0f}"
    raise RefusedKernelError(
        rows.tolist(),
        _no_room(one, gpu)
        if accumulators_exceed(one, gpu)
        else f"{cluster}; expected at most {gpu.max_cluster_size} CTAs on {gpu.name}",
    )


def _no_room(one: GemmBatch, gpu: GpuSpec) -> str:
    return f"tile {one.cta_m:.0f}x{one.cta_n:.0f} has more accumulators than an SM of {gpu.name} has room for"


def check(problem: GemmProblem, config: KernelConfig, gpu: GpuSpec) -> str | None:
    """None if the kernel is worth running on the GPU, else one sentence with the reason.

    Raises InputError for a kernel family that has no kernels for the GPU.
    """
    family = family_of(config.kernel, gpu)
    row = numbers_of(problem, config)
    kernels = _Kernels(row, gpu, family, resources_of(row, gpu, family))
    return next((_reason(rule, kernels) for rule in (*_RULES, _spills) if rule(kernels)), None)


def refuse_impossible(batch: GemmBatch, gpu: GpuSpec, family: KernelFamily, resources: Resources) -> None:
    """Raise RefusedKernelError for the rows that cannot run; kernels that spill can.

    `resources` are the resources of the rows; the columns of both may be numbers.
    """
    kernels = _Kernels(batch, gpu, family, resources)
    broken = [marks for rule in _RULES if any_of(marks := rule(kernels))]
    if not broken:
        return
    rows = np.flatnonzero(np.logical_or.reduce(np.broadcast_arrays(*broken, batch.m)[:-1]))
    row = int(rows[0])
    one = _Kernels(_row_of(batch, row), gpu, family, _row(resources, row))
    reason = next(_reason(rule, one) for rule in _RULES if rule(one))
    raise RefusedKernelError(rows.tolist(), reason)


def _row_of(batch: GemmBatch, row: int) -> GemmBatch:
    """One row of a batch as numbers."""
    return batch.mapped(lambda _, values: _number(values, row))


def _row(resources: Resources, row: int) -> Resources:
    """One row of a batch's resources as numbers."""
    return mapped(resources, lambda values: _number(values, row))


def _number(values: Any, row: int) -> Any:
    return values[row].item() if isinstance(values, np.ndarray) else values


def runnable_mask(batch: GemmBatch, gpu: GpuSpec, family: KernelFamily) -> BoolArray:
    """Mask of the rows of a family's kernels that can run on the GPU."""
    return _unbroken(_RULES, batch, gpu, family)


def feasible_mask(batch: GemmBatch, gpu: GpuSpec, family: KernelFamily) -> BoolArray:
    """Mask of the rows of a family's kernels worth running on the GPU: those that can run and do not
    spill.
    """
    return _unbroken((*_RULES, _spills), batch, gpu, family)


def _unbroken(rules: Sequence[_Rule], batch: GemmBatch, gpu: GpuSpec, family: KernelFamily) -> BoolArray:
    kernels = _Kernels(batch, gpu, family, resources_of(batch, gpu, family))
    mask = np.ones(len(batch), dtype=bool)
    for rule in rules:
        mask &= negated(rule(kernels))
    return mask
