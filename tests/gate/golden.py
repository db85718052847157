"""The golden table: what the kernel model says of some 300 kernels that exercise every mechanism.

`make golden` writes it; its diff shows a person which kernels a change moved, and by how much.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.core.batch import GemmBatch, batch_of
from gemm_model.kernel_model.calibration_file import Calibration
from gemm_model.kernel_model.model import KernelModel

TABLE = Path(__file__).parent / "kernels.csv"
DIGITS = 6
SAME = 1e-5
"""Relative difference of two values that are one number of six digits."""


@cache
def cases() -> pd.DataFrame:
    """The kernels of the table as texts: `what` says which mechanism each is there for.

    To add a kernel, write its line as far as `majors`, the contiguous extents of A, B and the output.
    """
    table = pd.read_csv(TABLE, dtype=str, keep_default_na=False)
    return table.loc[:, :"majors"]


def _pair(case: Mapping[str, str]) -> tuple[GemmProblem, KernelConfig]:
    sizes, (cta_m, cta_n), (cluster_m, cluster_n) = (
        map(int, case[name].split("x")) for name in ("mnk", "tile", "cluster")
    )
    problem = GemmProblem.of(*sizes, case["dtype"], case["out_dtype"] or None, batch=int(case["batch"]))
    a_major, b_major, c_major = case["majors"]
    config = KernelConfig(
        kernel=case["family"],
        **{"cta_m": cta_m, "cta_n": cta_n, "cluster_m": cluster_m, "cluster_n": cluster_n},
        **{name: case[name] for name in ("schedule", "raster")},
        **{name: int(case[name]) for name in ("swizzle", "stages", "split_k")},
        fast_accum=case["fast_accum"] == "True",
        pdl=None if case["pdl"] == "" else case["pdl"] == "True",
    )
    return replace(problem, a_major=a_major, b_major=b_major, c_major=c_major), config


_World = tuple[str, str, str]
"""GPU, regime, state of L2: a model each."""


@cache
def _batches() -> Mapping[_World, tuple[list[int], GemmBatch]]:
    """By world: the positions of its cases, and their batch."""
    groups = cases().groupby(["gpu", "regime", "l2"], sort=False)
    return {
        world: (rows.index.tolist(), batch_of([_pair(row) for row in rows.to_dict("records")]))
        for world, rows in groups
    }


def golden_table(calibration: str | Calibration = "auto") -> pd.DataFrame:
    """The cases with what the physical model says of them, a row each."""
    parts = []
    for (gpu, regime, l2), (index, batch) in _batches().items():
        options = {"regime": regime, "l2": l2, "calibration": calibration, "residual": "off"}
        found = KernelModel(load_gpu(gpu), **options).predict_batch(batch)
        columns = {"runtime_us": found.runtime_us}
        columns |= {f"{name}_us": column for name, column in found.phases_us.items()}
        # The stages that were found, beside those that were asked for.
        details = {
            "stages_found" if name == "stages" else name: found.details[name] for name in found.details
        }
        columns |= {name: column for name, column in details.items() if name not in columns}
        columns |= {f"{name}_bytes": column for name, column in found.bytes_by_level.items()}
        parts.append(pd.DataFrame(columns, index=index))
    figures = pd.concat(parts).sort_index()
    return pd.concat([cases(), figures], axis="columns")


def write_golden() -> None:
    rounded = golden_table().map(lambda value: f"{value:.{DIGITS}g}" if isinstance(value, float) else value)
    rounded.to_csv(TABLE, index=False)


def read_golden() -> pd.DataFrame:
    return pd.read_csv(TABLE, dtype=dict.fromkeys(cases().columns, str), keep_default_na=False)


def golden_differences(recorded: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    """One line for each column of each kernel that is another number than the recorded one."""
    names = list(cases().columns)
    same_columns = list(recorded.columns) == list(found.columns) and len(recorded) == len(found)
    if not same_columns or (recorded[names].to_numpy() != found[names].to_numpy()).any():
        return ["the table has other kernels or columns: run `make golden`"]
    lines = []
    for column in found.columns.drop(names):
        was, is_now = recorded[column].to_numpy(), found[column].to_numpy()
        for row in np.flatnonzero(np.abs(is_now - was) > SAME * np.abs(was)):
            kernel = " ".join(filter(None, found.loc[row, names]))
            lines.append(f"line {row + 2}, {column}: {was[row]:.6g} -> {is_now[row]:.6g} ({kernel})")
    return lines
