"""Instructions and shared-memory clocks of a CUDA-core GEMM kernel's CTA, counted from its tiles.

A *slice* is `cta_k` steps of k: the depth of one stage. Counts were checked against the counters of every
kernel of the ladder on an H200 (docs/models/throughput-matching.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.config.numbers import room_numbers
from gemm_model.hierarchy.blocking import WARP, Blocking

LINE_BYTES = 128
"""Bytes of a wavefront [B]; one clock of the L1 / shared-memory SRAM, or one line of global memory; CUDA C++
Programming Guide."""
WORD_BYTES = 4

COPY_LANES_K = 8
"""Words of one row that a warp's asynchronous copy takes [words]; the ladder's kernels; one 32-byte
sector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one CTA in one step of k, averaged over a slice."""

    fma_instructions: float
    instructions: float
    """All warp instructions, the FMAs among them."""
    wavefronts: float
    """Clocks of the SM's L1 / shared-memory SRAM."""
    l2_bytes: float

    @property
    def fma_share(self) -> float:
        return self.fma_instructions / self.instructions


def work_per_k(blocking: Blocking) -> Work:
    """Instructions, wavefronts and L2 bytes of one CTA for one step of k."""
    counted = room_numbers("hierarchy")
    warps = blocking.warps
    fma = float(warps * blocking.thread_m * blocking.thread_n)
    l2_bytes = float(WORD_BYTES * (blocking.cta_m + blocking.cta_n))
    if blocking.stages == 0:
        loads = 2.0 * warps
        return Work(
            fma_instructions=fma,
            instructions=fma + loads + counted.naive_loop_instructions * warps,
            wavefronts=warps * unstaged_wavefronts(blocking),
            l2_bytes=l2_bytes,
        )
    # Words that each thread of a warp copies for one step of k, times the warps.
    copies = (blocking.cta_m + blocking.cta_n) / WARP
    loads = warps * (blocking.thread_m + blocking.thread_n) / blocking.vector
    if blocking.stages == 1:
        address, loop = counted.register_address_instructions, counted.register_loop_instructions
        moves = 2.0
        rows = max(1.0, WARP / blocking.cta_k)
        wavefronts_per_copy = rows + 1.0
    else:
        address, loop = counted.asynchronous_address_instructions, counted.asynchronous_loop_instructions
        moves = 1.0
        wavefronts_per_copy = WARP / COPY_LANES_K + counted.copy_write_wavefronts
    other = copies * address + loop * warps / blocking.cta_k
    return Work(
        fma_instructions=fma,
        instructions=fma + loads + moves * copies + other,
        wavefronts=warps * staged_wavefronts(blocking) + copies * wavefronts_per_copy,
        l2_bytes=l2_bytes,
    )


def unstaged_wavefronts(blocking: Blocking) -> float:
    """Wavefronts of a warp's two loads from global memory, one for every line that they touch.

    Lanes of a row share A's word and each row is another line; lanes of a column likewise for B, unless B is
    contiguous along n: then neighbouring columns share a line.
    """
    b_lines = blocking.lanes_n if blocking.b_major == "k" else 1
    return float(blocking.lanes_m + b_lines)


def staged_wavefronts(blocking: Blocking) -> float:
    """Wavefronts of a warp's loads from shared memory for one step of k.

    32-bit loads: one each, since neighbouring lanes ask for neighbouring or equal words. 128-bit loads: half
    a warp at a time where lanes share words, else a quarter; with row-by-row lanes A's words are shared along
    a row, B's only where a row is short.
    """
    if blocking.vector == 1:
        return float(blocking.thread_m + blocking.thread_n)
    a_shared = blocking.interleaved or blocking.lanes_n >= 2
    b_shared = blocking.interleaved or blocking.lanes_n <= 2
    measured = room_numbers("hierarchy")
    a_clocks = measured.half_warp_clocks if a_shared else measured.quarter_warp_clocks
    b_clocks = measured.half_warp_clocks if b_shared else measured.quarter_warp_clocks
    return (blocking.thread_m * a_clocks + blocking.thread_n * b_clocks) / blocking.vector


def operand_wavefronts(blocking: Blocking) -> float:
    """Wavefronts that bring a warp the operands of one step of k."""
    return unstaged_wavefronts(blocking) if blocking.stages == 0 else staged_wavefronts(blocking)
