"""The empirical numbers of this room: `config/numbers/choice.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceNumbers:
    """Numbers of searches, and of problems for which a library's heuristic choices lose differently."""

    cudnn_dilation: int = empirical("pixels", 1, 1024, whole=True)
    cudnn_columns: int = empirical("columns", 8, 256, whole=True)
    cudnn_few_channels: int = empirical("channels", 2, 64, whole=True)
    cudnn_whole_channels: int = empirical("channels", 64, 1024, whole=True)
    cudnn_whole_pixels: int = empirical("pixels", 1, 1e6, whole=True)
    cudnn_taps: int = empirical("taps", 1, 1024, whole=True)
    cudnn_earlier_tile: int = empirical("elements", 8, 1024, whole=True)
    cudnn_narrow_tile: int = empirical("columns", 8, 1024, whole=True)
    cudnn_earlier_k_tile: int = empirical("channels", 1, 1024, whole=True)
    cudnn_gradient_tile: int = empirical("elements", 8, 1024, whole=True)
    cudnn_direct_filters: int = empirical("filters", 1, 1024, whole=True)
    cudnn_direct_k_tile: int = empirical("channels", 1, 1024, whole=True)
    cudnn_gathered_filters: int = empirical("filters", 1, 1024, whole=True)
    first_look: float = empirical("1", 1.0, 100.0)
    first_look_among: int = empirical("kernels", 1, 1000, whole=True)


@cache
def choice_numbers() -> ChoiceNumbers:
    return room_numbers("choice", ChoiceNumbers)
