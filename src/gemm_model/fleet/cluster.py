"""A Dask cluster to work on: one of this machine, one that runs already, or jobs of a batch system."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model import __version__
from gemm_model.errors import InputError, MissingExtraError, PartialResultError, importing

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
CARD, COMPILER = "gpu", "compile"
"""Dask resources of workers: one `gpu` beside each card, and one `compile` for each processor to use."""
LOCALHOST = "127.0.0.1"
CONNECT_LIMIT_S = 10.0
SILENT_WORKER_S = 60.0
"""Longest silence of a worker before it is replaced [s]; the local cluster; chosen: its tasks run again."""
START_ATTEMPTS = 3
"""Attempts to start a local cluster whose workers die [1]; the local cluster; chosen."""
BATCH_SYSTEMS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster", "sge": "SGECluster"}
"""`system` of a YAML file -> class of dask-jobqueue."""
DASK_SETTINGS = {"distributed.admin.low-level-log-length": 0, "distributed.scheduler.allowed-failures": 0}
"""Dask's own logs of messages for its developers are left out: 1,000 messages with their tasks for each
worker, which was nearly all that a long sweep held. Each death of a worker is reported: `Stream` counts them."""
_ADDRESS = re.compile(r"(\w+://)?[\w.\-\[\]:]+:\d+")


@contextmanager
def joined(where: str, *, cards: int | None = None, compilers: int = 1) -> Iterator[Client]:
    """A client of the cluster `where`: `local`, a scheduler's address, or a YAML file for dask-jobqueue.

    `cards` and `compilers` are the workers of a local cluster; None takes a worker for each visible GPU.
    Raises InputError for a scheduler that cannot be reached, MissingExtraError without Dask.
    """
    distributed = _distributed()
    import dask

    with dask.config.set(DASK_SETTINGS):
        if where == LOCAL:
            found = visible_cards() if cards is None else [str(index) for index in range(cards)]
            with _local(found, compilers) as cluster, distributed.Client(cluster) as client:
                yield client
        elif where.endswith((".yaml", ".yml")):
            with _batch_jobs(Path(where)) as cluster, distributed.Client(cluster) as client:
                yield client
        elif _ADDRESS.fullmatch(where):
            with _client(where) as client:
                yield client
        else:
            raise InputError(
                f"--cluster is {where!r}; expected {LOCAL}, a scheduler's address such as tcp://host:8786, "
                "or a YAML file"
            )


def visible_cards() -> list[str]:
    """One word for each visible card, as in CUDA_VISIBLE_DEVICES. Raises MissingExtraError without a card."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        cards = [word.strip() for word in given.split(",") if word.strip()]
    else:
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            cards = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver or no card: all the same here
            cards = []
    if not cards:
        raise MissingExtraError("no GPU is visible; a local cluster needs one a worker (or --cards N)")
    return cards


def offered(client: Client, resource: str) -> dict[str, float]:
    """Address -> amount of a resource, for each worker of the cluster that offers it."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {
        address: worker["resources"][resource]
        for address, worker in workers.items()
        if worker.get("resources", {}).get(resource, 0) > 0
    }


def refuse_other_versions(client: Client) -> None:
    """Raise InputError if a worker has another version of this package than this process."""
    for address, found in client.run(_version, on_error="return").items():
        # A worker that has died has no version; its replacement is checked with its first task.
        if found != __version__ and not isinstance(found, OSError):
            has = f"gemm-model {found}" if isinstance(found, str) else "no gemm-model of this kind"
            raise InputError(f"worker {address} has {has}, this is {__version__}; expected one version")


def _version() -> str:
    return __version__


def _distributed() -> Any:
    with importing("--cluster needs the package distributed: pip install 'gemm-model[fleet]'"):
        return import_module("distributed")


def _client(address: str) -> Client:
    try:
        return _distributed().Client(address, timeout=CONNECT_LIMIT_S)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"{address}: no scheduler answers ({_first_line(error)})") from None


@contextmanager
def _local(cards: list[str], compilers: int) -> Iterator[Any]:
    """A local cluster: one worker for each card, and one with a thread for each compiling process."""
    import dask

    workers = {f"gpu-{card}": _worker(1, {CARD: 1}, {"CUDA_VISIBLE_DEVICES": card}) for card in cards}
    workers["compile"] = _worker(compilers, {COMPILER: compilers}, {"CUDA_VISIBLE_DEVICES": ""})
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": f"{SILENT_WORKER_S:.0f}s"}),
        _started(workers) as cluster,
    ):
        yield cluster


def _started(workers: dict[str, Any], attempts: int = START_ATTEMPTS) -> Any:
    """The running cluster of these workers; a worker that dies while it starts takes the others with it."""
    distributed = _distributed()
    scheduler = {"cls": distributed.Scheduler, "options": {"host": LOCALHOST, "dashboard_address": ":0"}}
    try:
        return distributed.SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL)
    except RuntimeError as error:
        if attempts > 1:
            return _started(workers, attempts - 1)
        raise PartialResultError(
            f"the workers of the local cluster do not start ({_first_line(error)}); try again"
        ) from None


def _worker(threads: int, resources: Mapping[str, float], environment: Mapping[str, str]) -> dict[str, Any]:
    options = {
        "nthreads": threads,
        "resources": dict(resources),
        "env": dict(environment),
        # Kernels and their operands live in processes of their own.
        "memory_limit": 0,
        "host": LOCALHOST,
        "silence_logs": logging.ERROR,
    }
    return {"cls": _distributed().Nanny, "options": options}


@contextmanager
def _batch_jobs(path: Path) -> Iterator[Any]:
    """A cluster of batch jobs, from `system`, `jobs` and the `options` of dask-jobqueue's class."""
    from gemm_model.config import read_yaml_mapping

    described = read_yaml_mapping(path, "a cluster")
    unknown = sorted(set(described) - {"system", "jobs", "options"})
    if unknown:
        raise InputError(f"{path}: unknown key {unknown[0]!r}; expected system, jobs and options")
    system, jobs, options = described.get("system"), described.get("jobs", 1), described.get("options", {})
    if system not in BATCH_SYSTEMS:
        raise InputError(f"{path}: system is {system!r}; expected one of {', '.join(BATCH_SYSTEMS)}")
    if not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"{path}: jobs is {jobs!r}; expected a positive whole number")
    with importing(
        "a cluster of batch jobs needs the package dask-jobqueue: pip install 'gemm-model[fleet]'"
    ):
        kind = getattr(import_module("dask_jobqueue"), BATCH_SYSTEMS[system])
    try:
        cluster = kind(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: options: {_first_line(error)}") from None
    with cluster:
        cluster.scale(jobs=jobs)
        yield cluster


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
