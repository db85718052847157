"""How near launches in CUDA graphs are predicted, and how near the gain of programmatic launch can be.

    python benchmarks/graph_accuracy.py

By GPU, family and type, of rested rows of `graph.csv.gz`: the error with and without the residual, on all
rows and on shapes that the table which the residual was trained on does not hold; and the first choice among
kernels of one shape that were launched alike (with or without programmatic dependent launch, one rotation), a
mean over all such groups of two kernels and more. Then, of chains
replayed in turn with and without programmatic dependent launch (`graph_pairs*.csv.gz`): what it gains, and
the share predicted within 0.4 us, of all pairs and of those whose gain is measured to 0.15 us; and the share
of pairs on which two H200s agree as well. Then how far the same rows lie apart on two H200s.

Last, the error of chains that the first table leaves out: of two kernels in turn, whose prediction is that of
the row's kernel and the partner's time in a graph of its own, and of chains at a settled clock, predicted in
the regime `sustained`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model import predict_table
from gemm_model.kernel_model.calibration_file import calibration_names
from gemm_model.tables.accuracy import shape_columns, top1_efficiency
from gemm_model.tables.table import read_table

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
GPUS = ("h200", "h100_sxm")
TRAINED_ON = {
    "quack": "burst.csv.gz",
    "cublas": "cublaslt.csv.gz",
    "cutlass": "cutlass.csv.gz",
    "triton": "triton_persistent.csv.gz",
}
"""The largest table of launches alone that a family's residual was trained on."""
SHORT_US = 12.0
GAIN_US = 0.4
"""A gain counts as predicted within it [us]."""
KNOWN_US = 0.15
"""A gain counts as measured well with such a standard error [us]."""
PAIRED = (
    *(("h200", name) for name in ("graph_pairs", "graph_pairs_repeat", "graph_pairs_cutlass")),
    ("h100_sxm", "graph_pairs"),
)
DURATIONS_US = (0, 6, 12, 25, 50, 100, 200, 1e9)
SIZES = ["m", "n", "k"]
KERNEL = ["in_dtype", *SIZES, "kernel", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"]
KERNEL += ["raster", "stages", "split_k", "fast_accum", "rotation"]


def rested(gpu: str, table: str = "graph") -> pd.DataFrame:
    """Rows of one kernel in its chain, each replay after a rest; numbers as numbers."""
    rows = chains(gpu, table)
    return rows[~rows["settled"] & (rows["partner"] == "")]


def chains(gpu: str, table: str = "graph") -> pd.DataFrame:
    """All rows of a table; numbers as numbers."""
    rows = read_table(MEASUREMENTS / gpu / f"{table}.csv.gz")
    rows = rows[rows["disposition"] == "ok"]
    settled = pd.to_numeric(rows["settled"], errors="coerce").fillna(0.0) > 0.0
    rows = rows.assign(settled=settled, partner=rows["partner"].fillna(""))
    # Libraries choose for themselves: the captured graph tells how they launched.
    edges = pd.to_numeric(rows["programmatic_edges"], errors="coerce")
    own = pd.to_numeric(rows["pdl"], errors="coerce").isna() & edges.notna()
    rows.loc[own, "pdl"] = (edges[own] > 0).astype(int).astype(str)
    for name in ("runtime_us", "min_us", "p90_us"):
        rows[name] = pd.to_numeric(rows[name])
    return rows


def predicted(rows: pd.DataFrame, gpu: str, residual: str = "auto") -> pd.DataFrame:
    return predict_table(rows, gpu, options={"regime": "graph", "residual": residual})


def first_choice(found: pd.DataFrame) -> float:
    """Mean over groups of best measured time over that of the kernel predicted first; NaN without a group."""
    launched_alike = found.fillna({"pdl": "", "rotation": ""}).groupby(["pdl", "rotation"])
    several = [
        part[part.groupby(shape_columns(part), dropna=False)["runtime_us"].transform("size") > 1]
        for _, part in launched_alike
    ]
    efficiencies = [top1_efficiency(part) for part in several if len(part)]
    return float(pd.concat(efficiencies).mean()) if efficiencies else float("nan")


def errors(gpu: str) -> Iterator[dict[str, object]]:
    """A line for each family and type, without and with the residual."""
    rows = rested(gpu)
    for family, table in TRAINED_ON.items():
        seen = MEASUREMENTS / gpu / table
        known = set(map(tuple, read_table(seen)[SIZES].astype(str).to_numpy())) if seen.is_file() else set()
        for residual in ("off", "auto") if f"{gpu}:{family}" in calibration_names() else ("off",):
            found = predicted(rows[rows["kernel"] == family], gpu, residual)
            unseen = [tuple(sizes) not in known for sizes in found[SIZES].astype(str).to_numpy()]
            found = found.assign(error=(found["ratio"] - 1.0).abs(), unseen=unseen)
            for name, part in (*found.groupby("in_dtype"), ("all", found)):
                other = part.loc[part["unseen"], "error"]
                yield {
                    **{"gpu": gpu, "family": family, "type": name, "residual": residual, "rows": len(part)},
                    "MAPE": f"{part['error'].mean():.2%}",
                    "p95": f"{part['error'].quantile(0.95):.1%}",
                    "below 12 us": f"{part.loc[part['runtime_us'] < SHORT_US, 'error'].mean():.2%}",
                    "first choice": f"{first_choice(part):.2%}",
                    "other shapes": len(other),
                    "their MAPE": f"{other.mean():.2%}",
                    "their p95": f"{other.quantile(0.95):.1%}",
                }


def pairs(gpu: str, table: str) -> pd.DataFrame:
    """Kernels with and without programmatic dependent launch: gain, its standard error and the prediction."""
    rows = rested(gpu, table)
    for name in ("without_pdl_us", "pdl_gain_us", "pdl_gain_error_us"):
        rows[name] = pd.to_numeric(rows[name])
    found = predicted(rows, gpu)
    without = predicted(rows.assign(pdl="0", runtime_us=rows["without_pdl_us"]), gpu)
    gain_us = without["predicted_us"] - found["predicted_us"]
    return found.assign(
        within=((gain_us - found["pdl_gain_us"]).abs() <= GAIN_US).astype(float),
        known=found["pdl_gain_error_us"] <= KNOWN_US,
    )


def gains(found: pd.DataFrame) -> pd.DataFrame:
    """By duration and schedule: pairs, median gain, share predicted; the same of gains measured well."""
    duration = pd.cut(found["runtime_us"], DURATIONS_US)
    parts = []
    for by in (duration, found["schedule"], pd.Series("all", found.index)):
        told = [part.groupby(by[part.index], observed=True) for part in (found, found[found["known"]])]
        whole, known = (
            each.agg(pairs=("within", "size"), gain_us=("pdl_gain_us", "median"), within=("within", "mean"))
            for each in told
        )
        table = whole.join(known.add_prefix("known_"))
        parts.append(table.set_axis(table.index.astype(str)))
    return pd.concat(parts)


def agreement(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, float]:
    """Share of pairs whose gains on two cards lie within 0.4 us: of all, and of those known well on both."""
    columns = ["pdl_gain_us", "known"]
    one, other = (card.set_index(KERNEL)[columns] for card in (first, second))
    one, other = one.align(other, join="inner", axis=0)
    near = (one["pdl_gain_us"] - other["pdl_gain_us"]).abs() <= GAIN_US
    return {"all": float(near.mean()), "known": float(near[one["known"] & other["known"]].mean())}


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


def in_turn(gpu: str) -> Iterator[dict[str, object]]:
    """A line for each family and kind of partner.

    A norm (`bench/rms_norm.py`) lets no grid in before it ends, and has written the activations: what follows
    is predicted as launched so, with these in L2.
    """
    rows = chains(gpu)
    rows = rows[rows["partner"] != ""]
    rows = rows.assign(of=rows["partner"].where(rows["partner"] == "rmsnorm", "GEMM"), partner="")
    rows.loc[rows["of"] == "rmsnorm", "pdl"] = "0"
    parts = (
        predict_table(part, gpu, options={"regime": "graph", "l2": "written" if of == "rmsnorm" else "cold"})
        for of, part in rows.groupby("of")
    )
    found = pd.concat(parts)
    partner_us = pd.to_numeric(found["partner_us"])
    error = ((found["predicted_us"] + partner_us) / found["runtime_us"] - 1.0).abs()
    for (family, kind), part in error.groupby([found["kernel"], found["of"]]):
        yield {"gpu": gpu, "family": family, "partner": kind, "rows": len(part), "MAPE": f"{part.mean():.1%}"}


def settled(gpu: str) -> Iterator[dict[str, object]]:
    """A line for each family."""
    rows = chains(gpu)
    rows = rows[rows["settled"] & (rows["partner"] == "")]
    found = predict_table(rows, gpu, options={"regime": "sustained"})
    for family, ratio in found["ratio"].groupby(found["kernel"]):
        yield {"gpu": gpu, "family": family, "rows": len(ratio), "MAPE": f"{(ratio - 1.0).abs().mean():.1%}"}


def main() -> None:
    print(pd.DataFrame([line for gpu in GPUS for line in errors(gpu)]).to_string(index=False))
    measured = {(gpu, table): pairs(gpu, table) for gpu, table in PAIRED}
    for names, found in measured.items():
        print(*names, gains(found).round(3).to_string(), sep="\n")
    print("two cards", agreement(*(measured[each] for each in PAIRED[:2])))
    print(two_cards().round(4).to_string())
    for lines in (in_turn, settled):
        print(pd.DataFrame([line for gpu in GPUS for line in lines(gpu)]).to_string(index=False))


if __name__ == "__main__":
    main()
