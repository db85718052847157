"""How a GEMM is cut into tiles, level by level, and whether the tiles fit the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import parse_extent
from gemm_model.core.sizes import require_size
from gemm_model.errors import InputError
from gemm_model.hierarchy.levels import REGISTER_BYTES, Datapath

WARP = 32
WARPGROUP = 128
MAX_THREADS = 1024
"""Most threads of a CTA [1]; all GPUs; CUDA C++ Programming Guide."""
TILE_LEVELS = ("cluster", "cta", "warp", "thread", "mma")
"""Levels of tiles: 'cluster' in CTAs, the others in elements. A warp is a warpgroup on Hopper's tensor cores;
'thread' is for CUDA cores, 'mma' (one instruction) for tensor cores."""

WGMMA_M = 64
WGMMA_MAX_N = 256
OPERANDS_FROM_SMEM = ("sm90", "sm100")
"""Architectures whose tensor cores read operands from shared memory; elsewhere they come from registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Tiles of every level, in elements; `cluster_m` x `cluster_n` in CTAs.

    `cta_k` is the depth of one stage in shared memory; a kernel with 0 stages stages nothing.
    `thread_*` is 0 on tensor cores, `mma_*` on CUDA cores. `vector` is how many words of an operand one load
    from shared memory brings to a thread; `interleaved` says whether the lanes of a warp are numbered so that
    neighbours share words of A and of B. `b_major` is the extent along which B is contiguous in memory.
    """

    cta_m: int
    cta_n: int
    cta_k: int
    warp_m: int
    warp_n: int
    thread_m: int = 0
    thread_n: int = 0
    mma_m: int = 0
    mma_n: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    stages: int = 2
    vector: int = 4
    interleaved: bool = True
    b_major: str = "k"

    def __post_init__(self) -> None:
        for name in ("cta_m", "cta_n", "cta_k", "warp_m", "warp_n", "cluster_m", "cluster_n", "vector"):
            require_size(self, name)
        if self.stages < 0 or self.vector not in (1, 4):
            raise InputError(
                f"stages is {self.stages} and vector {self.vector}; "
                "expected 0 or more stages, loads of 1 or 4 words"
            )
        if (self.thread_m > 0) == (self.mma_m > 0):
            raise InputError("expected a thread tile (CUDA cores) or an MMA tile (tensor cores), not both")
        for extent in ("m", "n"):
            inner = "thread" if self.thread_m else "mma"
            for outer, below in (("cta", "warp"), ("warp", inner)):
                size, unit = getattr(self, f"{outer}_{extent}"), getattr(self, f"{below}_{extent}")
                if unit < 1 or size % unit:
                    raise InputError(
                        f"{outer}_{extent} is {size}; expected a multiple of {below}_{extent}, {unit}"
                    )
        if self.thread_m and self.lanes_m * self.lanes_n != WARP:
            raise InputError(
                f"a warp tile of {self.warp_m}x{self.warp_n} holds {self.lanes_m * self.lanes_n} "
                f"thread tiles of {self.thread_m}x{self.thread_n}; expected {WARP}"
            )

    @property
    def lanes_m(self) -> int:
        """Thread tiles along m in a warp's tile (MMA instructions on tensor cores)."""
        return self.warp_m // (self.thread_m or self.mma_m)

    @property
    def lanes_n(self) -> int:
        return self.warp_n // (self.thread_n or self.mma_n)

    @property
    def warps(self) -> int:
        return self.cta_m * self.cta_n // (self.warp_m * self.warp_n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Resources that one CTA of a blocking takes."""

    threads: int
    registers_per_thread: int
    smem_bytes: int
    ctas_per_sm: int


def threads_per_warp(gpu: GpuSpec, datapath: Datapath) -> int:
    """Threads that work on a warp tile: a warpgroup where it issues the tensor-core instructions."""
    return (
        WARPGROUP
        if datapath.name == "tensor_cores" and gpu.kernel_architecture in OPERANDS_FROM_SMEM
        else WARP
    )


def footprint(blocking: Blocking, gpu: GpuSpec, datapath: Datapath) -> Footprint:
    """Threads, registers, shared memory and CTAs per SM; raises InputError where the GPU has less.

    A CUDA-core thread holds its accumulators and its operands of one step of k, twice when loaded ahead
    (two or more stages, whose copies pass no registers). Accumulators of Blackwell's tensor cores live in
    tensor memory.
    """
    numbers, threads = room_numbers("hierarchy"), blocking.warps * threads_per_warp(gpu, datapath)
    outputs = blocking.cta_m * blocking.cta_n
    accumulators = ceil(outputs / threads * datapath.acc_bytes / REGISTER_BYTES)
    stage_bytes = ceil(
        (blocking.cta_m * datapath.a_bytes + blocking.cta_n * datapath.b_bytes) * blocking.cta_k
    )
    if datapath.name == "cuda_cores":
        ahead = 2 if blocking.stages > 1 else 1
        operands = ahead * (blocking.thread_m + blocking.thread_n)
        registers = accumulators + operands + int(numbers.working_registers)
    else:
        registers = (0 if gpu.tmem_columns else accumulators) + int(numbers.mma_working_registers)
    smem_bytes = blocking.stages * stage_bytes
    _require_room("registers per thread", registers, gpu.registers_per_thread, gpu)
    _require_room("registers", registers * threads, gpu.registers_per_sm, gpu)
    _require_room("threads", threads, MAX_THREADS, gpu)
    _require_room("bytes of shared memory", smem_bytes, gpu.smem_bytes_per_cta, gpu)
    ctas = min(
        gpu.registers_per_sm // (registers * threads),
        gpu.threads_per_sm // threads,
        gpu.smem_bytes_per_sm // max(smem_bytes, 1),
        gpu.ctas_per_sm,
    )
    return Footprint(
        threads=threads, registers_per_thread=registers, smem_bytes=smem_bytes, ctas_per_sm=max(ctas, 1)
    )


def _require_room(what: str, needed: int, there: int, gpu: GpuSpec) -> None:
    if needed > there:
        raise InputError(f"the blocking needs {needed} {what}; {gpu.name} has {there} for one CTA")


def instruction_tile(architecture: str, cta_m: int, cta_n: int) -> tuple[int, int]:
    """Rows and columns of the widest tensor-core instruction in a CTA tile.

    Hopper's wgmma takes 64 rows and up to 256 columns, Blackwell's tcgen05.mma 128 rows (PTX ISA); before
    them a warp's tile of several small instructions takes this place: a quarter of the CTA's.
    """
    if architecture not in OPERANDS_FROM_SMEM:
        return max(cta_m // 2, 1), max(cta_n // 2, 1)
    rows = gcd(cta_m, 2 * WGMMA_M) if architecture == "sm100" else gcd(cta_m, WGMMA_M)
    return rows, cta_n if cta_n <= WGMMA_MAX_N else gcd(cta_n, WGMMA_MAX_N)


def tensor_core_blocking(gpu: GpuSpec, datapath: Datapath, cta_m: int, cta_n: int, **others: Any) -> Blocking:
    """A CTA tile computed by the widest instruction, 128 bytes deep unless `others` say how deep."""
    mma_m, mma_n = instruction_tile(gpu.kernel_architecture, cta_m, cta_n)
    mma = {"warp_m": mma_m, "warp_n": mma_n, "mma_m": mma_m, "mma_n": mma_n}
    return Blocking(**{"cta_m": cta_m, "cta_n": cta_n, "cta_k": datapath.slice_depth, **mma, **others})


def parse_tiles(words: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Tiles from words such as 'cta:128x128x16'; raises InputError for an unknown level or a bad extent."""
    tiles: dict[str, tuple[int, ...]] = {}
    for word in words:
        level, separator, extent = word.partition(":")
        if not separator or level not in TILE_LEVELS:
            raise InputError(
                f"--tile {word!r}: unknown level {level!r}; expected LEVEL:MxN, "
                f"LEVEL one of {', '.join(TILE_LEVELS)}"
            )
        tiles[level] = parse_extent(extent, f"--tile {level}", (2, 3) if level == "cta" else (2,))
    return tiles


def blocking_of(
    tiles: Mapping[str, tuple[int, ...]], gpu: GpuSpec, datapath: Datapath, stages: int
) -> Blocking:
    """A blocking from the tiles given, with usual defaults for the other levels.

    CUDA cores: 8 x 8 outputs a thread, 4 x 8 threads a warp, 4 x 2 warps a CTA, 16 deep. Tensor cores: a
    CTA tile of 128 x 256, 128 bytes deep; the instruction is as wide as it goes.
    """
    cuda_cores = datapath.name == "cuda_cores"
    wrong, needed = ("mma", "thread") if cuda_cores else ("thread", "mma")
    if wrong in tiles:
        raise InputError(f"--tile {wrong}: {datapath.name} have no {wrong} tile; expected --tile {needed}")
    cluster_m, cluster_n = tiles.get("cluster", (1, 1))[:2]
    if cluster_m * cluster_n > gpu.max_cluster_size:
        raise InputError(
            f"--tile cluster:{cluster_m}x{cluster_n}; expected at most the {gpu.max_cluster_size} CTAs "
            f"of a cluster on {gpu.name}"
        )
    sizes = _cuda_core_tiles(tiles) if cuda_cores else _tensor_core_tiles(tiles, gpu, datapath)
    return Blocking(**sizes, cluster_m=cluster_m, cluster_n=cluster_n, stages=stages)


def _cuda_core_tiles(tiles: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    thread_m, thread_n = tiles.get("thread", (8, 8))
    warp_m, warp_n = tiles.get("warp", (4 * thread_m, 8 * thread_n))
    cta_m, cta_n, *cta_k = tiles.get("cta", (4 * warp_m, 2 * warp_n))
    cta = {"cta_m": cta_m, "cta_n": cta_n, "cta_k": cta_k[0] if cta_k else 16}
    return cta | {"warp_m": warp_m, "warp_n": warp_n, "thread_m": thread_m, "thread_n": thread_n}


def _tensor_core_tiles(
    tiles: Mapping[str, tuple[int, ...]], gpu: GpuSpec, datapath: Datapath
) -> dict[str, Any]:
    cta_m, cta_n, *cta_k = tiles.get("cta", (128, 256))
    warp = tiles.get("warp", (cta_m, cta_n))
    mma_m, mma_n, *_ = tiles.get("mma", instruction_tile(gpu.kernel_architecture, *warp))
    warp_m, warp_n = tiles.get("warp", (mma_m, mma_n))
    cta = {"cta_m": cta_m, "cta_n": cta_n, "cta_k": cta_k[0] if cta_k else datapath.slice_depth}
    return cta | {"warp_m": warp_m, "warp_n": warp_n, "mma_m": mma_m, "mma_n": mma_n}
