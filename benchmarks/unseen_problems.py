"""How good are predictions of problems beyond plain products on sizes that no table of a fit has?

    python benchmarks/unseen_problems.py

The campaigns `unseen_problems` and `unseen_epilogues`, as predicted by default and by the formulas alone.
First errors by kind and family; then what epilogues add, each measured in three passes beside its plain
product: right within RIGHT_SHARE of it or RIGHT_US, and how often a pass is right about the median of all;
first choices of groups; last, of kernels on eight routings of a layer, the mean and the 95th percentile
against what is expected of the routing's name alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from measured import rows_of

import gemm_model as gm
from gemm_model.choice.expected import HIGH_PERCENTILE, expected_time
from gemm_model.choice.selection import Ranker
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.tables.accuracy import top1_efficiency
from gemm_model.tables.table import runtimes_us

GPU = "h200"
WAYS: dict[str, dict[str, str]] = {"default": {}, "formulas": {"residual": "off"}}
SHAPE = ["in_dtype", "m", "n", "k", "epilogue", "groups", "block_scaling", "conv", "batch"]
KERNEL = [
    *("kernel", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"),
    *("raster", "stages", "warps"),
]
LONG_US = 100.0
RIGHT_SHARE, RIGHT_US = 0.3, 0.5
"""Within which an added time is right: a share of it, or us."""
ROUTED = {
    (2816, 2048, 96 * 4): gm.Routing(experts=60, tokens=96, top_k=4),
    (2048, 1408, 1536 * 4): gm.Routing.parse("zipf:0.8", experts=60, tokens=1536, top_k=4),
    (2048, 1024, 640 * 8): gm.Routing(experts=64, tokens=640, top_k=8),
    (2816, 2048, 6144 * 6): gm.Routing.parse("zipf:0.4", experts=64, tokens=6144, top_k=6),
    (1024, 1536, 320 * 8): gm.Routing.parse("zipf:1.0", experts=40, tokens=320, top_k=8),
    (2688, 6144, 2560 * 4): gm.Routing.parse("zipf:0.6", experts=16, tokens=2560, top_k=4),
}
"""Routings of the layers that were measured eight times, by n, k and rows."""


def predicted(name: str) -> pd.DataFrame:
    """Rows of a table whose kernels tell their tile, and the time of each way of predicting."""
    frame = rows_of(name)
    found = {way: gm.predict_table(frame, GPU, options=options) for way, options in WAYS.items()}
    rows = frame.loc[next(iter(found.values())).index]
    rows = rows.assign(measured_us=runtimes_us(rows), line=range(len(rows)))
    for column in (*SHAPE, *KERNEL):
        rows[column] = rows[column].fillna("").astype(str) if column in rows else ""
    return rows.assign(**{way: each["predicted_us"].to_numpy() for way, each in found.items()})


def kind_of(rows: pd.DataFrame) -> pd.Series:
    kinds = {"conv": "convolutions", "groups": "groups", "block_scaling": "block scales", "batch": "batches"}
    result = pd.Series("plain", index=rows.index).where(rows["epilogue"] == "", "epilogues")
    for column, name in kinds.items():
        result = result.where(rows[column] == "", name)
    return result


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """MAPE and 95th percentile of each kind, family and type."""
    lines = []
    for key, part in rows.groupby(["kind", "kernel", "in_dtype"]):
        line: dict[str, object] = {"what": " ".join(key), "rows": len(part)}
        for way in WAYS:
            error = (part[way] / part["measured_us"] - 1.0).abs()
            line |= {way: f"{error.mean():.2%}", f"{way} p95": f"{error.quantile(0.95):.1%}"}
        lines.append(line)
    return pd.DataFrame(lines)


def right(found: pd.Series, measured: pd.Series) -> pd.Series:
    error = (found - measured).abs()
    return (error <= RIGHT_US) | (error <= RIGHT_SHARE * measured.abs())


def added(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each kernel and epilogue what it adds [us]: in each pass, the median of them, and predicted."""
    kernel = [*(name for name in SHAPE if name != "epilogue"), *KERNEL]
    rows = rows.assign(turn=rows.groupby([*kernel, "epilogue"])["line"].rank().astype(int))
    plain = rows[rows["epilogue"] == ""].set_index([*kernel, "turn"])[["measured_us", *WAYS]]
    fused = rows[rows["epilogue"] != ""].join(plain.add_suffix("_plain"), on=[*kernel, "turn"])
    for name in ("measured_us", *WAYS):
        fused[name] = fused[name] - fused[f"{name}_plain"]
    by = fused.dropna(subset=["measured_us_plain"]).groupby([*kernel, "epilogue"])
    passes = by["measured_us"].agg(list)
    medians = by[["measured_us", "measured_us_plain", *WAYS]].median()
    return medians.assign(first=passes.map(lambda each: each[0]), passes=passes.map(len)).reset_index()


def of_added(found: pd.DataFrame) -> pd.DataFrame:
    """Share of added times that are right, by family and length; `one pass` against the median of all."""
    found = found.assign(long=found["measured_us_plain"] > LONG_US)
    everything = pd.concat([found.assign(kernel="all"), found])
    lines = []
    for parts in (["kernel"], ["kernel", "long"]):
        for key, part in everything.groupby(parts):
            line: dict[str, object] = {"what": " ".join(map(str, key)), "rows": len(part)}
            for way in (*WAYS, "first"):
                line[way] = f"{right(part[way], part['measured_us']).mean():.1%}"
            lines.append(line | {"median us": round(part["measured_us"].median(), 2)})
    return pd.DataFrame(lines).rename(columns={"first": "one pass"})


def choices(rows: pd.DataFrame, way: str) -> pd.DataFrame:
    """First choice of each family, and of both, among the kernels that were measured on a problem."""
    lines = []
    rows = rows.assign(predicted_us=rows[way], runtime_us=rows["measured_us"])
    for name, part in (*rows.groupby("kernel"), ("any", rows)):
        several = part[part.groupby(SHAPE)["measured_us"].transform("size") > 1]
        found = top1_efficiency(several)
        mean, p5 = f"{found.mean():.2%}", f"{found.quantile(0.05):.1%}"
        lines.append({"family": name, "problems": len(found), "first choice": mean, "p5": p5})
    return pd.DataFrame(lines)


def kernel_of(row: pd.Series) -> KernelConfig:
    whole = ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "swizzle", "stages", "warps")
    sizes = {name: int(float(row[name])) for name in whole if row[name] not in ("", None)}
    return KernelConfig(
        kernel=row["kernel"], schedule=row["schedule"] or "cooperative", raster=row["raster"], **sizes
    )


def routed(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each layer and kernel: mean and 95th percentile over its routings, measured and expected."""
    lines = []
    sizes = rows[["n", "k", "m"]].astype(float).astype(int)
    for (n, k, m), routing in ROUTED.items():
        layer = rows[(sizes["n"] == n) & (sizes["k"] == k) & (sizes["m"] == m)]
        for _, part in layer.groupby(KERNEL):
            problem = GemmProblem.of(routing.rows, n, k)
            expected = expected_time(problem, routing, kernel_of(part.iloc[0]), GPU)
            lines.append(
                {"layer": f"{n}x{k}", "kernel": part["kernel"].iloc[0], "routings": len(part)}
                | {"mean_us": part["measured_us"].mean(), "expected_us": expected.mean_us}
                | {"p95_us": np.percentile(part["measured_us"], HIGH_PERCENTILE)}
                | {"expected_p95_us": expected.p95_us}
            )
    found = pd.DataFrame(lines)
    return found.assign(
        mean_error=(found["expected_us"] / found["mean_us"] - 1.0).abs(),
        p95_error=(found["expected_p95_us"] / found["p95_us"] - 1.0).abs(),
    )


def picks() -> dict[str, str]:
    """Of cuDNN's calls what is predicted of its pick, whatever kernel that is."""
    frame = rows_of("unseen_problems")
    calls = frame[frame["kernel"] == "cudnn"]
    ranker = Ranker(GPU, family="cudnn")
    problems = (GemmProblem.of_conv(*words) for words in zip(calls["conv"], calls["in_dtype"], strict=True))
    fastest = ((ranker.heuristic_choice_of(each), ranker.rank(each, 1).best.prediction) for each in problems)
    expected_us = [pick.time_us(found.runtime_us, found.limiter) for pick, found in fastest]
    error = np.abs(np.array(expected_us) / runtimes_us(calls) - 1.0)
    return {"calls": f"{len(calls)}", "MAPE": f"{error.mean():.1%}", "median": f"{np.median(error):.1%}"}


def main() -> None:
    epilogues, problems = predicted("unseen_epilogues"), predicted("unseen_problems")
    problems = problems.assign(kind=kind_of(problems))
    everything = pd.concat([epilogues.assign(kind=kind_of(epilogues)), problems])
    print(errors(everything).to_string(index=False), end="\n\n")
    print(of_added(added(epilogues)).to_string(index=False), end="\n\n")
    print("cuDNN's picks", picks(), end="\n\n")
    groups = problems[problems["kind"] == "groups"]
    print(choices(groups, "default").to_string(index=False), end="\n\n")
    found = routed(groups)
    print(found.round(3).to_string(index=False))
    print(found[["mean_error", "p95_error"]].describe().to_string())


if __name__ == "__main__":
    main()
