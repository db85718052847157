"""The empirical numbers of this room: `config/numbers/kernels.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNumbers:
    """Numbers observed on kernels whose source does not show them."""

    cublas_pingpong_accumulators: float = empirical("accumulators", 64.0, 2.0**18)
    cudnn_pingpong_accumulators: float = empirical("accumulators", 64.0, 2.0**18)
    four_warp_accumulators: float = empirical("accumulators", 64.0, 2.0**18)
    grouped_accumulators: float = empirical("registers", 1.0, 255.0)
    triton_mmas_ahead: float = empirical("instructions", 1.0, 64.0)


@cache
def family_numbers() -> FamilyNumbers:
    return room_numbers("kernels", FamilyNumbers)
