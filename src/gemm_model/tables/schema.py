"""The one schema of tables: what columns are called, what others call them, and which are a slip of the pen.

The same names hold in CSV, JSON, Parquet and Python (`docs/tables.md`). Names of `ALIASES` are read
and never written. A column that the schema does not know travels along, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache

import numpy as np
import pandas as pd

from gemm_model.config import OLD_NAMES, gpu_names, load_gpu_mapping, read_toml
from gemm_model.core.fields import KIND_COLUMNS
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.regimes import REGIME_ALIASES, REGIME_NAMES
from gemm_model.dataset.schema import COLUMNS
from gemm_model.errors import InputError

SCHEMA = "gemm-model-table/1"
"""Name and version; the version grows when a column changes its meaning or goes."""
_LISTS = read_toml("columns")
PROBLEM_COLUMNS = (*_LISTS["problem"], *KIND_COLUMNS)
"""What is computed."""
KERNEL_COLUMNS, ADDED_COLUMNS = tuple(_LISTS["kernel"]), tuple(_LISTS["added"])
"""By which kernel, and what verbs add."""
WORDS = {"regime": (*REGIME_NAMES, *REGIME_ALIASES), "l2": ("cold", "warm", "written", "rotated")}
"""Words of columns; 'rotated': copies of the weights take turns."""
KNOWN = frozenset(
    {*PROBLEM_COLUMNS, *KERNEL_COLUMNS, *_LISTS["launch"], *ADDED_COLUMNS, *COLUMNS, "role", "campaign"}
    - {"time", "order", "run", "count"}
)
MILLISECONDS = ("time_ms", "runtime_ms", "latency_ms")
"""Names of a measured time in ms."""
ALIASES: Mapping[str, str] = read_toml("other_names")["columns"]
"""What aiconfigurator, Triton, QuACK and the classic project call the same; in any case."""
_FIGURE = re.compile(
    r"(phase|elasticity)_\w+|\w+_(us|ms|bytes|mhz|uj|clk|w|c|pct|share|tiles|waves|wave|registers|loss)"
)
"""Names of figures, which travel along without a word."""
_SHORTEST = 4
"""Letters of a name [1] that can be a slip of the pen; chosen."""
_ALIKE = 0.8
"""Similarity of two names [1] from which one is a slip for the other; chosen: 'epilog' is, 'layer' is not."""


def understood(frame: pd.DataFrame, also: Collection[str] = ()) -> pd.DataFrame:
    """The table under the schema's names; `attrs["notes"]` tells of columns that nothing reads.

    `also` are columns that the caller reads beside the schema's. Raises InputError for a name that looks like
    a misspelt one, where two columns say the same thing differently, and for a regime or state of L2 that is
    none.
    """
    if {"gemm_dtype", "latency"} <= set(frame):  # aiconfigurator's, in ms
        frame = frame.rename(columns={"latency": "latency_ms", "device": "gpu"})
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"{table_name(frame)}: column {name!r} appears twice; expected each name once")
    renamed: dict[str, str] = {}
    strange = []
    for column in map(str, frame.columns):
        if column in KNOWN or column in also:
            continue
        lower = column.lower()
        if lower in ALIASES or lower in KNOWN:
            renamed[column] = ALIASES.get(lower, lower)
        else:
            strange.append(column)
    unread = notes_on_strange(frame, strange, KNOWN | {*also})
    found = frame
    for column, name in renamed.items():
        found = _renamed(found, column, name)
    found = found if found is not frame else frame.copy(deep=False)
    found.attrs = dict(frame.attrs)
    for name in WORDS:
        _require_words(found, name)
    if unread:
        found.attrs["notes"] = list(dict.fromkeys([*frame.attrs.get("notes", ()), *unread]))
    return found


def notes_on_strange(frame: pd.DataFrame, strange: Collection[str], known: Collection[str]) -> list[str]:
    """A sentence on the columns that nothing reads; raises InputError for one that looks like a slip."""
    unread = [column for column in strange if not _FIGURE.fullmatch(column)]
    for column in unread:
        near = get_close_matches(column.lower(), (*known, *ALIASES), 1, _ALIKE)
        if near and len(column) >= _SHORTEST:
            raise InputError(
                f"{table_name(frame)}: column {column!r} is not known; did you mean {near[0]!r}? "
                "(a column of another meaning needs a name less alike)"
            )
    names = ", ".join(column or "one without a name" for column in unread)
    return [f"columns that nothing reads travel along: {names}"] if unread else []


def _require_words(frame: pd.DataFrame, name: str) -> None:
    """Raise InputError for a word that a column of WORDS does not have; an empty cell says nothing."""
    if name in frame and not (good := frame[name].isin(("", *WORDS[name])) | frame[name].isna()).all():
        row = int((~good).to_numpy().argmax())
        raise InputError(
            f"{table_name(frame)}: {place_of(frame, row)}, column {name}: {str(frame[name].iloc[row])[:40]!r}; "
            f"expected one of {', '.join(WORDS[name])}"
        )


def _renamed(frame: pd.DataFrame, column: str, name: str) -> pd.DataFrame:
    """The frame with a column under its schema's name, times in us; a column of that name may fill what it lacks."""
    values = frame[column]
    if column.lower() in MILLISECONDS:
        values = pd.to_numeric(values, errors="coerce") * 1e3
    if name not in frame:
        return frame.assign(**{column: values}).rename(columns={column: name})
    given, others = (column.notna() & (column.astype(str) != "") for column in (frame[name], values))
    if (given & others & (values.astype(str) != frame[name].astype(str))).any():
        raise InputError(
            f"{table_name(frame)}: columns {column!r} and {name!r} both say {name}; expected one of them"
        )
    return frame.assign(**{name: frame[name].where(given, values)}).drop(columns=column)


def kernels_unread(frame: pd.DataFrame, how: str) -> list[str]:
    """A sentence that kernels are made `how`, where a table names some."""
    unread = [name for name in KERNEL_COLUMNS if name in frame and frame[name].ne("").any()]
    return [f"kernels are {how}, whatever the table says: {', '.join(unread)}"] if unread else []


def cards_of(frame: pd.DataFrame) -> list[str]:
    """Names of the GPUs that a table's rows are of, in order; empty cells name none."""
    if "gpu" not in frame:
        return []
    return [str(name) for name in pd.unique(frame["gpu"].replace("", np.nan).dropna())]


@cache
def _cards_by_name() -> dict[str, str]:
    """Names of described GPUs, by themselves and by what the driver calls them."""
    found = {
        device: name for name in gpu_names() for device in load_gpu_mapping(name).get("device_names", ())
    }
    return found | {name: name for name in gpu_names()} | OLD_NAMES


def card_named(name: str) -> str:
    """The described GPU of that name, or that the driver calls so; raises InputError where there is none."""
    found = name if name in gpu_names() else _cards_by_name().get(name, name.lower())
    if found not in gpu_names():
        raise InputError(
            f"column gpu: {name!r} is no described GPU; expected one of {', '.join(gpu_names())}, or --gpu"
        )
    return found


def require_card(frame: pd.DataFrame, gpu: GpuSpec) -> None:
    """Raise InputError where rows name another described GPU than `gpu`."""
    others = [name for name in cards_of(frame) if name not in (gpu.name, *gpu.device_names)]
    others = [name for name in others if _cards_by_name().get(name, gpu.name) != gpu.name]
    if others:
        row = int((frame["gpu"] == others[0]).to_numpy().argmax())
        raise InputError(
            f"{table_name(frame)}: {place_of(frame, row)}, column gpu: {others[0]!r}, but the GPU asked for is "
            f"{gpu.name}; expected {_cards_by_name()[others[0]]}, or rows of {gpu.name} alone"
        )


def card_notes(frame: pd.DataFrame, gpu: GpuSpec) -> list[str]:
    """A sentence on rows that name another card than `gpu`."""
    known = {**_cards_by_name(), **dict.fromkeys(gpu.device_names, gpu.name)}
    others = [name for name in cards_of(frame) if known.get(name, name.lower()) != gpu.name]
    return [f"rows of {', '.join(others)}: answered for {gpu.name}, as asked"] if others else []


def table_name(frame: pd.DataFrame) -> str:
    return str(frame.attrs.get("path", "table"))


def place_of(frame: pd.DataFrame, row: int) -> str:
    """Where a row stands: its line of a file, or its label in a frame."""
    return f"{frame.index.name or 'row'} {frame.index[row]}"
