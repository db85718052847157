"""The conditions under which a table was measured, kept as JSON beside it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemm_model import __version__
from gemm_model.bench.row_log import RowLog
from gemm_model.bench.rows import Row, table_columns
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_write

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
        log, self.done = RowLog.resume(self.path, self.columns, self._rows)
        with closing(log) as self._log:
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
