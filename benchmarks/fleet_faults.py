"""A sweep whose workers are killed at random moments, and which is itself killed once and gone on with.

    python benchmarks/fleet_faults.py --output FOLDER --seconds 60 -- --rows plan.csv --cluster local

Words after `--` go to `gemm-model benchmark`. It ends with what the data set holds: each row of the sweep
must be there once. Kills are spread over `--seconds`; the sweep itself is killed halfway.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from gemm_model.dataset.storage import DataSet


def dask_workers(sweep: psutil.Process) -> list[psutil.Process]:
    """The processes that the sweep's nannies watch over."""
    return [child for child in sweep.children() if any("spawn_main" in word for word in child.cmdline())]


def run(words: list[str], output: Path, kills: list[float], end_at_s: float | None) -> int:
    """One run of the sweep under kills at these times [s]; killed itself at `end_at_s`. Its exit code.

    Times count from when the data set has a run: before, there is nothing to lose.
    """
    process = subprocess.Popen([sys.executable, "-m", "gemm_model.cli", "benchmark", *words])
    sweep, began = psutil.Process(process.pid), math.inf
    while process.poll() is None:
        if began == math.inf and any((output / "runs").glob("*.json")):
            began = time.monotonic()
        passed_s = time.monotonic() - began
        if end_at_s is not None and passed_s > end_at_s:
            for child in sweep.children(recursive=True):
                child.kill()
            process.kill()
        elif kills and passed_s > kills[0]:
            kills.pop(0)
            workers = dask_workers(sweep)
            if workers:
                random.choice(workers).kill()
        time.sleep(0.05)
    return process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("words", nargs="*", help="of gemm-model benchmark, after --")
    args = parser.parse_args()
    random.seed(7)
    moments = sorted(random.uniform(0, args.seconds) for _ in range(args.kills))
    words = [*args.words, "--output", str(args.output)]
    half_s = args.seconds / 2
    codes = [run(words, args.output, [moment for moment in moments if moment < half_s], half_s)]
    later = [moment - half_s for moment in moments if moment >= half_s]
    codes.append(run([*words, "--resume"], args.output, later, None))
    dataset = DataSet(args.output)
    table = dataset.read()
    twice = sum(count > 1 for count in Counter(table["order"]).values())
    (record,) = dataset.runs()
    print(f"exit codes {codes}; {len(table)} of {record.provenance['rows']} rows, {twice} twice")
    print(table["disposition"].value_counts().to_string())


if __name__ == "__main__":
    main()
