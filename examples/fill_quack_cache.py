"""Fill the cache of QuACK's autotuner with predictions: `quack.gemm_interface.gemm` then times nothing."""

import os
import tempfile
from pathlib import Path

from gemm_model import GemmProblem
from gemm_model.integrations.quack import gemm_config, write_tuning_cache

LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""Llama 3 8B: outputs and inputs of each linear layer."""


def main() -> None:
    problems = [GemmProblem.of(2048, n, k, "bf16") for n, k in LAYERS]
    for problem in problems:
        print(problem.sizes, gemm_config(problem, "h200"))
    with tempfile.TemporaryDirectory() as folder:
        # Without this variable it is QuACK's own folder, ~/.quack/cache.
        os.environ["QUACK_CACHE_DIR"] = folder
        written = write_tuning_cache(problems, "h200")
        print(f"{written} products, {len([*Path(folder).rglob('*.json')])} files")


if __name__ == "__main__":
    main()
