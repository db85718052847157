"""The ladder: which CUDA-core kernels exist, with the tile of every level of each.

This module needs no GPU and no CUDA library: the memory-hierarchy model reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import AUTO, KernelConfig
from gemm_model.hierarchy.blocking import Blocking

RUNGS = ("naive", "shared", "registers", "pipelined")
WARP = 32
VECTOR = 4
"""Words of a 128-bit access [fp32]; all GPUs; PTX ISA."""
FP32_BYTES = 4
THREADS_PER_SM = 2048
"""Most threads of an SM [1]; sm90 and sm100; CUDA C++ Programming Guide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimtKernel:
    """One kernel of the ladder; extents in elements, `stages` in tiles of each operand in shared memory.

    A thread computes `thread_m` x `thread_n` outputs; a warp is `lanes_m` x (32 / lanes_m) threads; `cta_k`
    is 0 for the naive rung, which stages nothing. `ctas_per_sm` is what the kernel asks the compiler to
    leave registers for. `interleaved` lanes share 128-bit words with a neighbour in both directions.
    """

    rung: str
    cta_m: int
    cta_n: int
    cta_k: int = 0
    thread_m: int = 1
    thread_n: int = 1
    lanes_m: int = 4
    stages: int = 0
    ctas_per_sm: int = 1
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.rung not in RUNGS:
            raise InputError(f"rung is {self.rung!r}; expected one of {', '.join(RUNGS)}")
        for extent in ("m", "n"):
            cta, warp = getattr(self, f"cta_{extent}"), getattr(self, f"warp_{extent}")
            if warp < 1 or cta % warp:
                raise InputError(
                    f"{self.name}: cta_{extent} is {cta}; expected a multiple of the warp's {warp}"
                )

    @property
    def name(self) -> str:
        depth = f"x{self.cta_k}" if self.cta_k else ""
        order = "i" if self.interleaved else ""
        ring = f"_s{self.stages}" if self.stages > 1 else ""
        return (
            f"{self.rung}_{self.cta_m}x{self.cta_n}{depth}_t{self.thread_m}x{self.thread_n}"
            f"_w{self.lanes_m}x{self.lanes_n}{order}{ring}"
        )

    @property
    def lanes_n(self) -> int:
        return WARP // self.lanes_m

    @property
    def warp_m(self) -> int:
        return self.lanes_m * self.thread_m

    @property
    def warp_n(self) -> int:
        return self.lanes_n * self.thread_n

    @property
    def threads(self) -> int:
        return self.cta_m * self.cta_n // (self.thread_m * self.thread_n)

    @property
    def resident_ctas(self) -> int:
        """CTAs of this kernel on an SM: limited by threads, or by registers."""
        by_threads = THREADS_PER_SM // self.threads
        return by_threads if self.rung in ("naive", "shared") else min(by_threads, self.ctas_per_sm)

    @property
    def vector(self) -> int:
        """fp32 words that one load from shared memory brings to a lane."""
        return VECTOR if self.rung == "pipelined" else 1

    @property
    def dynamic_smem_bytes(self) -> int:
        """Shared memory that the launch asks for: padded tiles of both operands (`kernels.cu`, Copier)."""
        if self.rung != "pipelined":
            return 0
        return self.stages * self.cta_k * (self.cta_m + self.cta_n + 2 * VECTOR) * FP32_BYTES

    @property
    def expression(self) -> str:
        """The C++ name of the kernel: a template and its arguments."""
        cta = f"{self.cta_m}, {self.cta_n}"
        thread = f"{self.thread_m}, {self.thread_n}, {self.lanes_m}"
        if self.rung == "naive":
            return f"naive<{cta}, {self.lanes_m}>"
        if self.rung == "shared":
            return f"shared_tile<{cta}, {self.cta_k}, {self.lanes_m}>"
        if self.rung == "registers":
            return f"register_tile<{cta}, {self.cta_k}, {thread}, {self.ctas_per_sm}>"
        warps_m = self.cta_m // self.warp_m
        interleaved = "true" if self.interleaved else "false"
        rest = f"{warps_m}, {self.stages}, {self.ctas_per_sm}, {interleaved}"
        return f"pipelined<{cta}, {self.cta_k}, {thread}, {rest}>"

    @property
    def blocking(self) -> Blocking:
        """The memory-hierarchy model's view of the kernel."""
        return Blocking(
            cta_m=self.cta_m,
            cta_n=self.cta_n,
            cta_k=self.cta_k or 1,
            warp_m=self.warp_m,
            warp_n=self.warp_n,
            thread_m=self.thread_m,
            thread_n=self.thread_n,
            stages=self.stages,
            vector=self.vector,
            interleaved=self.interleaved,
        )

    @property
    def config(self) -> KernelConfig:
        """The benchmark's view of the kernel: `mma_m` x `mma_n` is the tile of one warp."""
        return KernelConfig(
            kernel="simt",
            cta_m=self.cta_m,
            cta_n=self.cta_n,
            cta_k=self.cta_k or AUTO,
            mma_m=self.warp_m,
            mma_n=self.warp_n,
            stages=self.stages or AUTO,
            swizzle=1,
        )


def _naive(cta_m: int, cta_n: int, lanes_m: int) -> SimtKernel:
    return SimtKernel(rung="naive", cta_m=cta_m, cta_n=cta_n, lanes_m=lanes_m)


def _shared(cta_m: int, cta_n: int, cta_k: int, lanes_m: int) -> SimtKernel:
    return SimtKernel(rung="shared", cta_m=cta_m, cta_n=cta_n, cta_k=cta_k, lanes_m=lanes_m, stages=1)


def _register_tiled(
    cta: tuple[int, int, int],
    thread: tuple[int, int],
    ctas_per_sm: int,
    lanes_m: int = 4,
    *,
    rung: str,
    stages: int,
    interleaved: bool = False,
) -> SimtKernel:
    cta_m, cta_n, cta_k = cta
    thread_m, thread_n = thread
    return SimtKernel(
        rung=rung,
        cta_m=cta_m,
        cta_n=cta_n,
        cta_k=cta_k,
        thread_m=thread_m,
        thread_n=thread_n,
        lanes_m=lanes_m,
        stages=stages,
        ctas_per_sm=ctas_per_sm,
        interleaved=interleaved,
    )


_registers = partial(_register_tiled, rung="registers", stages=1)
_pipelined = partial(_register_tiled, rung="pipelined", stages=2, interleaved=True)

LADDER = (
    _naive(32, 32, 1),
    _naive(32, 32, 2),
    _naive(32, 32, 4),
    _naive(32, 32, 8),
    _naive(32, 32, 32),
    _naive(16, 16, 2),
    _naive(16, 16, 4),
    _naive(8, 32, 1),
    _shared(16, 16, 16, 2),
    _shared(16, 16, 32, 4),
    _shared(16, 32, 32, 1),
    _shared(32, 32, 64, 1),
    _shared(32, 32, 32, 1),
    _shared(32, 32, 32, 4),
    _registers((32, 32, 16), (2, 2), 6),
    _registers((64, 64, 16), (2, 2), 1),
    _registers((64, 64, 16), (2, 4), 2),
    _registers((64, 64, 16), (4, 4), 4),
    _registers((128, 128, 16), (4, 4), 1),
    _registers((128, 64, 16), (8, 4), 2),
    _registers((64, 128, 16), (4, 8), 2),
    _registers((64, 64, 8), (8, 8), 6),
    _registers((128, 128, 8), (8, 8), 2),
    _registers((128, 128, 16), (8, 8), 1),
    _pipelined((32, 32, 16), (4, 4), 12),
    _pipelined((64, 64, 16), (4, 4), 4),
    _pipelined((128, 64, 16), (8, 4), 2),
    _pipelined((64, 128, 16), (4, 8), 2),
    _pipelined((64, 64, 16), (8, 8), 8),
    _pipelined((128, 64, 16), (8, 8), 4),
    _pipelined((128, 128, 8), (8, 8), 2, stages=3),
    _pipelined((128, 128, 16), (8, 8), 2),
    _pipelined((128, 128, 16), (8, 8), 2, 8, interleaved=False),
    _pipelined((256, 128, 16), (8, 8), 1),
    _pipelined((128, 128, 16), (16, 8), 2),
    _pipelined((256, 128, 16), (16, 8), 1),
    _pipelined((256, 128, 16), (16, 8), 1, stages=3),
    _pipelined((256, 128, 32), (16, 8), 1),
    _pipelined((64, 128, 16), (8, 16), 4),
    _pipelined((128, 128, 16), (8, 16), 2),
    _pipelined((128, 256, 8), (8, 16), 1, stages=3),
    _pipelined((128, 256, 16), (8, 16), 1),
    _pipelined((128, 256, 16), (8, 16), 1, stages=3),
    _pipelined((128, 256, 32), (8, 16), 1),
)
"""Every kernel, rung by rung; it includes tiles that the model calls too small, on purpose."""


def kernel_of(config: KernelConfig) -> SimtKernel:
    """The ladder's kernel with this configuration; InputError where there is none."""
    for kernel in LADDER:
        if kernel.config == config:
            return kernel
    raise InputError(
        f"the simt ladder has no kernel with CTA tile {config.cta_m}x{config.cta_n}x{config.cta_k}, "
        f"warp tile {config.mma_m}x{config.mma_n} and {config.stages} stages; it has {len(LADDER)} others"
    )
