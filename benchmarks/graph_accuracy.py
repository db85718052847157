"""How near launches in CUDA graphs are predicted, and how near the gain of programmatic launch can be.

    python benchmarks/graph_accuracy.py

By GPU, family and type, of rested rows of `graph.csv.gz`: the error with and without the residual, on all
rows and on shapes that the burst table, which the residual was trained on, does not hold. Then, of pairs of
rows that differ in programmatic dependent launch alone: what it gains, the share predicted within 0.4 us, and
the share whose own replays scatter by less than that. Last, how far the same rows lie apart on two H200s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model import predict_table
from gemm_model.tables.table import read_table

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
GPUS = ("h200", "h100_sxm")
FAMILIES = ("quack", "cublas", "cutlass", "triton")
SHORT_US = 12.0
GAIN_US = 0.4
"""A gain counts as predicted within it [us]."""
DURATIONS_US = (0, 6, 12, 25, 50, 100, 200, 1e9)
SIZES = ["m", "n", "k"]
KERNEL = ["in_dtype", *SIZES, "kernel", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"]
KERNEL += ["raster", "stages", "split_k", "fast_accum", "rotation"]


def rested(gpu: str, table: str = "graph") -> pd.DataFrame:
    """Rows of one kernel in its chain, each replay after a rest; numbers as numbers."""
    rows = read_table(MEASUREMENTS / gpu / f"{table}.csv.gz")
    settled = pd.to_numeric(rows["settled"], errors="coerce").fillna(0.0) > 0.0
    rows = rows[(rows["disposition"] == "ok") & ~settled & (rows["partner"].fillna("") == "")]
    # Libraries choose for themselves: the captured graph tells how they launched.
    edges = pd.to_numeric(rows["programmatic_edges"], errors="coerce")
    own = pd.to_numeric(rows["pdl"], errors="coerce").isna() & edges.notna()
    rows.loc[own, "pdl"] = (edges[own] > 0).astype(int).astype(str)
    for name in ("runtime_us", "min_us", "p90_us"):
        rows[name] = pd.to_numeric(rows[name])
    return rows


def predicted(rows: pd.DataFrame, gpu: str, residual: str = "auto") -> pd.DataFrame:
    return predict_table(rows, gpu, options={"regime": "graph", "residual": residual})


def errors(gpu: str) -> Iterator[dict[str, object]]:
    """A line for each family and type, without and with the residual."""
    rows, alone = rested(gpu), read_table(MEASUREMENTS / gpu / "burst.csv.gz")
    known = set(map(tuple, alone[SIZES].astype(str).to_numpy()))
    for family in FAMILIES:
        for residual in ("off", "auto") if family == "quack" else ("off",):
            found = predicted(rows[rows["kernel"] == family], gpu, residual)
            unseen = [tuple(sizes) not in known for sizes in found[SIZES].astype(str).to_numpy()]
            found = found.assign(error=(found["ratio"] - 1.0).abs(), unseen=unseen)
            for name, part in found.groupby("in_dtype"):
                other = part.loc[part["unseen"], "error"]
                yield {
                    **{"gpu": gpu, "family": family, "type": name, "residual": residual, "rows": len(part)},
                    "MAPE": f"{part['error'].mean():.2%}",
                    "p95": f"{part['error'].quantile(0.95):.1%}",
                    "below 12 us": f"{part.loc[part['runtime_us'] < SHORT_US, 'error'].mean():.2%}",
                    "other shapes": len(other),
                    "their MAPE": f"{other.mean():.2%}",
                    "their p95": f"{other.quantile(0.95):.1%}",
                }


def gains(gpu: str) -> pd.DataFrame:
    """By duration, of pairs with and without programmatic dependent launch."""
    rows = rested(gpu)
    found = predicted(rows[rows["kernel"] == "quack"], gpu)
    kept = ["runtime_us", "predicted_us", "min_us", "p90_us"]
    sides = [
        found[found["pdl"].astype(str) == pdl].drop_duplicates(KERNEL).set_index(KERNEL)[kept]
        for pdl in ("0", "1")
    ]
    without, dependent = sides[0].align(sides[1], join="inner", axis=0)
    gain_us = without["runtime_us"] - dependent["runtime_us"]
    error_us = (without["predicted_us"] - dependent["predicted_us"] - gain_us).abs()
    scatter_us = np.hypot(*(side["p90_us"] - side["min_us"] for side in (without, dependent)))
    pairs = pd.DataFrame(
        {
            "gain_us": gain_us,
            "predicted": (error_us <= GAIN_US).astype(float),
            "repeated": (scatter_us <= GAIN_US).astype(float),
        }
    )
    duration = pd.cut(dependent["runtime_us"], DURATIONS_US)
    kinds = {"gain_us": ["size", "median"], "predicted": "mean", "repeated": "mean"}
    return pd.concat(
        [pairs.groupby(duration, observed=True).agg(kinds), pairs.assign(all="all").groupby("all").agg(kinds)]
    )


def two_cards() -> pd.DataFrame:
    """By duration, log(second card / first) of the same rows: its mean, and the mean of its size."""
    names = [*KERNEL, "kernel_name", "pdl"]
    first, second = (rested("h200", table) for table in ("graph", "graph_repeat"))
    sides = [
        side.fillna("").drop_duplicates(names).set_index(names)["runtime_us"] for side in (first, second)
    ]
    one, other = (side.astype(float) for side in sides[0].align(sides[1], join="inner"))
    apart = np.log(other / one)
    table = pd.DataFrame({"signed": apart, "size": apart.abs()})
    return table.groupby(pd.cut(one, DURATIONS_US), observed=True).agg(
        {"signed": ["size", "mean"], "size": "mean"}
    )


def main() -> None:
    print(pd.DataFrame([line for gpu in GPUS for line in errors(gpu)]).to_string(index=False))
    for gpu in GPUS:
        print(gpu, gains(gpu).round(3).to_string(), sep="\n")
    print(two_cards().round(4).to_string())


if __name__ == "__main__":
    main()
