"""What a run is configured with: a GPU, a model and the model's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemm_model.config import load_config
from gemm_model.core.gpu import GpuSpec, gpu_from_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration after all overrides."""

    gpu: GpuSpec
    model: str
    options: Mapping[str, Any]


def load_settings(overrides: Sequence[str], defaults: Mapping[str, str]) -> Settings:
    """Settings from `key=value` overrides over choices of `gpu` and `model`.

    Raises InputError for an unknown key, name or value.
    """
    config = load_config(overrides, defaults)
    return Settings(
        gpu=gpu_from_mapping(config["gpu"]), model=config["model"], options=config["model_opts"] or {}
    )
