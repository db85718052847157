"""The torch type of each element type."""

from __future__ import annotations

import torch

from gemm_model.bench.provider import UnsupportedError

TORCH_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e8m0": torch.float8_e8m0fnu,
    "e2m1": torch.float4_e2m1fn_x2,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of an element type's name; UnsupportedError where torch has none."""
    found = TORCH_DTYPES.get(name)
    if found is None:
        raise UnsupportedError(f"torch has no type for {name}")
    return found
