"""Fit the model to a table of measurements and compare it with the shipped fit, on that table.

Usage: calibrate_from_a_table.py TABLE.csv [GPU]
"""

import sys
from pathlib import Path

import pandas as pd

from gemm_model import load_gpu, predict_table
from gemm_model.cli import main as gemm_model


def main(table: str, gpu: str = "h200") -> None:
    fitted = Path(table).with_suffix(".calibration.yaml")
    # Judged on held-out shapes alone, and without trees: a first look, which needs no further package.
    quick = ["--hold-outs", "shapes", "--residual", "off"]
    code = gemm_model(["calibrate", "--input", table, "--gpu", gpu, "--output", str(fitted), *quick])
    if code:
        sys.exit(code)
    rows = pd.read_csv(table)
    for name, calibration in (("shipped", "auto"), ("fitted", str(fitted))):
        found = predict_table(rows, load_gpu(gpu), options={"calibration": calibration})
        error = (found["ratio"] - 1.0).abs()
        print(f"{name:8s} mean error {error.mean():.1%}, median {error.median():.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
