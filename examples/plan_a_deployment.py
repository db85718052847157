"""Let aiconfigurator plan Llama 3.1 8B on an L40S, which its own tables do not hold."""

import tempfile
from pathlib import Path

from aiconfigurator.cli.api import cli_estimate

from gemm_model.cli import main as gemm_model

MODEL = Path(__file__).with_name("llama_8b.json")
WIDTHS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
"""Outputs and inputs of its products on one card; without `--input`, those of other models are written too."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        products = Path(folder) / "products.csv"
        rows = [f"{tokens},{n},{k}" for tokens in (1, 8, 64, 512, 4096, 16384) for n, k in WIDTHS]
        products.write_text("\n".join(["m,n,k", *rows, ""]), encoding="utf-8")
        card = ["--gpu", "l40s", "--memory-gib", "48", "--link-gb-per-s", "32", "--node-gpus", "1"]
        words = [*card, "--model", str(MODEL), "--input", str(products), "--output", f"{folder}/systems"]
        gemm_model(["emit", "aiconfigurator", *words])
        found = cli_estimate(
            "meta-llama/Meta-Llama-3.1-8B",
            "l40s",
            backend_name="vllm",
            backend_version="0.24.0",
            isl=2048,
            osl=256,
            batch_size=8,
            tp_size=1,
            gemm_quant_mode="bfloat16",
            systems_paths=f"default,{folder}/systems",
        )
    print(f"first token {found.ttft:.0f} ms, then {found.tpot:.1f} ms a token")


if __name__ == "__main__":
    main()
