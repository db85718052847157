"""The three V100 kernels of the text 'Throughput matching': its measurements beside the model's predictions.

The text gives throughputs, not tiles. The tiles here are an assumption: CTAs of 32 x 32 threads for the first
two kernels, and for the third the register tile that the text's arithmetic asks for, 4 x 4 (amplification 4).
B is contiguous along n, as in the text's code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemm_model.config.numbers import room_numbers
from gemm_model.hierarchy.blocking import Blocking
from gemm_model.hierarchy.cuda_core_runtime import RuntimeParameters, runtime, tflops
from gemm_model.hierarchy.levels import Machine
from gemm_model.hierarchy.matching import Grid, match

SHAPE = (4096, 4096, 4096)


@dataclass(frozen=True, slots=True)
class TextKernel:
    """One line of the text's table."""

    name: str
    measured_tflops: float
    blocking: Blocking
    ctas_per_sm: int


def text_kernels() -> tuple[TextKernel, ...]:
    """The lines of the text's table, in its order."""
    measured = room_numbers("hierarchy")
    tiled = Blocking(
        cta_m=32, cta_n=32, cta_k=32, warp_m=1, warp_n=32, thread_m=1, thread_n=1, stages=1, vector=1
    )
    naive = replace(tiled, cta_k=1, stages=0, b_major="n")
    registers = Blocking(
        cta_m=64, cta_n=64, cta_k=16, warp_m=16, warp_n=32, thread_m=4, thread_n=4, stages=1, vector=1
    )
    lines = (
        ("naive", measured.text_naive_tflops, naive, 2),
        ("shared-memory tiling", measured.text_tiled_tflops, tiled, 2),
        ("register tiling", measured.text_register_tflops, registers, 4),
    )
    return tuple(TextKernel(*line) for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrediction:
    """The model's prediction for one line."""

    name: str
    measured_tflops: float
    predicted_tflops: float
    bound_tflops: float
    """Throughput that matching alone allows: no latency, and only the counted instructions."""
    limiter: str

    @property
    def measured_of_cublas(self) -> float:
        return self.measured_tflops / room_numbers("hierarchy").text_cublas_tflops


def text_predictions(machine: Machine, parameters: RuntimeParameters) -> tuple[TextPrediction, ...]:
    """The text's table for its machine (a V100), in its order."""
    rows = []
    for kernel in text_kernels():
        run = runtime(machine, kernel.blocking, SHAPE, kernel.ctas_per_sm, parameters)
        matched = match(machine, kernel.blocking, Grid(rows=10, columns=16, k=SHAPE[2]))
        rows.append(
            TextPrediction(
                name=kernel.name,
                measured_tflops=kernel.measured_tflops,
                predicted_tflops=tflops(SHAPE, run.runtime_us),
                bound_tflops=matched.fraction_of_peak * machine.peak_tflops,
                limiter=run.limiter,
            )
        )
    return tuple(rows)
