"""The shipped numbers of each room, as `make golden` found them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from gemm_model.attention.numbers import attention_numbers
from gemm_model.bench.numbers import bench_numbers
from gemm_model.calibration.numbers import calibration_numbers
from gemm_model.choice.numbers import choice_numbers
from gemm_model.core.gpu import assumed_numbers
from gemm_model.hierarchy.numbers import hierarchy_numbers
from gemm_model.integrations.numbers import integration_numbers
from gemm_model.kernel_model.faults import count_numbers
from gemm_model.kernel_model.numbers import kernel_model_numbers
from gemm_model.kernels.numbers import family_numbers
from gemm_model.overlap.numbers import overlap_numbers
from gemm_model.serving.numbers import serving_numbers
from gemm_model.timeline.numbers import timeline_numbers

RECORDED = Path(__file__).parent / "numbers.yaml"
ROOMS: Mapping[str, Callable[[], Any]] = {
    "attention": attention_numbers,
    "choice": choice_numbers,
    "integrations": integration_numbers,
    "hierarchy": hierarchy_numbers,
    "serving": serving_numbers,
    "overlap": overlap_numbers,
    "kernel_model": kernel_model_numbers,
    "kernels": family_numbers,
    "bench": bench_numbers,
    "timeline": timeline_numbers,
    "counts": count_numbers,
    "gpu": assumed_numbers,
    "calibration": calibration_numbers,
}


def shipped(room: str) -> dict[str, float]:
    return asdict(ROOMS[room]())


def recorded() -> Mapping[str, Mapping[str, float]]:
    found: Mapping[str, Mapping[str, float]] = yaml.safe_load(RECORDED.read_text())
    return found


def write_numbers() -> None:
    header = "# Values of config/numbers/*.yaml, as `make golden` found them.\n"
    RECORDED.write_text(header + yaml.safe_dump({room: shipped(room) for room in ROOMS}, sort_keys=False))
