"""The best candidate for every shape of a table, without predicting every candidate of every shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.choice.selection import Ranker
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.fields import KIND_COLUMNS, TYPE_COLUMNS, problem_of_row
from gemm_model.core.kernel_config import RASTERS, SCHEDULES, KernelConfig
from gemm_model.core.kind_columns import asked_of
from gemm_model.core.prediction import ROWS_PER_CHUNK, BatchPrediction
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.candidates import COUNTS, FIRST_ORDERS, Candidate, CandidateSpace, types_of
from gemm_model.tables.kind_columns import asks_for_more
from gemm_model.tables.schema import KNOWN, PROBLEM_COLUMNS, understood
from gemm_model.tables.table import batch_from_frame, sizes

KERNELS_LOOKED_AT_CLOSELY = 128
"""Kernels of a shape whose tile orders are all predicted [1]; after a first look with few orders; chosen: a
kernel may be fast in one order only."""

DEFAULT_DTYPE = "bf16"
ONE = dict.fromkeys(("m", "n", "k", "batch"), 1)


def problems_of_table(frame: pd.DataFrame) -> list[GemmProblem]:
    """The problems of a table: m, n, k, and of `PROBLEM_COLUMNS` the others if any.

    Raises InputError naming the row and column of a bad value.
    """
    types = _with_types(frame)
    _sizes(types)
    names = [name for name in (*TYPE_COLUMNS, *KIND_COLUMNS) if name in types]
    cells = types[names].astype(object).fillna("").astype(str)
    for name in ("m", "n", "k", "batch"):
        cells[name] = sizes(types, name, default=1.0)
    return [problem_of_row({str(name): cell for name, cell in row.items()}) for _, row in cells.iterrows()]


Chunk = tuple[tuple[CandidateSpace, ...], IntArray]
"""The spaces of kernels of a table's rows, and the positions of these rows."""


def rank_table(
    frame: pd.DataFrame, ranker: Ranker, advance: Callable[[int], None] = lambda _: None
) -> pd.DataFrame:
    """The best candidate for each row of a table of problems (columns: `problems_of_table`).

    The table comes back with the choice's columns behind its own: `gpu`, those of `KERNEL_COLUMNS`,
    `predicted_us`, `limiter` and, where the model has one, `error_band`; without what it said of another
    kernel and of its measurement.

    Each kernel is looked at with its first tile orders (one of each raster, where there are several), and of
    the fastest few all orders are predicted. A residual corrects those that it can make the fastest.
    `advance` gets the number of rows done, from several threads. `attrs["notes"]` of the result ends with the
    predictions' caveats.
    """
    types = _with_types(frame)
    extents = _sizes(types)
    problems = problems_of_table(types) if asks_for_more(types).any() else []
    chunks = _chunks(types, problems, ranker)
    caveats: dict[str, None] = {}

    def ranked(chunk: Chunk) -> pd.DataFrame:
        spaces, rows = chunk
        not_plain = [problems[row] for row in rows] if problems and not problems[rows[0]].plain else []
        found = [_best_of_chunk(ranker, space, extents[:, rows], not_plain, caveats) for space in spaces]
        best = pd.concat(found)
        best = best.sort_values("predicted_us", kind="stable")
        advance(len(rows))
        return best[~best.index.duplicated()].sort_index()

    # numpy releases the interpreter lock while it computes, so threads help.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        parts = list(pool.map(ranked, chunks))
    order = np.argsort(np.concatenate([rows for _, rows in chunks]))
    added = pd.concat(parts, ignore_index=True).iloc[order].set_axis(frame.index)
    kept = types.drop(columns=[name for name in types if name in KNOWN and name not in PROBLEM_COLUMNS])
    result = pd.concat([kept, added], axis=1)
    result.attrs = {**types.attrs, "notes": [*types.attrs.get("notes", ()), *caveats]}
    return result


def _chunks(types: pd.DataFrame, problems: Sequence[GemmProblem], ranker: Ranker) -> list[Chunk]:
    """Rows of one kind of problem and one set of types at a time, with the kernels to choose from."""
    names = [name for name in TYPE_COLUMNS if name in types]
    chunks: list[Chunk] = []
    if problems:
        kinds = pd.Series([(types_of(each), asked_of(each)) for each in problems])
        codes = kinds.groupby(kinds, sort=False).ngroup().to_numpy()
    else:
        codes = types.groupby(names, sort=False, dropna=False).ngroup().to_numpy()
    for code in range(int(codes.max()) + 1):
        rows: IntArray = np.flatnonzero(codes == code)
        texts = {name: str(types[name].iloc[rows[0]]) for name in names}
        spaces = ranker.spaces(problems[rows[0]] if problems else problem_of_row({**texts, **ONE}))
        shapes = max(ROWS_PER_CHUNK // sum(space.kernels for space in spaces), 1)
        chunks += [(spaces, rows[start : start + shapes]) for start in range(0, len(rows), shapes)]
    return chunks


def choices_of(ranked: pd.DataFrame) -> Iterator[tuple[GemmProblem, Candidate]]:
    """The problem and the chosen kernel of each row of what `rank_table` returns."""
    names = (*COUNTS, "schedule", "raster", "kernel", "fast_accum")
    for problem, row in zip(problems_of_table(ranked), ranked.to_dict("records"), strict=True):
        config = KernelConfig(**{name: row[name] for name in names})
        yield problem, Candidate(config=config, swap_ab=bool(row["swap_ab"]))


def _with_types(frame: pd.DataFrame) -> pd.DataFrame:
    frame = understood(frame)
    if "in_dtype" in frame or ("a_dtype" in frame and "b_dtype" in frame):
        return frame
    return frame.assign(in_dtype=frame.get("a_dtype", DEFAULT_DTYPE))


def _sizes(frame: pd.DataFrame) -> FloatArray:
    """m, n, k and batch as rows; every value is checked."""
    batch = batch_from_frame(frame, needs_tile=False)
    return np.array([batch.m, batch.n, batch.k, batch.batch])


def _best_of_chunk(
    ranker: Ranker,
    space: CandidateSpace,
    sizes: FloatArray,
    problems: Sequence[GemmProblem],
    caveats: dict[str, None],
) -> pd.DataFrame:
    """The best of a space for each shape for which some of its kernels are worth predicting, by shape.

    The predictions' caveats are added to `caveats`.
    """
    worth = space.worth_a_look(sizes, ranker.gpu)
    shapes: IntArray = np.flatnonzero(worth.any(axis=1))
    if not len(shapes):
        return pd.DataFrame()
    some: IntArray = np.flatnonzero(worth.any(axis=0))
    sizes, worth = sizes[:, shapes], worth[np.ix_(shapes, some)]
    every = None if len(some) == space.kernels else np.tile(some, (len(shapes), 1))
    not_plain = [problems[shape] for shape in shapes] if problems else []
    offered = space.family.space
    orders = FIRST_ORDERS if len(offered.rasters) == 1 else slice(None, None, len(offered.swizzles))
    looked_at = ranker.kernels(space, sizes, every, orders=orders, not_plain=not_plain)
    first_us = np.where(worth, looked_at.times_us, np.inf)
    count = min(KERNELS_LOOKED_AT_CLOSELY, len(some))
    # Ascending positions, so that ties go to the first kernel of the space.
    nearest = np.sort(np.argpartition(first_us, count - 1, axis=1)[:, :count], axis=1)
    kernels = ranker.kernels(space, sizes, some[nearest], not_plain=not_plain)
    times_us = np.where(np.take_along_axis(worth, nearest, axis=1), kernels.times_us, np.inf)
    kernels = replace(kernels, times_us=times_us).with_residual(1)
    best = np.arange(len(shapes)) * count + kernels.times_us.argmin(axis=1)
    predicted = kernels.predictions(best)
    caveats |= dict.fromkeys(predicted.caveats)
    columns = _columns(space, kernels.candidates[best], predicted)
    regime = {} if ranker.model.regime is None else {"regime": ranker.model.regime}
    return pd.DataFrame({"gpu": ranker.gpu.name, **regime, **dict(columns)}, index=shapes)


def _columns(
    space: CandidateSpace, chosen: IntArray, prediction: BatchPrediction
) -> Iterator[tuple[str, Any]]:
    yield "kernel", np.full(len(chosen), space.family.name)
    for name in COUNTS:
        yield name, space.kernel[name][chosen].astype(np.int64)
    yield "schedule", np.array(SCHEDULES)[space.kernel["schedule"][chosen]]
    yield "raster", np.array(RASTERS)[space.kernel["raster"][chosen]]
    yield "swap_ab", space.swapped[chosen].astype(np.int64)
    yield "fast_accum", space.kernel["fast_accum"][chosen].astype(np.int64)
    yield "predicted_us", prediction.runtime_us
    yield "limiter", np.array(prediction.limiter_names)[prediction.limiter]
    if prediction.error_band is not None:
        yield "error_band", prediction.error_band
