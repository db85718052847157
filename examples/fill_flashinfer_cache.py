"""Write what FlashInfer's CuTe kernels run on a B200 for a layer in nvfp4, without timing and without the card."""

import json
import tempfile
from pathlib import Path

from gemm_model import GemmProblem
from gemm_model.integrations.flashinfer import write_tuning_cache

LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""Llama 3 8B: outputs and inputs of each linear layer."""


def main() -> None:
    problems = [GemmProblem.of(m, n, k, "nvfp4") for m in (64, 512, 2048) for n, k in LAYERS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tuned.json"
        keys = write_tuning_cache(path, problems, "b200_sxm")
        entries = json.loads(path.read_text(encoding="utf-8"))
    # Where the model runs: `with flashinfer.autotune(False, cache="tuned.json"): ...`
    print(f"{keys} keys for {len(problems)} products; four, with tile, cluster and operands swapped:")
    for key, (_, tactic) in [*entries.items()][1::9]:
        print(key, tactic[:3], sep="\n  ")


if __name__ == "__main__":
    main()
