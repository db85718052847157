"""Processes that take turns on one card: while one launches, the others wait, and all meet the card alike.

A file counts the turns taken. One round is a turn of each part, in the order of PARTS; the first begins when
all have prepared their kernels. The part without a tracer lends its memory to the others: where operands lie
decides which L2 slices and DRAM channels serve them, and each process alone would find its own place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gemm_model.core.errors import InputError

RANGES, UNTRACED, LIFETIMES = "ranges", "untraced", "lifetimes"
PARTS = (RANGES, LIFETIMES, UNTRACED)
"""Kernels with ranges under the tracer, without ranges under it, and without the tracer.

The last one lends its memory: it ends when no other needs that any more.
"""
ROUNDS = 9
"""Turns that each part takes with each kernel [1]; each time with all its memory elsewhere; chosen: odd."""
POLL_S = 5e-4
"""Time between looks at whose turn it is [s]; all parts; chosen: a rest before a launch lasts four times as
long."""


class Turns:
    """The turns of one part. Raises InputError where the others have ended."""

    def __init__(self, folder: Path, part: str) -> None:
        self._folder, self._part, self._place = folder, part, PARTS.index(part)
        counted = folder / "events-counted"
        # The tracer's first run counts events: nothing of it is kept, and the others are not ready yet.
        self._alone = part == RANGES and not counted.exists()
        if self._alone:
            counted.touch()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The block runs when it is this part's turn; then it is the next one's."""
        if self._alone:
            yield
            return
        while not all(map(self._prepared, PARTS)) or _taken(self._folder) % len(PARTS) != self._place:
            self._wait()
        yield
        _publish(self._folder / "taken", str(_taken(self._folder) + 1).encode())

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """The block compiles the kernels. Those without ranges come from the process without a tracer.

        Under the tracer, the compiler leaves a library's own ranges in a kernel. Its cache is shared.
        """
        while self._part == LIFETIMES and not self._prepared(UNTRACED):
            self._wait()
        yield
        if not self._alone:
            (self._folder / f"prepared.{self._part}").touch()

    def lend(self, operands: bytes) -> None:
        """Tell the other parts where the operands lie."""
        _publish(self._folder / "operands", operands)

    def lent(self) -> bytes:
        """Where the part without a tracer has the operands, once it tells."""
        handles = self._folder / "operands"
        while not handles.exists():
            self._wait()
        return handles.read_bytes()

    def _prepared(self, part: str) -> bool:
        return (self._folder / f"prepared.{part}").exists()

    def _wait(self) -> None:
        if _over(self._folder).exists():
            why = _over(self._folder).read_text()
            raise InputError(f"another process that measures the same kernels ended: {why}")
        time.sleep(POLL_S)


def end_turns(folder: Path, why: str) -> None:
    """Nobody waits any longer; the first reason is told."""
    reason = folder / f"over.{os.getpid()}"
    reason.write_text(why)
    with suppress(FileExistsError):
        os.link(reason, _over(folder))


def _publish(path: Path, content: bytes) -> None:
    """Write a file that nobody sees half written; one process at a time does so."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def _over(folder: Path) -> Path:
    return folder / "over"


def _taken(folder: Path) -> int:
    try:
        return int((folder / "taken").read_text())
    except FileNotFoundError:
        return 0
