"""Where compiled kernels are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "GEMM_MODEL_CACHE_DIR"


def cache_folder(provider: str) -> Path:
    """The folder of one provider's kernels; the environment's GEMM_MODEL_CACHE_DIR moves all of them."""
    root = os.environ.get(CACHE_VARIABLE)
    return (Path(root) if root else Path.home() / ".cache" / "gemm-model") / provider
