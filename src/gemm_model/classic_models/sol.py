"""Speed of light: the larger of peak math time and peak DRAM time."""

from __future__ import annotations

import numpy as np

from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.core.batch import GemmBatch
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction
from gemm_model.kernels.model import Model

LIMITERS = ("MATH", "DRAM")


class SOLModel(Model):
    """runtime = max(2 m n k at the peak rate, A and B read once and C written once at the DRAM peak).

    Source: the classic gemm-model, 'SOL Model'.
    """

    needs_tile = False
    beyond_plain = True

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        gpu = self.gpu
        math_us = batch.flop / (flop_per_clk_per_sm(batch, gpu) * gpu.sm_count * gpu.sm_clk_mhz)
        dram_bytes = batch.operand_bytes + batch.source_bytes + batch.output_bytes
        dram_us = dram_bytes / gpu.dram_bytes_per_us
        limiter = 1 * (dram_us > math_us)
        runtime_us = np.maximum(math_us, dram_us)
        return BatchPrediction(
            runtime_us=runtime_us,
            limiter=limiter,
            limiter_names=LIMITERS,
            phases_us={"overlapped": runtime_us},
            details={"math_us": math_us, "dram_us": dram_us},
            bytes_by_level={"dram": dram_bytes},
            caveats=gpu.caveats,
        )
