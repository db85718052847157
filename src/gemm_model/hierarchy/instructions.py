"""What a CUDA-core GEMM kernel issues: instructions and shared-memory clocks of one CTA, from its tiles.

A *slice* is `cta_k` steps of k: the depth of one stage. Counts were checked against the counters of every
kernel of the ladder on an H200 (docs/models/throughput-matching.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.hierarchy.blocking import WARP, Blocking

SCHEDULERS = 4
"""Warp instructions that an SM starts per clock [1/clk]; since Volta: one for each of its four parts;
datasheet."""
LINE_BYTES = 128
"""One wavefront [B]; the L1 / shared-memory SRAM in a clock, or one line of global memory; CUDA C++
Programming Guide."""
WORD_BYTES = 4
HALF_WARP_CLOCKS = 2
QUARTER_WARP_CLOCKS = 4
"""Clocks of a 128-bit load [clk]; half a warp a clock where each lane asks for the same 16 bytes as the lane
whose number differs in bit 0 (or, for all lanes, bit 1), else a quarter; measured: 2.0 and 4.0."""

COPY_LANES_K = 8
"""Words of one row that a warp's asynchronous copy takes [words]; the ladder's kernels; one 32-byte
sector."""
COPY_WRITE_WAVEFRONTS = 1.5
"""Wavefronts that write what a warp's asynchronous copy brought [1]; the ladder's kernels; counted: 5.4 a
copy, 4 of them reads."""
ADDRESS_INSTRUCTIONS = {"registers": 6.5, "asynchronous": 1.6}
"""Integer instructions beside each word that a thread copies [1]; by the way it takes; counted in the
ladder."""
LOOP_INSTRUCTIONS = {"registers": 2.0, "asynchronous": 20.0}
"""Barriers, counters and branch of one slice [instructions]; by the way of its copies; counted in the
ladder."""
NAIVE_LOOP_INSTRUCTIONS = 1.0
"""Pointer increments of one step of k [instructions]; without staging, the loop unrolled; counted in the
ladder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one CTA does in one step of k, on average over a slice."""

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
    warps = blocking.warps
    fma = float(warps * blocking.thread_m * blocking.thread_n)
    l2_bytes = float(WORD_BYTES * (blocking.cta_m + blocking.cta_n))
    if blocking.stages == 0:
        loads = 2.0 * warps
        return Work(
            fma_instructions=fma,
            instructions=fma + loads + NAIVE_LOOP_INSTRUCTIONS * warps,
            wavefronts=warps * unstaged_wavefronts(blocking),
            l2_bytes=l2_bytes,
        )
    # Words that each thread of a warp copies for one step of k, times the warps.
    copies = (blocking.cta_m + blocking.cta_n) / WARP
    loads = warps * (blocking.thread_m + blocking.thread_n) / blocking.vector
    if blocking.stages == 1:
        way, moves = "registers", 2.0
        rows = max(1.0, WARP / blocking.cta_k)
        wavefronts_per_copy = rows + 1.0
    else:
        way, moves = "asynchronous", 1.0
        wavefronts_per_copy = WARP / COPY_LANES_K + COPY_WRITE_WAVEFRONTS
    other = copies * ADDRESS_INSTRUCTIONS[way] + LOOP_INSTRUCTIONS[way] * warps / blocking.cta_k
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

    32-bit loads: one each, since neighbouring lanes ask for neighbouring or equal words. 128-bit loads: see
    HALF_WARP_CLOCKS; with row-by-row lanes A's words are shared along a row, B's only where a row is short.
    """
    if blocking.vector == 1:
        return float(blocking.thread_m + blocking.thread_n)
    a_shared = blocking.interleaved or blocking.lanes_n >= 2
    b_shared = blocking.interleaved or blocking.lanes_n <= 2
    a_clocks = HALF_WARP_CLOCKS if a_shared else QUARTER_WARP_CLOCKS
    b_clocks = HALF_WARP_CLOCKS if b_shared else QUARTER_WARP_CLOCKS
    return (blocking.thread_m * a_clocks + blocking.thread_n * b_clocks) / blocking.vector


def operand_wavefronts(blocking: Blocking) -> float:
    """Wavefronts that bring a warp the operands of one step of k."""
    return unstaged_wavefronts(blocking) if blocking.stages == 0 else staged_wavefronts(blocking)
