"""What Nsight Compute exports of a kernel (`ncu --csv --page raw`), beside what the model says of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemm_model.bench.counters import launches
from gemm_model.bench.cublas_names import parse_cublas_name
from gemm_model.bench.cutlass.names import cutlass_cells
from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import SCHEDULERS, KernelConfig
from gemm_model.kernel_model.faults import COUNTS, Suspect, deviations, distance_of, likeliest, suspects
from gemm_model.kernel_model.question import World

SECTOR_BYTES = 32.0
"""A sector of L2 [B]; all GPUs; CUDA C++ Best Practices Guide."""
METRICS: Mapping[str, tuple[str, float]] = {
    "gpu__time_duration.sum": ("duration_us", 1e-3),
    "sm__cycles_elapsed.max": ("sm_cycles", 1.0),
    "dram__bytes_read.sum": ("dram_read_bytes", 1.0),
    "dram__bytes_write.sum": ("dram_write_bytes", 1.0),
    "lts__t_sectors_op_read.sum": ("l2_read_bytes", SECTOR_BYTES),
    "lts__t_sectors_op_write.sum": ("l2_write_bytes", SECTOR_BYTES),
    "launch__shared_mem_per_block_dynamic": ("smem_bytes_per_cta", 1.0),
}
"""By metric: what it counts here, and the factor from base units (ns, bytes, cycles, sectors)."""
UNITS: Mapping[str, float] = {
    **{"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "second": 1e9},
    **{"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "byte/block": 1.0, "Kbyte/block": 1e3},
    **{"cycle": 1.0, "sector": 1.0, "": 1.0},
}
"""Factors of ncu's units to its base units."""
COMMAND = f"ncu --csv --page raw --print-units base --metrics {','.join(METRICS)} PROGRAM"
"""What exports all that is read."""
KERNEL, GRID = "Kernel Name", "Grid Size"
ADDS_UP = re.compile(r"splitKreduce|splitk_reduce", re.IGNORECASE)
"""In the names of kernels that add up the parts of a split K."""
OF_CTAS = ("smem_bytes_per_cta", "ctas")
"""Counts that are no sums over a kernel's time."""
MOST_PARTS = 32
"""Parts of a split K [1]; cuBLAS's kernels, whose names tell none; no measured one has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedKernel:
    """One launch of an export."""

    name: str
    counted: Mapping[str, float]
    """By name of METRICS' counts, and `ctas` of its grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What was counted beside what is predicted of the kernel that was meant."""

    kernel: CountedKernel
    rows: tuple[Mapping[str, Any], ...]
    """Counts: `what`, `counted`, `predicted`, `ratio`, and `spreads`, how many of the model's they are off."""
    as_meant: float
    """Distance of all counts from those of the kernel that was meant, in spreads [1]."""
    suspects: tuple[Suspect, ...]
    """Faults, the closest first."""

    @property
    def fault(self) -> Suspect | None:
        """What explains the counts; None where they are those of the kernel that was meant, or of no fault."""
        return likeliest(self.as_meant, self.suspects)


def read_export(path: Path) -> list[CountedKernel]:
    """The launches of a file that COMMAND exported, the longest first; one that adds up parts is its GEMM's.

    Raises InputError for a file without launches, or without a needed metric: it says which, and COMMAND.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: {why}; expected what this exports: {COMMAND}") from None
    rows = enumerate(launches(text.splitlines()), start=1)
    found: list[CountedKernel] = []
    for row, (cells, units) in rows:
        kernel = _kernel(cells, units, f"{path}, kernel {row}")
        if found and ADDS_UP.search(kernel.name):
            found[-1] = _with_sums(found[-1], kernel)
        else:
            found.append(kernel)
    if not found:
        raise InputError(f"{path}: no kernel in it; expected what this exports: {COMMAND}")
    return sorted(found, key=lambda each: -each.counted["duration_us"])


def _kernel(cells: Mapping[str, str], units: Mapping[str, str], where: str) -> CountedKernel:
    missing = [name for name in (KERNEL, *METRICS) if name not in cells]
    if missing:
        raise InputError(f"{where}: no column {', '.join(missing)}; expected what this exports: {COMMAND}")
    counted = {}
    for metric, (name, factor) in METRICS.items():
        text, unit = (cells[metric] or "").replace(",", ""), units[metric] or ""
        try:
            counted[name] = float(text) * UNITS[unit] * factor
        except (ValueError, KeyError):
            raise InputError(
                f"{where}: {metric} is {text!r} {unit}; expected a number in base units"
            ) from None
    if not 0.0 < counted["duration_us"] < math.inf or not 0.0 < counted["sm_cycles"] < math.inf:
        raise InputError(f"{where}: no time or no cycles; expected a kernel that ran")
    if extents := re.findall(r"\d+", cells.get(GRID) or ""):
        counted["ctas"] = float(math.prod(map(int, extents)))
    return CountedKernel(name=cells[KERNEL], counted=counted)


def _with_sums(kernel: CountedKernel, adds: CountedKernel) -> CountedKernel:
    """A kernel of parts of K, and the one that adds them up."""
    both = {name: value + adds.counted[name] for name, value in kernel.counted.items() if name not in OF_CTAS}
    return replace(kernel, counted={**kernel.counted, **both})


def config_of(name: str) -> KernelConfig:
    """The configuration that a kernel's name tells; raises InputError where it tells no tile."""
    cells, kernel = cutlass_cells(name), "cutlass"
    try:
        cells, kernel = (cells, kernel) if cells else (parse_cublas_name(name), "cublas")
    except InputError:
        raise InputError(
            f"the name of kernel {name[:60]!r} tells no tile; expected --cta, and --kernel of "
            "quack, cutlass, cublas or triton"
        ) from None
    return KernelConfig(
        **{**{key: value for key, value in cells.items() if value not in ("", 0)}, "kernel": kernel}
    )


def with_parts(world: World, kernel: CountedKernel) -> World:
    """The kernel with as many parts of K as its counts tell, where a name tells that K is split and no more."""
    config = world.config
    if config.scheduler != "split_k" or config.split_k > 1:
        return world
    most = min(MOST_PARTS, int(world.composed().kernel.schedule.k_tiles))
    split = [replace(world, config=replace(config, split_k=parts)) for parts in range(1, most + 1)]
    return min(split, key=lambda each: distance_of(each.composed(), kernel.counted))


def beside(world: World, kernel: CountedKernel) -> Beside:
    """The counts of a launch beside those of the kernel that was meant, and what explains them."""
    composed, config, counted = world.composed(), world.config, dict(kernel.counted)
    if config.split_k > 1 or config.scheduler != SCHEDULERS[0]:
        # Partial sums reach L2 as reductions; the profiler does not count those as writes.
        counted.pop("l2_write_bytes", None)
    predicted = {count.name: count.predicted(composed) for count in COUNTS if count.name in counted}
    predicted["sm_cycles"] = predicted["duration_us"] * float(composed.times.sm_clk_mhz)
    off = deviations(composed, counted)
    for each in (predicted, counted):
        each["sm_clk_mhz"] = each["sm_cycles"] / each["duration_us"]
        each["l2_hit_share"] = max(1.0 - each["dram_read_bytes"] / max(each["l2_read_bytes"], 1.0), 0.0)
    rows = []
    for what, value in predicted.items():
        ratio = counted[what] / value if value else None
        row = {"what": what, "counted": counted[what], "predicted": value, "ratio": ratio}
        rows.append({**row, "spreads": off.get(what)})
    return Beside(
        kernel=kernel,
        rows=tuple(rows),
        as_meant=distance_of(composed, counted),
        suspects=tuple(suspects(world, counted)),
    )
