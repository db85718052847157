"""Local processes that share long work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Executor

RunAll = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map` or an executor's `map`: results in the order of the arguments."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def local_processes(count: int) -> Iterator[Executor]:
    """An executor of `count` processes, numpy on one thread in each; a process starts with its first work.

    An error or an interruption ends the processes, even in the middle of their work.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    others = set(multiprocessing.active_children())
    # Spawned, for a copy of a process that has threads may stop for ever. An interruption reaches all of a
    # terminal's processes: this one ends them.
    executor = ProcessPoolExecutor(
        count,
        multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield executor
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
