"""Files of the CUTLASS profiler: problem lists (JSON), test lists (CSV), results (CSV).

Written for CUTLASS 4: a problem list is what its option CUTLASS_LIBRARY_HEURISTICS_PROBLEMS_FILE takes, a
test list what `cutlass_profiler --testlist-file` takes, a result what `--output` gives. Its runtimes are in
milliseconds, tables of this package in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.choice.selection import Ranker
from gemm_model.config import read_toml
from gemm_model.core.dtypes import element_type, names_in
from gemm_model.core.files import atomic_write, csv_rows, read_json
from gemm_model.core.problem import GemmProblem
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.emit import k_tile
from gemm_model.tables.table import read_table, require_columns

TYPES = names_in("profiler")
"""The profiler's names of types."""

PASSED = ("passed", "not_verified")
"""Dispositions whose runtimes count."""

US_PER_MS = 1e3
REQUIRED = ("m", "n", "k", "dtype_a", "dtype_b", "dtype_d", "layout")
_SHAPES_IN_NAME = re.compile(r"_(\d+)x(\d+)x(\d+)_(\d+)x(\d+)x(\d+)_")
"""Tile and cluster in the name of a CUTLASS 3 kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerProblem:
    """A problem of a list: the parsed problem, and its original entry in the file."""

    problem: GemmProblem
    entry: Mapping[str, Any]

    @property
    def fast_accum(self) -> bool:
        return bool(self.entry.get("use_fast_acc", True))

    @property
    def reads_c(self) -> bool:
        return float(self.entry.get("beta", 0.0)) != 0.0


def read_problems(path: Path | str) -> list[ProfilerProblem]:
    """The problems of a JSON list; raises InputError naming file, entry and key of what is wrong."""
    path = Path(path)
    entries = read_json(path, "a JSON list")
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"{path}: expected a JSON list of problems, each a mapping")
    return [
        ProfilerProblem(problem=_problem(entry, f"{path}: entry {number}"), entry=entry)
        for number, entry in enumerate(entries, start=1)
    ]


def _problem(entry: Mapping[str, Any], where: str) -> GemmProblem:
    for key in REQUIRED:
        if key not in entry:
            raise InputError(f"{where}: key {key!r} is missing; expected {', '.join(REQUIRED)}")
    if entry.get("operation", "gemm") != "gemm":
        raise InputError(f"{where}: operation {entry['operation']!r}; expected gemm")
    beta, fast = entry.get("beta", 0.0), entry.get("use_fast_acc", True)
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise InputError(f"{where}: beta is {beta!r}; expected a number")
    if fast not in (0, 1):
        raise InputError(f"{where}: use_fast_acc is {fast!r}; expected true or false")
    layout = entry["layout"]
    if not isinstance(layout, str) or not re.fullmatch("[nt]{3}", layout):
        raise InputError(f"{where}: layout is {layout!r}; expected three letters n or t, such as tnn")
    sizes = {name: entry[name] for name in ("m", "n", "k")} | {"batch": entry.get("batch_count", 1)}
    for name, value in sizes.items():
        size_of(f"{where}: {name}", value)
    return GemmProblem(
        **sizes,
        a_dtype=_type(entry["dtype_a"], where),
        b_dtype=_type(entry["dtype_b"], where),
        out_dtype=_type(entry["dtype_d"], where),
        acc_dtype=_type(entry.get("dtype_acc", "f32"), where),
        a_major="k" if layout[0] == "t" else "m",
        b_major="k" if layout[1] == "n" else "n",
        c_major="n" if layout[2] == "t" else "m",
    )


def _type(name: object, where: str) -> Any:
    known = TYPES.get(str(name).lower())
    if known is None:
        raise InputError(f"{where}: type {name!r}; expected one of {', '.join(TYPES)}")
    return element_type(known)


def write_test_list(
    path: Path | str, problems: Sequence[ProfilerProblem], ranker: Ranker, configs_per_problem: int = 4
) -> int:
    """Write the fastest kernels of each problem, each with its best tile order; returns the number of rows.

    The ranker's family must be one whose kernels CUTLASS has, its GPU a Hopper one.
    """
    if ranker.names != ("cutlass",) or ranker.gpu.architecture != "sm90":
        raise InputError("a test list is written for the family cutlass on an sm90 GPU")
    rows: list[dict[str, Any]] = []
    for each in problems:
        choices = ranker.rank(each.problem, configs_per_problem).choices
        rows += [_test_row(each, choice.candidate) for choice in choices]
    atomic_write(Path(path), csv_rows(rows))
    return len(rows)


def _test_row(each: ProfilerProblem, candidate: Candidate) -> dict[str, Any]:
    config = candidate.config
    return {
        "operation_name": operation_name(each, candidate),
        **each.entry,
        "cta_tile_m": config.cta_m,
        "cta_tile_n": config.cta_n,
        "cta_tile_k": k_tile(each.problem, config),
        "cluster_m": config.cluster_m,
        "cluster_n": config.cluster_n,
        "cluster_k": 1,
        "stages": config.stages,
        "swizzle_size": config.swizzle,
        "raster_order": config.raster,
        "split_k_slices": config.split_k,
    }


def operation_name(each: ProfilerProblem, candidate: Candidate) -> str:
    """The name of a CUTLASS 3 kernel for Hopper, as the CUTLASS library's generator spells it."""
    config, problem = candidate.config, each.problem
    d = str(each.entry["dtype_d"]).lower()
    c = str(each.entry.get("dtype_c") or d).lower() if each.reads_c else "void"
    types = [str(each.entry[f"dtype_{name}"]).lower() for name in ("a", "b")]
    types += [str(each.entry.get("dtype_acc", "f32")).lower(), c, d]
    tile = f"{config.cta_m}x{config.cta_n}x{k_tile(problem, config)}"
    cluster = f"{config.cluster_m}x{config.cluster_n}x1"
    align = 128 // problem.a_dtype.bits
    fast = "_fp8_fastaccum" if problem.math_kind == "fp8" and each.fast_accum else ""
    return (
        f"cutlass3x_sm90_tensorop_gemm_{'_'.join(types)}_{tile}_{cluster}_0_{each.entry['layout']}_align{align}"
        f"_warpspecialized_{config.schedule}{fast}_epi_tma"
    )


def read_results(path: Path | str, gpu: str) -> tuple[pd.DataFrame, list[str]]:
    """Measurements in this package's columns, and a sentence on the rows that are left out.

    `gpu` is the card's name for the table. Tile and cluster come from the kernel's name if it has them,
    because some versions of the profiler leave the cluster's columns empty. Raises InputError that names
    file, line and column of a bad value.
    """
    frame = read_table(path)
    require_columns(frame, read_toml("columns")["cutlass_results"])
    notes = []
    passed = frame["Disposition"].isin(PASSED)
    if not passed.all():
        counts = frame.loc[~passed, "Disposition"].value_counts()
        reasons = ", ".join(f"{count} {reason or 'empty'}" for reason, count in counts.items())
        notes.append(f"rows left out: {reasons}")
    kept = frame[passed]
    if len(kept) == 0:
        raise InputError(f"{path}: no row with disposition {' or '.join(PASSED)}")
    rows = [_measurement(row, f"{path}: line {line}", gpu) for line, row in kept.iterrows()]
    return pd.DataFrame(rows), notes


def _measurement(row: pd.Series, where: str, gpu: str) -> dict[str, Any]:
    operation = str(row["Operation"])
    a_type, a_layout = _operand(row["A"], f"{where}, column A")
    b_type, b_layout = _operand(row["B"], f"{where}, column B")
    d_type, d_layout = _operand(row["D"], f"{where}, column D")
    two_cta = "_2sm" in operation
    named = _SHAPES_IN_NAME.search(operation)
    columns = ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n")
    given = [row.get(name, "") or "1" for name in columns]
    shape = named.groups()[:5] if named else _numbers(given, where)
    tile_m, tile_n, tile_k, cluster_m, cluster_n = map(int, shape)
    milliseconds = float(_numbers([row["Runtime"]], f"{where}, column Runtime")[0])
    if not milliseconds > 0:
        raise InputError(f"{where}, column Runtime: {row['Runtime']!r}; expected milliseconds above 0")
    return {
        "in_dtype": a_type,
        "a_dtype": a_type,
        "b_dtype": b_type,
        "acc_dtype": _type(row["accum"], f"{where}, column accum").name,
        "out_dtype": d_type,
        "a_major": "k" if a_layout == "row" else "m",
        "b_major": "k" if b_layout == "column" else "n",
        "c_major": "n" if d_layout == "row" else "m",
        "mma_m": tile_m,
        "mma_n": tile_n,
        "cta_m": tile_m // 2 if two_cta else tile_m,
        "cta_n": tile_n,
        "cta_k": tile_k,
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        **dict(zip("mnk", map(int, _numbers(row[["m", "n", "k"]], where)), strict=True)),
        "batch": int(_numbers([row.get("batch_count", "1") or "1"], where)[0]),
        "stages": int(_numbers([row.get("stages", "0") or "0"], where)[0]),
        "schedule": "2cta" if two_cta else "pingpong" if "pingpong" in operation else "cooperative",
        "raster": row.get("raster_order", "heuristic") or "heuristic",
        "swizzle": int(_numbers([row.get("swizzle_size", "1") or "1"], where)[0]),
        "split_k": int(_numbers([row.get("split_k_slices", "1") or "1"], where)[0]),
        "fast_accum": int("fastaccum" in operation),
        "kernel": "cutlass",
        "gpu": gpu,
        "runtime_us": milliseconds * US_PER_MS,
    }


def _operand(text: object, where: str) -> tuple[str, str]:
    name, separator, layout = str(text).partition(":")
    if not separator or layout not in ("row", "column"):
        raise InputError(f"{where}: {text!r}; expected type:row or type:column, such as f16:row")
    return _type(name, where).name, layout


def _numbers(texts: Sequence[object] | pd.Series, where: str) -> np.ndarray:
    try:
        return np.array([float(str(text)) for text in texts])
    except ValueError:
        raise InputError(f"{where}: {', '.join(map(str, texts))}; expected numbers") from None
