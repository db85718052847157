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
    """A CSV file that only ever holds whole rows, in the order of the sweep.

    Raises InputError where another run is writing into it.
    """

    def __init__(self, path: Path, columns: Sequence[str], descriptor: int) -> None:
        lock_alone(descriptor, path)
        self.path = path
        self._columns = tuple(columns)
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
        log = cls(path, columns, descriptor)
        log.extend([line_of(columns)])
        return log

    @classmethod
    def resume(cls, path: Path, columns: Sequence[str], rows: Sequence[Row]) -> tuple[RowLog, int]:
        """The table to resume and its number of rows; a torn last line is cut off.

        Raises InputError if its rows are not the first rows of this sweep.
        """
        try:
            data = path.read_bytes()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); expected a table to resume"
            ) from None
        log = cls(path, columns, descriptor)
        whole = whole_lines(data)
        os.ftruncate(descriptor, len(whole))
        lines = list(csv.reader(io.StringIO(whole.decode("utf-8", errors="replace"))))
        if not lines:
            log.extend([line_of(columns)])
            return log, 0
        if tuple(lines[0]) != tuple(columns):
            raise InputError(
                f"{path}: its columns are not those of this benchmark; expected a table to resume"
            )
        done = [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]
        for number, cells in enumerate(done):
            if number >= len(rows) or not _same(cells, rows[number]):
                raise InputError(
                    f"{path}: row {number + 1} is not row {number + 1} of this sweep; cannot resume"
                )
        return log, len(done)

    def append(self, cells: Mapping[str, Any]) -> None:
        """Add one row, whole or not at all. Raises InputError if the disk is full."""
        self.extend([line_of([cells.get(name, "") for name in self._columns])])

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


def line_of(cells: Sequence[Any]) -> str:
    """The cells as one line of a table, its end included."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def whole_lines(data: bytes) -> bytes:
    """The whole lines of a log, without a last line torn by a kill."""
    return data[: data.rfind(b"\n") + 1]


def _same(cells: Mapping[str, str], row: Row) -> bool:
    """Whether the table's cells match the row; cells that the row leaves empty may hold the kernel's
    values.
    """
    wanted = {name: str(value) for name, value in row.columns().items() if str(value)}
    return all(cells.get(name, "") == value for name, value in wanted.items())
