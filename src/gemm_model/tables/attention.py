"""Tables of attention kernels: which they are, and their rows as problems and configurations.

Columns: batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v, causal, window, in_dtype, softcap,
lengths, page_size; kernel, tile_m, tile_n, stages, pv_from_registers, overlap_in_group, pack_gqa, num_splits,
scheduler; runtime_us. `heads`, `head_dim` and `seq_q` (or `lengths`, as Q:K+Q:K) are required; an empty cell
stands for the default. Further columns travel along untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from gemm_model.attention.model import AttentionModel
from gemm_model.core.attention import SIZES, AttentionConfig, AttentionProblem, value_of
from gemm_model.core.prediction import BatchPrediction
from gemm_model.errors import InputError, RefusedKernelError
from gemm_model.tables.schema import place_of, table_name, understood
from gemm_model.tables.table import refused_rows, require_columns, text_codes

PROBLEM_COLUMNS = (*SIZES, "causal", "window", "in_dtype", "softcap", "lengths", "page_size")
CONFIG_COLUMNS = tuple(spec.name for spec in fields(AttentionConfig))
COLUMNS = (*PROBLEM_COLUMNS, *CONFIG_COLUMNS)
_Made = TypeVar("_Made")


def is_attention_table(frame: pd.DataFrame) -> bool:
    """Whether a table's rows are attention kernels: it tells heads and their size, or one and no m."""
    present = sum(name in frame for name in ("heads", "head_dim"))
    return present == 2 or (present == 1 and "m" not in frame)


def understood_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """A table of attention, or of GEMMs, under the schema's names; raises InputError as `understood` does."""
    return understood(frame, COLUMNS if is_attention_table(frame) else ())


def attention_rows(frame: pd.DataFrame) -> list[tuple[AttentionProblem, AttentionConfig]]:
    """The problem and configuration of each row; raises InputError naming the row of a bad value."""
    require_columns(frame, ("heads", "head_dim", "lengths" if "lengths" in frame else "seq_q"))
    problems = _made(frame, PROBLEM_COLUMNS, _problem)
    return list(zip(problems, _made(frame, CONFIG_COLUMNS, AttentionConfig), strict=True))


def _made(frame: pd.DataFrame, columns: Sequence[str], make: Callable[..., _Made]) -> list[_Made]:
    """What `make` makes of the values of some columns in each row, once of equal ones."""
    names, cells = [name for name in columns if name in frame], []
    for name in names:
        codes, texts = text_codes(frame[name])
        values = np.empty(len(texts), dtype=object)
        for code, text in enumerate(map(str.strip, texts)):
            try:
                values[code] = value_of(name, text) if text else None
            except InputError as error:
                raise of_row(frame, int(np.argmax(codes == code)), error) from None
        cells.append(values[codes].tolist())
    rows = list(zip(*cells, strict=True)) if names else [()] * len(frame)
    known: dict[tuple[Any, ...], _Made] = {}
    for row in dict.fromkeys(rows):
        given = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        try:
            known[row] = make(**given)
        except InputError as error:
            raise of_row(frame, rows.index(row), error) from None
    return [known[row] for row in rows]


def of_row(frame: pd.DataFrame, position: int, error: InputError) -> InputError:
    """An error with the table and row that it is about."""
    return InputError(f"{table_name(frame)}: {place_of(frame, position)}: {error}")


def predict_attention_frame(frame: pd.DataFrame, model: AttentionModel) -> BatchPrediction:
    """Predictions of all rows; raises InputError naming the row of a bad value or an impossible kernel."""
    try:
        return model.predict(attention_rows(frame))
    except RefusedKernelError as refused:
        raise refused_rows(frame, refused) from None


def _problem(in_dtype: str = "bf16", **sizes: Any) -> AttentionProblem:
    for name in ("heads", "head_dim"):
        if name not in sizes:
            raise InputError(f"{name} is empty; expected a positive whole number")
    return AttentionProblem.of(dtype=in_dtype, **sizes)
