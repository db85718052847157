"""Rules of kernels before Hopper, whatever the library, which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, is_multiple, where


def offers_tile(batch: GemmBatch) -> Flags:
    """Whole MMA instructions of m16n8, up to 256 x 256."""
    m, n = batch.cta_m, batch.cta_n
    return is_multiple(m, 16.0) & is_multiple(n, 8.0) & (m <= 256) & (n <= 256)


def warpgroups(batch: GemmBatch) -> Values:
    return where(batch.cta_m * batch.cta_n <= room_numbers("kernels").four_warp_accumulators, 1.0, 2.0)
