"""How well explanations are borne out: pairs of rows that differ in one setting, and counters.

    python benchmarks/explanations.py pairs --input data/measurements/h200/unseen.csv.gz
    python benchmarks/explanations.py counters --input data/measurements/h200/counters_libraries.csv.gz

Pairs: measured rows of one problem, card and library that differ in one setting alone. A sign counts where
the times differ by more than 5 %; a size is right within a quarter of the difference or 3 % of the runtime.
The difference is predicted as what-ifs are, with the first row's residual for both.

Counters: which of tensor pipe, L2 and DRAM a profiler shows as busiest, or that none is above 60 %, against the
unit that is predicted to be busiest, and against the limiter or one tied with it, which should be none of the
three where none is busy. L2's peak is the card's, so that a kernel is as busy in one table as in another.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.elasticity import LIMITERS
from gemm_model.kernel_model.explanation import TIE, busy
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import Composed
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.tables.table import batch_from_frame, read_table, usable_rows

SETTINGS = {
    "tile": ("cta_m", "cta_n", "mma_m", "mma_n", "stages"),
    "cluster": ("cluster_m", "cluster_n", "stages"),
    "schedule": ("schedule", "stages"),
    "swizzle": ("swizzle",),
    "stages": ("stages",),
    "split": ("split_k", "scheduler"),
    "sums": ("fast_accum",),
    "output": ("out_dtype",),
    "l2": ("l2",),
}
"""Columns that change with a setting; those that follow from it among them."""
IDENTITY = (
    *("in_dtype", "b_dtype", "out_dtype", "m", "n", "k", "batch", "epilogue", "groups", "block_scaling"),
    *("kernel", "cta_m", "cta_n", "cta_k", "mma_m", "mma_n", "cluster_m", "cluster_n", "schedule", "raster"),
    *("swizzle", "stages", "split_k", "scheduler", "fast_accum", "warps", "l2", "regime", "gpu_uuid"),
)
FELT = 0.05
BUSY = 0.6
UNITS = ("TENSOR", "L2", "DRAM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("pairs", "counters"))
    parser.add_argument("--input", type=Path, action="append", required=True)
    parser.add_argument("--gpu", default="h200")
    arguments = parser.parse_args()
    gpu = load_gpu(arguments.gpu)
    print(pd.DataFrame(run(arguments.what, arguments.input, gpu)).to_string(index=False))


def run(what: str, paths: list[Path], gpu: GpuSpec) -> list[dict[str, object]]:
    """A line for each setting, or for each library and table."""
    frames = [read_table(path) for path in paths]
    if what == "counters":
        return [
            {"table": path.name, "library": name, **counter_figures(rows, gpu)}
            for path, frame in zip(paths, frames, strict=True)
            for name, rows in usable(frame).groupby("kernel")
        ]
    found = [pairs(usable(frame), gpu) for frame in frames]
    together = pd.concat(found)
    lines = [{"setting": name, **pair_figures(rows)} for name, rows in together.groupby("setting")]
    return [*lines, {"setting": "all", **pair_figures(together)}]


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with a time, a tile and a regime that the model knows."""
    rows, _ = usable_rows(frame, needs_tile=True)
    return rows.reset_index(drop=True)


def pairs(rows: pd.DataFrame, gpu: GpuSpec) -> pd.DataFrame:
    """Measured and predicted ratio of times for neighbours among rows that differ in one setting."""
    rows = rows.assign(composed_us=composed_us(rows, gpu))
    found = []
    for setting, columns in SETTINGS.items():
        if not set(columns) & set(rows.columns):
            continue
        same = [name for name in IDENTITY if name in rows.columns and name not in columns]
        # A ring follows from the tile; rings alone are a setting of their own.
        varied = [name for name in columns if name in rows.columns and (name == setting or name != "stages")]
        groups = rows.groupby(rows[same].astype(str).agg("|".join, axis=1), sort=False)
        for _, group in groups:
            if len(group) > 1:
                found += list(_neighbours(setting, group.drop_duplicates(varied)))
    return pd.DataFrame(found, columns=["setting", "measured", "predicted"])


def _neighbours(setting: str, group: pd.DataFrame) -> Iterator[tuple[str, float, float]]:
    measured, composed = group["runtime_us"].to_numpy(float), group["composed_us"].to_numpy(float)
    for place in range(len(group) - 1):
        yield setting, *(times[place + 1] / times[place] for times in (measured, composed))


def composed_us(rows: pd.DataFrame, gpu: GpuSpec) -> FloatArray:
    """Times without a residual, in the regime and with the L2 of each row."""
    found = np.full(len(rows), np.nan)
    regimes = rows["regime"].fillna("burst") if "regime" in rows else pd.Series("burst", index=rows.index)
    warm = rows["l2"].eq("warm") if "l2" in rows else pd.Series(False, index=rows.index)
    for regime in regimes.unique():
        for l2 in ("cold", "warm"):
            some = np.flatnonzero((regimes == regime) & (warm == (l2 == "warm")))
            if len(some):
                model = KernelModel(gpu, regime=regime, l2=l2, residual="off")
                batch = batch_from_frame(rows.iloc[some].reset_index(drop=True), needs_tile=True)
                found[some] = model.predict_batch(batch).runtime_us
    return found


def pair_figures(rows: pd.DataFrame) -> dict[str, object]:
    """Share of signs and of sizes that are right."""
    felt = rows[(rows["measured"] - 1.0).abs() > FELT]
    signs = np.sign(felt["predicted"] - 1.0) == np.sign(felt["measured"] - 1.0)
    change = rows["measured"] - 1.0
    off = (rows["predicted"] - rows["measured"]).abs()
    sizes = off <= np.maximum(0.25 * change.abs(), 0.03)
    return {
        "pairs": len(rows),
        "beyond 5 %": len(felt),
        "sign right": f"{signs.mean():.1%}" if len(felt) else "-",
        "size right": f"{sizes.mean():.1%}",
        "size right beyond 5 %": f"{sizes[felt.index].mean():.1%}" if len(felt) else "-",
    }


def counter_figures(rows: pd.DataFrame, gpu: GpuSpec) -> dict[str, object]:
    """How often the busiest unit is the limiter, and how far predicted utilizations are."""
    rows = rows.reset_index(drop=True)
    model = KernelModel(gpu, regime="counters", residual="off")
    batch = batch_from_frame(rows, needs_tile=True)
    time_us, clock = rows["runtime_us"].to_numpy(float), rows["sm_mhz"].to_numpy(float)
    tiles = np.ceil(batch.m / batch.cta_m) * np.ceil(batch.n / batch.cta_n) * batch.batch
    executed = 2.0 * tiles * batch.cta_m * batch.cta_n * batch.k
    rate = np.array([gpu.flop_per_clk_per_sm[kind] for kind in _kinds(batch)]) * gpu.sm_count
    dram = rows["dram_read_bytes"].to_numpy(float) + rows["dram_write_bytes"].to_numpy(float)
    shares, predicted, l2_peak = told_of(model, rows)
    l2 = rows["l2_bytes"].to_numpy(float) / l2_peak
    counted = np.array([executed / (rate * clock), l2, dram / gpu.dram_bytes_per_us]) / time_us
    off = dict(zip(UNITS, np.abs(counted - predicted).mean(axis=1), strict=True))
    return {
        "rows": len(rows),
        "none busy": f"{(counted.max(axis=0) < BUSY).mean():.0%}",
        "busiest told": f"{(busiest(counted) == busiest(predicted)).mean():.1%}",
        "limiter is the busiest": f"{_agrees(counted, shares).mean():.1%}",
        **{f"{name} off": f"{value:.1%}" for name, value in off.items()},
        "L2 correlation": f"{np.corrcoef(counted[1], predicted[1])[0, 1]:.2f}",
    }


def busiest(shares: FloatArray) -> np.ndarray:
    """Place of the busiest of UNITS, -1 where none is busy."""
    return np.where(shares.max(axis=0) >= BUSY, shares.argmax(axis=0), -1)


def _kinds(batch: object) -> list[str]:
    from gemm_model.core.dtypes import MATH_KINDS

    return [MATH_KINDS[int(code)] for code in batch.math_kind]  # type: ignore[attr-defined]


def told_of(model: KernelModel, rows: pd.DataFrame) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of each row: elasticities (LIMITERS, rows), how busy UNITS are (UNITS, rows), and L2's peak [B/us]."""
    batch = batch_from_frame(rows, needs_tile=True)
    shares, used, peak = np.empty((len(LIMITERS), len(rows))), np.empty((3, len(rows))), np.empty(len(rows))
    for place in range(len(rows)):
        row = batch[slice(place, place + 1)].mapped(lambda _, column: np.asarray(column).item())
        found = model.evaluate_row(row)
        composed = Composed(found.geometry, found.times, found.known.numbers)
        shares[:, place] = list(composed.elasticities().values())
        used[:, place] = list(busy(composed, model.gpu, float(found.times.runtime_us)).values())
        peak[place] = l2_bytes_per_us(model.gpu, composed.numbers)
    return shares, used, peak


def _agrees(counted: FloatArray, shares: FloatArray) -> np.ndarray:
    """Whether the busiest unit is the limiter or tied with it; where none is busy, some other resource is."""
    tied = shares >= shares.max(axis=0) - TIE
    of_unit = np.array([tied[LIMITERS.index(name)] for name in UNITS])
    others = np.array([tied[place] for place, name in enumerate(LIMITERS) if name not in UNITS]).any(axis=0)
    named = np.take_along_axis(of_unit, counted.argmax(axis=0)[np.newaxis], axis=0)[0]
    return np.where(counted.max(axis=0) >= BUSY, named, others)


if __name__ == "__main__":
    main()
