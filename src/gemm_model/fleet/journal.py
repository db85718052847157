"""Rows of a run on their way into a data set: on disk at once, in Parquet once there are enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from gemm_model.bench.row_log import RowLog, gone_on_with, whole_lines
from gemm_model.core.files import atomic_write, sole_writer
from gemm_model.dataset.schema import COLUMNS, PROVENANCE
from gemm_model.dataset.storage import RUNS, DataSet, RunRecord, new_run_name
from gemm_model.errors import InputError

SEAL_ROWS = 20_000
"""Rows after which a journal becomes a part [rows]; data sets; chosen: such a part takes about 0.5 MB."""
JOURNAL_COLUMNS = tuple(name for name in COLUMNS if name not in PROVENANCE)


class Places:
    """A set of positions in a sweep: one byte for each position up to the largest (a set of ints takes 80)."""

    def __init__(self) -> None:
        self._there, self._count = bytearray(), 0

    def __contains__(self, place: object) -> bool:
        return isinstance(place, int) and place < len(self._there) and bool(self._there[place])

    def __iter__(self) -> Iterator[int]:
        return (place for place, there in enumerate(self._there) if there)

    def __len__(self) -> int:
        return self._count

    def add(self, place: int) -> None:
        if place >= len(self._there):
            self._there.extend(bytes(max(place + 1, 2 * len(self._there)) - len(self._there)))
        self._count += not self._there[place]
        self._there[place] = 1


@dataclass(slots=True)
class Journal:
    """The one writer of a run. Every row is on disk when `extend` returns."""

    dataset: DataSet
    record: RunRecord
    done: Places
    """Positions in the sweep of the recorded rows."""
    _log: RowLog | None = field(init=False, default=None)
    _rows: int = field(init=False, default=0)
    _number: int = field(init=False, default=0)

    @property
    def columns(self) -> tuple[str, ...]:
        return JOURNAL_COLUMNS

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.record.provenance

    def extend(self, lines: Mapping[int, str]) -> None:
        """Add lines by their positions, all or none. Raises InputError if the disk is full."""
        if self._log is None:
            self._number = 1 + max((part.number for part in self.record.parts), default=-1)
            self._log = RowLog.create(self._path, JOURNAL_COLUMNS)
        self._log.extend(lines.values())
        self._rows += len(lines)
        for place in lines:
            self.done.add(place)
        if self._rows >= SEAL_ROWS:
            self.seal()

    def seal(self) -> None:
        """Turn the rows so far into parts of the data set."""
        if self._log is None:
            return
        self._log.close()
        self._log, self._rows = None, 0
        self.record = _sealed(self.dataset, self.record, self._path)

    def note(self, provenance: Mapping[str, Any], card_remarks: Mapping[str, str]) -> None:
        """Update the run's record."""
        self.record = replace(self.record, provenance=provenance, card_remarks=card_remarks)
        self.dataset.write_record(self.record)

    @property
    def _path(self) -> Path:
        return _folder(self.dataset, self.record.run) / f"{self._number}.csv"


@contextmanager
def begun(dataset: DataSet, provenance: Mapping[str, Any]) -> Iterator[Journal]:
    """The journal of a new run."""
    record = RunRecord(run=new_run_name(), provenance=provenance)
    with _sole(Journal(dataset, record, Places())) as journal:
        dataset.write_record(record)
        yield journal


@contextmanager
def taken_up(dataset: DataSet, sweep: str) -> Iterator[Journal]:
    """The journal of the latest run of a sweep, to resume it.

    Raises InputError if there is none, or if another process writes to it.
    """
    runs = [record for record in dataset.runs() if record.provenance.get("sweep") == sweep]
    if not runs:
        raise InputError(f"{dataset.folder}: no run of sweep {sweep}; expected one to resume")
    with _sole(Journal(dataset, runs[-1], Places())) as journal:
        journal.record = dataset.record(runs[-1].run)
        for path in sorted(_folder(dataset, journal.record.run).glob("*.csv")):
            journal.record = _sealed(dataset, journal.record, path)
        for part in journal.record.parts:
            for place in dataset.column(part, "order"):
                journal.done.add(place)
        journal.note(gone_on_with(journal.provenance), journal.record.card_remarks)
        yield journal


def unsealed(dataset: DataSet) -> dict[str, int]:
    """Run -> rows in the journal of a run, ended or active."""
    found: dict[str, int] = {}
    for path in sorted((dataset.folder / RUNS).glob("*/*.csv")):
        rows = max(whole_lines(path.read_bytes()).count(b"\n") - 1, 0)
        found[path.parent.name] = found.get(path.parent.name, 0) + rows
    return found


@contextmanager
def _sole(journal: Journal) -> Iterator[Journal]:
    folder = _folder(journal.dataset, journal.record.run)
    with sole_writer(folder):
        try:
            yield journal
        except BaseException:
            # If the disk is full, the rows stay in the journal until the next seal.
            with suppress(InputError):
                journal.seal()
            raise
        else:
            journal.seal()
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()


def _folder(dataset: DataSet, run: str) -> Path:
    return dataset.folder / RUNS / run


def _sealed(dataset: DataSet, record: RunRecord, path: Path) -> RunRecord:
    """The record with the journal's rows as parts; the journal goes once the record names them."""
    number = int(path.stem)
    whole = whole_lines(path.read_bytes()).decode("utf-8", errors="replace")
    if whole.count("\n") > 1 and all(part.number != number for part in record.parts):
        # A log torn by a kill is trimmed to whole lines first, so that it reads like any table.
        atomic_write(path, whole)
        texts = pd.read_csv(path, dtype=str, keep_default_na=False)
        record = dataset.add_rows(record, number, texts, str(path))
    path.unlink()
    return record
