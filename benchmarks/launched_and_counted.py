"""What benchmarks share that launch kernels under ncu first, and read what it wrote then."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from pathlib import Path


def profiled_launches(table: Path) -> list[dict[str, str]]:
    """The rows of a page `raw` in CSV, a launch each, without the row of units and what stands above."""
    lines = table.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    return [row for row in csv.DictReader(lines[start:]) if row["ID"]]


def metric(text: str) -> float:
    """Of a metric as ncu writes it, alone or before its instances."""
    return float(text.split()[0].replace(",", ""))


def launch_or_count(
    words: str | None, launch: Callable[[], None], count: Callable[[Path], Iterable[str]]
) -> None:
    """Run the command line: `launch`, or `count` and the table."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("launch", help="launch the kernels")
    steps.add_parser("count", help="read the profile").add_argument("table", type=Path, help="what ncu wrote")
    args = parser.parse_args()
    if args.step == "launch":
        launch()
    else:
        print("\n".join(count(args.table)))
