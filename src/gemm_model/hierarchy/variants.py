"""Machines in which a level or the datapath works otherwise: compression, sparsity, bank conflicts, clusters."""

from __future__ import annotations

import re
from dataclasses import replace
from math import gcd

from gemm_model.errors import InputError
from gemm_model.hierarchy.blocking import Blocking
from gemm_model.hierarchy.instructions import WORD_BYTES
from gemm_model.hierarchy.levels import Machine

BANKS = 32
"""Banks of shared memory [1]; each gives a word a clock; CUDA C++ Programming Guide."""
INDEX_BITS = 2
"""Place of a kept element among four [bit]; sparse operands; PTX ISA, mma.sp."""
COMPRESSED = ("dram", "l2")
_CHANGE = r"(?:(compression|bank_conflicts) (\d{1,4}(?:\.\d{1,6})?)|sparsity (\d{1,3}):(\d{1,3}))"
EXPECTED = "expected 'compression 1.5', 'sparsity 2:4' or 'bank_conflicts 4'"


def variant(machine: Machine, text: str) -> Machine:
    """The machine with one change. Raises InputError for other words.

    'compression X': operands cross DRAM and L2 in a 1/X of their bytes. 'sparsity A:B': of B elements of A in
    a row along k only A are stored, loaded and multiplied, so that the datapath does B/A as many (dense) FMAs a
    clock. 'bank_conflicts N': shared memory takes N clocks for each wavefront (`bank_conflicts` counts them).
    """
    found = re.fullmatch(_CHANGE, text)
    if found is None:
        raise InputError(f"--what-if is {text[:60]!r}; {EXPECTED}")
    number, kept, of = float(found[2] or 1), int(found[3] or 1), int(found[4] or 1)
    if number < 1.0 or not 0 < kept <= of:
        raise InputError(f"--what-if is {text!r}; {EXPECTED}")
    path, factors = machine.datapath, {}
    if found[1] == "compression":
        factors = dict.fromkeys(COMPRESSED, number)
    elif found[1] == "bank_conflicts":
        factors = {"smem": 1.0 / number}
    elif kept < of:
        stored_bytes = (path.a_bytes + INDEX_BITS / 8) * kept / of
        path = replace(path, fma_per_clk=path.fma_per_clk * of / kept, a_bytes=stored_bytes)
        factors = {"registers": path.demand_bytes_per_clk / machine.datapath.demand_bytes_per_clk}
    levels = [
        each if each.bytes_per_clk is None else replace(each, bytes_per_clk=each.bytes_per_clk * factor)
        for each in machine.levels
        for factor in (factors.get(each.name, 1.0),)
    ]
    return replace(machine, datapath=path, levels=tuple(levels))


def bank_conflicts(row_bytes: int) -> int:
    """Clocks of a warp's load of one word from each of 32 rows of shared memory, `row_bytes` apart: 1 to 32."""
    if row_bytes < WORD_BYTES or row_bytes % WORD_BYTES:
        raise InputError(f"rows are {row_bytes} bytes apart; expected a multiple of {WORD_BYTES}")
    return gcd(row_bytes // WORD_BYTES, BANKS)


def exchange_clk(machine: Machine, blocking: Blocking, k: int, parts: int) -> dict[str, float]:
    """What leaving the output-stationary dataflow costs a CTA [clk]: K split among `parts` CTAs of a cluster.

    'math' is its share of K; each CTA then sums up 1/parts of the tile, which the others send: through
    distributed shared memory ('dsmem') it arrives at the SM's port, through 'l2' it is written and read back.
    Raises InputError for a card whose L2 rates are not known.
    """
    l2, path, tile = machine.level("l2"), machine.datapath, blocking.cta_m * blocking.cta_n
    most = min(k, machine.gpu.max_cluster_size)
    if l2.bytes_per_clk is None or l2.port_bytes_per_clk is None or not 1 <= parts <= most:
        raise InputError(f"{parts} parts on {machine.gpu.name}; expected 1 to {most}, and known rates of L2")
    moved = tile * path.acc_bytes * (parts - 1) / parts
    through = {"dsmem": moved / l2.port_bytes_per_clk, "l2": 2.0 * moved / l2.bytes_per_clk}
    return {"math": tile * (k / parts) / path.fma_per_clk, **through}
