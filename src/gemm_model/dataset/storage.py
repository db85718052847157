"""A data set on disk, which only grows: parts and records are written under temporary names and renamed.

    dataset.json                                            the schema's name
    gpu=G/family=F/regime=R/<run>-<number>.parquet          rows of one run
    runs/<run>.json                                         who measured, with what; the run's parts

A part counts once its run's record names it. Each run writes parts and a record of its own, so that several
writers need not know of each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from gemm_model.core.files import atomic_path, atomic_write, read_json
from gemm_model.core.records import record_from
from gemm_model.dataset.schema import PARTITION, SCHEMA, arrow_schema, completed, pyarrow, typed
from gemm_model.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

DESCRIPTION, RUNS = "dataset.json", "runs"
RUN_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Parquet file and what it holds."""

    path: str
    """Relative to the data set."""
    number: int
    """Of the batch of rows that the run handed over."""
    rows: int
    sha256: str
    gpu: str
    family: str
    regime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: provenance of its rows, its parts, and what is to be said of its cards."""

    run: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Sweep, settings, commands, package versions, times; each card's own description by its UUID."""
    card_remarks: Mapping[str, str] = field(default_factory=dict)
    """UUID -> why the card's rows are to be looked at twice."""
    parts: tuple[Part, ...] = ()


def new_run_name() -> str:
    """A name that no other run has: the time and a random tail."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + os.urandom(3).hex()


class DataSet:
    """A folder of measurements."""

    def __init__(self, folder: Path) -> None:
        """Open a data set; raises InputError where the folder is none, or one of another schema."""
        self.folder = Path(folder)
        if not is_dataset(self.folder):
            raise InputError(f"{folder}: no data set ({DESCRIPTION} is missing)")
        described = read_json(self.folder / DESCRIPTION, "a data set's schema")
        found = described.get("schema") if isinstance(described, dict) else None
        if found != SCHEMA:
            raise InputError(f"{folder}: a data set of schema {found!r}; expected {SCHEMA!r}")

    @classmethod
    def create(cls, folder: Path) -> DataSet:
        """Open a data set, a new one where the folder is empty or not there.

        Raises InputError for a folder with other things in it.
        """
        pyarrow()
        if not is_dataset(folder):
            visible = any(not path.name.startswith(".") for path in folder.glob("*"))
            # Another writer may have made it one meanwhile.
            if visible and not is_dataset(folder):
                raise InputError(f"{folder}: holds other files; expected a data set, or a new folder for one")
            atomic_write(folder / DESCRIPTION, json.dumps({"schema": SCHEMA}) + "\n")
        return cls(folder)

    def record_path(self, run: str) -> Path:
        return self.folder / RUNS / f"{run}.json"

    def runs(self) -> list[RunRecord]:
        """The records of all runs, the first one first."""
        names = sorted(path.stem for path in (self.folder / RUNS).glob("*.json"))
        return [self.record(name) for name in names if RUN_NAME.fullmatch(name)]

    def record(self, run: str) -> RunRecord:
        """A run's record; raises InputError where there is none that can be read."""
        path = self.record_path(run)
        if not path.exists():
            raise InputError(f"{self.folder}: no run {run!r}; expected one of `gemm-model data show`")
        return record_from(RunRecord, read_json(path, "the record of a run"), str(path))

    def write_record(self, record: RunRecord) -> None:
        """Write a run's record whole, in place of its earlier one."""
        from msgspec import to_builtins

        values = to_builtins(record, enc_hook=dict)
        atomic_write(self.record_path(record.run), json.dumps(values, indent=1) + "\n")

    def add_rows(self, record: RunRecord, number: int, texts: pd.DataFrame, source: str) -> RunRecord:
        """Write rows of texts as the run's batch `number`; the record that names them, written as well.

        Writing the same batch again replaces it. Raises InputError for cells of another kind, naming `source`.
        """
        table = typed(texts, record.run, source)
        parts = [part for part in record.parts if part.number != number]
        for keys, rows in _by_partition(table):
            path = self._part_path(record.run, number, keys)
            with atomic_path(path) as unfinished:
                _write_parquet(rows, unfinished)
                checksum = _sha256(unfinished)
            parts.append(
                Part(
                    path=str(path.relative_to(self.folder)),
                    number=number,
                    rows=len(rows),
                    sha256=checksum,
                    **dict(zip(PARTITION, keys, strict=True)),
                )
            )
        grown = replace(record, parts=tuple(parts))
        self.write_record(grown)
        return grown

    def _part_path(self, run: str, number: int, keys: Sequence[str]) -> Path:
        folders = (f"{level}={quote(key, safe='')}" for level, key in zip(PARTITION, keys, strict=True))
        return self.folder.joinpath(*folders, f"{run}-{number}.parquet")

    def parts(self, *, run: str | None = None, **wanted: str | None) -> list[Part]:
        """The parts of all runs that hold such rows (gpu, family, regime); None takes all."""
        return [
            part
            for record in (self.runs() if run is None else [self.record(run)])
            for part in record.parts
            if all(value is None or getattr(part, name) == value for name, value in wanted.items())
        ]

    def read(self, **which: str | None) -> pd.DataFrame:
        """The rows of the parts that `parts` finds, typed; `card_remark` is empty for good cards.

        Raises InputError that names a damaged part; `damage` finds all of them.
        """
        parts = self.parts(**which)
        if not parts:
            raise InputError(f"{self.folder}: no such rows; `gemm-model data show` says what there is")
        return self.read_parts(parts)

    def read_parts(self, parts: Sequence[Part]) -> pd.DataFrame:
        """The rows of these parts; raises InputError for one that is damaged."""
        whole = pyarrow().concat_tables([self._good_table(part) for part in parts])
        integers = {pyarrow().int64(): pd.Int64Dtype()}
        frame: pd.DataFrame = whole.to_pandas(types_mapper=integers.get)
        remarks = {
            (record.run, card): remark
            for record in self.runs()
            for card, remark in record.card_remarks.items()
        }
        if remarks:
            cards = zip(frame["run"], frame["gpu_uuid"], strict=True)
            frame["card_remark"] = [remarks.get(card, "") for card in cards]
        frame.attrs["path"] = str(self.folder)
        return frame

    def column(self, part: Part, name: str) -> list[Any]:
        """The cells of one column of a part; raises InputError for a part that is damaged."""
        cells: list[Any] = self._good_table(part, [name])[name].to_pylist()
        return cells

    def damage(self, parts: Sequence[Part]) -> dict[str, str]:
        """Damaged part -> what is wrong with it; reads every byte."""
        found = {}
        for part in parts:
            table = self._table(part)
            if isinstance(table, str):
                found[part.path] = table
            elif _sha256(self.folder / part.path) != part.sha256:
                found[part.path] = "its checksum is not that of the record"
            elif len(table) != part.rows:
                found[part.path] = f"{len(table)} rows; expected {part.rows}"
        return found

    def _good_table(self, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
        """`_table`; raises InputError for a part that is damaged."""
        table = self._table(part, columns)
        if isinstance(table, str):
            where = self.folder / part.path
            raise InputError(f"{where}: {table}; the other parts can be read (--skip-damaged)")
        return table

    def _table(self, part: Part, columns: Sequence[str] | None = None) -> pa.Table | str:
        """The rows of a part, all columns or these, or what is wrong with it."""
        package = pyarrow()
        try:
            table = package.parquet.ParquetFile(
                self.folder / part.path, page_checksum_verification=True
            ).read(columns)
        except FileNotFoundError:
            return "is missing"
        except (OSError, package.ArrowException) as error:
            return f"is damaged ({str(error).splitlines()[0]})"
        wanted = arrow_schema()
        if any(
            name not in wanted.names or wanted.field(name) != table.field(name) for name in table.schema.names
        ):
            return f"has other columns than schema {SCHEMA}"
        return completed(table)


def is_dataset(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file()


def _by_partition(table: pa.Table) -> Iterator[tuple[tuple[str, str, str], pa.Table]]:
    """Rows by GPU, family and regime, each group in the order of the rows."""
    keys = pd.DataFrame(
        {level: table[name].to_pandas().fillna("unknown") for level, name in PARTITION.items()}
    )
    for names, rows in keys.groupby(list(PARTITION), sort=True):
        yield (str(names[0]), str(names[1]), str(names[2])), table.take(rows.index.to_numpy())


def _write_parquet(table: pa.Table, path: Path) -> None:
    pyarrow().parquet.write_table(
        table, path, compression="zstd", compression_level=12, write_page_checksum=True
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
