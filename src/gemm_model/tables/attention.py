"""Tables of attention kernels: which they are, and their rows as problems and configurations.

Columns: batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v, causal, window, in_dtype, softcap,
lengths, page_size; kernel, tile_m, tile_n, stages, pv_from_registers, overlap_in_group, pack_gqa, num_splits,
scheduler; runtime_us. `heads`, `head_dim` and `seq_q` (or `lengths`, as Q:K+Q:K) are required; an empty cell
stands for the default. Further columns travel along untouched.
"""

from __future__ import annotations

from dataclasses import fields

import pandas as pd

from gemm_model.attention.model import AttentionModel
from gemm_model.core.attention import AttentionConfig, AttentionProblem, value_of
from gemm_model.core.errors import InputError, RefusedKernelError
from gemm_model.core.prediction import BatchPrediction
from gemm_model.tables.schema import place_of, table_name, understood
from gemm_model.tables.table import refused_rows

PROBLEM_COLUMNS = (
    *("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal", "window"),
    *("in_dtype", "softcap", "lengths", "page_size"),
)
CONFIG_COLUMNS = tuple(spec.name for spec in fields(AttentionConfig))
COLUMNS = (*PROBLEM_COLUMNS, *CONFIG_COLUMNS)


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
            table, wanted = table_name(frame), ", ".join(required)
            raise InputError(f"{table}: column {name!r} is missing; expected {wanted}")
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
    try:
        return model.predict(attention_rows(frame))
    except RefusedKernelError as refused:
        raise refused_rows(frame, refused) from None


def _kernel(cells: dict[str, str]) -> tuple[AttentionProblem, AttentionConfig]:
    named = {"dtype" if name == "in_dtype" else name: text for name, text in cells.items() if text}
    values = {name: value_of(name, text) for name, text in named.items()}
    config = {name: values.pop(name) for name in CONFIG_COLUMNS if name in values}
    for name in ("heads", "head_dim"):
        if name not in values:
            raise InputError(f"{name} is empty; expected a positive whole number")
    return AttentionProblem.of(**values), AttentionConfig(**config)
