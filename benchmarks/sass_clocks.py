"""Clocks of instructions that a warp issues between a tile's last MMA and the next tile's first one, by SASS.

    nvdisasm -hex -c kernel.cubin > kernel.sass
    python benchmarks/sass_clocks.py kernel.sass --taken .L_x_17 --taken .L_x_30 --taken .L_x_10

It starts at the last wait for all MMAs before the tile's stores and walks to the next MMA; branches to the
labels of `--taken` are taken, all others are not. An instruction counts its stall count, which its control
code holds; what it waits for besides (memory, barriers, stores) is not counted. The labels above are those of
a cooperative bf16 tile of CUTLASS: alpha needs no load, a tile follows, its first operands are there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LABEL = re.compile(r"\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z0-9_.]+)(.*?);\s*/\*\s*0x")
SECOND_HALF = re.compile(r"\s*/\*\s*(0x[0-9a-f]+)\s*\*/")
STALL_SHIFT = 105 - 64
"""Where the stall count's four bits begin in the second half of an instruction of 128 bits."""
STORE_WITHIN = 130
"""The stores of a tile begin at most so many instructions behind the wait for its MMAs."""


@dataclass(slots=True)
class Line:
    """An instruction, or a label (`operation` is empty)."""

    operation: str
    operands: str
    stall_clk: int = 0


def lines_of(listing: str) -> list[Line]:
    """The instructions and labels of an nvdisasm listing with encodings."""
    found: list[Line] = []
    for text in listing.splitlines():
        if label := LABEL.match(text):
            found.append(Line("", label.group(1)))
        elif instruction := INSTRUCTION.search(text):
            found.append(Line(instruction.group(1), instruction.group(2).strip()))
        elif found and (half := SECOND_HALF.match(text)):
            found[-1].stall_clk = max(int(half.group(1), 16) >> STALL_SHIFT & 15, 1)
    return found


def start_of(lines: list[Line]) -> int:
    """Where the last wait for all MMAs before a store to shared memory is."""
    waits = [i for i, line in enumerate(lines) if line.operation.startswith("WARPGROUP.DEPBAR")]
    return max(
        i for i in waits if any(line.operation.startswith("STSM") for line in lines[i : i + STORE_WITHIN])
    )


def path(lines: list[Line], taken: list[str]) -> Iterator[Line]:
    """What a warp issues from the wait on, up to the next MMA."""
    place = {line.operands: i for i, line in enumerate(lines) if not line.operation}
    at = start_of(lines)
    while True:
        line = lines[at]
        if line.operation:
            yield line
        if "GMMA" in line.operation or line.operation == "EXIT":
            return
        target = re.search(r"\.L_x_\d+", line.operands) if line.operation == "BRA" else None
        at = place[target.group()] if target and target.group() in taken else at + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("listing", type=Path)
    parser.add_argument("--taken", action="append", default=[], help="a label whose branches are taken")
    args = parser.parse_args()
    issued = list(path(lines_of(args.listing.read_text()), args.taken))
    multiplied = sum(line.stall_clk for line in issued if line.operation == "FMUL")
    clocks = sum(line.stall_clk for line in issued)
    print(f"{len(issued)} instructions, {clocks} clocks, {multiplied} of them of FMUL")


if __name__ == "__main__":
    main()
