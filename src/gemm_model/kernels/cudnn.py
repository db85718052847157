"""Rules of cuDNN's kernels, which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags
from gemm_model.core.kernel_config import PINGPONG


def in_its_schedule(batch: GemmBatch) -> Flags:
    """Whether the schedule is the tile's own: cooperative for large tiles."""
    too_large = batch.cta_m * batch.cta_n > room_numbers("kernels").cudnn_pingpong_accumulators
    fits: Flags = too_large ^ (batch.schedule == PINGPONG)
    return fits
