"""The configuration of a warp-specialized persistent GEMM kernel."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.records import require_kind
from gemm_model.core.sizes import require_size
from gemm_model.errors import InputError

SCHEDULES = ("cooperative", "pingpong", "2cta")
"""How MMA warps share tiles: all on one tile, alternating between two tiles, or two CTAs on one MMA."""

COOPERATIVE, PINGPONG, TWO_CTA = range(len(SCHEDULES))
"""Positions in SCHEDULES."""

RASTERS = ("heuristic", "along_m", "along_n")
"""Along which extent consecutive clusters advance; 'heuristic' leaves it to the kernel's scheduler."""

HEURISTIC, ALONG_M, ALONG_N = range(len(RASTERS))
"""Positions in RASTERS."""

AUTO_KERNEL = "auto"
"""Stands for the GPU's default kernel family."""

KERNELS = (AUTO_KERNEL, "quack", "cutlass", "cublas", "triton", "simt", "cudnn")
"""Names of kernel families. 'simt' are CUDA-core kernels, which only the memory-hierarchy model describes. A
user's own benchmark provider is named 'module:class'."""

STREAM_K = "stream_k"
SCHEDULERS = ("static", "split_k", STREAM_K)
"""How output tiles become work: whole, k cut into equal parts, or all k tiles dealt evenly to the SMs."""

MAX_DIGITS = 18
"""Longest number in an extent [digits]; words of a command; chosen: Python refuses numbers of thousands of
digits."""

AUTO = 0
"""Value of `cta_k`, `stages` and `warps` [1]; lets the kernel family choose; by definition."""

_WORDS: dict[str, tuple[object, ...]] = {
    "fast_accum": (True, False),
    "pdl": (True, False, None),
    "schedule": SCHEDULES,
    "raster": RASTERS,
    "scheduler": SCHEDULERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Tile, cluster and schedule of one kernel; sizes in elements.

    `cta_*` is the output tile of one CTA, `mma_*` that of one MMA instruction group: for 2-CTA MMA
    mma_m = 2 cta_m. A cluster has `cluster_m` x `cluster_n` CTAs. `swizzle` is the largest group of cluster
    rows (or columns) that the scheduler walks together. `stages`, `cta_k` and `warps` of 0 leave the choice
    to the family, a `kernel` of 'auto' to the GPU. `schedule` is one of SCHEDULES, `raster` of RASTERS,
    `scheduler` of SCHEDULERS, for families with several; QuACK splits k, into `split_k` parts, by that number
    alone. `fast_accum` matters
    only for fp8 on sm90: False (QuACK's default) adds every k tile to a second set of accumulators. `pdl`
    matters only for launches back to back: programmatic dependent launch runs the prologue under the end of
    the previous kernel; None takes the family's default. Raises InputError for a value that no kernel has;
    whether a GPU can run it, `predict` tells.

    >>> from gemm_model import KernelConfig
    >>> KernelConfig(cta_m=128, cta_n=256, cluster_m=2).ctas_per_cluster
    2
    >>> KernelConfig(cta_m=128, cta_n=256, schedule="2cta").mma_m
    256
    """

    cta_m: int
    cta_n: int
    cta_k: int = AUTO
    mma_m: int = 0
    mma_n: int = 0
    cluster_m: int = 1
    cluster_n: int = 1
    stages: int = AUTO
    schedule: str = "cooperative"
    raster: str = "heuristic"
    swizzle: int = 8
    split_k: int = 1
    kernel: str = AUTO_KERNEL
    fast_accum: bool = False
    scheduler: str = "static"
    warps: int = AUTO
    pdl: bool | None = None

    def __post_init__(self) -> None:
        for name in ("cta_m", "cta_n", "cluster_m", "cluster_n", "swizzle", "split_k"):
            require_size(self, name)
        for name in ("cta_k", "stages", "warps"):
            if getattr(self, name) != AUTO:
                require_size(self, name)
        require_kind("kernel", self.kernel, str)
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {words}")
        if self.kernel not in KERNELS and ":" not in self.kernel:
            raise InputError(f"unknown kernel family {self.kernel!r}; expected one of {', '.join(KERNELS)}")
        ctas_per_mma = 2 if self.schedule == "2cta" else 1
        if self.mma_m == 0:
            object.__setattr__(self, "mma_m", ctas_per_mma * self.cta_m)
        if self.mma_n == 0:
            object.__setattr__(self, "mma_n", self.cta_n)
        for name in ("mma_m", "mma_n"):
            require_size(self, name)

    @property
    def ctas_per_cluster(self) -> int:
        return self.cluster_m * self.cluster_n


def parse_extent(text: str, what: str, parts: tuple[int, ...] = (2,), *, beside: str = "") -> tuple[int, ...]:
    """Numbers of an extent such as '128x256'.

    `parts` lists how many numbers are allowed; `beside` names, in the error, other accepted words.
    """
    words = text.lower().split("x")
    good = all(word.isdecimal() and len(word) <= MAX_DIGITS and int(word) > 0 for word in words)
    if len(words) not in parts or not good:
        form = " or ".join("x".join("MNK"[:count]) for count in parts)
        shown = text if len(text) <= 4 * MAX_DIGITS else f"{text[:MAX_DIGITS]}..."
        example = "x".join(("128", "256", "64")[: parts[0]])
        raise InputError(
            f"{what} is {shown!r}; expected {beside}{form} in positive whole numbers, such as {example}"
        )
    return tuple(int(word) for word in words)
