"""Launch contexts: what runs before and after a launch, and what it finds in L2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemm_model.core.elementwise import Values, where

if TYPE_CHECKING:
    from gemm_model.kernel_model.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """One regime; formulas read these facts and never its name."""

    name: str
    by_events: bool = False
    """Whether a pair of events around the launch reads its time, including their own."""
    chained: bool = False
    """Whether launches follow each other without a gap, so that launching hides under the previous kernel."""
    settled: bool = False
    """Whether clock and power have settled, so that the power cap holds."""
    profiled: bool = False
    """Whether a profiler has the kernel alone on the card."""
    keeps_operands: bool = False
    """Whether every launch uses the same operands, of which L2 keeps what it can."""


REGIMES: Mapping[str, LaunchContext] = {
    found.name: found
    for found in (
        LaunchContext(name="burst", by_events=True),
        LaunchContext(name="graph", chained=True),
        LaunchContext(name="sustained", chained=True, settled=True, keeps_operands=True),
        LaunchContext(name="counters", profiled=True),
    )
}
"""burst: one launch on a rested card, timed by events; graph: back to back in a CUDA graph, new operands for
each launch, on a rested card; sustained: back to back with the same operands until clock and power settle;
counters: the kernel's own duration, as a profiler reads it."""


COLD, WARM, WRITTEN = L2_STATES = ("cold", "warm", "written")
"""Operands that L2 has just seen before a launch: none, all, or only A, written by the kernel before."""


def footprint_bytes(kernel: Kernel, own_bytes: Values) -> Values:
    """Bytes touched between two uses of the same operands; infinite without a second use.

    Where the kernel before wrote A, launches are those of a model, whose weights differ.
    """
    known, kept = kernel.batch.footprint_bytes, kernel.around.keeps_operands
    repeated = kernel.l2 == WARM or (kept and kernel.l2 != WRITTEN)
    return where(known < float("inf"), known, own_bytes if repeated else float("inf"))
