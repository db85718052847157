"""What each mechanism of the calibrated model buys: the model without it, refitted, on held-out shapes.

    python benchmarks/ablation.py --input data/measurements/h200/burst.csv.gz \\
        --input data/measurements/h200/wide.csv.gz --input data/measurements/h200/counters.csv.gz \\
        --shapes 200 --output docs/ablation.md

Each line leaves out one mechanism, fits all other parameters again, and predicts shapes that the fit has not
seen (folds by shape). A sample of the shapes keeps the run to minutes.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from gemm_model.persistent.kernel_parameters import KernelParameters

from gemm_model.calibration.cross_validation import fold_fits, folds_of, held_out, size_groups
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import load_tables, table_name
from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.persistent import clock, epilogue, kernel_time, mainloop, spilling, traffic
from gemm_model.persistent import edge_tiles as outside_rows
from gemm_model.persistent.calibration_file import load_calibration
from gemm_model.tables import table
from gemm_model.tables.accuracy import choice_figures, error_figures, top1_efficiency

FOLDS = 3


@dataclass(frozen=True)
class Ablation:
    name: str
    without: tuple[str, ...] = ()
    fixed: tuple[tuple[str, float], ...] = ()
    """Parameters held at values that take the mechanism away."""
    constants: tuple[tuple[ModuleType, str, Any], ...] = ()
    """The same for constants and formulas of the model's modules."""


ABLATIONS = (
    Ablation("nothing: the full model"),
    Ablation("bandwidth of L2", without=("l2",)),
    Ablation("bandwidth of DRAM", without=("dram",)),
    Ablation("whole waves (fractional instead)", without=("waves",)),
    Ablation("clock under load", without=("clock",)),
    Ablation("epilogue", without=("epilogue",)),
    Ablation("load latency over the stages", without=("latency",)),
    Ablation("SM port", without=("port",)),
    Ablation("time constant of the clock", fixed=(("droop_us", 0.0),)),
    Ablation("coalescing of L2 requests", fixed=(("coalescing", 0.0),)),
    Ablation("fills from DRAM in L2's work", fixed=(("fill_share", 0.0),)),
    Ablation("rows outside the matrix", fixed=(("out_of_range_weight", 0.0),)),
    Ablation("misaligned rows", fixed=(("read_misalignment", 0.0), ("write_misalignment", 0.0))),
    Ablation("loss of lock-step", fixed=(("lockstep_loss_per_ms", 0.0),)),
    Ablation("L2 and DRAM hiding each other in part", fixed=(("memory_overlap_loss", 0.0),)),
    Ablation("launch of clusters", fixed=(("cluster_launch_us", 0.0),)),
    Ablation("spilled registers", fixed=(("spill_clk", 0.0),)),
    Ablation("slots that keep their row of tiles", constants=((outside_rows, "FIXED_ROWS", 0.0),)),
    Ablation(
        "faster zeros beyond half of the SMs",
        constants=tuple((outside_rows, f"FURTHER_SM{of}", 1.0) for of in ("", "_OF_PAIRS", "_OF_FEW")),
    ),
    Ablation("zeros that slots take turns at", constants=((outside_rows, "TURNS_COST", 1.0),)),
    Ablation(
        "zeros in clusters that share both operands",
        constants=((outside_rows, "TWO_WAY_COST", 1.0), (outside_rows, "TWO_WAY_HIDDEN", 0.0)),
    ),
    Ablation(
        "zeros by multicast",
        constants=tuple(
            (outside_rows, f"{name}_COST", 1.0) for name in ("WHOLE_BOX", "FURTHER_PART", "WIDE_MULTICAST")
        ),
    ),
    Ablation("zeros of the worst CTA", constants=((outside_rows, "WORST_CTA", 0.0),)),
    Ablation(
        "zeros by the number of k steps", constants=((outside_rows, "_by_steps", lambda _k_steps: 1.0),)
    ),
    Ablation("zeros beside the only row", constants=((outside_rows, "ONE_ROW_COST", 1.0),)),
    Ablation("GPCs of clusters of four", constants=((outside_rows, "GPC_SHARE", 0.0),)),
    Ablation("tiles that zeros put out of step", constants=((outside_rows, "OUT_OF_STEP_ROWS", 1e9),)),
    Ablation("order in which tiles go to GPCs", constants=((traffic, "IN_ORDER_US", 0.0),)),
    Ablation("own pace of few SMs", constants=((kernel_time, "L2_SMS", 0.0),)),
    Ablation("drift to DRAM", constants=((traffic, "DRIFT_MISSES", 0.0),)),
    Ablation(
        "rows of the last k step beyond K",
        constants=tuple((mainloop, f"TAIL_{alignment}", 0.0) for alignment in (64, 32, 16)),
    ),
    Ablation(
        "rows that cross lines, at the port",
        constants=tuple((mainloop, f"LINE_{alignment}", 0.0) for alignment in (64, 32, 16)),
    ),
    Ablation("operands of narrow MMAs", constants=((mainloop, "SMEM_CONTENTION", 0.0),)),
    Ablation("start of each k step's MMAs", constants=((mainloop, "ISSUE_CLK", 0.0),)),
    Ablation(
        "signals that bound a k step",
        constants=tuple(
            (mainloop, f"{name}ROUND_TRIP_CLK", 0.0) for name in ("", "PAIR_", "SQUARE_", "FOUR_", "SLOW_")
        ),
    ),
    Ablation(
        "spilling between tiles",
        constants=((spilling, "FIRST_STEP_SPILL", 0.0), (spilling, "TILE_SPILL", 0.0)),
    ),
    Ablation("spilled registers in L2", constants=((spilling, "L2_BYTES_PER_BYTE", 0.0),)),
    Ablation("cheaper misaligned writes in L2", constants=((traffic, "KEPT_MISALIGNMENT", 0.9),)),
    Ablation("fixed clocks of a tile", constants=((epilogue, "TILE_CLK", 0.0),)),
    Ablation("handover of ping-pong", constants=((epilogue, "HANDOVER_CLK", 0.0),)),
    Ablation(
        "what slow accumulation has drained",
        constants=((epilogue, "DRAINED_CLK", 0.0), (epilogue, "HANDOVER_DRAINED_CLK", 0.0)),
    ),
    Ablation("first loads", constants=((kernel_time, "RAMP_US", 0.0),)),
    Ablation("filling of the pipeline", constants=((kernel_time, "FILL_STEPS", 0.0),)),
    Ablation("warpgroups that drift apart", constants=((epilogue, "APART", 0.0),)),
    Ablation("significands", constants=((table, "multiplier_share", lambda _a, _b: 1.0),)),
    Ablation("clock of few SMs", constants=((clock, "FEW_SMS_SHARE", 0.0),)),
    Ablation("stores of 16 columns", constants=((epilogue, "SMALL_STORE_CLK", 0.0),)),
    Ablation("launch of a large grid", constants=((kernel_time, "GRID_US", 0.0),)),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, action="append", required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--output", type=Path, help="a Markdown file for the table")
    parser.add_argument("--shapes", type=int, default=80, help="shapes sampled of each type class")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    gpu = load_gpu(args.gpu)
    data = load_tables(args.input, gpu)
    tables = []
    for kind, regimes in data.by_kind.items():
        sampled = _sample(regimes["burst"], args.shapes, args.seed)
        counters = regimes.get("counters")
        tables.append(_ablate(kind, sampled, counters, gpu, args.seed))
    text = _markdown(pd.concat(tables, axis=1), args)
    print(text)
    if args.output is not None:
        atomic_write(args.output, text)


def _sample(frame: pd.DataFrame, shapes: int, seed: int) -> pd.DataFrame:
    keys = frame[["in_dtype", "m", "n", "k"]].agg("|".join, axis=1)
    names = np.random.default_rng(seed).permutation(sorted(keys.unique()))[:shapes]
    kept = frame[keys.isin(names)].reset_index(drop=True)
    kept.attrs = dict(frame.attrs)
    return kept


def _ablate(
    kind: str, frame: pd.DataFrame, counters: pd.DataFrame | None, gpu: GpuSpec, seed: int
) -> pd.DataFrame:
    start = load_calibration(gpu.name).parameters[kind]
    lines = {}
    for ablation in ABLATIONS:
        with ExitStack() as patched:
            for module, name, value in ablation.constants:
                patched.enter_context(patch.object(module, name, value))
            seen = observe(frame, gpu, ablation.without)
            known = observe(counters, gpu, ablation.without) if counters is not None else None
            lines[ablation.name] = _figures(seen, known, gpu, start, ablation, seed)
        print(kind, ablation.name, lines[ablation.name], flush=True)
    figures = pd.DataFrame(lines).T
    figures.columns = pd.Index([f"{kind} {name}" for name in figures.columns])
    return figures


def _figures(
    seen: Observations,
    counters: Observations | None,
    gpu: GpuSpec,
    start: KernelParameters,
    ablation: Ablation,
    seed: int,
) -> dict[str, str]:
    fixed = dict(ablation.fixed)
    fits = fold_fits(
        seen,
        counters,
        gpu,
        folds_of(size_groups(seen), seed, FOLDS),
        start=replace(start, **fixed),
        without=ablation.without,
        frozen=tuple(fixed),
    )
    predicted_us = held_out(fits, len(seen))
    errors = error_figures(predicted_us, seen.runtime_us)
    frame = seen.frame.assign(actual_runtime=seen.runtime_us, predicted_runtime=predicted_us)
    top1 = choice_figures(top1_efficiency(frame))
    return {"MAPE": f"{errors.mape:.2%}", "p95": f"{errors.p95:.1%}", "top-1": f"{top1.mean:.2%}"}


def _named(tables: list[Path]) -> str:
    return ", ".join(f"`{table_name(path)}`" for path in tables)


def _markdown(figures: pd.DataFrame, args: argparse.Namespace) -> str:
    header = "| without | " + " | ".join(figures.columns) + " |"
    rule = "|---|" + "---:|" * len(figures.columns)
    lines = [
        f"| {name} | " + " | ".join(row) + " |"
        for name, row in zip(figures.index, figures.to_numpy(), strict=True)
    ]
    intro = (
        "# What each mechanism buys\n\n"
        "The calibrated model without one mechanism, all other parameters fitted again; errors on shapes\n"
        f"that the fit had not seen ({FOLDS} folds by shape, {args.shapes} shapes of each class drawn from\n"
        f"{_named(args.input)}, burst regime). Written by `python benchmarks/ablation.py`.\n\n"
    )
    return intro + "\n".join([header, rule, *lines]) + "\n"


if __name__ == "__main__":
    main()
