"""The table on disk: appended and flushed row by row, and resumed after any end.

The conditions under which it was measured are kept as JSON beside it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemm_model import __version__
from gemm_model.bench.rows import Row, table_columns
from gemm_model.core.files import NEW_FILE_MODE, atomic_write, lock_alone
from gemm_model.errors import InputError

PACKAGES = (
    *("torch", "quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi", "triton", "cuda-bindings"),
    "numpy",
)


def package_versions() -> dict[str, str]:
    found = {"gemm-model": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """The command as given, with absolute paths shortened to their last part."""
    arguments = (os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:])
    return shlex.join([os.path.basename(sys.argv[0]), *arguments])


def environment_path(table: Path) -> Path:
    return table.with_suffix(".json")


def provenance(sweep: str, settings: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """What is known of a run that begins now."""
    return {
        "packages": package_versions(),
        "commands": [command_line()],
        "started": [timestamp()],
        "sweep": sweep,
        "rows": rows,
        "settings": settings,
    }


def gone_on_with(known: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a run that goes on now."""
    commands, started = known.get("commands", []), known.get("started", [])
    return {**known, "commands": [*commands, command_line()], "started": [*started, timestamp()]}


class KeptTable:
    """The rows of one card's sweep in a CSV file, and their conditions in a JSON file beside it."""

    def __init__(self, path: Path, rows: Sequence[Row], card: Mapping[str, Any]) -> None:
        self.path, self._rows, self._card = path, rows, card
        self.columns = table_columns(rows)
        self.done: set[int] = set()
        self.provenance: Mapping[str, Any] = {}
        self._log: RowLog | None = None

    @contextmanager
    def begun(self, begun: Mapping[str, Any]) -> Iterator[KeptTable]:
        """The new table. Raises InputError if one exists already."""
        with closing(RowLog.create(self.path, self.columns)) as self._log:
            self.note(begun, {})
            yield self

    @contextmanager
    def taken_up(self, sweep: str) -> Iterator[KeptTable]:
        """The table to resume. Raises InputError if its card or its sweep is another."""
        path = environment_path(self.path)
        try:
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(
                f"{path}: not readable; expected the environment of the table to resume"
            ) from None
        own = {"gpu_uuid": self._card["gpu_uuid"], "sweep": sweep}
        for name, value in own.items():
            if known.get(name) != value:
                raise InputError(f"{path}: {name} is {known.get(name)}, here it is {value}; cannot resume")
        with RowLog.resumed(self.path, self.columns, self._rows) as (self._log, self.done):
            self.note(gone_on_with({**known, "sentinel": {own["gpu_uuid"]: known["sentinel"]}}), {})
            yield self

    def extend(self, lines: Mapping[int, str]) -> None:
        assert self._log is not None
        self._log.extend(lines.values())
        self.done.update(lines)

    def note(self, provenance: Mapping[str, Any], _card_remarks: Mapping[str, str]) -> None:
        self.provenance = provenance
        readings = provenance.get("sentinel", {}).get(self._card["gpu_uuid"], [])
        known = {name: value for name, value in provenance.items() if name != "cards"}
        words = json.dumps({**self._card, **known, "sentinel": readings}, indent=1)
        atomic_write(environment_path(self.path), words + "\n")


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
    @contextmanager
    def resumed(
        cls, path: Path, columns: Sequence[str], rows: Sequence[Row]
    ) -> Iterator[tuple[RowLog, set[int]]]:
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
        with closing(cls(path, descriptor)) as log:
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
            yield log, done

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
