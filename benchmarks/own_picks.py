"""How much longer than its fastest kernel takes what a library picks by itself, and how near is that?

    python benchmarks/own_picks.py

Rows of torch's own calls, whose kernels the prediction is not told. First, of shapes launched alone, their
time over that of the fastest algorithm that cuBLASLt offers, and the share with which the
kernel predicted to be the fastest comes nearest to them: `config/calibration/own_picks.yaml`. Then by GPU,
regime and type how far such predictions are from torch's calls.
Last, of cuDNN's convolutions by their sort: the call over the kernel that is predicted to be the fastest,
median of the fitted tables, and how far what `own_picks` expects is from the call, on these and others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.choice.own_picks import sort_of
from gemm_model.choice.selection import Ranker
from gemm_model.choice.table_ranking import rank_table
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import load_gpu
from gemm_model.core.prediction import OwnPick
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.registry import TORCH_FAMILY
from gemm_model.tables.table import read_table, runtimes_us, usable_rows

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
TABLES = (("burst", "cublaslt.csv.gz"), ("graph", "graph.csv.gz"))
"""Regime and table."""
GPUS = ("h200", "h100_sxm")
SHORT_US = 12.0
CUDNN = "cudnn"
FITTED_CONVOLUTIONS = ("convolutions", "conv_networks")
HELD_OUT_CONVOLUTIONS = ("unseen_problems", "conv_networks_unseen")
BESIDE = ("grouped", "packed", "padded", "dilated")
"""Sorts whose images are copied beside, or whose kernels are no implicit GEMM of Hopper's."""
FEW_CHANNELS = 16
SIZES = ["in_dtype", "m", "n", "k"]
SHARES = [round(0.005 * step, 3) for step in range(31)]


def picks(path: Path) -> pd.DataFrame:
    """Rows of torch's own calls, each alone in its chain and rested."""
    frame = pd.read_csv(path, low_memory=False)
    own = (frame["kernel"] == TORCH_FAMILY) & frame["runtime_us"].notna()
    if "partner" in frame:
        own &= frame["partner"].isna() & ~(frame["settled"].fillna(0).astype(float) > 0)
    return frame[own].reset_index(drop=True)


def over_fastest(path: Path) -> pd.DataFrame:
    """Torch's calls of a table over cuBLASLt's fastest algorithm of the same problem, by type."""
    frame = pd.read_csv(path, low_memory=False)
    fastest_us = frame[frame["kernel"] == "cublaslt"].groupby(SIZES)["runtime_us"].min()
    own = frame[frame["kernel"] == TORCH_FAMILY].set_index(SIZES)["runtime_us"]
    over = (own / fastest_us).dropna()
    return over.groupby("in_dtype").describe(percentiles=[0.5, 0.9])


def fastest_us(rows: pd.DataFrame, ranker: Ranker) -> FloatArray:
    """Of each row the time of the kernel that is predicted to be the fastest."""
    return rank_table(rows[SIZES], ranker)["predicted_us"].to_numpy()


def mean_error(pick: OwnPick, predicted_us: FloatArray, called_us: FloatArray) -> float:
    return float(np.abs(pick.time_us(predicted_us) / called_us - 1.0).mean())


def fitted() -> tuple[OwnPick, float]:
    """The share of least mean error on calls launched alone, and that error."""
    rows = picks(MEASUREMENTS / GPUS[0] / TABLES[0][1])
    predicted_us = fastest_us(rows, Ranker(load_gpu(GPUS[0]), family=TORCH_FAMILY))
    called_us = rows["runtime_us"].to_numpy()
    tried = [OwnPick(share=share) for share in SHARES]
    best = min(tried, key=lambda pick: mean_error(pick, predicted_us, called_us))
    return best, mean_error(best, predicted_us, called_us)


def figures() -> Iterator[dict[str, object]]:
    """A line for each GPU, regime and type."""
    for gpu_name in GPUS:
        for regime, table in TABLES:
            rows = picks(MEASUREMENTS / gpu_name / table)
            ranker = Ranker(load_gpu(gpu_name), family=TORCH_FAMILY, options={"regime": regime})
            predicted_us = ranker.own_pick.time_us(fastest_us(rows, ranker))
            judged = rows.assign(error=np.abs(predicted_us / rows["runtime_us"] - 1.0))
            for name, part in judged.groupby("in_dtype"):
                yield {
                    "gpu": gpu_name,
                    "regime": regime,
                    "type": name,
                    "rows": len(part),
                    "MAPE": f"{part['error'].mean():.1%}",
                    "below 12 us": f"{part.loc[part['runtime_us'] < SHORT_US, 'error'].mean():.1%}",
                }


def convolutions(table: str) -> pd.DataFrame:
    """cuDNN's calls of a table, whatever their kernels: measured, and their fastest kernel by prediction.

    Without those of few channels a group: libraries have other kernels for them.
    """
    rows, _ = usable_rows(read_table(MEASUREMENTS / GPUS[0] / f"{table}.csv.gz"), needs_tile=False)
    rows = rows[rows["kernel"] == CUDNN]
    ranker = Ranker(GPUS[0], family=CUDNN)
    problems = [GemmProblem.of_conv(*words) for words in zip(rows["conv"], rows["in_dtype"], strict=True)]
    found = pd.DataFrame(
        {
            "table": table,
            "sort": [sort_of(problem.conv) for problem in problems if problem.conv],
            "fastest_us": [ranker.rank(each, 1).best.prediction.runtime_us for each in problems],
            "called_us": runtimes_us(rows),
        }
    )
    found["expected_us"] = [
        ranker.own_pick_of(problem).time_us(time_us)
        for problem, time_us in zip(problems, found["fastest_us"], strict=True)
    ]
    convs = (problem.conv for problem in problems if problem.conv)
    return found[[conv.groups == 1 or conv.channels >= FEW_CHANNELS * conv.groups for conv in convs]]


def of_convolutions() -> tuple[pd.DataFrame, pd.DataFrame]:
    """By sort of convolution what picks of the fitted tables take over the fastest; then how near that is."""
    found = pd.concat(map(convolutions, (*FITTED_CONVOLUTIONS, *HELD_OUT_CONVOLUTIONS)))
    fitted = found[found["table"].isin(FITTED_CONVOLUTIONS)]
    shares = (fitted["called_us"] / fitted["fastest_us"] - 1.0).groupby(fitted["sort"])
    error = (found["expected_us"] / found["called_us"] - 1.0).abs()
    names = [found["table"], found["sort"].where(found["sort"].isin(BESIDE), "")]
    errors = error.groupby(names).agg(["size", "mean", "median"])
    return shares.agg(["size", "median"]), errors


def main() -> None:
    print(over_fastest(MEASUREMENTS / GPUS[0] / TABLES[0][1]).to_string())
    print(*fitted())
    print(pd.DataFrame(figures()).to_string(index=False))
    for frame in of_convolutions():
        print(frame.round(3).to_string())


if __name__ == "__main__":
    main()
