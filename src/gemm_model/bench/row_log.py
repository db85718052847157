"""The table on disk: appended and flushed row by row, and resumed after any end."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_model.bench.rows import Row
from gemm_model.core.errors import InputError
from gemm_model.core.files import NEW_FILE_MODE, lock_alone


class RowLog:
    """A CSV file that only ever holds whole rows.

    Raises InputError where another run is writing into it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        lock_alone(descriptor, path)
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, columns: Sequence[str]) -> RowLog:
        """A new table. Raises InputError if one exists already, or the place is not writable."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, NEW_FILE_MODE)
        except FileExistsError:
            raise InputError(
                f"{path}: already there; expected a new file, or --resume to go on with it"
            ) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
        log = cls(path, descriptor)
        log.extend([header(columns)])
        return log

    @classmethod
    def resume(cls, path: Path, columns: Sequence[str], rows: Sequence[Row]) -> tuple[RowLog, set[int]]:
        """The table to resume and the positions of its rows in the sweep; a torn last line is cut off.

        Raises InputError if its rows are not rows of this sweep.
        """
        try:
            data = path.read_bytes()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); expected a table to resume"
            ) from None
        log = cls(path, descriptor)
        whole = whole_lines(data)
        os.ftruncate(descriptor, len(whole))
        lines = csv.DictReader(io.StringIO(whole.decode("utf-8", errors="replace")))
        if lines.fieldnames is None:
            log.extend([header(columns)])
        elif tuple(lines.fieldnames) != tuple(columns):
            raise InputError(
                f"{path}: its columns are not those of this benchmark; expected a table to resume"
            )
        done = set()
        for cells in lines:
            place = int(cells["order"]) if cells["order"].isdecimal() else len(rows)
            if place >= len(rows) or not _same(cells, rows[place]):
                raise InputError(f"{path}: row {cells['order']} is not that of this sweep; cannot resume")
            done.add(place)
        return log, done

    def extend(self, lines: Iterable[str]) -> None:
        """Add lines from `line_of`, all or none. Raises InputError if the disk is full."""
        data = "".join(lines).encode()
        end = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise self._refused(error.strerror or "write error") from None
        if written != len(data):
            os.ftruncate(self._descriptor, end)
            raise self._refused("no space left on the device")

    def close(self) -> None:
        os.close(self._descriptor)

    def _refused(self, reason: str) -> InputError:
        return InputError(f"{self.path}: {reason}; the rows so far are safe, --resume goes on from there")


def line_of(columns: Sequence[str], cells: Mapping[str, Any]) -> str:
    """A row of a table, its end included; cells that are not there stay empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([cells.get(name, "") for name in columns])
    return text.getvalue()


def header(columns: Sequence[str]) -> str:
    return line_of(columns, dict(zip(columns, columns, strict=True)))


def whole_lines(data: bytes) -> bytes:
    """The whole lines of a log, without a last line torn by a kill."""
    return data[: data.rfind(b"\n") + 1]


def _same(cells: Mapping[str, str], row: Row) -> bool:
    """Whether the table's cells match the row; cells that the row leaves empty may hold the kernel's
    values.
    """
    wanted = {name: str(value) for name, value in row.columns().items() if str(value)}
    return all(cells.get(name, "") == value for name, value in wanted.items())
