"""The columns of a data set of measurements: their types, units and meanings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.errors import InputError, importing

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST = 2.0**53
"""Largest number of a column [any]; all tables; beyond it a double no longer holds every whole number."""
LONGEST_NAME = 200
"""Longest name of a folder [characters]; the levels of a data set; chosen: file systems take 255 bytes."""
PARTITION = {"gpu": "gpu", "family": "kernel", "regime": "regime"}
"""Levels of folders, and the columns that they are named after."""
SCHEMA = "gemm-model-measurements/1"
"""Name and version; the version grows when a column changes its meaning or is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; `kind` is whole, number or text."""

    kind: str
    unit: str = ""
    meaning: str


COLUMNS: dict[str, Column] = {
    name: Column(**column)
    for name, column in read_yaml_mapping(CONFIG_DIR / "measurements.yaml", "columns").items()
}
PROVENANCE = ("run",)
"""Columns that exist only in a data set."""


@cache
def pyarrow() -> ModuleType:
    """The package that reads and writes Parquet. Raises MissingExtraError if it is not installed."""
    with importing("a data set needs the package pyarrow: pip install 'gemm-model[fleet]'"):
        import pyarrow as package
        import pyarrow.parquet
    return package  # type: ignore[no-any-return]


@cache
def arrow_schema() -> pa.Schema:
    """COLUMNS as an Arrow schema, with unit and meaning in the fields' metadata."""
    package = pyarrow()
    kinds = {"whole": package.int64(), "number": package.float64(), "text": package.string()}
    fields = [
        package.field(name, kinds[column.kind], metadata={"unit": column.unit, "meaning": column.meaning})
        for name, column in COLUMNS.items()
    ]
    return package.schema(fields, metadata={"schema": SCHEMA})


def typed(texts: pd.DataFrame, run: str, source: str) -> pa.Table:
    """Rows of a table of texts (`read_table`) as the data set's columns; missing columns are null.

    Raises InputError, naming `source`, for an unknown column or a cell that is not of its column's kind.
    """
    package = pyarrow()
    for name in texts.columns:
        if name not in COLUMNS:
            raise InputError(f"{source}: unknown column {name!r}; expected columns of `gemm-model benchmark`")
    columns: dict[str, Any] = {}
    for name, column in COLUMNS.items():
        if name in PROVENANCE or name not in texts:
            continue
        cells = texts[name].astype(object).where(texts[name] != "", None)
        if column.kind != "text":
            numbers = pd.to_numeric(cells, errors="coerce")
            bad = cells.notna() & ~(numbers.abs() <= LARGEST)
            if column.kind == "whole":
                bad |= numbers.notna() & (numbers % 1 != 0)
            if bad.any():
                line = texts.index[bad][0]
                expected = "a whole number" if column.kind == "whole" else "a finite number"
                raise InputError(
                    f"{source}: line {line}: column {name} is {texts[name][line]!r}; expected {expected}"
                )
            cells = numbers.astype("Int64") if column.kind == "whole" else numbers
        elif name in PARTITION.values():
            _require_folder_names(cells.dropna().unique(), f"{source}: column {name}")
        columns[name] = package.array(cells, from_pandas=True, type=arrow_schema().field(name).type)
    columns["run"] = package.array([run] * len(texts), package.string())
    return completed(
        package.table(columns).cast(package.schema([arrow_schema().field(name) for name in columns]))
    )


def completed(table: pa.Table) -> pa.Table:
    """The table with every column of the schema; columns that it lacks are empty."""
    return pyarrow().concat_tables([arrow_schema().empty_table(), table], promote_options="default")


def _require_folder_names(texts: Iterable[str], place: str) -> None:
    for text in texts:
        if len(quote(text, safe="")) > LONGEST_NAME:
            raise InputError(f"{place} holds a name of {len(text)} characters; expected a shorter one")


def as_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Typed rows as a table of texts, like a CSV file; columns without any cell are left out."""
    filled = [name for name in rows.columns if rows[name].notna().any()]
    return pd.DataFrame(
        {name: [_cell(value) for value in rows[name].astype(object)] for name in filled},
        index=pd.RangeIndex(2, len(rows) + 2, name="line"),
    )


def _cell(value: Any) -> str:
    """A cell's text; numbers in the shortest form that reads back unchanged."""
    return "" if value is None or value is pd.NA or value != value else str(value)
