"""The process whose kernels are traced, or timed without a tracer: it launches the rows of a file in turn.

All rows are prepared first, since a library may launch a kernel for that; the launches after it are known.
Kernels with ranges, without them and without the tracer take turns on the card, row by row, and compute the
same operands in the same memory: where operands lie decides which L2 slices and DRAM channels serve them, so the
process without a tracer lends its memory to the others. While one launches, the others wait, and all meet the card
alike. A file counts the turns taken; one round is a turn of each part, in the order of PARTS, and the first begins
when all have prepared their kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from gemm_model.bench.provider import KernelError, Launch, Operands, Provider
from gemm_model.bench.rows import Row, row_from_columns
from gemm_model.bench.worker import Worker
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.errors import InputError
from gemm_model.timeline import WAIT_DATA, WAIT_STAGE

if TYPE_CHECKING:
    from gemm_model.bench.torch_device import TorchDevice

Each = TypeVar("Each")

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
LAUNCHES_A_TURN = {RANGES: 1, LIFETIMES: 3, UNTRACED: 3}
"""Launches of a row in one turn that count [1], after one more; by what is measured; chosen: ranges of one
launch fill a megabyte, and medians of 27 launches that scatter by 4 % lie within 1 %."""
SCRATCH_BYTES = 2**26
"""Room for the partial sums of a split kernel [B]; one that needs more takes its own; chosen: 16 million
sums."""
SECOND_RUN = "second-run"
"""The socket at which the second run finds a copy of the first, in the folder where both run."""
STORE_RANGES = "epi_"
"""What QuACK's ranges of an epilogue's parts begin with."""


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

    @staticmethod
    def run_copy() -> int | None:
        """The exit code of the first run's copy in place of this process; None where this is the first run."""
        if not Path(SECOND_RUN).exists():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(SECOND_RUN)
            socket.send_fds(connection, [json.dumps(dict(os.environ)).encode()], [1, 2])
            code = connection.recv(8)
            connection.recv(8)  # It ends, and the tracer writes what it saw.
        return int(code or 1)

    @staticmethod
    def leave_copy(folder: Path) -> int | None:
        """None; and in a copy of this process once the second run asks for it, the connection to that.

        Imports take 15 s, and the tracer tells a second run by environment variables alone, which CUDA reads
        when it starts: the copy, which has not met the card, takes them over, with the second run's output.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(SECOND_RUN)
        listener.listen()
        if os.fork():
            listener.close()
            return None
        # The tracer waits for the end of its first run's output.
        _write_to([os.open(os.devnull, os.O_WRONLY)] * 2)
        listener.settimeout(1.0)
        while folder.exists() and not _over(folder).exists():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                words, files, *_ = socket.recv_fds(connection, 2**20, 2)
                _write_to(files)
                os.environ.update(json.loads(words))
                return connection.detach()
        os._exit(0)

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


def _write_to(files: Sequence[int]) -> None:
    for own, file in enumerate(files, start=1):
        os.dup2(file, own)


def end_turns(folder: Path, why: str) -> None:
    """End the turns: parts that wait stop, and tell the first reason that was given."""
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


def add_wait_ranges() -> None:
    """Have the CuTe DSL's kernels trace each wait for loaded data and each for a free stage.

    Kernels that are compiled from then on have the ranges: a library's own ones tell whole tiles alone.
    """
    from cutlass import Boolean, pipeline
    from cutlass.cute.experimental import iket

    def ranged(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*arguments: Any, **options: Any) -> Any:
            iket.range_push(name)
            result = wait(*arguments, **options)
            iket.range_pop()
            return result

        return traced

    def not_yet(*_arguments: Any, **_options: Any) -> Any:
        return Boolean(False)

    loads = pipeline.PipelineTmaAsync
    # A kernel that looks first may wait while it looks, outside of the range: it waits within it alone.
    loads.consumer_try_wait = loads.producer_try_acquire = not_yet
    loads.consumer_wait = ranged(WAIT_DATA, loads.consumer_wait)
    loads.producer_acquire = ranged(WAIT_STAGE, loads.producer_acquire)


def drop_store_ranges() -> None:
    """Have kernels that are compiled from then on trace an epilogue as a whole, and no part of it.

    Each part has a range for every 32 columns: of tiles with few k tiles they are most of what tracing adds.
    """
    from cutlass.cute.experimental import iket

    push, pop = iket.range_push, iket.range_pop
    open_ones: list[bool] = []

    def push_kept(name: str, *arguments: Any, **options: Any) -> None:
        open_ones.append(not name.startswith(STORE_RANGES))
        if open_ones[-1]:
            push(name, *arguments, **options)

    def pop_kept(*arguments: Any, **options: Any) -> None:
        if open_ones.pop():
            pop(*arguments, **options)

    iket.range_push, iket.range_pop = push_kept, pop_kept


def import_libraries(device: str, worker: Worker, rows: list[dict[str, Any]]) -> None:
    """Import what the rows need, without the card.

    QuACK asks for it as it is imported, and a copy of a process that has met the card cannot use it.
    """
    import_module(device.partition(":")[0])
    torch = sys.modules.get("torch")
    with nullcontext() if torch is None else patch.object(torch.cuda, "is_available", return_value=False):
        for row in rows:
            worker.provider(row["kernel"])


def run_rows(worker: Worker, rows: list[dict[str, Any]], part: str, turns: Turns) -> list[dict[str, Any]]:
    """One reply a row: `kernel_us` where it is timed. Where a row cannot run, why; then none is launched."""
    asked = [row_from_columns(cells) for cells in rows]
    replies: list[dict[str, Any]] = [{"disposition": "ok"} for _ in rows]
    if part == UNTRACED:
        operands = [
            _tried(partial(_operands, worker.device, row), reply)
            for row, reply in zip(asked, replies, strict=True)
        ]
        turns.lend(worker.device.lend(operands))
    else:
        operands = worker.device.borrow(turns.lent())
    with turns.preparing():
        launches = [
            _tried(partial(_prepared, worker.provider(row.kernel), row, own), reply)
            for row, own, reply in zip(asked, operands, replies, strict=True)
        ]
    if any(reply["disposition"] != "ok" for reply in replies):
        return replies
    for own, reply in zip(launches, replies, strict=True):
        times_us: list[float] = []
        for number, launch in enumerate(own):
            with turns.turn():
                worker.device.displace(number)
                # Not counted: the card has nothing of the kernel at hand, and is up to 1 us slower.
                launch()
                count = LAUNCHES_A_TURN[part]
                if part == UNTRACED:
                    times_us += worker.device.kernel_times_us(launch, count)
                else:
                    worker.device.rested_launches(launch, count)
        if times_us:
            reply["kernel_us"] = statistics.median(times_us)
    return replies


def _tried(make: Callable[[], list[Each]], reply: dict[str, Any]) -> list[Each]:
    """What is made; nothing where a kernel cannot run, and the reply says why."""
    try:
        return make() if reply["disposition"] == "ok" else []
    except KernelError as error:
        reply.update(disposition=error.disposition, detail=str(error))
        return []


def _operands(device: TorchDevice, row: Row) -> list[Operands]:
    """Those of each round, each time elsewhere in memory, as is the scratch of a kernel that splits K."""
    found = [device.operands(row.problem, placement) for placement in range(ROUNDS)]
    if isinstance(row.config, KernelConfig) and row.config.split_k > 1:
        return [replace(each, scratch=device.scratch(SCRATCH_BYTES)) for each in found]
    return found


def _prepared(provider: Provider, row: Row, operands: Sequence[Operands]) -> list[Launch]:
    """The launches of each round."""
    return [provider.prepare(row.problem, row.config, each) for each in operands]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, help="module:class of the device")
    parser.add_argument("--rows", type=Path, required=True, help="JSON list of rows")
    parser.add_argument("--replies", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--turns", type=Path, required=True, help="folder where processes tell their turns")
    parser.add_argument("--part", choices=PARTS, required=True, help="what this process measures")
    parser.add_argument("--waits", action="store_true", help="add ranges for each wait of the ring")
    parser.add_argument("--no-stores", action="store_true", help="drop the ranges of an epilogue's parts")
    arguments = parser.parse_args()
    if arguments.part == RANGES and (code := Turns.run_copy()) is not None:
        return code
    if arguments.waits:
        add_wait_ranges()
    if arguments.no_stores:
        drop_store_ranges()
    rows = json.loads(arguments.rows.read_text())
    second_run = None
    try:
        worker = Worker(arguments.device)
        import_libraries(arguments.device, worker, rows)
        if arguments.part == RANGES:
            second_run = Turns.leave_copy(arguments.turns)
        replies = run_rows(worker, rows, arguments.part, Turns(arguments.turns, arguments.part))
    except BaseException as error:
        end_turns(arguments.turns, f"{type(error).__name__}: {error}")
        if second_run is None:
            raise
        traceback.print_exc()
        os._exit(1)
    arguments.replies.write_text(json.dumps(replies))
    for reply in replies:
        if reply["disposition"] != "ok":
            end_turns(arguments.turns, f"{reply['disposition']} ({reply['detail']})")
    if second_run is not None:
        os.write(second_run, b"0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
