"""The process whose kernels are traced, or timed without a tracer: it launches the rows of a file in turn.

All rows are prepared first, since a library may launch a kernel for that; the launches after it are known.
Kernels with ranges, without them and without the tracer take turns on the card, row by row, and compute the
same operands in the same memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gemm_model.bench.provider import KernelError, Launch, Operands, Provider
from gemm_model.bench.rows import Row, row_from_columns
from gemm_model.bench.turns import LIFETIMES, PARTS, RANGES, ROUNDS, UNTRACED, Turns, end_turns
from gemm_model.bench.worker import Worker
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.timeline.iket import WAIT_DATA, WAIT_STAGE

if TYPE_CHECKING:
    from gemm_model.bench.torch_device import TorchDevice

Each = TypeVar("Each")

LAUNCHES_A_TURN = {RANGES: 1, LIFETIMES: 3, UNTRACED: 3}
"""Launches of a row in one turn that count [1], after one more; by what is measured; chosen: ranges of one
launch fill a megabyte, and medians of 27 launches that scatter by 4 % lie within 1 %."""
SCRATCH_BYTES = 2**26
"""Room for the partial sums of a split kernel [B]; one that needs more takes its own; chosen: 16 million
sums."""
STORE_RANGES = "epi_"
"""What QuACK's ranges of an epilogue's parts begin with."""


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
        times_us = []
        for number, launch in enumerate(own):
            with turns.turn():
                worker.device.displace(number)
                # Not counted: the card has nothing of the kernel at hand, and is up to 1 us slower.
                launch()
                times_us += _launched(worker.device, launch, part)
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


def _launched(device: TorchDevice, launch: Launch, part: str) -> list[float]:
    """The launches of one turn that count, and their times in us where they are timed."""
    count = LAUNCHES_A_TURN[part]
    if part == UNTRACED:
        return device.kernel_times_us(launch, count)
    device.rested_launches(launch, count)
    return []


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
    if arguments.waits:
        add_wait_ranges()
    if arguments.no_stores:
        drop_store_ranges()
    rows = json.loads(arguments.rows.read_text())
    turns = Turns(arguments.turns, arguments.part)
    try:
        replies = run_rows(Worker(arguments.device), rows, arguments.part, turns)
    except BaseException as error:
        end_turns(arguments.turns, f"{type(error).__name__}: {error}")
        raise
    arguments.replies.write_text(json.dumps(replies))
    for reply in replies:
        if reply["disposition"] != "ok":
            end_turns(arguments.turns, f"{reply['disposition']} ({reply['detail']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
