"""How well explanations are borne out: pairs of rows that differ in one setting, and counters.

    python benchmarks/explanations.py pairs --input data/measurements/h200/unseen.csv.gz
    python benchmarks/explanations.py again --input data/measurements/h200/{repeats,burst,cutlass,splits}.csv.gz
    python benchmarks/explanations.py without --input data/measurements/h200/{unseen,counters_libraries}.csv.gz
    python benchmarks/explanations.py counters --input data/measurements/h200/counters_libraries.csv.gz
    python benchmarks/explanations.py attributed --input data/measurements/h200/counters*.csv.gz

Pairs: measured rows of one problem, card and library that differ in one setting alone. A sign counts where
the times differ by more than 5 %; a size is right within a quarter of the difference or 3 % of the runtime.
The difference is predicted as what-ifs are, with the first row's residual for both; with `--residual auto` as
`explain --against` does, with the trees' correction of each.

Again: how far pairs of the first table's rows, measured again, are predicted by their first measurement in the other
tables, on another card: no model can do much better.

Without: the errors of formulas with each mechanism switched off and all numbers as they are.

Counters: which of tensor pipe, L2 and DRAM a profiler shows as busiest, or that none is above 60 %, against the
unit that is predicted to be busiest, and against the limiter or one tied with it. Where none is busy, all other
resources together should be: launch, latency and what else no unit shows. The tensor pipe's share is that of SMs
with work, as Nsight's is of active cycles. L2's peak is the card's: a kernel is as busy in one table as in another.

Attributed: pairs of such kernels. What changes most by counters, a unit's time at its peak or all time beyond the
longest unit's, against what changes most by `explain --against` (unit) in the same direction; and whether tied.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.bench.rows import row_from_columns
from gemm_model.config.mechanisms import KIND_MECHANISMS, MECHANISM_NAMES
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.kernel_model.elasticity import Composed
from gemm_model.kernel_model.explanation import TIE, busy, mma_flop, sms_with_work, tied
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import World
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernels.registry import names_in_tables
from gemm_model.tables.table import batch_from_frame, read_table, usable_rows

SETTINGS = {name: (name,) for name in ("swizzle", "stages", "l2")} | {
    "tile": ("cta_m", "cta_n", "mma_m", "mma_n", "stages"),
    "cluster": ("cluster_m", "cluster_n", "stages"),
    "schedule": ("schedule", "stages"),
    "split": ("split_k", "scheduler"),
    "sums": ("fast_accum",),
    "output": ("out_dtype",),
}
"""Columns that change with a setting; those that follow from it among them."""
IDENTITY = (
    *("in_dtype", "b_dtype", "out_dtype", "m", "n", "k", "batch", "epilogue", "groups", "block_scaling"),
    *("kernel", "cta_m", "cta_n", "cta_k", "mma_m", "mma_n", "cluster_m", "cluster_n", "schedule", "raster"),
    *("swizzle", "stages", "split_k", "scheduler", "fast_accum", "warps", "l2", "regime"),
    *("campaign", "gpu_uuid", "gpu_uuid_first"),
)
FELT = 0.05
BUSY = 0.6
UNITS = ("TENSOR", "L2", "DRAM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("pairs", "again", "without", "counters", "attributed"))
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--residual", default="off")
    arguments = parser.parse_args()
    gpu = load_gpu(arguments.gpu)
    lines = run(arguments.what, arguments.input, gpu, arguments.residual)
    print(pd.DataFrame(lines).to_string(index=False))


def run(what: str, paths: list[Path], gpu: GpuSpec, residual: str) -> list[dict[str, object]]:
    """A line for each setting, or for each library and table."""
    frames = [read_table(path) for path in paths]
    if what == "counters":
        return [
            {"table": path.name, "library": name, **counter_figures(rows, gpu)}
            for path, frame in zip(paths, frames, strict=True)
            for name, rows in usable(frame).groupby("kernel")
        ]
    if what == "attributed":
        all_pairs = pd.concat([attributed(usable(frame), gpu) for frame in frames])
        return [{"pairs": len(all_pairs), **all_pairs.mean()}]
    if what == "without":
        names = ("", *(name for name in MECHANISM_NAMES if name not in KIND_MECHANISMS))
        return [{"without": name, **errors(map(usable, frames), gpu, name)} for name in names]
    if what == "again":
        first = pd.concat(map(usable, frames[1:]))
        found = [pairs(measured_twice(usable(frames[0]), first), lambda rows: rows["runtime_us_first"])]
    else:
        predict = partial(predicted, gpu=gpu, residual=residual)
        found = [pairs(usable(frame), lambda rows: predict(rows)[0]) for frame in frames]
    together = pd.concat(found, ignore_index=True)
    lines = [{"setting": name, **pair_figures(rows)} for name, rows in together.groupby("setting")]
    return [*lines, {"setting": "all", **pair_figures(together)}]


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with a time, a tile, and a library and a regime that the model knows."""
    rows, _ = usable_rows(frame[frame["kernel"].isin(list(names_in_tables()))], needs_tile=True)
    return rows.reset_index(drop=True)


def measured_twice(rows: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """Rows of burst whose kernels `first` holds too, with its time and its card."""
    rows, first = (each[each["regime"].fillna("burst") == "burst"].fillna("") for each in (rows, first))
    same = [name for name in IDENTITY[:-3] if name in rows and name in first]
    once = first.drop_duplicates(same)[[*same, "runtime_us", "gpu_uuid"]]
    return rows.merge(once, on=same, suffixes=("", "_first"))


def pairs(rows: pd.DataFrame, times_us: Callable[[pd.DataFrame], FloatArray]) -> pd.DataFrame:
    """Measured and predicted ratio of times for neighbours among rows that differ in one setting."""
    rows = rows.assign(measured=rows["runtime_us"].astype(float), predicted=times_us(rows))
    both = neighbours(rows, ["measured", "predicted"])
    ratios = [(after / before).assign(setting=name) for name, before, after in both]
    return pd.concat(ratios, ignore_index=True)


def neighbours(rows: pd.DataFrame, names: list[str]) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """By setting these columns of rows, and of the next rows that differ in it alone."""
    rows = rows.fillna("")
    for setting, columns in SETTINGS.items():
        if not set(columns) & set(rows.columns):
            continue
        same = [name for name in IDENTITY if name in rows.columns and name not in columns]
        # A ring follows from the tile; rings alone are a setting of their own.
        varied = [name for name in columns if name in rows.columns and (name == setting or name != "stages")]
        unlike = rows.drop_duplicates([*same, *varied])
        after = unlike.groupby(same, sort=False)[names].shift(-1).dropna().astype(float)
        yield setting, unlike.loc[after.index, names].astype(float), after


def predicted(rows: pd.DataFrame, gpu: GpuSpec, **options: Any) -> FloatArray:
    """Times, bytes of DRAM and bytes of L2, in the regime and with the L2 of each row."""
    found, usual = np.full((3, len(rows)), np.nan), pd.Series("burst", index=rows.index)
    regimes, warm = rows.get("regime", usual).fillna("burst"), rows.get("l2", usual).eq("warm")
    for (regime, is_warm), some in rows.groupby([regimes, warm]).indices.items():
        batch = batch_from_frame(rows.iloc[some].reset_index(drop=True), needs_tile=True)
        each = KernelModel(gpu, regime=regime, l2=("cold", "warm")[is_warm], **options).predict_batch(batch)
        found[:, some] = each.runtime_us, *(each.bytes_by_level[name] for name in ("dram", "l2"))
    return found


def errors(frames: Iterable[pd.DataFrame], gpu: GpuSpec, without: str) -> dict[str, object]:
    """Mean errors with a mechanism off: times by table and of splits, and bytes that were counted."""
    found: dict[str, object] = {}
    for number, rows in enumerate(frames):
        found_off = predicted(rows, gpu, residual="off", without=(without,) if without else ())
        off = np.abs(found_off[0] / rows["runtime_us"].to_numpy(float) - 1.0)
        found |= {f"{number}: MAPE": f"{off.mean():.2%}", f"{number}: p95": f"{np.quantile(off, 0.95):.2%}"}
        split = pd.to_numeric(rows["split_k"], errors="coerce").to_numpy() > 1
        found[f"{number}: split K"] = f"{off[split].mean():.2%}"
        if rows["regime"].eq("counters").all():
            counted = rows[["dram_read_bytes", "dram_write_bytes", "l2_bytes"]].to_numpy(float)
            found["DRAM bytes"] = f"{np.abs(found_off[1] / counted[:, :2].sum(axis=1) - 1.0).mean():.2%}"
            found["L2 bytes"] = f"{np.abs(found_off[2] / counted[:, 2] - 1.0).mean():.2%}"
    return found


def pair_figures(rows: pd.DataFrame) -> dict[str, object]:
    """Share of signs and of sizes that are right."""
    felt = rows[(rows["measured"] - 1.0).abs() > FELT]
    signs = np.sign(felt["predicted"] - 1.0) == np.sign(felt["measured"] - 1.0)
    off = (rows["predicted"] - rows["measured"]).abs()
    sizes = off <= np.maximum(0.25 * (rows["measured"] - 1.0).abs(), 0.03)
    return {
        "pairs": len(rows),
        "beyond 5 %": len(felt),
        "sign right": f"{signs.mean():.1%}" if len(felt) else "-",
        "size right": f"{sizes.mean():.1%}",
    }


def counter_figures(rows: pd.DataFrame, gpu: GpuSpec) -> dict[str, object]:
    """How often the busiest unit is the limiter, and how far predicted utilizations are."""
    worlds = list(worlds_of(rows, gpu))
    found = [world.composed() for world in worlds]
    counted = counted_us(rows, found, gpu) / rows["runtime_us"].to_numpy(float)
    used = [busy(each, gpu, float(each.times.runtime_us)).values() for each in found]
    predicted = np.array([list(each) for each in used]).T
    off = dict(zip(UNITS, np.abs(counted - predicted).mean(axis=1), strict=True))
    # The place of the busiest unit, -1 where none is busy.
    one, other = (np.where(each.max(axis=0) < BUSY, -1, each.argmax(axis=0)) for each in (counted, predicted))
    agrees = [_agrees(*each) for each in zip(counted.T, worlds, found, strict=True)]
    return {
        "rows": len(rows),
        "none busy": f"{(counted.max(axis=0) < BUSY).mean():.0%}",
        "busiest predicted": f"{(one == other).mean():.1%}",
        "limiter is the busiest": f"{np.mean(agrees):.1%}",
        **{f"{name} off": f"{value:.1%}" for name, value in off.items()},
    }


def counted_us(rows: pd.DataFrame, found: list[Composed], gpu: GpuSpec) -> FloatArray:
    """How long UNITS at their peaks would take for what a profiler counted [us], a row for each."""
    peaks = np.array([each.kernel.rate * sms_with_work(each.kernel, gpu) for each in found])
    l2_peaks = np.array([l2_bytes_per_us(gpu, each.kernel.numbers) for each in found])
    mma_us = [mma_flop(each.kernel) for each in found] / (peaks * rows["sm_mhz"].to_numpy(float))
    dram = rows["dram_read_bytes"].to_numpy(float) + rows["dram_write_bytes"].to_numpy(float)
    return np.array([mma_us, rows["l2_bytes"].to_numpy(float) / l2_peaks, dram / gpu.dram_bytes_per_us])


def attributed(rows: pd.DataFrame, gpu: GpuSpec) -> pd.DataFrame:
    """Of pairs of counted kernels that differ by more than FELT: whether what changes most by counters, a unit's time
    or all time beyond the longest unit's, changes most as predicted too, and whether it is within TIE of that.
    """
    found = [world.composed() for world in worlds_of(rows, gpu)]
    units, times = counted_us(rows, found, gpu), rows["runtime_us"].to_numpy(float)
    predicted_us = np.array([list(busy(each, gpu, 1.0).values()) for each in found]).T
    left = [float(each.times.runtime_us) for each in found] - predicted_us.max(axis=0)
    columns = np.vstack([times, units, times - units.max(axis=0), predicted_us, left])
    names = [f"us {place}" for place in range(len(columns))]
    both = list(neighbours(rows.assign(**dict(zip(names, columns, strict=True))), names))
    before, after = (np.vstack([each[place] for each in both]) for place in (1, 2))
    felt = np.abs(after[:, 0] / before[:, 0] - 1.0) > FELT
    time_us, (counted, predicted_us) = before[felt, 0], np.split((after - before)[felt, 1:], 2, axis=1)
    most = np.abs(counted).argmax(axis=1, keepdims=True)
    its, others = (np.take_along_axis(each, most, axis=1)[:, 0] for each in (predicted_us, counted))
    behind = np.where(its * others > 0.0, np.abs(predicted_us).max(axis=1) - np.abs(its), np.inf)
    return pd.DataFrame({"the same": behind <= 0.0, "or tied": behind <= TIE * time_us})


def worlds_of(rows: pd.DataFrame, gpu: GpuSpec) -> Iterator[World]:
    """The kernel of each row as a profiler counts it."""
    for cells in rows.astype(object).where(rows.notna(), "").astype(str).to_dict("records"):
        columns = {**cells, "kernel": names_in_tables()[cells["kernel"]], "heuristic_rank": ""}
        row = row_from_columns(columns, regime="counters")
        assert isinstance(row.config, KernelConfig)
        yield World(problem=row.problem, config=row.config, gpu=gpu, options={"regime": "counters"})


def _agrees(counted: FloatArray, world: World, found: Composed) -> bool:
    """Whether the busiest unit is the limiter or tied with it; where none is busy, all other resources together."""
    if counted.max() >= BUSY:
        return UNITS[counted.argmax()] in tied(world, found)
    shares = found.elasticities()
    rest = sum(share for name, share in shares.items() if name not in UNITS)
    return rest >= max(shares[name] for name in UNITS) - TIE


if __name__ == "__main__":
    main()
