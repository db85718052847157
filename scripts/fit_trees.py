"""Train trees anew: of cuDNN's heuristic choices (`picks`), or of the kernels that servers tune (`served`).

python scripts/fit_trees.py picks|served

After a change of the numbers or formulas from whose times they start: `h200:cudnn` and `heuristic_choices.yaml`, or
`config/numbers/serving.yaml`. Prints how near times come, of layers or models that trees have not seen, and writes
`config/calibration/h200/cudnn.picks.npz`, or `config/serving_residual.npz`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.pick_residual_fit import FAMILY, calls_of, errors, held_out, pick_residual
from gemm_model.calibration.residual_fit import train_averaged
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.calibration_file import tables_of_picks
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.forest_file import write_archive
from gemm_model.kernel_model.pick_residual import picks_of, write_pick_residual
from gemm_model.serving import residual
from gemm_model.serving.model import launches_of, times_of
from gemm_model.serving.problem import BLOCK_FP8
from gemm_model.serving.tables import by_product
from gemm_model.serving.tile_config import KEYS, TileGrid

GPU = load_gpu("h200")
MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements" / GPU.name
SERVED = MEASUREMENTS / "serving_moe.csv.gz"


def picks() -> None:
    """Trees of cuDNN's heuristic choices."""
    calls = calls_of([MEASUREMENTS / f"{name}.csv.gz" for name in tables_of_picks(FAMILY)], GPU)
    found = pick_residual(calls, GPU, expected := held_out(calls))
    without, left = errors(calls, np.zeros(len(expected))), errors(calls, expected, found.shift)
    print(f"{len(left)} calls: {without.mean():.2%} without trees, {left.mean():.2%} with them")
    write_pick_residual(found, picks_of(GPU.name, FAMILY))


def served() -> None:
    """Trees of the kernels that servers tune, beside the shipped ones."""
    parts, seen, times = zip(*served_rows(), strict=True)
    rows, seen, times_us = pd.concat(parts), np.concatenate(seen, axis=1), np.concatenate(times)
    fit, kernel = (rows["role"] == "fit").to_numpy(), rows["kernel"].to_numpy()
    log_error = np.log(rows["runtime_us"].to_numpy() / times_us)
    forest = trained(rows[fit], seen[:, fit], log_error[fit])
    for name, each in (("shipped", residual.residual()), ("new", forest)):
        left = np.abs(residual.factors(each, seen) / np.exp(log_error) - 1.0)[~fit]
        print(name, pd.Series(left).groupby(kernel[~fit]).mean().map("{:.2%}".format).to_dict())
    about = {"fitted_to": [SERVED.name], "rows": "models that are not held out"}
    write_archive(about, {residual.FOREST: forest}, residual.RESIDUAL)


def served_rows() -> Iterator[tuple[pd.DataFrame, np.ndarray, np.ndarray]]:
    """Rows of each campaign and product, their features, and their times by the formulas [us]."""
    every = pd.read_csv(SERVED, keep_default_na=False, low_memory=False)
    for _, frame in every[every["status"] == "ok"].groupby("campaign", sort=False):
        for product, rows in by_product(frame):
            part, runtime_us = frame.iloc[rows], frame.iloc[rows]["runtime_us"].astype(float)
            launches = launches_of(product, TileGrid(*part[[*KEYS]].to_numpy(float).T), GPU)
            times, fits = times_of(launches), launches.resources.fits
            part = part.assign(runtime_us=runtime_us, speed=runtime_us.min() / runtime_us)
            yield part[fits], residual.features(launches, times)[:, fits], times.total_us[fits]


def trained(rows: pd.DataFrame, seen: np.ndarray, log_error: np.ndarray) -> Forest:
    """Trees for which fast rows count more, and half of a dense row as either product of experts."""
    dense = (rows["kernel"] == BLOCK_FP8).to_numpy()
    seen[residual.GATHERED, dense] = 1.0
    others = seen[:, dense]
    others[residual.GATHERED] = 0.0
    weight = rows["speed"].to_numpy() * np.where(dense, 0.5, 1.0)
    twice = [np.append(each, each[dense]) for each in (log_error, weight)]
    return train_averaged(np.append(seen, others, axis=1), *twice)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", choices=("picks", "served"))
    {"picks": picks, "served": served}[parser.parse_args().trees]()
