"""What the fleet's scheduler costs: stand-in tasks on stand-in workers.

    python benchmarks/fleet_limits.py --workers 1000 --processes 2 --rows 10000000 --rows-per-task 500 \\
        --data-set FOLDER [--resume]

Tasks take no time, so that all that is measured is overhead: of the scheduler and the client, which share
this process, and of the workers, which share --processes others. With --data-set the rows go into a data
set as well; --resume takes the run of an earlier call up again and goes on with what it left.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import resource
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_model.dataset.storage import DataSet
from gemm_model.fleet import journal
from gemm_model.fleet.cluster import DASK_SETTINGS
from gemm_model.fleet.stream import Stream

TIMED: dict[str, Any] = {
    "gpu": "Card", "gpu_uuid": "GPU-0", "kernel": "quack", "regime": "burst", "in_dtype": "bf16",
    "out_dtype": "bf16", "acc_dtype": "fp32", "n": 4096, "k": 4096, "cta_m": 128, "cta_n": 256,
    "cluster_m": 2, "cluster_n": 1, "schedule": "cooperative", "swizzle": 8, "runtime_us": 123.4567,
    "min_us": 120.5, "p90_us": 130.25, "count": 40, "sm_mhz": 1755, "power_w": 512.5, "disposition": "ok",
}  # fmt: skip


def stand_in(orders: Sequence[int]) -> Mapping[int, str]:
    """What a card's worker makes of its rows."""
    return {
        order: journal.journal_line({**TIMED, "m": order % 16384 + 1, "order": order}) for order in orders
    }


SAID_EVERY_S = 30.0


def memory_mb() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(slots=True)
class Cost:
    """What the scheduler and the client have taken since the first task."""

    began_s: float = field(default_factory=time.perf_counter)
    processor_began_s: float = field(default_factory=time.process_time)
    rows: int = 0
    tasks: int = 0
    _next_s: float = 0.0

    def add(self, rows: int) -> None:
        self.rows += rows
        self.tasks += 1
        if time.perf_counter() - self.began_s >= self._next_s:
            self._next_s += SAID_EVERY_S
            self.say()

    def say(self) -> None:
        taken_s = time.perf_counter() - self.began_s
        processor_s = time.process_time() - self.processor_began_s
        print(
            f"{self.rows} rows in {self.tasks} tasks: {taken_s:.1f} s, processor {processor_s:.1f} s, "
            f"{1e3 * processor_s / self.tasks:.2f} ms a task, {1e6 * processor_s / self.rows:.0f} us a row, "
            f"{memory_mb():.0f} MB",
            flush=True,
        )


def work_for(address: str, workers: int) -> None:
    """So many stand-in workers in this process, until it is ended."""
    from distributed import Worker

    async def all_of_them() -> None:
        told = {"nthreads": 1, "resources": {"gpu": 1}, "memory_limit": 0, "dashboard": False}
        started = await asyncio.gather(*[Worker(address, **told) for _ in range(workers)])
        await asyncio.gather(*[worker.finished() for worker in started])

    import dask

    logging.getLogger("distributed").setLevel(logging.ERROR)
    # What each worker does many times a second for its own host, which hundreds here would do to one.
    dask.config.set(
        {
            "distributed.admin.system-monitor.interval": "1h",
            "distributed.admin.tick.interval": "10s",
            "distributed.worker.profile.enabled": False,
        }
    )
    asyncio.run(all_of_them())


@contextmanager
def workers_in(address: str, workers: int, processes: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    shares = [workers // processes + (index < workers % processes) for index in range(processes)]
    hosts = [spawn.Process(target=work_for, args=(address, share), daemon=True) for share in shares]
    for host in hosts:
        host.start()
    try:
        yield
    finally:
        for host in hosts:
            host.terminate()


def stream_rows(args: argparse.Namespace, kept: journal.Journal | None = None) -> None:
    import dask
    from distributed import LocalCluster

    dask.config.set({"distributed.admin.tick.limit": "1h", **DASK_SETTINGS})
    began = time.perf_counter()
    with (
        LocalCluster(n_workers=0, protocol="tcp://", dashboard_address=None) as cluster,
        workers_in(cluster.scheduler_address, args.workers, args.processes),
        cluster.get_client() as client,
    ):
        client.wait_for_workers(args.workers)
        print(
            f"{args.workers} workers started in {time.perf_counter() - began:.1f} s, {memory_mb():.0f} MB",
            flush=True,
        )
        tasks = batches_left(args.rows, args.rows_per_task, kept.done if kept else ())
        cost = Cost()
        for _, found in Stream(client, stand_in, "gpu").results(tasks):
            lines = found or {}
            if kept is not None:
                kept.extend(lines)
            cost.add(len(lines))
        cost.say()


def batches_left(rows: int, size: int, done: Container[int]) -> Iterator[list[int]]:
    for first in range(0, rows, size):
        left = [place for place in range(first, min(first + size, rows)) if place not in done]
        if left:
            yield left


def resume(args: argparse.Namespace) -> None:
    dataset = DataSet(args.data_set)
    began, processor_began_s = time.perf_counter(), time.process_time()
    with journal.taken_up(dataset, "limits") as kept:
        taken_s, processor_s = time.perf_counter() - began, time.process_time() - processor_began_s
        rows = len(kept.done)
        size = sum(path.stat().st_size for path in args.data_set.rglob("*.parquet"))
        print(
            f"{rows} rows known again in {taken_s:.1f} s, processor {processor_s:.1f} s, "
            f"{memory_mb():.0f} MB; {size / rows:.1f} bytes a row on disk",
            flush=True,
        )
        if rows < args.rows:
            stream_rows(args, kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, help="that the workers share")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rows-per-task", type=int, default=25)
    parser.add_argument("--data-set", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on with the run in --data-set")
    args = parser.parse_args()
    if args.data_set is None:
        if args.resume:
            parser.error("--resume needs --data-set")
        stream_rows(args)
        return
    if args.resume:
        resume(args)
        return
    shutil.rmtree(args.data_set, ignore_errors=True)
    dataset = DataSet.create(args.data_set)
    with journal.begun(dataset, {"sweep": "limits"}) as kept:
        stream_rows(args, kept)


if __name__ == "__main__":
    main()
