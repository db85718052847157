"""The ladder: which CUDA-core kernels exist, with the tile of every level of each.

This module needs no GPU and no CUDA library: the memory-hierarchy model reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.core.kernel_config import AUTO, KernelConfig
from gemm_model.core.records import record_from
from gemm_model.errors import InputError, require_one_of
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
        require_one_of(f"rung is {self.rung!r}", self.rung, RUNGS)
        self.blocking  # noqa: B018 - whose own checks are those of the tiles

    @property
    def blocking(self) -> Blocking:
        """The memory-hierarchy model's view of the kernel."""
        names = ("cta_m", "cta_n", "thread_m", "thread_n", "stages", "interleaved")
        return Blocking(
            cta_k=self.cta_k or 1,
            warp_m=self.lanes_m * self.thread_m,
            warp_n=WARP // self.lanes_m * self.thread_n,
            vector=VECTOR if self.rung == "pipelined" else 1,
            **{name: getattr(self, name) for name in names},
        )

    @property
    def name(self) -> str:
        depth = f"x{self.cta_k}" if self.cta_k else ""
        order = "i" if self.interleaved else ""
        ring = f"_s{self.stages}" if self.stages > 1 else ""
        return (
            f"{self.rung}_{self.cta_m}x{self.cta_n}{depth}_t{self.thread_m}x{self.thread_n}"
            f"_w{self.lanes_m}x{WARP // self.lanes_m}{order}{ring}"
        )

    @property
    def threads(self) -> int:
        return WARP * self.blocking.warps

    @property
    def resident_ctas(self) -> int:
        """CTAs of this kernel on an SM: limited by threads, or by registers."""
        by_threads = THREADS_PER_SM // self.threads
        return by_threads if self.rung in ("naive", "shared") else min(by_threads, self.ctas_per_sm)

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
        warps_m = self.cta_m // self.blocking.warp_m
        interleaved = "true" if self.interleaved else "false"
        rest = f"{warps_m}, {self.stages}, {self.ctas_per_sm}, {interleaved}"
        return f"pipelined<{cta}, {self.cta_k}, {thread}, {rest}>"

    @property
    def config(self) -> KernelConfig:
        """The benchmark's view of the kernel: `mma_m` x `mma_n` is the tile of one warp."""
        tile: dict[str, Any] = {"cta_m": self.cta_m, "cta_n": self.cta_n, "cta_k": self.cta_k or AUTO}
        tile |= {"mma_m": self.blocking.warp_m, "mma_n": self.blocking.warp_n}
        return KernelConfig(kernel="simt", stages=self.stages or AUTO, swizzle=1, **tile)


LADDER = tuple(
    record_from(SimtKernel, values, "config/simt_ladder.yaml")
    for values in read_yaml_mapping(CONFIG_DIR / "simt_ladder.yaml", "a ladder of kernels")["kernels"]
)
"""Every kernel, rung by rung."""


def kernel_of(config: KernelConfig) -> SimtKernel:
    """The ladder's kernel with this configuration; InputError where there is none."""
    for kernel in LADDER:
        if kernel.config == config:
            return kernel
    raise InputError(
        f"the simt ladder has no kernel with CTA tile {config.cta_m}x{config.cta_n}x{config.cta_k}, "
        f"warp tile {config.mma_m}x{config.mma_n} and {config.stages} stages; it has {len(LADDER)} others"
    )
