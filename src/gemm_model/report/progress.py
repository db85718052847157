"""Progress of long work and its remaining time, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

QUIET_S = 2.0
"""Time before a bar appears [s]; all work; chosen: shorter work prints nothing."""
LINE_EVERY_S = 10.0
"""Time between two lines [s]; stderr is no terminal; chosen."""


@dataclass(slots=True)
class Progress:
    """A bar on a terminal, lines elsewhere; `advance` may be called from several threads."""

    what: str
    total: int
    clock: Callable[[], float] = time.monotonic
    _done: int = 0
    _bar: Any = None
    _task: Any = None
    _started: float = field(init=False)
    _said: float = field(init=False)
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        self._started = self._said = self.clock()

    def advance(self, count: int) -> None:
        """Count parts of the work as done."""
        with self._lock:
            self._done += count
            self._show()

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress of work whose parts change name, or whose number is known late."""
        with self._lock:
            self.what, self._done, self.total = what, done, total
            self._show()

    def _show(self) -> None:
        now = self.clock()
        if now - self._started < QUIET_S or self._done == 0:
            return
        if sys.stderr.isatty():
            self._show_bar()
        elif now - self._said >= LINE_EVERY_S or self._said == self._started:
            self._said = now
            print(self._line(now), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _line(self, now: float) -> str:
        left_s = (now - self._started) * (self.total - self._done) / max(self._done, 1)
        return f"{self.what}: {self._done} of {self.total}, {left_s:.0f} s left"

    def _show_bar(self) -> None:
        from rich import progress
        from rich.console import Console

        if self._bar is None:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
            )
            self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self.what, total=self.total)
            self._bar.start()
        self._bar.update(self._task, description=self.what, total=self.total, completed=self._done)
