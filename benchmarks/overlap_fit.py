"""Fit the overlap model to measured surfaces, and test it on shapes or norms that the fit has not seen.

    python benchmarks/overlap_fit.py [--hold-out shape]

Prints the constants as YAML for config/model/OverlapModel.yaml and the accuracy per surface.
"""

import argparse

import pandas as pd
from measured import path_of

from gemm_model.core.gpu import load_gpu
from gemm_model.overlap.surfaces import accuracy, fit_parameters, read_surfaces


def show(title, rows):
    print(f"# {title}")
    with pd.option_context("display.width", 250, "display.max_columns", 30):
        print(rows.drop(columns=["surface", "n"]).round(4).to_string(index=False))
    count = (rows["regret"] <= 0.03).sum()
    slower = (rows["pick_us"] > rows["serialized_us"]).sum()
    print(
        f"# mean error {rows['mean_error'].mean():.2%}, worst surface {rows['mean_error'].max():.2%}; "
        f"pick within 3 % of the grid's best in {count} of {len(rows)}, mean {rows['regret'].mean():.2%}, "
        f"worst {rows['regret'].max():.2%}; slower than no overlap: {slower}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--hold-out",
        choices=("shape", "norm"),
        help="leave out each shape or norm length in turn",
    )
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    gpu = load_gpu("h200")
    table = read_surfaces(path_of("overlap_surfaces"))
    table = table[table["role"] == "fit"].reset_index(drop=True)
    if args.hold_out:
        parts = []
        keys = ["m", "k"] if args.hold_out == "shape" else ["extra_clocks"]
        for value, group in table.groupby(keys, sort=False):
            held = table.index.isin(group.index)
            seen = table[~held].reset_index(drop=True)
            parameters = fit_parameters(seen, gpu, starts=args.starts, seed=args.seed)
            parts.append(accuracy(table[held], gpu, parameters))
            show(f"held out: {', '.join(map(str, value))}", parts[-1])
        show("all held out", pd.concat(parts))
        return
    parameters = fit_parameters(table, gpu, starts=args.starts, seed=args.seed)
    for name, value in vars(parameters).items():
        print(f"  {name}: {value:.6g}")
    show("fitted to all", accuracy(table, gpu, parameters))


if __name__ == "__main__":
    main()
