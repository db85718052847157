"""Tables of kernels that servers tune: a row is a product of a served layer, and a configuration.

Columns: tokens, n, k; experts, experts_total, topk, in_dtype, scaling, weights_only, gathered, kernel;
cta_m, cta_n, cta_k, group_m, warps, stages; runtime_us. An empty cell stands for the default of
`ServedProduct`, of fp8 in scaled blocks where the kernel is triton_block_fp8. Further columns travel along.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gemm_model.core.fields import OK
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError, require_one_of
from gemm_model.serving.choose import candidates, ranked
from gemm_model.serving.model import launches_of, times_of
from gemm_model.serving.problem import BLOCK_FP8, FAMILIES, MOE, ServedProduct
from gemm_model.serving.residual import corrected, predicted
from gemm_model.serving.tile_config import KEYS, TileConfig, TileGrid
from gemm_model.tables.accuracy import choice_figures, error_figures
from gemm_model.tables.schema import ADDED_COLUMNS, notes_on_strange, place_of, table_name
from gemm_model.tables.table import READERS, read_table, runtimes_us, sizes

COUNTS = {"tokens": None, "n": None, "k": None, "experts": 1, "experts_total": 0, "topk": 1}
"""Whole numbers of a product, and what stands for an absent column or empty cell; None: required."""
FLAGS = {"weights_only": 0, "gathered": 1}
TEXTS = ("kernel", "in_dtype", "scaling")
PRODUCT = ("tokens", "n", "k")
KNOWN = {*COUNTS, *FLAGS, *TEXTS, *KEYS, *ADDED_COLUMNS, "runtime_us", "gpu", "disposition"}
DOES_NOT_FIT = "does not fit"
"""Disposition of configurations that need more shared memory than a CTA has."""


def names_served(frame: pd.DataFrame) -> bool:
    names = frame.columns.astype(str).str.strip()
    return "tokens" in names and "m" not in names


def is_served(path: Path) -> bool:
    """Whether a file's header has tokens and no m: its rows are products of served layers."""
    if path.suffix.lower() in READERS and path.is_file():
        return names_served(read_table(path))
    try:
        header = pd.read_csv(path, nrows=0, comment="#", encoding="utf-8-sig", skipinitialspace=True)
    except (OSError, EOFError, ValueError, zlib.error):
        return False  # whoever reads the table says what is wrong with it
    return names_served(header)


def predict_served(frame: pd.DataFrame, gpu: GpuSpec, routing: str = "uniform") -> pd.DataFrame:
    """The table with predicted_us, limiter, ratio and disposition of each row.

    Its `attrs["accuracy"]` has errors and choices by kernel, if anything was measured. Raises InputError naming
    the line of a bad value.
    """
    frame = _understood(frame, (*PRODUCT, "cta_m", "cta_n", "cta_k", "group_m"))
    configs = _configs(frame)
    found = frame.assign(gpu=gpu.name, predicted_us=np.nan, limiter="", disposition=OK)
    total, limiter, problem = np.zeros(len(frame)), np.full(len(frame), "", object), np.zeros(len(frame))
    for number, (product, rows) in enumerate(by_product(frame)):
        times = predicted(product, TileGrid(*configs[:, rows]), gpu, routing)
        total[rows], limiter[rows], problem[rows] = times.total_us, times.limiter, number
    fits = np.isfinite(total)
    found["predicted_us"], found["limiter"] = np.where(fits, total, np.nan), limiter
    found["disposition"] = np.where(fits, OK, DOES_NOT_FIT)
    measured_us = runtimes_us(frame, blanks=True)
    if measured_us is not None:
        found["runtime_us"], found["ratio"] = measured_us, found["predicted_us"] / measured_us
        kernels = _texts(frame, "kernel").replace("", MOE)
        measured = found.assign(kernel=kernels, problem=problem)[found["ratio"].notna()]
        found.attrs["accuracy"] = [_figures(*each) for each in measured.groupby("kernel", sort=False)]
    return found


def _figures(kernel: object, rows: pd.DataFrame) -> dict[str, Any]:
    errors = error_figures(rows["predicted_us"].to_numpy(), rows["runtime_us"].to_numpy())
    of_problem = rows.groupby("problem")
    first_us = rows.loc[of_problem["predicted_us"].idxmin(), "runtime_us"].to_numpy()
    choice = choice_figures(of_problem["runtime_us"].min() / first_us)
    top1 = {"top1": choice.mean, "top1_p5": choice.p5, "top1_min": choice.minimum}
    return {"rows of": kernel, **asdict(errors), "shapes": choice.shapes, **top1}


def rank_served(frame: pd.DataFrame, gpu: GpuSpec, routing: str = "uniform") -> pd.DataFrame:
    """The table with the configuration of least predicted time in each row."""
    frame = _understood(frame, PRODUCT)
    found = np.zeros((len(frame), len(KEYS) + 1))
    for product, rows in by_product(frame):
        grid = candidates(product.smallest, gpu)
        launches = launches_of(product, grid, gpu, routing)
        times_us = corrected(launches, times_of(launches)).total_us
        best = int(np.argmin(ranked(launches, times_us)))
        found[rows] = [*(getattr(grid, name)[best] for name in KEYS), times_us[best]]
    chosen = {name: found[:, place].astype(np.int64) for place, name in enumerate(KEYS)}
    kept = frame.drop(columns=[name for name in (*KEYS, "runtime_us") if name in frame])
    return kept.assign(gpu=gpu.name, **chosen, predicted_us=found[:, -1])


def _understood(frame: pd.DataFrame, needed: Sequence[str]) -> pd.DataFrame:
    """The table with notes on its columns; raises InputError for a needed or misspelt one."""
    for name in needed:
        if name not in frame:
            raise InputError(
                f"{table_name(frame)}: column {name!r} is missing; expected {', '.join(needed)} "
                "(its tokens are of served layers)"
            )
    found = frame.copy(deep=False)
    strange = [name for name in map(str, frame) if name not in KNOWN]
    found.attrs = {**frame.attrs, "notes": notes_on_strange(frame, strange, KNOWN)}
    return found


def _texts(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame.get(name, pd.Series("", index=frame.index)).fillna("").astype(str).str.strip()


def by_product(frame: pd.DataFrame) -> Iterator[tuple[ServedProduct, NDArray[np.int64]]]:
    """Each distinct product and the places of its rows."""
    keys = pd.DataFrame({name: _texts(frame, name).to_numpy() for name in TEXTS})
    for name, default in (COUNTS | FLAGS).items():
        keys[name] = sizes(frame, name, default=default, low=0 if default == 0 or name in FLAGS else 1)
    codes = keys.groupby(list(keys), sort=False).ngroup().to_numpy()
    for code in range(codes.max() + 1):
        rows = np.flatnonzero(codes == code)
        try:
            yield _product({str(name): cell for name, cell in keys.iloc[rows[0]].items()}), rows
        except InputError as error:
            raise InputError(f"{table_name(frame)}: {place_of(frame, rows[0])}: {error}") from None


def _product(cells: dict[str, Any]) -> ServedProduct:
    kernel = cells["kernel"] or MOE
    require_one_of(f"kernel is {kernel!r}", kernel, FAMILIES)
    if cells["weights_only"] > 1 or cells["gathered"] > 1:
        raise InputError("weights_only or gathered is more than 1; expected 0 or 1")
    of_blocks = {"in_dtype": "e4m3", "scaling": "block128x128"} if kernel == BLOCK_FP8 else {}
    types = {name: cells[name] for name in ("in_dtype", "scaling") if cells[name]}
    counts = {name: int(cells[name]) for name in COUNTS} | {name: bool(cells[name]) for name in FLAGS}
    product = ServedProduct(**of_blocks | types | counts)
    if kernel == BLOCK_FP8 and (product.experts_total > 1 or not product.block_scaled):
        raise InputError(f"{kernel} multiplies one matrix of fp8 in scaled blocks; expected {MOE} for others")
    return product


def _configs(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Numbers of each row's configuration, of shape (6, rows)."""
    configs = np.array([sizes(frame, name, default={"warps": 4, "stages": 3}.get(name)) for name in KEYS])
    found, first = np.unique(configs, axis=1, return_index=True)
    for numbers, row in zip(found.T, first, strict=True):
        try:
            TileConfig(*map(int, numbers))
        except InputError as error:
            raise InputError(f"{table_name(frame)}: {place_of(frame, row)}: {error}") from None
    return configs
