"""The torch type of each element type."""

from __future__ import annotations

import torch

from gemm_model.bench.provider import UnsupportedError
from gemm_model.core.dtypes import names_in

TORCH_DTYPES = {
    name: getattr(torch, theirs) for theirs, name in names_in("torch").items() if "int" not in name
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of an element type's name; UnsupportedError where torch has none."""
    found = TORCH_DTYPES.get(name)
    if found is None:
        raise UnsupportedError(f"torch has no type for {name}")
    return found
