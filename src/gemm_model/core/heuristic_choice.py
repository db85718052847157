"""What a library takes that picks its kernel by itself, beside the one predicted to be the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Protocol

from gemm_model.core.elementwise import Values, minimum, sqrt, where
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem

COPIES = "COPIES"
"""The limiter of calls that copy matrices for longer than they multiply."""
TENSOR, MMA_WARPS = "TENSOR", "MMA_WARPS"
"""Limiters of long products that libraries choose better for than for short ones."""
DRAM, LATENCY, LAUNCH = "DRAM", "LATENCY", "LAUNCH"
"""Limiters of kernels of earlier architectures, beside what their rate counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Kernels of a call that brings matrices into another shape beside the product, and what they copy."""

    kernels: Values
    """Beside the first one that multiplies."""
    moved_bytes: Values
    """Read and written by those that copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What a library takes for a product whose matrices it copies beside."""

    share: float
    """What the kernel that multiplies takes over the one that is predicted to be the fastest [1]."""
    kernel_us: float
    """Of each further kernel, however little it does [us]."""
    gb_per_s: float
    """What copies read and write [GB/s]."""

    def copied_us(self, copies: Copies) -> Values:
        """Of all that copies."""
        return copies.kernels * self.kernel_us + copies.moved_bytes / self.gb_per_s / 1e3

    def time_us(self, fastest_us: Values, copies: Copies) -> Values:
        """Of the whole call."""
        return fastest_us * (1.0 + self.share) + self.copied_us(copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierWork:
    """What a product asks of a kernel that was made for an earlier architecture."""

    operations: float
    """What bounds it [1]: FLOP, with tiles filled and waves whole, or loads of single threads."""
    peak_per_ns: float
    """Operations that the GPU can do [1/ns]: GFLOP/s of FLOP."""
    dram_us: float
    """Reading and writing each matrix once."""
    chain: float = 0.0
    """Loads of a thread that wait for each other [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierKernel:
    """A kernel without TMA and warpgroup MMAs, which hides no store behind a load."""

    counts: str
    """The limiter that its operations are."""
    start_us: float
    """Of an empty one, and what a call launches beside [us]."""
    peak_share: float
    """Of the operations that the GPU can do, those that a full one does [1]."""
    load_us: float = 0.0
    """From a load to the next one of a thread that waits for it [us]."""

    def parts_us(self, work: EarlierWork) -> dict[str, float]:
        """What its time adds up to, by limiter."""
        return {
            LAUNCH: self.start_us,
            DRAM: work.dram_us,
            self.counts: work.operations / (self.peak_share * work.peak_per_ns) / 1e3,
            LATENCY: work.chain * self.load_us,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a library brings a problem to a kernel that cannot take it as it is."""

    copies: Copies | None = None
    copying: str = ""
    """The name of what such copies take."""
    kernel: str = ""
    """The name of the earlier kernel that multiplies; '' where the fastest one does."""
    work: EarlierWork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWay:
    """A way with its numbers."""

    way: Way
    copying: Copying | None
    kernel: EarlierKernel | None

    def multiplied_us(self, fastest_us: Values) -> Values:
        """Of the kernel that multiplies where the fastest one takes so many us."""
        if self.kernel is not None and self.way.work is not None:
            return sum(self.kernel.parts_us(self.way.work).values())
        return fastest_us * (1.0 + (self.copying.share if self.copying else 0.0))

    @property
    def copied_us(self) -> Values:
        copies = self.way.copies
        return self.copying.copied_us(copies) if self.copying and copies else 0.0

    def time_us(self, fastest_us: Values) -> Values:
        """Of the whole call."""
        return self.multiplied_us(fastest_us) + self.copied_us

    def limiter(self, fastest_us: float, limiter: str) -> str:
        """What bounds the call; copies where they take longer than the kernel that multiplies."""
        if self.copied_us > self.multiplied_us(fastest_us):
            return COPIES
        if self.kernel is None or self.way.work is None:
            return limiter
        parts_us = self.kernel.parts_us(self.way.work)
        return max(parts_us, key=lambda name: parts_us[name])


class Corrects(Protocol):
    """What tells calls of a library from what is expected of them."""

    @property
    def error_band(self) -> float:
        """Relative error that 90 % of calls stayed within, of layers that it had not seen."""
        ...

    def knows(self, problem: GemmProblem) -> bool:
        """Whether it has seen calls of the problem's operand types."""
        ...

    def factor(
        self, problem: GemmProblem, config: KernelConfig, fastest: Prediction, expected_us: float
    ) -> float:
        """What the call takes over the us that are expected of it [1]; of its fastest kernel's prediction."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeuristicChoice:
    """What a library that chooses for itself takes over its kernel that is predicted to be the fastest."""

    share: float = 0.0
    """Of the time of a fastest kernel that takes next to nothing [1]."""
    half_us: float = math.inf
    """Time of a fastest kernel that the tensor cores bound at which half of that share is left [us]."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of sorts of problems for which it differs: of the fastest kernel's time, whatever that is [1]."""
    copying: Mapping[str, Copying] = field(default_factory=dict)
    """By way of copying matrices beside."""
    earlier: Mapping[str, EarlierKernel] = field(default_factory=dict)
    """By name, kernels of earlier architectures."""
    ways: Mapping[str, KnownWay] = field(default_factory=dict)
    """Where no kernel takes a problem as it is: the ways that there are, of which it takes the fastest."""
    residual: Corrects | None = None
    """What corrects the times of single convolutions."""
    factor: float = 1.0
    """What it makes of the time of one [1]."""
    error_band: float | None = None
    """Of its time then, relative; None where none was measured."""
    chosen_on: Mapping[str, str] = field(default_factory=dict)
    """By architecture without kernels of its own, the card for which it chooses."""
    choice_band: float = 0.0
    """Relative error of the time of 90 % of calls beyond that of the kernel predicted to be the fastest [1]."""

    def of(self, sort: str, ways: Mapping[str, Way] | None = None) -> HeuristicChoice:
        """What it is for problems of one sort, and of those that it takes in one of some ways."""
        copying = {"": Copying(share=self.share, kernel_us=0.0, gb_per_s=math.inf), **self.copying}
        known = {
            name: KnownWay(way=way, copying=copying.get(way.copying), kernel=self.earlier.get(way.kernel))
            for name, way in (ways or {}).items()
            if {way.copying, way.kernel} <= {"", *self.copying, *self.earlier}
        }
        if known:
            return HeuristicChoice(ways=known, residual=self.residual)
        one = replace(self, shares={}, copying={}, earlier={})
        return replace(one, share=self.shares[sort], half_us=math.inf) if sort in self.shares else one

    def corrected(self, problem: GemmProblem, config: KernelConfig, fastest: Prediction) -> HeuristicChoice:
        """The same for one convolution and its fastest kernel, by the residual where there is one."""
        if self.residual is None or not self.residual.knows(problem):
            return replace(self, residual=None)
        expected_us = float(self.time_us(fastest.runtime_us, fastest.limiter))
        factor = self.residual.factor(problem, config, fastest, expected_us)
        return replace(self, residual=None, factor=factor, error_band=self.residual.error_band)

    def time_us(self, fastest_us: Values, limiter: Any) -> Values:
        """Of the library's call where its fastest kernel takes so many us, and what bounds that."""
        if self.ways:
            return self.factor * reduce(minimum, (way.time_us(fastest_us) for way in self.ways.values()))
        fades = (limiter == TENSOR) | (limiter == MMA_WARPS)
        halves = where(fades, fastest_us / self.half_us, 0.0)
        return self.factor * fastest_us * (1.0 + self.share / (1.0 + halves))

    def band(self, kernel_band: Values) -> Values:
        """Relative error band of a call [1]; of the band of its kernel predicted to be the fastest.

        What a library chooses says nothing of a kernel's numbers, so that the two add in squares.
        """
        return sqrt(kernel_band**2 + self.choice_band**2) if self.error_band is None else self.error_band

    def way(self, fastest_us: float) -> str:
        """In which way it goes where its fastest kernel takes so many us; '' where there is none."""
        return min(self.ways, key=lambda name: float(self.ways[name].time_us(fastest_us)), default="")

    def limiter(self, fastest_us: float, limiter: str) -> str:
        """What bounds the call: copies where they take longer than the kernel that multiplies."""
        way = self.way(fastest_us)
        return self.ways[way].limiter(fastest_us, limiter) if way else limiter
