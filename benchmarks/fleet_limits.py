"""What the fleet's scheduler costs: stand-in tasks on stand-in workers.

    python benchmarks/fleet_limits.py --workers 1000 --processes 20 --rows 1000000 [--rows-per-task 25]
        [--data-set FOLDER]

Tasks take no time, so that all that is measured is overhead: of the scheduler and the client, which share
this process, and of the workers, which share --processes others. With --data-set the rows go into a data
set as well, which is then resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import resource
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemm_model.dataset.storage import DataSet
from gemm_model.fleet import journal
from gemm_model.fleet.stream import Stream

TIMED = {
    "gpu": "Card", "gpu_uuid": "GPU-0", "kernel": "quack", "regime": "burst", "in_dtype": "bf16",
    "out_dtype": "bf16", "acc_dtype": "fp32", "n": 4096, "k": 4096, "cta_m": 128, "cta_n": 256,
    "cluster_m": 2, "cluster_n": 1, "schedule": "cooperative", "swizzle": 8, "runtime_us": 123.4567,
    "min_us": 120.5, "p90_us": 130.25, "count": 40, "sm_mhz": 1755, "power_w": 512.5, "disposition": "ok",
}  # fmt: skip


def stand_in(orders: range) -> Sequence[Mapping[str, Any]]:
    return [{**TIMED, "m": order % 16384 + 1, "order": order} for order in orders]


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work_for(address: str, workers: int) -> None:
    """So many stand-in workers in this process, until it is ended."""
    from distributed import Worker

    async def all_of_them() -> None:
        told = {"nthreads": 1, "resources": {"gpu": 1}, "memory_limit": 0, "dashboard": False}
        await asyncio.gather(*[Worker(address, **told) for _ in range(workers)])
        await asyncio.Event().wait()

    logging.getLogger("distributed").setLevel(logging.ERROR)
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


def stream_rows(args: argparse.Namespace, kept: journal.Journal | None) -> None:
    import dask
    from distributed import LocalCluster

    rows, per_task = args.rows, args.rows_per_task
    dask.config.set({"distributed.worker.memory.spill": False, "distributed.admin.tick.limit": "1h"})
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
        tasks = (range(first, min(first + per_task, rows)) for first in range(0, rows, per_task))
        began, done = time.perf_counter(), 0
        for _, found in Stream(client, stand_in, "gpu").results(tasks):
            for cells in found or ():
                if kept is not None:
                    kept.append(cells)
                done += 1
        taken_s = time.perf_counter() - began
    tasks_done = -(-rows // per_task)
    print(
        f"{done} rows in {tasks_done} tasks: {taken_s:.1f} s, {1e3 * taken_s / tasks_done:.2f} ms a task, "
        f"{1e6 * taken_s / done:.0f} us a row, {memory_mb():.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, help="that the workers share")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rows-per-task", type=int, default=25)
    parser.add_argument("--data-set", type=Path)
    args = parser.parse_args()
    if args.data_set is None:
        stream_rows(args, None)
        return
    shutil.rmtree(args.data_set, ignore_errors=True)
    dataset = DataSet.create(args.data_set)
    with journal.begun(dataset, {"sweep": "limits"}) as kept:
        stream_rows(args, kept)
    began = time.perf_counter()
    with journal.taken_up(dataset, "limits") as kept:
        told = f"{len(kept.done)} rows known again in {time.perf_counter() - began:.1f} s"
    size = sum(path.stat().st_size for path in args.data_set.rglob("*.parquet"))
    print(f"resumed: {told}; {size / len(kept.done):.1f} bytes a row on disk, {memory_mb():.0f} MB")


if __name__ == "__main__":
    main()
