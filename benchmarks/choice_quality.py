"""How good are choices made by prediction? Top-1 and best-of-top-4 efficiency by table and type.

    python benchmarks/choice_quality.py --input burst.csv.gz --input wide.csv.gz --input counters.csv.gz \\
        --repeat repeat.csv.gz

Models are fitted to all tables together and judged on each by itself. The space of a shape is all its
measured configurations that are legal, which leaves out those that spill; the efficiency of a choice is the
best measured time over the time of what was chosen. Models that are fitted predict each shape from a fit to
the other shapes (8 folds), the clipped residual from trees that have seen the other shapes alone (needs
catboost). The baselines: the classic model, the one configuration that is best on average, gradient
boosting on the same folds (needs scikit-learn), nvMatmulHeuristics where it is installed, and the data's
own repeatability: the choice by a second measurement of the same rows, judged by the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from fold_fits import fold_fits, held_out_with_residual

from gemm_model.calibration.cross_validation import folds_of, held_out, size_groups
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.run import best_of_top
from gemm_model.calibration.tables import load_tables
from gemm_model.core.errors import GemmModelError
from gemm_model.core.files import atomic_path, atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import predict_in_chunks
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of
from gemm_model.models import create_model
from gemm_model.tables.accuracy import (
    ChoiceFigures,
    choice_figures,
    config_columns,
    shape_columns,
    top1_efficiency,
)
from gemm_model.tables.table import batch_from_frame, read_table, usable_rows

SHARE_OF_SHAPES = 0.5
"""A single configuration must have been measured on so many of the shapes to be a candidate."""
FITTED = ("burst", "counters")
SEED = 0
SMS = 132


def calibrated(seen: Mapping[str, Observations], gpu: GpuSpec, folds: np.ndarray) -> np.ndarray:
    fits = fold_fits(seen, "burst", gpu, folds, without=seen["burst"].shape.family.absent_mechanisms)
    return held_out(fits, len(seen["burst"]))


def corrected(seen: Mapping[str, Observations], gpu: GpuSpec, folds: np.ndarray) -> np.ndarray:
    fits = fold_fits(seen, "burst", gpu, folds, without=seen["burst"].shape.family.absent_mechanisms)
    return held_out_with_residual(fits, len(seen["burst"]), gpu)


def packaged(model: str, burst: Observations, gpu: GpuSpec) -> np.ndarray:
    batch = batch_from_frame(burst.frame, needs_tile=True)
    return predict_in_chunks(create_model(model, gpu).predict_batch, batch).runtime_us


def features(burst: Observations) -> np.ndarray:
    """Logarithms of sizes, tile, cluster, waves and work, one row for each measurement."""
    batch = batch_from_frame(burst.frame, needs_tile=True)
    clusters_m = np.ceil(np.ceil(batch.m / batch.cta_m) / batch.cluster_m)
    clusters_n = np.ceil(np.ceil(batch.n / batch.cta_n) / batch.cluster_n)
    tiles = clusters_m * batch.cluster_m * clusters_n * batch.cluster_n
    columns = [batch.m, batch.n, batch.k, batch.cta_m, batch.cta_n, batch.cluster_m, batch.cluster_n]
    columns += [batch.swizzle, batch.schedule + 1.0, batch.a_bits, tiles, np.ceil(tiles / SMS), batch.flop]
    columns += [tiles * (batch.cta_m + batch.cta_n) * batch.k, tiles / SMS / np.ceil(tiles / SMS)]
    columns += [batch.m / (clusters_m * batch.cluster_m * batch.cta_m)]
    columns += [batch.n / (clusters_n * batch.cluster_n * batch.cta_n)]
    return np.log2(np.array(columns)).T


def boosted(burst: Observations, folds: np.ndarray) -> np.ndarray:
    """Gradient boosting of the logarithm of the time."""
    return np.exp(
        _boosted(features(burst), np.log(burst.runtime_us), burst.weight, folds, rate=0.06, trees=600)
    )


def _boosted(
    known: np.ndarray, target: np.ndarray, weight: np.ndarray, folds: np.ndarray, *, rate: float, trees: int
) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor

    predicted = np.empty(len(target))
    for fold in np.unique(folds):
        test = folds == fold
        model = HistGradientBoostingRegressor(
            max_iter=trees, learning_rate=rate, min_samples_leaf=40, l2_regularization=1.0, random_state=SEED
        )
        model.fit(known[~test], target[~test], sample_weight=weight[~test])
        predicted[test] = model.predict(known[test])
    return predicted


def nvidia(burst: Observations, gpu: GpuSpec) -> np.ndarray:
    from gemm_model.integrations.nvmatmul import NvMatmulHeuristics

    library = NvMatmulHeuristics(gpu.name)
    predicted = np.empty(len(burst))
    frame = burst.frame
    for rows in frame.groupby(shape_columns(frame), sort=False).indices.values():
        first = frame.iloc[rows[0]]
        m, n, k = (int(first[name]) for name in ("m", "n", "k"))
        problem = GemmProblem.of(m, n, k, str(first["in_dtype"]), str(first["out_dtype"]))
        configs = [
            KernelConfig(
                **{name: int(row[name]) for name in ("cta_m", "cta_n", "cluster_m", "cluster_n", "swizzle")}
            )
            for _, row in frame.iloc[rows].iterrows()
        ]
        predicted[rows] = library.predict_us(problem, configs)
    return predicted


def single_config(frame: pd.DataFrame) -> pd.Series | None:
    """Efficiency by shape of the configuration that is best on average; None where none is common."""
    shape = frame.groupby(shape_columns(frame), sort=False, dropna=False)
    efficiency = shape["runtime_us"].transform("min") / frame["runtime_us"]
    config = frame.groupby(config_columns(frame), sort=False, dropna=False).ngroup()
    table = pd.DataFrame({"shape": shape.ngroup(), "config": config, "efficiency": efficiency})
    by_config = table.groupby(["config", "shape"])["efficiency"].mean().unstack("shape")
    often = by_config[by_config.notna().mean(axis=1) >= SHARE_OF_SHAPES]
    return None if often.empty else often.loc[often.mean(axis=1).idxmax()].dropna()


def repeated(frame: pd.DataFrame, again: pd.DataFrame) -> pd.Series | None:
    """Efficiency of a choice by the measurements of `again`, judged by those of `frame`."""
    keys = [*shape_columns(frame), *config_columns(frame)]
    second = again.groupby(keys, dropna=False)["runtime_us"].mean().rename("predicted_us")
    both = frame.join(second, on=keys).dropna(subset=["predicted_us"])
    return top1_efficiency(both) if len(both) else None


def numeric(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its numbers as numbers, so that rows of two tables compare."""
    return frame.assign(
        **{
            name: pd.to_numeric(frame[name])
            for name in (*shape_columns(frame), *config_columns(frame), "runtime_us")
            if name not in ("in_dtype", "out_dtype", "kernel", "schedule", "raster")
        }
    )


def figures_of(frame: pd.DataFrame, predicted_us: np.ndarray) -> tuple[ChoiceFigures, ChoiceFigures, float]:
    known = np.isfinite(predicted_us)
    rows = frame.assign(predicted_us=np.where(known, predicted_us, 1e9))
    error = np.abs(predicted_us[known] / frame["runtime_us"].to_numpy()[known] - 1.0)
    return choice_figures(top1_efficiency(rows)), choice_figures(best_of_top(rows, 4)), float(error.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--input", type=Path, action="append", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    parser.add_argument("--predictions", type=Path, help="CSV file for the held-out predictions of every row")
    parser.add_argument("--repeat", type=Path, help="a second measurement of some of the rows")
    parser.add_argument(
        "--methods", default="calibrated,corrected,classic,boosting,nvidia", help="some of the default"
    )
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    family = family_of("quack", gpu)
    data = load_tables(args.input, gpu, family)
    repeat = None
    if args.repeat:
        repeat, _ = usable_rows(read_table(args.repeat), needs_tile=True)
        repeat = numeric(repeat)
    lines, kept = [], []
    for regimes in data.by_kind.values():
        seen = {name: observe(rows, gpu, family) for name, rows in regimes.items() if name in FITTED}
        burst = seen["burst"]
        folds = folds_of(size_groups(burst), SEED)
        methods: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
            "calibrated": (
                "KernelModel, shapes held out",
                partial(calibrated, seen, gpu, folds),
            ),
            "corrected": (
                "the same with its clipped residual",
                partial(corrected, seen, gpu, folds),
            ),
            "classic": ("classic model", partial(packaged, "WSPersistentGEMMModel", burst, gpu)),
            "boosting": ("gradient boosting, shapes held out", partial(boosted, burst, folds)),
            "nvidia": ("nvMatmulHeuristics 0.1.0.27", partial(nvidia, burst, gpu)),
        }
        predictions: dict[str, np.ndarray] = {}
        for key in args.methods.split(","):
            name, method = methods[key]
            try:
                predictions[name] = method()
            except (GemmModelError, ImportError) as error:
                print(f"{name}: {error}")
        frame = numeric(burst.frame).assign(runtime_us=burst.runtime_us)
        if args.predictions:
            kept.append(frame.assign(predicted_us=next(iter(predictions.values()))))
        legal = feasible_mask(batch_from_frame(burst.frame, needs_tile=True), gpu, family)
        for (table, dtype), rows in frame.reset_index(drop=True)[legal].groupby(["table", "in_dtype"]):
            lines += lines_of(f"{table} | {dtype}", rows, predictions, repeat)
    text = table_text(lines)
    print(text)
    if args.output:
        atomic_write(args.output, text + "\n")
    if args.predictions:
        with atomic_path(args.predictions) as path:
            pd.concat(kept).to_csv(path, index=False)


def lines_of(
    of: str, rows: pd.DataFrame, predictions: dict[str, np.ndarray], repeat: pd.DataFrame | None
) -> list[str]:
    lines = []
    for name, predicted in predictions.items():
        top1, top4, error = figures_of(rows, predicted[rows.index.to_numpy()])
        lines.append(
            f"| {of} | {name} | {top1.shapes} | {top1.mean:.1%} | {top1.p5:.1%} | {top1.minimum:.1%} "
            f"| {top4.mean:.1%} | {top4.p5:.1%} | {error:.1%} |"
        )
    single = single_config(rows)
    if single is not None:
        figures = choice_figures(single)
        share = figures.shapes / rows.groupby(shape_columns(rows), dropna=False).ngroups
        lines.append(
            f"| {of} | best single configuration (measured on {share:.0%} of the shapes) | {figures.shapes} "
            f"| {figures.mean:.1%} | {figures.p5:.1%} | {figures.minimum:.1%} | | | |"
        )
    again = None if repeat is None else repeated(rows, repeat)
    if again is not None:
        figures = choice_figures(again)
        lines.append(
            f"| {of} | the data itself, measured again | {figures.shapes} | {figures.mean:.1%} "
            f"| {figures.p5:.1%} | {figures.minimum:.1%} | | | |"
        )
    return lines


def table_text(lines: list[str]) -> str:
    header = "| table | type | method | shapes | top-1 mean | p5 | worst | best of top 4, mean | p5 | MAPE |"
    return "\n".join([header, "|---|---|---|---|---|---|---|---|---|---|", *lines])


if __name__ == "__main__":
    main()
