"""What the size of a warp and divergence inside warps do to a pipeline: whole warps load, or parts of them."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.errors import InputError
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine

WARP_SIZE = 32
"""Threads that share an instruction [threads]; NVIDIA's cards; CUDA C++ Programming Guide."""


def in_warps(
    machine: PipelineMachine,
    kernel: PipelineKernel,
    *,
    threads: int,
    dma_threads: int,
    warp_size: int = WARP_SIZE,
    diverges: bool = False,
) -> tuple[PipelineMachine, PipelineKernel]:
    """A CTA of `threads`, `dma_threads` of which load; `machine.mac_per_us` is the rate of all of them.

    Specialized by warp, loading takes whole warps from the math: the larger `warp_size`, the more. Where
    roles diverge inside warps no warp is lost, but a warp executes both sides of its branch in turn: no load
    runs under math, as in a ring of one stage. Raises InputError where no warp is left for the math.
    """
    if min(threads, dma_threads, warp_size) < 1 or threads % warp_size:
        raise InputError(
            f"{threads} threads in warps of {warp_size}; expected whole warps, and threads that load"
        )
    lost = dma_threads if diverges else -(-dma_threads // warp_size) * warp_size
    if lost >= threads:
        raise InputError(f"{lost} of {threads} threads load; expected some for the math")
    slower = replace(machine, mac_per_us=machine.mac_per_us * (1.0 - lost / threads))
    return slower, replace(kernel, stages=1) if diverges else kernel
