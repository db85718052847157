"""A verb's answer in every format: text, CSV, JSON, JSON lines (docs/json.md)."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model import __version__
from gemm_model.config import read_toml
from gemm_model.core.fields import number_text
from gemm_model.core.files import csv_rows

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS, SCREEN_WIDTH, LAST_COLUMN = 38, 110, 60
"""Rows of a long table, and width of its heading [characters], that a text shows; chosen: a screen."""
FORMATS = ("table", "json", "jsonl", "csv")
SCHEMA = "gemm-model/1"
"""Name and version of the JSON documents; the version grows when a field changes its meaning or is
removed."""

NUMBER_COLUMNS = frozenset(read_toml("columns")["numbers"])
"""Columns of tables whose texts are numbers, wherever they come from."""

Rows = Sequence[Mapping[str, Any]]
File = tuple[Path | None, Callable[[Path], object]]
"""A file and what writes it; without a path it is not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One verb's answer; its table may be a frame or mappings with equal keys."""

    text: Callable[[], str] | None = None
    """Returns the text of `--format table`; None: the rows in aligned columns."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the whole answer; numbers, texts, and mappings, lists and dataclasses of them."""
    rows: Rows | pd.DataFrame = ()
    """The verb's table: the content of CSV and JSON lines."""
    notes: Sequence[str] = ()
    """Sentences to the reader: caveats, rows left out."""
    gpu: str | None = None
    model: str | None = None
    files: Sequence[File] = ()
    apart: bool = False
    """Whether --output names a file of its own, so that the answer goes to stdout."""
    partial: str = ""
    """A sentence that says what is missing, if the answer is not whole."""

    def render(self, output_format: str, verb: str = "") -> str:
        """The answer of a verb as text of one of FORMATS, with a line break at its end."""
        if output_format == "table":
            text = text_table(self.rows) if self.text is None else self.text()
            return text.rstrip("\n") + "\n"
        if output_format == "csv":
            return csv_text(self.rows)
        if output_format == "jsonl":
            return "".join(json_text(row, indent=None) + "\n" for row in records(self.rows))
        document = {
            "schema": SCHEMA,
            "version": __version__,
            "verb": verb,
            "gpu": self.gpu,
            "model": self.model,
            "result": self.result,
            "rows": records(self.rows),
            "notes": list(self.notes),
        }
        return json_text(document) + "\n"


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Valid JSON of numbers, texts, and mappings, sequences, arrays and dataclasses of them.

    A number that is not finite becomes null.
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in JSON's types; other types become text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in fields(value)}
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return plain(records(value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def records(rows: Rows | pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as mappings; empty cells of a frame are None."""
    if isinstance(rows, Sequence):
        return [dict(row) for row in rows]
    names = [str(name) for name in rows.columns]
    columns = [_cells(rows.iloc[:, position], name) for position, name in enumerate(names)]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _cells(column: pd.Series, name: str) -> list[Any]:
    """A column's values; texts of a column that holds numbers (a table as it was read) are numbers."""
    import pandas as pd

    if name in NUMBER_COLUMNS and not pd.api.types.is_numeric_dtype(column.dtype):
        column = pd.to_numeric(column.where(column != ""), errors="coerce").convert_dtypes()
    missing = column.isna() | (column == "")
    return [None if gap else value for value, gap in zip(column.astype(object), missing, strict=True)]


def csv_text(rows: Rows | pd.DataFrame) -> str:
    """A table as CSV with a header; a cell of None is empty."""
    if not isinstance(rows, Sequence):
        return str(rows.to_csv(index=False, lineterminator="\n"))
    return csv_rows(rows)


def screen_text(rows: pd.DataFrame, kept: Collection[str]) -> str:
    """The first rows of a table. A column of one value stands in a line above it, but for those `kept`."""
    same = [name for name in map(str, rows) if name not in kept and rows[name].nunique(dropna=False) == 1]
    alike = {name: _cell(records(rows[same].head(1))[0][name]) for name in same}
    heading = ", ".join(f"{name} {text}" for name, text in alike.items() if text != "-")
    lines = textwrap.wrap(f"all rows: {heading}", SCREEN_WIDTH) if heading else []
    most = MOST_ROWS - len(lines)
    more = [f"... and {len(rows) - most} rows more: --format csv or --output"] if len(rows) > most else []
    return "\n".join([*lines, text_table(rows.drop(columns=same).head(most)), *more])


def text_table(rows: Rows | pd.DataFrame) -> str:
    """A table in aligned columns, a long last one in several lines; columns without any value are left out."""
    found = records(rows)
    names = [
        name
        for name in dict.fromkeys(name for row in found for name in row)
        if any(row.get(name) is not None for row in found)
    ]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in found)]
    columns = []
    for name, column in zip(names, zip(*cells, strict=True), strict=True):
        is_text = all(isinstance(row.get(name), str | None) for row in found)
        width = max(map(len, column))
        columns.append([cell.ljust(width) if is_text else cell.rjust(width) for cell in column])
    left = sum(len(column[0]) + 1 for column in columns[:-1])
    wrap = textwrap.TextWrapper(max(SCREEN_WIDTH, left + LAST_COLUMN), subsequent_indent=left * " ")
    wrap.break_long_words = wrap.break_on_hyphens = False
    return "\n".join(wrap.fill(" ".join(line).rstrip()) for line in zip(*columns, strict=True))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return number_text(value) if isinstance(value, float) else str(value)
