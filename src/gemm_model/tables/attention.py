"""Tables of attention kernels: which they are, and their rows as problems and configurations.

Columns: batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v, causal, window, in_dtype, softcap,
lengths, page_size; kernel, tile_m, tile_n, stages, pv_from_registers, overlap_in_group, pack_gqa, num_splits,
scheduler; runtime_us. `heads`, `head_dim` and `seq_q` (or `lengths`, as Q:K+Q:K) are required; an empty cell
stands for the default. Further columns travel along untouched.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.attention.model import AttentionModel
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.dtypes import element_type
from gemm_model.core.errors import InputError, RefusedKernelError
from gemm_model.core.prediction import BatchPrediction
from gemm_model.tables.schema import place_of, table_name, understood
from gemm_model.tables.table import OK, dispositions, refused_rows

PROBLEM_COLUMNS = (
    *("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal", "window"),
    *("in_dtype", "softcap", "lengths", "page_size"),
)
CONFIG_COLUMNS = tuple(spec.name for spec in fields(AttentionConfig))
COLUMNS = (*PROBLEM_COLUMNS, *CONFIG_COLUMNS)
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_FLAG_COLUMNS = ("causal", "overlap_in_group", "pv_from_registers", "pack_gqa")
_TEXT_COLUMNS = ("kernel", "scheduler", "in_dtype", "lengths")
_REAL_COLUMNS = ("softcap", "exp_emulated")


def is_attention_table(frame: pd.DataFrame) -> bool:
    """Whether a table's rows are attention kernels: it tells heads and their size, or one and no m."""
    told = sum(name in frame for name in ("heads", "head_dim"))
    return told == 2 or (told == 1 and "m" not in frame)


def understood_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of attention, or of GEMMs, under the schema's names; raises InputError as `understood` does."""
    return understood(frame, COLUMNS if is_attention_table(frame) else ())


def attention_rows(frame: pd.DataFrame) -> list[tuple[AttentionProblem, AttentionConfig]]:
    """The problem and configuration of each row; raises InputError naming the row of a bad value."""
    required = ("heads", "head_dim", "lengths" if "lengths" in frame else "seq_q")
    for name in required:
        if name not in frame:
            raise InputError(
                f"{table_name(frame)}: column {name!r} is missing; expected {', '.join(required)}"
            )
    names = [name for name in COLUMNS if name in frame]
    texts = [["" if pd.isna(cell) else str(cell).strip() for cell in frame[name]] for name in names]
    known: dict[tuple[str, ...], tuple[AttentionProblem, AttentionConfig]] = {}
    found = []
    for position, cells in enumerate(zip(*texts, strict=True)):
        if cells not in known:
            try:
                known[cells] = _kernel(dict(zip(names, cells, strict=True)))
            except InputError as error:
                raise InputError(f"{table_name(frame)}: {place_of(frame, position)}: {error}") from None
        found.append(known[cells])
    return found


def predict_attention_frame(frame: pd.DataFrame, model: AttentionModel) -> BatchPrediction:
    """Predictions of all rows; raises InputError naming the row of a bad value or an impossible kernel."""
    if not len(frame):
        raise InputError(f"{table_name(frame)}: no rows; expected at least one")
    try:
        return model.predict(attention_rows(frame))
    except RefusedKernelError as refused:
        raise refused_rows(frame, refused) from None


def measured_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series, list[str]]:
    """The rows with a measurement, the disposition of every row, and a sentence on those left out."""
    _, disposition = dispositions(frame, needs_tile=False)
    good = (disposition == OK).to_numpy()
    rows = frame[good]
    rows.attrs = dict(frame.attrs)
    left = int(np.count_nonzero(~good))
    notes = list(frame.attrs.get("notes", ()))
    notes += [f"{left} rows without a measurement (column disposition) are left out"] if left else []
    return rows, disposition, notes


def _kernel(cells: dict[str, str]) -> tuple[AttentionProblem, AttentionConfig]:
    values = {name: _value(name, text) for name, text in cells.items() if text}
    problem = {name: values.pop(name) for name in PROBLEM_COLUMNS if name in values}
    element = element_type(problem.pop("in_dtype", "bf16"))
    problem.setdefault("seq_kv", problem.get("seq_q", 0))
    for name in ("heads", "head_dim"):
        if name not in problem:
            raise InputError(f"{name} is empty; expected a positive whole number")
    return AttentionProblem(dtype=element, **problem), AttentionConfig(**values)


def _value(name: str, text: str) -> Any:
    if name == "lengths":
        return AttentionProblem.parse(f"full heads=1 head_dim=8 lengths={text}").lengths
    if name in _TEXT_COLUMNS:
        return text
    if name in _FLAG_COLUMNS:
        if text.lower() not in _FLAGS:
            raise InputError(f"{name} is {text[:40]!r}; expected 0 or 1")
        return _FLAGS[text.lower()]
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if name in _REAL_COLUMNS and math.isfinite(number):
        return number
    if not number.is_integer():
        raise InputError(f"{name} is {text[:40]!r}; expected a whole number")
    return int(number)
