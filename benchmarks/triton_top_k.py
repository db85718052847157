"""What pruning to the model's top k would keep, from Triton timings of every configuration.

    python benchmarks/triton_top_k.py --measured data/measurements/h200/triton.csv.gz

Needs neither GPU nor Triton: `benchmarks/triton_autotune.py` takes the timings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.integrations.triton import triton_perf_model
from gemm_model.models import DEFAULT_MODEL

CONFIG = ["cta_m", "cta_n", "cta_k", "swizzle", "num_warps", "stages"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--models", default=f"{DEFAULT_MODEL},WSPersistentGEMMModel")
    args = parser.parse_args()
    table = pd.read_csv(args.measured)
    measured_us = table["runtime_us"].fillna(np.inf)
    best_us = measured_us.groupby([table["m"], table["n"], table["k"]]).transform("min")
    print("| model | top k | mean speed kept | worst | configurations compiled for all shapes |")
    print("|---|---|---|---|---|")
    for model in args.models.split(","):
        perf_model = triton_perf_model(args.gpu, model=model, dtype="bf16", output_tile_in_smem=True)
        predicted = [
            perf_model(
                M=row.m,
                N=row.n,
                K=row.k,
                BLOCK_M=row.cta_m,
                BLOCK_N=row.cta_n,
                BLOCK_K=row.cta_k,
                GROUP_M=row.swizzle,
                num_warps=row.num_warps,
                num_stages=row.stages,
            )
            for row in table.itertuples()
        ]
        rows = table.assign(kept=best_us / measured_us, predicted=predicted)
        shapes = rows.groupby(["m", "n", "k"], sort=False)
        place = shapes["predicted"].rank(method="first")
        for top_k in (1, 2, 3, 4, 6, 8):
            picked = rows[place <= top_k]
            kept = picked.groupby(["m", "n", "k"])["kept"].max()
            compiled = len(picked[CONFIG].drop_duplicates())
            print(f"| {model} | {top_k} | {kept.mean():.1%} | {kept.min():.1%} | {compiled} |")


if __name__ == "__main__":
    main()
