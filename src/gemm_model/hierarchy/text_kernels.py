"""The three V100 kernels of the text 'Throughput matching': its measurements beside the model's predictions.

The text gives throughputs, not tiles. The tiles here are an assumption: CTAs of 32 x 32 threads for the first
two kernels, and for the third the register tile that the text's arithmetic asks for, 4 x 4 (amplification 4).
B is contiguous along n, as in the text's code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemm_model.config.numbers import room_numbers
from gemm_model.hierarchy.blocking import Blocking
from gemm_model.hierarchy.cuda_core_runtime import RuntimeParameters, runtime, tflops
from gemm_model.hierarchy.levels import Machine
from gemm_model.hierarchy.matching import Grid, match

SHAPE = (4096, 4096, 4096)
REGISTERS = Blocking(
    cta_m=64, cta_n=64, cta_k=16, warp_m=16, warp_n=32, thread_m=4, thread_n=4, stages=1, vector=1
)
TILED = Blocking(
    cta_m=32, cta_n=32, cta_k=32, warp_m=1, warp_n=32, thread_m=1, thread_n=1, stages=1, vector=1
)
KERNELS = {
    "naive": ("text_naive_tflops", replace(TILED, cta_k=1, stages=0, b_major="n"), 2),
    "shared-memory tiling": ("text_tiled_tflops", TILED, 2),
    "register tiling": ("text_register_tflops", REGISTERS, 4),
}
"""The lines of the text's table: number of its throughput, tiles, and CTAs of an SM."""


def text_predictions(machine: Machine, parameters: RuntimeParameters) -> list[dict[str, Any]]:
    """The text's table for its machine (a V100), in its order.

    `bound_tflops` is the throughput that matching alone allows: no latency, and only the counted instructions.
    """
    numbers, rows = room_numbers("hierarchy"), []
    for name, (measured, blocking, ctas_per_sm) in KERNELS.items():
        run = runtime(machine, blocking, SHAPE, ctas_per_sm, parameters)
        bound = match(machine, blocking, Grid(rows=10, columns=16, k=SHAPE[2])).fraction_of_peak
        found = {"name": name, "measured_tflops": getattr(numbers, measured)}
        found |= {
            "predicted_tflops": tflops(SHAPE, run.runtime_us),
            "bound_tflops": bound * machine.peak_tflops,
        }
        of_cublas = getattr(numbers, measured) / numbers.text_cublas_tflops
        rows.append({**found, "limiter": run.limiter, "measured_of_cublas": of_cublas})
    return rows
