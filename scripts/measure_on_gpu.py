"""Measure several plans on this machine, one table each, within a time limit.

    python scripts/measure_on_gpu.py plans/cublaslt.csv plans/cutlass.csv:counters
        --tables results --bundle bundle.tar.gz --limit-s 500 -- timing.repeats=24

A plan is a table of rows (`gemm-model benchmark --rows`), with `:regime` behind it where that is not `burst`.
Plans run one after another: each compiles its kernels on all processors while nothing is timed, then checks
and times its rows while nothing is compiled. A table that is there already is gone on with, so the same
command run again finishes what a limit cut short. A plan that fails leaves the others alone. The bundle, all
tables and logs in one archive, is renewed every few seconds, so it is there however this ends. Words after
`--` go to `gemm-model benchmark` as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_model.core.files import atomic_path
from gemm_model.core.regimes import REGIME_NAMES

BUNDLE_EVERY_S = 20.0
LEAST_S = 20.0
"""A table is not begun with less time than this: its processes take as long to start."""

GRACE_S = 15.0
"""From a table's time budget to its end by force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One table to be filled."""

    plan: Path
    regime: str

    @property
    def name(self) -> str:
        return self.plan.stem if self.regime == "burst" else f"{self.plan.stem}-{self.regime}"


def parse_job(text: str) -> Job:
    plan, separator, regime = text.partition(":")
    if not Path(plan).exists():
        raise SystemExit(f"{plan}: no such plan; expected a table of rows")
    if separator and regime not in REGIME_NAMES:
        raise SystemExit(f"{text}: unknown regime {regime!r}; expected one of {', '.join(REGIME_NAMES)}")
    return Job(plan=Path(plan), regime=regime or "burst")


def command_of(job: Job, table: Path, budget_s: float, words: Sequence[str]) -> list[str]:
    """The benchmark's command line; it resumes a table that is there."""
    command = [sys.executable, "-m", "gemm_model.cli", "benchmark", "--rows", str(job.plan)]
    command += ["--regime", job.regime, "--output", str(table)]
    command += ["--time-budget", f"{budget_s:.0f}", *(("--resume",) if table.exists() else ())]
    return command + list(words)


def run_job(job: Job, tables: Path, deadline: float, words: Sequence[str]) -> str:
    """Fill one table as far as time allows; what became of it, in a few words."""
    table, log = tables / f"{job.name}.csv", tables / f"{job.name}.log"
    left_s = deadline - time.monotonic()
    if left_s < LEAST_S:
        return "not begun: no time left"
    began = time.monotonic()
    with log.open("a") as output:
        try:
            done = subprocess.run(
                command_of(job, table, left_s - GRACE_S, words),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=left_s,
                check=False,
            )
            ending = f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            ending = "stopped at the limit"
    last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
    return f"{ending} after {time.monotonic() - began:.0f} s: {last.strip()}"


def write_bundle(tables: Path, bundle: Path) -> None:
    with atomic_path(bundle) as path, tarfile.open(path, "w:gz", compresslevel=3) as archive:
        for file in sorted(tables.iterdir()):
            archive.add(file, arcname=file.name)


def renew_bundle(tables: Path, bundle: Path, stop: threading.Event) -> None:
    while not stop.wait(BUNDLE_EVERY_S):
        write_bundle(tables, bundle)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plans", nargs="+", help="plan.csv or plan.csv:regime, in the order to be run")
    parser.add_argument("--tables", type=Path, required=True, help="folder for the tables and logs")
    parser.add_argument("--bundle", type=Path, required=True, help="archive of that folder (.tar.gz)")
    parser.add_argument("--limit-s", type=float, required=True, help="begin or go on with nothing after this")
    own, words = split_words(sys.argv[1:])
    arguments = parser.parse_args(own)
    jobs = [parse_job(text) for text in arguments.plans]
    deadline = time.monotonic() + arguments.limit_s
    arguments.tables.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    renewing = threading.Thread(target=renew_bundle, args=(arguments.tables, arguments.bundle, stop))
    renewing.start()
    try:
        for job in jobs:
            print(f"{job.name}: {run_job(job, arguments.tables, deadline, words)}", flush=True)
    finally:
        stop.set()
        renewing.join()
        write_bundle(arguments.tables, arguments.bundle)
    return 0


def split_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of this program, and those behind `--`."""
    place = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place + 1 :])


if __name__ == "__main__":
    sys.exit(main())
