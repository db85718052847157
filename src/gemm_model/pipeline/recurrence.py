"""The recurrences of the producer/consumer pipeline, step by step.

For k tile i = 1, 2, ... of an output tile, with a ring of M stages (Liu and Grover, equations 1 to 3):

    S_a(i) = max(S_b(i-1) + T_LOAD-B, S_m(i-M) + T_MATH)        one DMA warp: A, then B
    S_b(i) = max(S_a(i) + T_LOAD-A,   S_m(i-M) + T_MATH)
    S_m(i) = max(S_m(i-1) + T_MATH,   S_a(i) + T_LOAD-A + latency, S_b(i) + T_LOAD-B + latency)

With two DMA warps each load follows that warp's own load before: S_a(i-1) + T_LOAD-A in place of
S_b(i-1) + T_LOAD-B, and S_b(i-1) + T_LOAD-B in place of S_a(i) + T_LOAD-A.

This module is the definition; `steady_state` is what to use where time matters.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.pipeline.machine import Number, PipelineMachine, StepTimes, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """When each event starts, in ps; arrays of shape (waves, steps, *rows), epilogues (waves, *rows)."""

    load_a: FloatArray
    load_b: FloatArray
    math: FloatArray
    epilogue: FloatArray
    end: Number
    """When the kernel is done, T_INIT included; the starts count from the end of T_INIT."""


def run(work: Workload, machine: PipelineMachine) -> Starts:
    """All events of the busiest SM.

    `waves`, `steps` and `stages` are the same for all rows of the workload; its times may be arrays.
    """
    waves, steps, stages = int(work.waves), int(work.steps), int(work.stages)
    starts: dict[str, list[Number]] = {"load_a": [], "load_b": [], "math": [], "epilogue": []}
    zero: Number = 0.0 * np.asarray(work.full.math)
    a_free = b_free = main_end = zero
    epilogue_ends = deque([zero, zero], maxlen=2)
    slots = deque([zero] * stages, maxlen=stages)
    for wave in range(1, waves + 1):
        regular, last = (work.tail, work.tail_last) if wave == waves else (work.full, work.full_last)
        if machine.consumers == "single":
            a_free = b_free = main_end = epilogue_ends[-1]
            slots.extend([main_end] * stages)
        elif machine.consumers == "cooperative":
            main_end = np.maximum(main_end, epilogue_ends[-1])
        else:
            main_end = np.maximum(main_end, epilogue_ends[0])
        for step in range(1, steps + 1):
            times = last if step == steps else regular
            a_start, b_start = _loads(a_free, b_free, slots[0], times, machine.dma_warps)
            a_free, b_free = a_start + times.load_a, b_start + times.load_b
            ready = np.maximum(a_free, b_free) + work.latency
            math_start = np.maximum(main_end, ready)
            main_end = math_start + times.math
            slots.append(main_end)
            starts["load_a"].append(a_start)
            starts["load_b"].append(b_start)
            starts["math"].append(math_start)
        early = machine.consumers == "single" and not machine.counts_last_math
        done = math_start if early else main_end
        epilogue = np.maximum(done, epilogue_ends[-1])
        epilogue_ends.append(epilogue + work.epilogue)
        starts["epilogue"].append(epilogue)
    shape = np.shape(zero)
    return Starts(
        load_a=np.array(starts["load_a"]).reshape(waves, steps, *shape),
        load_b=np.array(starts["load_b"]).reshape(waves, steps, *shape),
        math=np.array(starts["math"]).reshape(waves, steps, *shape),
        epilogue=np.array(starts["epilogue"]),
        end=epilogue_ends[-1] + work.init,
    )


def _loads(
    a_free: Number, b_free: Number, slot_free: Number, times: StepTimes, dma_warps: int
) -> tuple[Number, Number]:
    if dma_warps == 1:
        a_start = np.maximum(b_free, slot_free)
        return a_start, np.maximum(a_start + times.load_a, slot_free)
    return np.maximum(a_free, slot_free), np.maximum(b_free, slot_free)
