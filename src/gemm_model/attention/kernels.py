"""Attention kernels by library and architecture: limits, default configurations and feasible tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from gemm_model.config import read_toml
from gemm_model.core.attention import AUTO, MASKS, AttentionConfig, AttentionProblem
from gemm_model.core.gpu import GpuSpec, smem_words
from gemm_model.core.records import record_from
from gemm_model.errors import InputError

MMA_DEPTH = 16
"""Depth of one MMA of 16-bit operands [elements]; head sizes are padded to it; PTX ISA."""
WARPGROUP_ROWS = 64
"""Rows of a warpgroup's MMA [rows]; Hopper; PTX ISA, wgmma."""
BARRIER_BYTES = 1024
"""Shared memory for barriers and alignment of the first tile [B]; all tiles; flash-attn-4 4.0.0b36."""
THREAD_REGISTERS: Mapping[int, int] = {1: 256, 2: 240, 3: 160}
"""Registers of a thread by consumer groups [registers]; Hopper; flash-attn-4 4.0.0b36, `num_mma_regs`."""
LANES, TENSOR_MEMORY_COLUMNS = 128, 512
"""Lanes and columns of Blackwell's tensor memory [sums of 32 bits]; before it a group's sums are in as many threads."""
_TABLES = read_toml("attention_kernels")
TILES = {int(size): tuple(map(tuple, tiles)) for size, tiles in _TABLES["tiles"].items()}
"""Candidate tiles by head size [elements]."""
CTAS_AN_SM = 2
"""CTAs of one group that share an SM [CTAs]; FlashAttention 2, its `num_splits_heuristic`; cuDNN's, by registers."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Candidate numbers of splits of a sequence's keys [1]; decode; chosen: powers of two."""
MOST_SPLITS = 256
"""Most splits of a sequence's keys [1]; all types; flash-attn-4 4.0.0b36, its combining kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """One kernel on some architectures."""

    name: str
    architectures: tuple[str, ...]
    group_rows: int
    """Rows of Q of one consumer group."""
    most_head_dim: int = 256
    """Largest head size."""
    more_head_dims: tuple[tuple[int, int], ...] = ()
    """Larger `head_dim` and `head_dim_v` that it takes too."""
    own_tile: tuple[int, int] | None = None
    """The only tile of the library's kernel; None if the tile is free."""
    windows: bool = True
    splits: bool = False
    head_dim_step: int = MMA_DEPTH
    """Step of the head sizes that are compiled; products of others are as large as the next one's."""
    readers: int = 1
    """Warps that each read all of K and V from shared memory, since each holds other rows of Q."""
    persistent: bool = False
    """Whether a CTA takes one tile after the other, by a counter that a memset sets before each launch."""
    narrow_ctas: int = CTAS_AN_SM
    """CTAs that an SM holds for head sizes up to 64, where each group is its own CTA."""
    softmax: float = 1.0
    """Instructions for each score over flash-attn-4's `score_slots`; counted (`attention_counters_torch`)."""

    @property
    def turns(self) -> bool:
        """Whether the groups of a CTA share key blocks and take turns; else each group is its own CTA."""
        return self.group_rows >= WARPGROUP_ROWS

    def consumer_groups(self, rows: int) -> int:
        """Consumer groups of a CTA that computes so many rows of O."""
        return rows // self.group_rows if self.turns else 1


_FOUND = [record_from(AttentionKernel, kernel, "attention_kernels.toml") for kernel in _TABLES["kernels"]]
_KERNELS = {(kernel.name, each): kernel for kernel in _FOUND for each in kernel.architectures}
FLASH_SM90 = SM90, FLASH3 = _KERNELS["flash_attention", "sm90"], _KERNELS["flash_attention_3", "sm90"]
SM100, FLASH2 = _KERNELS["flash_attention", "sm100"], _KERNELS["flash_attention_2", "sm90"]
CUDNN = _KERNELS["cudnn_attention", "sm90"]
CUDNN_DECODE = replace(CUDNN, group_rows=16, persistent=False, narrow_ctas=4)


def kernel_of(config: AttentionConfig, gpu: GpuSpec) -> AttentionKernel:
    """The kernel of a configuration on a GPU; raises InputError if the GPU has none."""
    found = _KERNELS.get((config.kernel, gpu.kernel_architecture))
    if found is None:
        known = [name for name, arch in _KERNELS if arch == gpu.kernel_architecture]
        card = f"{gpu.name} ({gpu.architecture}); expected {', '.join(known) or 'a GPU of sm80 or newer'}"
        raise InputError(f"kernel {config.kernel} does not run on {card}")
    return CUDNN_DECODE if found is CUDNN and config.tile_m == CUDNN_DECODE.group_rows else found


def kernels_on(gpu: GpuSpec) -> tuple[str, ...]:
    """Names of a GPU's kernels, the default one first."""
    return tuple(name for name, architecture in _KERNELS if architecture == gpu.kernel_architecture)


def default_tile(problem: AttentionProblem, kernel: AttentionKernel) -> tuple[int, int]:
    """The tile of a library's heuristic choice, as the table has it."""
    if kernel.own_tile is not None:
        return kernel.own_tile
    size, servers = _key_of(problem.head_dim), kernel is FLASH3
    windowed = problem.window > 0 and not (servers and problem.window >= problem.seq_kv - 1)
    paged = servers and problem.page_size > 0
    mask = "window" if windowed else "pages" if paged else MASKS[problem.causal]
    tiles = _TABLES["default_tiles"][kernel.name]
    tiles = tiles.get("fp8", tiles) if problem.dtype.bits < 16 else tiles
    rows, keys = tiles.get(mask, tiles["full"])[str(size)]
    keys = min(keys, 112) if size == 192 and problem.head_dim_v > 128 and problem.dtype.bits == 16 else keys
    # FlashAttention 3 takes one group for few queries.
    few = servers and not windowed and problem.seq_q * problem.group <= WARPGROUP_ROWS
    if few and problem.head_dim in (64, 128):
        return WARPGROUP_ROWS, 192 if size == 64 else keys
    return rows, keys


def _key_of(head_dim: int) -> int:
    """The head size of TILES that a head size is rounded up to."""
    return next((size for size in TILES if size >= head_dim), max(TILES))


def resolved(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> AttentionConfig:
    """The configuration with the library's defaults filled in."""
    kernel = kernel_of(config, gpu)
    if kernel.turns and config.tile_m == AUTO:
        config = replace(config, tile_m=config.consumer_groups * kernel.group_rows)
    tile_m, tile_n = default_tile(problem, kernel)
    own_splits = 1
    if config.tile_m == AUTO and kernel is CUDNN and problem.seq_q == 1:
        kernel, tile_m, own_splits = CUDNN_DECODE, CUDNN_DECODE.group_rows, cudnn_splits(problem, gpu)
    elif config.tile_m == AUTO and kernel is FLASH2:
        own_splits = library_splits(problem, gpu)
        # The kernel of split keys reads pages too.
        if own_splits > 1 or problem.page_size:
            tile_m, tile_n = 64, _split_keys(problem)
    elif config.tile_m == AUTO and kernel is FLASH3 and (problem.page_size or problem.seq_q == 1):
        own_splits = server_splits(problem, gpu, (tile_m, tile_n))
    order = "longest_first" if problem.causal and not problem.window and kernel in FLASH_SM90 else "in_order"
    through_smem = kernel in FLASH_SM90 and (64 < problem.head_dim <= 96 or tile_n == 192)
    tile_m = config.tile_m or tile_m
    return replace(
        config,
        tile_m=tile_m,
        tile_n=config.tile_n or tile_n,
        consumer_groups=config.consumer_groups or kernel.consumer_groups(tile_m),
        stages=1 if kernel is CUDNN_DECODE else config.stages,
        overlap_in_group=_or(config.overlap_in_group, kernel is not FLASH2),
        pv_from_registers=_or(config.pv_from_registers, config.tile_m != AUTO or not through_smem),
        pack_gqa=_or(config.pack_gqa, (kernel in FLASH_SM90 or problem.seq_q == 1) and problem.group > 1),
        num_splits=max(config.num_splits, own_splits),
        scheduler=config.scheduler if config.scheduler != "auto" else order,
        cluster=config.cluster or own_cluster(problem, config, kernel, tile_m),
    )


def own_cluster(
    problem: AttentionProblem, config: AttentionConfig, kernel: AttentionKernel, rows: int
) -> int:
    """CTAs that share loads of K and V: two tiles of queries in FlashAttention 3 without a mask, splits or pages.

    Source: flash-attention, hopper/flash_fwd_launch_template.h, `Enable_cluster`.
    """
    wide = problem.head_dim >= 128 if problem.dtype.bits == 16 else _key_of(problem.head_dim) == 192
    plain = not (problem.causal or problem.lengths or problem.page_size) and config.num_splits == 1
    return 2 if kernel is FLASH3 and wide and plain and ceil(problem.seq_q / rows) % 2 == 0 else 1


def cudnn_splits(problem: AttentionProblem, gpu: GpuSpec) -> int:
    """Splits of cuDNN's kernel of one query: the power of two that gives at most two CTAs an SM, from 4 on.

    Source: grids of 24 launches (h200, cuDNN of torch 2.11).
    """
    tiles = problem.batch * problem.kv_heads * ceil(problem.group / CUDNN_DECODE.group_rows)
    most = min(2 * gpu.sm_count // max(tiles, 1), ceil(problem.seq_kv / 128))
    return 1 << (most.bit_length() - 1) if most >= 4 else 1


def library_splits(problem: AttentionProblem, gpu: GpuSpec) -> int:
    """Splits that FlashAttention 2's `num_splits_heuristic` chooses when few tiles leave SMs idle.

    It takes the fewest splits that fill waves of two CTAs an SM to at least 85 % of the best filling. With lengths or
    pages only heads that share keys are split.
    """
    if problem.lengths or (problem.page_size and (problem.seq_q > 1 or problem.group == 1)):
        return 1
    packed = problem.group if problem.seq_q == 1 else 1
    rows = ceil(problem.seq_q * packed / WARPGROUP_ROWS)
    tiles, places = problem.batch * problem.heads // packed * rows, CTAS_AN_SM * gpu.sm_count
    blocks = ceil(problem.seq_kv / _split_keys(problem))
    if problem.seq_kv == 0 or tiles == 0 or tiles >= 0.8 * places:
        return 1
    waves = {
        splits: tiles * splits / places for splits in range(1, min(MOST_SPLITS // 2, places, blocks) + 1)
    }
    fewer = [1, *(each for each in waves if ceil(blocks / each) != ceil(blocks / max(each - 1, 1)))]
    filled = {splits: waves[splits] / ceil(waves[splits]) for splits in fewer}
    return next(splits for splits, share in filled.items() if share >= 0.85 * max(filled.values()))


def server_splits(problem: AttentionProblem, gpu: GpuSpec, tile: tuple[int, int]) -> int:
    """Splits of FlashAttention 3's key blocks, so that each SM gets about as many, and a tenth more.

    Source: vllm-project/flash-attention, hopper/flash_prepare_scheduler.cu and `num_splits_heuristic`.
    """
    blocks = ceil(problem.seq_kv / tile[1])
    seen = min(problem.seq_kv, problem.window + 1 + tile[0]) if problem.window else problem.seq_kv
    if problem.lengths or seen <= 4 * tile[1]:
        return 1
    tiles = ceil(problem.seq_q * problem.group / tile[0]) * problem.batch * problem.kv_heads
    return min(ceil(blocks / max(ceil(1.1 * tiles * blocks / gpu.sm_count), 1)), MOST_SPLITS // 2)


def _split_keys(problem: AttentionProblem) -> int:
    """Keys of a block of FlashAttention 2's kernel of split keys."""
    return 256 if problem.head_dim <= 64 else 128 if problem.head_dim <= 128 else 64


def is_own(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> bool:
    """Whether a configuration is the heuristic choice of its kernel's library."""
    return resolved(problem, config, gpu) == resolved(problem, AttentionConfig(kernel=config.kernel), gpu)


def copies_rows(problem: AttentionProblem, config: AttentionConfig) -> bool:
    """Whether threads copy rows of K and V, since no bulk copy brings a resolved kernel's key block from its pages."""
    if config.kernel != FLASH3.name:
        return problem.page_size not in (0, config.tile_n)
    few = problem.seq_q * problem.group <= config.tile_m or problem.window > 0
    return problem.page_size > 0 and (few or problem.page_size % config.tile_n > 0)


def _or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def smem_bytes(problem: AttentionProblem, config: AttentionConfig) -> float:
    """Shared memory of a CTA [B]: Q (later O), the rings of K and V, and P unless it is in registers."""
    dims = (problem.head_dim, problem.head_dim_v)
    elements = config.tile_m * max(dims) + config.stages * config.tile_n * sum(dims)
    elements += 0 if config.pv_from_registers else config.tile_m * config.tile_n
    return elements * problem.element_bytes + BARRIER_BYTES


def refusal(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> str | None:
    """One sentence: why a resolved configuration cannot run a problem; None if it can."""
    kernel, sizes = kernel_of(config, gpu), (problem.head_dim, problem.head_dim_v)
    for name in ("head_dim", "head_dim_v") if sizes not in kernel.more_head_dims else ():
        size, most = getattr(problem, name), kernel.most_head_dim
        if size > most or size % 8:
            more = "".join(f", or {each} with a head_dim_v of {v}" for each, v in kernel.more_head_dims)
            return f"{name} is {size} with {kernel.name}; expected a multiple of 8 up to {most}{more}"
    if problem.dtype.bits < 16 and kernel not in (SM100, FLASH3):
        return f"in_dtype is {problem.dtype.name} with {kernel.name} on {gpu.name}; expected bf16 or fp16"
    if problem.window and not kernel.windows:
        return f"window is {problem.window} with {kernel.name}; expected no window"
    if problem.page_size and kernel.name == CUDNN.name:
        return f"page_size is {problem.page_size} with {kernel.name}; expected a contiguous cache"
    if config.num_splits > (most := max(min(MOST_SPLITS, problem.seq_kv), 1) if kernel.splits else 1):
        return f"num_splits is {config.num_splits} with {kernel.name} on {gpu.name}; expected at most {most}"
    if config.cluster not in (1, most := own_cluster(problem, config, kernel, config.tile_m)):
        return f"cluster is {config.cluster} with {kernel.name}; expected {'1 or ' * (most > 1)}{most} here"
    if config.tile_m % (rows := kernel.group_rows * kernel.readers):
        return f"tile_m is {config.tile_m}; expected a multiple of {rows} rows"
    if config.consumer_groups != (groups := kernel.consumer_groups(config.tile_m)):
        return f"consumer_groups is {config.consumer_groups} with tile_m {config.tile_m}; expected {groups}"
    if config.tile_n % 8 or config.tile_n > 256:
        return f"tile_n is {config.tile_n}; expected a multiple of 8 up to 256"
    return _does_not_fit(problem, config, gpu)


def _does_not_fit(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> str | None:
    """One sentence: the resource that a tile exceeds, and by how much; None if it fits, as the only one does."""
    kernel, groups = kernel_of(config, gpu), config.consumer_groups
    name = f"tile {config.tile_m}x{config.tile_n}"
    if (config.tile_m, config.tile_n) == kernel.own_tile and config.stages <= AttentionConfig().stages:
        return None
    rows, columns = config.tile_m // groups, config.tile_n + problem.head_dim_v
    if groups not in THREAD_REGISTERS:
        return f"{name} has {groups} consumer groups; expected 1 to {max(THREAD_REGISTERS)}"
    needed, most, what = rows * columns / LANES, THREAD_REGISTERS[groups], "registers a thread"
    if kernel.group_rows == LANES:
        needed, most, what = groups * columns, TENSOR_MEMORY_COLUMNS, "columns of tensor memory"
    if needed > most:
        return f"{name} needs {needed - most:.0f} {what} more than {most}"
    held = smem_bytes(problem, config if kernel.turns else replace(config, stages=1))
    if (beyond := held - gpu.smem_bytes_per_cta) > 0:
        return f"{name} needs {beyond:.0f} bytes of shared memory more than {smem_words(gpu)}"
    return None


def candidates(problem: AttentionProblem, gpu: GpuSpec, kernel: str) -> tuple[AttentionConfig, ...]:
    """All resolved configurations of a kernel that can run a problem, its default first."""
    own = resolved(problem, AttentionConfig(kernel=kernel), gpu)
    found = [own]
    if (found_kernel := kernel_of(own, gpu)) in FLASH_SM90:
        splits = SPLITS if problem.seq_q == 1 and not problem.lengths else (1,)
        tiles = TILES[_key_of(problem.head_dim)] if found_kernel is SM90 else ((own.tile_m, own.tile_n),)
        for (rows, keys), packed, each in product(tiles, (True, False)[problem.group == 1 :], splits):
            own = replace(own, tile_m=rows, tile_n=keys, consumer_groups=found_kernel.consumer_groups(rows))
            found.append(replace(own, pack_gqa=packed, num_splits=each))
    return tuple(dict.fromkeys(each for each in found if refusal(problem, each, gpu) is None))
