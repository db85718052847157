"""The columns of a data set of measurements: their types, units and meanings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gemm_model.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LARGEST = 2.0**53
"""Largest number of a column [any]; all tables; beyond it a double no longer holds every whole number."""
LONGEST_NAME = 200
"""Longest name of a folder [characters]; the levels of a data set; chosen: file systems take 255 bytes."""
PARTITION = {"gpu": "gpu", "family": "kernel", "regime": "regime"}
"""Levels of folders, and the columns that they are named after."""
SCHEMA = "gemm-model-measurements/1"
"""Name and version; the version grows when a column changes its meaning or is removed."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `kind` is whole, number or text."""

    kind: str
    unit: str
    meaning: str


def _whole(unit: str, meaning: str) -> Column:
    return Column("whole", unit, meaning)


def _number(unit: str, meaning: str) -> Column:
    return Column("number", unit, meaning)


def _text(meaning: str) -> Column:
    return Column("text", "", meaning)


COLUMNS: dict[str, Column] = {
    "run": _text("the run that measured the row: runs/<run>.json says with what"),
    "order": _whole("", "place of the row in its sweep"),
    "time": _text("when the row was measured, UTC"),
    "gpu": _text("name of the GPU"),
    "gpu_uuid": _text("the card"),
    "kernel": _text("kernel family"),
    "regime": _text("protocol: burst, sustained, counters, graph"),
    "l2": _text("state of L2 before a launch"),
    "in_dtype": _text("type of A"),
    "b_dtype": _text("type of B"),
    "acc_dtype": _text("type of the sums"),
    "out_dtype": _text("type of the output"),
    "sf_dtype": _text("type of scale factors"),
    "sf_vec_size": _whole("elements", "elements that share a scale factor"),
    "a_major": _text("contiguous extent of A"),
    "b_major": _text("contiguous extent of B"),
    "c_major": _text("contiguous extent of the output"),
    "m": _whole("elements", "rows of the output, padded"),
    "n": _whole("elements", "columns of the output, padded"),
    "k": _whole("elements", "length of the sums, padded"),
    "asked_m": _whole("elements", "rows asked for"),
    "asked_n": _whole("elements", "columns asked for"),
    "asked_k": _whole("elements", "length asked for"),
    "batch": _whole("matrices", "products of these sizes at once"),
    "epilogue": _text("words of a fused epilogue, in their order"),
    "groups": _text("rows of each group, or m x n x k of each"),
    "group_layout": _text("how groups lie in memory"),
    "capacity": _whole("rows", "rows that a group of a masked layout has in memory"),
    "block_scaling": _text("rows x k of the scale blocks of A and of B, scaled in software"),
    "broadcast": _text("operand that all matrices of a batch share"),
    "batch_strides": _text("elements from a matrix of a batch to the next, of A, B and the output"),
    "conv": _text("the convolution whose implicit GEMM the sizes are"),
    "cta_m": _whole("elements", "rows of a CTA's tile"),
    "cta_n": _whole("elements", "columns of a CTA's tile"),
    "cta_k": _whole("elements", "k tile"),
    "mma_m": _whole("elements", "rows of an MMA instruction group"),
    "mma_n": _whole("elements", "columns of an MMA instruction group"),
    "cluster_m": _whole("CTAs", "CTAs of a cluster along m"),
    "cluster_n": _whole("CTAs", "CTAs of a cluster along n"),
    "schedule": _text("how MMA warps share tiles"),
    "raster": _text("extent that clusters advance along"),
    "swizzle": _whole("clusters", "largest raster group"),
    "stages": _whole("", "pipeline stages"),
    "split_k": _whole("", "parts that k is split into"),
    "fast_accum": _whole("", "1: fp8 sums stay in the tensor cores"),
    "scheduler": _text("how CTAs get tiles"),
    "warps": _whole("warps", "warps of a CTA"),
    "heuristic_rank": _whole("", "place among the library's proposals, from 0"),
    "algorithm": _text("the library's own description of the kernel"),
    "kernel_name": _text("the kernel's name"),
    "pdl": _whole("", "1: programmatic dependent launch"),
    "rotation": _whole("", "copies of the weights that were asked for; 0: four times L2 in all"),
    "partner": _text("what takes turns with the kernel"),
    "settled": _whole("", "1: measured once clock and power had settled"),
    "paired": _whole("", "1: replayed in turn with the same chain without programmatic dependent launch"),
    "runtime_us": _number("us", "median time of a launch"),
    "min_us": _number("us", "shortest time"),
    "p90_us": _number("us", "90th percentile of the times"),
    "count": _whole("launches", "launches timed"),
    "empty_kernel_us": _number("us", "what the run read around an empty kernel"),
    "weight_copies": _whole("", "copies of the weights"),
    "footprint_bytes": _number("bytes", "bytes between two uses of the operands"),
    "warm_share": _number("1", "share of the operands that L2 may hold"),
    "graph_launches": _whole("launches", "launches of a graph"),
    "programmatic_edges": _whole("", "programmatic edges of the graph"),
    "partner_us": _number("us", "the partner's time in a graph of its own"),
    "without_pdl_us": _number("us", "paired: median time without programmatic dependent launch"),
    "pdl_gain_us": _number("us", "paired: mean of what programmatic dependent launch saves"),
    "pdl_gain_error_us": _number("us", "paired: standard error of that mean"),
    "duration_us": _number("us", "the kernel's own duration by the profiler"),
    "sm_cycles": _number("clk", "SM cycles elapsed"),
    "dram_read_bytes": _number("bytes", "bytes read from DRAM"),
    "dram_write_bytes": _number("bytes", "bytes written to DRAM"),
    "l2_bytes": _number("bytes", "bytes through L2"),
    "l2_read_sectors": _number("sectors", "L2 sectors read"),
    "l2_write_sectors": _number("sectors", "L2 sectors written"),
    "l2_hit_pct": _number("%", "hits in L2"),
    "registers_per_thread": _whole("", "registers of a thread"),
    "smem_bytes_per_cta": _whole("bytes", "shared memory of a CTA"),
    "grid": _text("CTAs launched"),
    "block": _text("threads of a CTA"),
    "sm_mhz": _number("MHz", "SM clock"),
    "mem_mhz": _number("MHz", "memory clock"),
    "power_w": _number("W", "power"),
    "temp_c": _number("deg C", "temperature"),
    "throttle": _text("reasons for a lower clock"),
    "relative_error": _number("1", "error of the result against the reference, Frobenius norm"),
    "disposition": _text("what became of the row; times are there where it is ok"),
    "detail": _text("why, or what is to be said of the row"),
}
PROVENANCE = ("run",)
"""Columns that exist only in a data set."""


@cache
def pyarrow() -> ModuleType:
    """The package that reads and writes Parquet. Raises MissingExtraError if it is not installed."""
    try:
        import pyarrow as package
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "a data set needs the package pyarrow: pip install 'gemm-model[fleet]'"
        ) from error
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


def read_typed(path: Path, run: str) -> pa.Table:
    """A CSV file of COLUMNS, in their units, as a table of a run; empty cells are null.

    Meant for files that this package wrote; `typed` reports which cell is wrong. Raises InputError for cells
    of another kind.
    """
    package, schema = pyarrow(), arrow_schema()
    # A whole number may be written as 40.0.
    read_as = {
        field.name: package.float64() if field.type == package.int64() else field.type for field in schema
    }
    options = package.csv.ConvertOptions(
        column_types=read_as, null_values=[""], strings_can_be_null=True, include_missing_columns=True,
        include_columns=schema.names,
    )  # fmt: skip
    try:
        table = package.csv.read_csv(
            path, parse_options=package.csv.ParseOptions(newlines_in_values=True), convert_options=options
        )
        for name in (name for name, kind in read_as.items() if kind == package.float64()):
            if package.compute.all(package.compute.is_finite(table[name])).as_py() is False:
                raise InputError(f"{path}: column {name} holds a number that is not finite")
        runs = package.array([run] * len(table), package.string())
        return table.set_column(schema.get_field_index("run"), "run", runs).cast(schema)
    except package.ArrowException as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}; expected rows of a sweep") from None


def typed(texts: pd.DataFrame, run: str, source: str) -> pa.Table:
    """Rows of a table of texts (`read_table`) as the data set's columns; missing columns are null.

    Raises InputError, naming `source`, for an unknown column or a cell that is not of its column's kind.
    """
    import pandas as pd

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
    missing = {
        name: package.nulls(len(texts), arrow_schema().field(name).type)
        for name in COLUMNS
        if name not in columns
    }
    return package.table({**columns, **missing}).select(list(COLUMNS)).cast(arrow_schema())


def _require_folder_names(texts: Iterable[str], place: str) -> None:
    for text in texts:
        if len(quote(text, safe="")) > LONGEST_NAME:
            raise InputError(f"{place} holds a name of {len(text)} characters; expected a shorter one")


def as_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Typed rows as a table of texts, like a CSV file; columns without any cell are left out."""
    import pandas as pd

    told = [name for name in rows.columns if rows[name].notna().any()]
    return pd.DataFrame(
        {name: [_cell(value) for value in rows[name].astype(object)] for name in told},
        index=pd.RangeIndex(2, len(rows) + 2, name="line"),
    )


def _cell(value: Any) -> str:
    """A cell's text; numbers in the shortest form that reads back unchanged."""
    import pandas as pd

    return "" if value is None or value is pd.NA or value != value else str(value)


def units() -> Mapping[str, str]:
    """Column -> unit, of the columns that have one."""
    return {name: column.unit for name, column in COLUMNS.items() if column.unit}
