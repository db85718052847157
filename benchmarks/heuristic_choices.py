"""How much longer than its fastest kernel takes what a library picks by itself, and how near is that?

    python benchmarks/heuristic_choices.py

Rows of torch's own calls, whose kernels the prediction does not know. First, of shapes launched alone, their
time over that of the fastest algorithm that cuBLASLt offers. Then the two numbers of `HeuristicChoice` with
which the kernel predicted to be the fastest comes nearest to calls on H200s, alone and in graphs together, of
the tables of plain products that fits use: `heuristic_choices.yaml`; and the error of calls that they
were not fitted to, of either half of the shapes by the other, beside that of one share for all times. Then,
by GPU, regime and type, how far such predictions are from torch's calls, and from those of the tables that
repeat rows on further cards; and what such calls are off beyond the band of their kernel.
Last, of cuDNN's convolutions by their sort: the share of least mean error over the kernel that is predicted
to be the fastest, of the fitted tables; the numbers of each way of copying matrices beside and of each kernel
of an earlier architecture, of least mean error of the calls whose kernels tell them; and how far what
`heuristic_choices` and the trees beside it (`scripts/fit_trees.py picks`) expect is from the call, on these and
others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from measured import beyond_band, campaigns, numbers_of, rows_of
from scipy.optimize import minimize

from gemm_model.choice.heuristic_choices import sort_of, ways_of
from gemm_model.choice.selection import Ranker
from gemm_model.choice.table_ranking import rank_table
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import load_gpu
from gemm_model.core.heuristic_choice import Copies, Copying, EarlierKernel, HeuristicChoice, KnownWay
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.calibration_file import heuristic_choices
from gemm_model.kernels.registry import TORCH_FAMILY
from gemm_model.tables.table import runtimes_us, usable_rows

FASTEST = "cublaslt"
CALLS = (("burst", "burst"), ("burst", FASTEST), ("graph", "graph"))
"""Regime and campaign."""
REPEATED = (
    *(("burst", name) for name in ("repeat", "repeat_long", "libraries_repeat")),
    ("graph", "graph_repeat"),
)
"""The same of rows repeated on further H200s, which no number is fitted to."""
GPUS = ("h200", "h100_sxm")
H200 = load_gpu(GPUS[0])
SHORT_US = 12.0
CUDNN = "cudnn"
CONVOLUTIONS = [each for each in campaigns() if each.file == "convolutions.csv.gz"]
HELD_OUT_CONVOLUTIONS = ["unseen_problems", *(each.name for each in CONVOLUTIONS if each.role == "held_out")]
FITTED_CONVOLUTIONS = [each.name for each in CONVOLUTIONS if each.role != "held_out"]
COPYING = {"sliced": "nhwcSliceCKernel", "transposed": "tensorTransformGeneric", "padded": "nhwcAddPadding"}
"""By way of copying what stands in the name of its first kernel."""
EARLIER = {
    "implicit": "fprop_optimized",
    "gradient": "Impl|wgrad_optimized|wgrad_implicit_gemm_indexed_[bf]",
    "many_taps": "",
    "many_taps_wgrad": "",
    "strided": "sm80|cutlass",
    "direct": "convolve_common",
    "gathered": "fprop_implicit_gemm_indexed_wo_smem",
    "depthwise_fprop": "conv2d_c1_k1",
    "depthwise_dgrad": "dgrad2d_c1_k1",
    "depthwise_wgrad": "wgrad2d_",
}
"""By kernel of an earlier architecture what stands in its name."""
EARLIER_SORTS = {"many_taps": ("many_taps",), "many_taps_wgrad": ("many_taps",), "strided": ("",)}
"""The convolutions that count, others than of few channels and depthwise ones."""
EARLIER_STARTS = {
    "implicit": (10.0, 0.4),
    "gradient": (10.0, 0.3),
    "many_taps": (10.0, 0.3),
    "many_taps_wgrad": (10.0, 0.3),
    "strided": (8.0, 0.2),
    "direct": (10.0, 0.3),
    "gathered": (6.0, 0.05, 0.1),
    "depthwise_fprop": (5.0, 0.2, 0.2),
    "depthwise_dgrad": (5.0, 0.1, 0.1),
    "depthwise_wgrad": (5.0, 0.2, 0.2),
}
"""Us of an empty one, share of what the GPU can do and, where threads wait for each load, us of one."""
STARTS = [
    (share, kernel_us, gb_per_s) for share in (0.1, 0.5) for kernel_us in (1, 10) for gb_per_s in (500, 2000)
]
BESIDE = ("grouped", "whole", "packed", "padded", "few", "depthwise", "dilated", "many_taps")
"""Sorts whose images are copied beside, or whose kernels are no implicit GEMM of Hopper's."""
SIZES = ["in_dtype", "m", "n", "k"]
LONG_US = 100.0
WIDE_SHARES = [round(0.01 * step, 2) for step in range(251)]
SHARES = [round(0.005 * step, 3) for step in range(31)]
HALVES_US = (100.0, 200.0, 400.0, 600.0, 800.0, 1200.0, 1600.0, math.inf)


def picks(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of torch's own calls, each alone in its chain and rested."""
    own = (frame["kernel"] == TORCH_FAMILY) & frame["runtime_us"].notna()
    if "partner" in frame:
        own &= frame["partner"].isna() & ~(frame["settled"].fillna(0).astype(float) > 0)
    return frame[own].reset_index(drop=True)


def over_fastest(frame: pd.DataFrame) -> pd.DataFrame:
    """Torch's calls of a campaign over cuBLASLt's fastest algorithm of the same problem, by type."""
    fastest_us = frame[frame["kernel"] == "cublaslt"].groupby(SIZES)["runtime_us"].min()
    own = frame[frame["kernel"] == TORCH_FAMILY].set_index(SIZES)["runtime_us"]
    over = (own / fastest_us).dropna()
    return over.groupby("in_dtype").describe(percentiles=[0.5, 0.9])


def errors(pick: HeuristicChoice, rows: pd.DataFrame) -> pd.Series:
    """Of each call, relative."""
    times_us = pick.time_us(rows["predicted_us"].to_numpy(), rows["limiter"].to_numpy())
    return (times_us / rows["runtime_us"] - 1.0).abs()


def calls(gpu_name: str, tables: Iterable[tuple[str, str]] = CALLS) -> pd.DataFrame:
    """Torch's calls alone and in graphs: what is predicted of the kernel predicted to be the fastest."""
    parts = []
    for regime, table in tables:
        rows = picks(numbers_of(table, gpu_name))
        if rows.empty:
            continue
        ranker = Ranker(load_gpu(gpu_name), family=TORCH_FAMILY, options={"regime": regime})
        fastest = rank_table(rows[SIZES], ranker)[["predicted_us", "limiter", "error_band"]]
        parts.append(rows.assign(table=table, regime=regime, **fastest))
    return pd.concat(parts, ignore_index=True)


def fitted(rows: pd.DataFrame, halves_us: Sequence[float] = HALVES_US) -> HeuristicChoice:
    """The numbers of least mean error."""
    tried = [HeuristicChoice(share=share, half_us=half_us) for share in SHARES for half_us in halves_us]
    return min(tried, key=lambda pick: float(errors(pick, rows).mean()))


def share_of(rows: pd.DataFrame) -> float:
    """One share of least mean error, whatever bounds the kernel."""
    return min(WIDE_SHARES, key=lambda share: float(errors(HeuristicChoice(share=share), rows).mean()))


def held_out(rows: pd.DataFrame, halves_us: Sequence[float]) -> dict[str, object]:
    """The error of either half of the shapes by the numbers of the other, and of long kernels among them."""
    sizes = rows[["m", "n", "k"]].astype("int64").astype(str).agg("x".join, axis=1)
    half = pd.util.hash_array(sizes.to_numpy(object)) % 2
    found = pd.concat(errors(fitted(rows[half != side], halves_us), rows[half == side]) for side in (0, 1))
    long = found[rows.loc[found.index, "predicted_us"] >= LONG_US]
    return {"half_us": "given" if len(halves_us) > 1 else "none", "MAPE": found.mean(), "long": long.mean()}


def figures(rows: pd.DataFrame, heuristic_choice: HeuristicChoice) -> Iterator[dict[str, object]]:
    """A line for each regime and type."""
    error = errors(heuristic_choice, rows)
    for (regime, name), part in rows.groupby(["regime", "in_dtype"]):
        yield {
            "regime": regime,
            "type": name,
            "rows": len(part),
            "MAPE": f"{error[part.index].mean():.1%}",
            "below 12 us": f"{error[part.index[part['runtime_us'] < SHORT_US]].mean():.1%}",
        }


def convolutions(table: str) -> pd.DataFrame:
    """cuDNN's calls of a table, whatever their kernels: measured, and their fastest kernel by prediction."""
    rows, _ = usable_rows(rows_of(table), needs_tile=False)
    rows = rows[rows["kernel"] == CUDNN]
    ranker = Ranker(GPUS[0], family=CUDNN)
    problems = [GemmProblem.of_conv(*words) for words in zip(rows["conv"], rows["in_dtype"], strict=True)]
    convs = [problem.conv for problem in problems if problem.conv]
    fastest = [ranker.rank(each, 1).best.prediction for each in problems]
    found = pd.DataFrame(
        {
            "table": table,
            "problem": problems,
            "conv": convs,
            "kernels": rows["kernel_name"].astype(str).to_numpy(),
            "sort": [sort_of(conv) for conv in convs],
            "predicted_us": [each.runtime_us for each in fastest],
            "limiter": [each.limiter for each in fastest],
            "runtime_us": runtimes_us(rows),
        }
    )
    found["expected_us"] = [
        float(ranker.heuristic_choice_of(problem).time_us(each.runtime_us, each.limiter))
        for problem, each in zip(problems, fastest, strict=True)
    ]
    return found


def copying(calls: pd.DataFrame, way: str) -> tuple[Copying, dict[str, float]]:
    """The numbers of one way of least mean error, of the calls whose kernels tell it; and that error."""
    kernels = calls["kernels"].str.split(" + ", regex=False)
    of_copies = kernels.str[0].str.contains(COPYING[way])
    calls = calls[of_copies & (calls["sort"] == ("padded" if way == "padded" else "grouped"))]
    copies = [ways_of(problem, H200)[way].copies for problem in calls["problem"]]
    counts, moved = (
        np.array([getattr(each, name) for each in copies]) for name in ("kernels", "moved_bytes")
    )
    beside = Copies(kernels=counts, moved_bytes=moved)

    def of(values: Sequence[float]) -> Copying:
        share, kernel_us, gb_per_s = (max(float(value), 1e-6) for value in values)
        return Copying(share=share, kernel_us=kernel_us, gb_per_s=gb_per_s)

    def off(values: Sequence[float]) -> FloatArray:
        times_us = of(values).time_us(calls["predicted_us"].to_numpy(), beside)
        return np.abs(times_us / calls["runtime_us"].to_numpy() - 1.0)

    tried = [minimize(lambda values: off(values).mean(), start, method="Nelder-Mead") for start in STARTS]
    best = min(tried, key=lambda found: found.fun).x
    return of(best), {"calls": len(calls), "mean": off(best).mean(), "median": np.median(off(best))}


def earlier(calls: pd.DataFrame, name: str, copying: Copying) -> tuple[EarlierKernel, dict[str, float]]:
    """The numbers of one earlier kernel of least mean error, of the calls whose kernels tell it."""
    sort = calls["sort"].isin(EARLIER_SORTS.get(name, ("few", "depthwise")))
    calls = calls[sort & calls["kernels"].str.contains(EARLIER[name])]
    found = [
        (way, measured_us)
        for problem, measured_us in zip(calls["problem"], calls["runtime_us"], strict=True)
        for way in ways_of(problem, H200).values()
        if way.kernel == name
    ]
    first = np.array(EARLIER_STARTS[name])

    def of(values: Sequence[float]) -> EarlierKernel:
        start_us, peak_share, *load_us = np.maximum(values, 1e-6) * first
        counts = heuristic_choices()[CUDNN].earlier[name].counts
        return EarlierKernel(counts=counts, start_us=start_us, peak_share=peak_share, load_us=sum(load_us))

    def off(values: Sequence[float]) -> FloatArray:
        kernel = of(values)
        times_us = [KnownWay(way=way, copying=copying, kernel=kernel).time_us(0.0) for way, _ in found]
        return np.abs(np.array(times_us) / [measured_us for _, measured_us in found] - 1.0)

    tried = [
        minimize(lambda values: off(values).mean(), first * 0.0 + step, method="Nelder-Mead")
        for step in (0.6, 1.0, 1.6)
    ]
    best = min(tried, key=lambda found: found.fun).x
    return of(best), {"calls": len(found), "mean": off(best).mean(), "median": np.median(off(best))}


def of_convolutions() -> tuple[HeuristicChoice, pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """What picks of the fitted tables take over the fastest: of no sort, by sort and way; how near it is."""
    found = pd.concat(map(convolutions, (*FITTED_CONVOLUTIONS, *HELD_OUT_CONVOLUTIONS)))
    seen = found[found["table"].isin(FITTED_CONVOLUTIONS)]
    shares = seen.groupby("sort")[["predicted_us", "limiter", "runtime_us"]].apply(
        lambda part: pd.Series({"size": len(part), "share": share_of(part)})
    )
    error = (found["expected_us"] / found["runtime_us"] - 1.0).abs()
    names = [found["table"], found["sort"].where(found["sort"].isin(BESIDE), "")]
    found_errors = error.groupby(names).agg(["size", "mean", "median"])
    ways = {way: copying(seen, way) for way in COPYING}
    padded = heuristic_choices()[CUDNN].copying["padded"]
    ways |= {name: earlier(seen, name, padded) for name in EARLIER}
    return fitted(seen[seen["sort"] == ""]), shares, found_errors, ways


def main() -> None:
    print(over_fastest(numbers_of(FASTEST)).to_string())
    for gpu_name in GPUS:
        rows = calls(gpu_name)
        print(gpu_name, fitted(rows))
        print(pd.DataFrame(held_out(rows, halves) for halves in (HALVES_US, HALVES_US[-1:])).round(4))
        heuristic_choice = Ranker(gpu_name, family=TORCH_FAMILY).heuristic_choice
        print(pd.DataFrame(figures(rows, heuristic_choice)).to_string(index=False))
        print(f"choice_band {beyond_band(errors(heuristic_choice, rows), rows['error_band']):.3f}")
    repeated = calls(GPUS[0], REPEATED)
    heuristic_choice = Ranker(GPUS[0], family=TORCH_FAMILY).heuristic_choice
    print(errors(heuristic_choice, repeated).groupby(repeated["table"]).agg(["size", "mean"]).round(4))
    print(f"choice_band {beyond_band(errors(heuristic_choice, repeated), repeated['error_band']):.3f}")
    heuristic_choice, *frames, ways = of_convolutions()
    print(CUDNN, heuristic_choice)
    for frame in frames:
        print(frame.round(3).to_string())
    for way, found in ways.items():
        print(way, *found)


if __name__ == "__main__":
    main()
