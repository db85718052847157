"""One row of a benchmark: what was run and what came of it, as columns of a CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gemm_model.bench.provider import Config, LibraryChoice
from gemm_model.core.dtypes import BlockScale, element_type
from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

REGIMES = ("burst", "sustained", "counters")
L2_STATES = ("cold", "warm")

IDENTITY_COLUMNS = (
    "in_dtype",
    "acc_dtype",
    "out_dtype",
    "sf_dtype",
    "sf_vec_size",
    "a_major",
    "b_major",
    "c_major",
    "mma_m",
    "mma_n",
    "cta_m",
    "cta_n",
    "cluster_m",
    "cluster_n",
    "m",
    "n",
    "k",
)
"""The classic columns, in their order."""

DETAIL_COLUMNS = (
    "gpu",
    "gpu_uuid",
    "kernel",
    "asked_m",
    "asked_n",
    "asked_k",
    "b_dtype",
    "schedule",
    "swizzle",
    "raster",
    "stages",
    "cta_k",
    "split_k",
    "fast_accum",
    "scheduler",
    "warps",
    "heuristic_rank",
    "algorithm",
    "kernel_name",
    "regime",
    "l2",
)

LAUNCH_COLUMNS = ("grid", "block")
"""Of rows whose provider says what it launches; in the counters regime the profiler says so for all rows."""

TIMING_COLUMNS = ("min_us", "p90_us", "count", "empty_kernel_us")
STATE_COLUMNS = ("sm_mhz", "mem_mhz", "power_w", "temp_c", "throttle")
LOG_COLUMNS = ("relative_error", "disposition", "detail", "order", "time")
COUNTER_COLUMNS = (
    "duration_us",
    "sm_cycles",
    "dram_read_bytes",
    "dram_write_bytes",
    "l2_bytes",
    "l2_read_sectors",
    "l2_write_sectors",
    "l2_hit_pct",
    "registers_per_thread",
    "smem_bytes_per_cta",
    "grid",
    "block",
)

COLUMNS = (
    *IDENTITY_COLUMNS,
    "runtime_us",
    *DETAIL_COLUMNS,
    *LAUNCH_COLUMNS,
    *TIMING_COLUMNS,
    *STATE_COLUMNS,
    *LOG_COLUMNS,
)
COUNTERS_TABLE_COLUMNS = (
    *IDENTITY_COLUMNS,
    "runtime_us",
    *DETAIL_COLUMNS,
    *COUNTER_COLUMNS,
    *STATE_COLUMNS,
    *LOG_COLUMNS,
)

ALIGNMENT_BITS = 128
"""Rows that TMA and cuBLAS read start at multiples of 16 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One launch to be measured: a kernel on a (padded) problem, and the sizes that were asked for."""

    kernel: str
    problem: GemmProblem
    config: Config
    asked: tuple[int, int, int]
    regime: str = "burst"
    l2: str = "cold"

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise InputError(f"regime is {self.regime!r}; expected one of {', '.join(REGIMES)}")
        if self.l2 not in L2_STATES:
            raise InputError(f"l2 is {self.l2!r}; expected one of {', '.join(L2_STATES)}")

    def columns(self) -> dict[str, Any]:
        """The row's identity as table cells; cells that do not apply stay empty."""
        problem, config = self.problem, self.config
        cells: dict[str, Any] = {
            "kernel": self.kernel,
            "in_dtype": problem.a_dtype.name,
            "b_dtype": problem.b_dtype.name,
            "acc_dtype": problem.acc_dtype.name,
            "out_dtype": problem.out_dtype.name,
            "sf_dtype": problem.a_scale.dtype.name if problem.a_scale else "",
            "sf_vec_size": problem.a_scale.vec_size if problem.a_scale else "",
            "a_major": problem.a_major,
            "b_major": problem.b_major,
            "c_major": problem.c_major,
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "asked_m": self.asked[0],
            "asked_n": self.asked[1],
            "asked_k": self.asked[2],
            "regime": self.regime,
            "l2": self.l2,
        }
        if isinstance(config, LibraryChoice):
            cells["heuristic_rank"] = config.rank
        elif config is not None:
            for name in ("mma_m", "mma_n", "cta_m", "cta_n", "cluster_m", "cluster_n", "split_k", "swizzle"):
                cells[name] = getattr(config, name)
            cells |= {"schedule": config.schedule, "raster": config.raster}
            cells |= {"stages": config.stages or "", "cta_k": config.cta_k or ""}
            cells |= {"scheduler": config.scheduler, "warps": config.warps or ""}
            cells["fast_accum"] = int(config.fast_accum)
        return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a row; `values` holds further cells, times only where the disposition is 'ok'."""

    disposition: str
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def row_from_columns(cells: Mapping[str, Any], *, regime: str = "", l2: str = "") -> Row:
    """The row that `Row.columns` wrote, cells as text; `regime` and `l2` override the cells."""
    kernel = cells["kernel"]
    scale = _scale(cells)
    problem = GemmProblem(
        m=_whole(cells, "m"),
        n=_whole(cells, "n"),
        k=_whole(cells, "k"),
        a_dtype=element_type(cells["in_dtype"]),
        b_dtype=element_type(cells.get("b_dtype") or cells["in_dtype"]),
        out_dtype=element_type(cells["out_dtype"]),
        acc_dtype=element_type(cells.get("acc_dtype") or "fp32"),
        a_scale=scale,
        b_scale=scale,
        a_major=cells.get("a_major") or "k",
        b_major=cells.get("b_major") or "k",
        c_major=cells.get("c_major") or "n",
    )
    asked = tuple(
        _whole(cells, f"asked_{extent}" if cells.get(f"asked_{extent}") else extent) for extent in "mnk"
    )
    return Row(
        kernel=kernel,
        problem=problem,
        config=_config(kernel, cells),
        asked=(asked[0], asked[1], asked[2]),
        regime=regime or cells.get("regime") or "burst",
        l2=l2 or cells.get("l2") or "cold",
    )


def _whole(cells: Mapping[str, Any], name: str) -> int:
    """A cell as a whole number; other programs write 128 as 128.0 where a column has gaps."""
    try:
        value = float(cells[name])
    except ValueError:
        value = float("nan")
    if not value.is_integer():
        raise InputError(f"column {name} is {cells[name]!r}; expected a whole number")
    return int(value)


def _scale(cells: Mapping[str, Any]) -> BlockScale | None:
    name = cells.get("sf_dtype")
    return BlockScale(dtype=element_type(name), vec_size=_whole(cells, "sf_vec_size")) if name else None


def _config(kernel: str, cells: Mapping[str, Any]) -> Config:
    if cells.get("heuristic_rank") not in (None, ""):
        return LibraryChoice(rank=_whole(cells, "heuristic_rank"))
    if not cells.get("cta_m"):
        return None
    numbers = {
        name: _whole(cells, name)
        for name in (
            "cta_m",
            "cta_n",
            "cta_k",
            "mma_m",
            "mma_n",
            "cluster_m",
            "cluster_n",
            "stages",
            "swizzle",
            "warps",
        )
        if cells.get(name)
    }
    numbers["split_k"] = _whole(cells, "split_k") if cells.get("split_k") else 1
    fast_accum = str(cells.get("fast_accum") or "0") not in ("0", "0.0", "False")
    return KernelConfig(
        **numbers,
        schedule=cells.get("schedule") or "cooperative",
        raster=cells.get("raster") or "heuristic",
        kernel=kernel,
        fast_accum=fast_accum,
        scheduler=cells.get("scheduler") or "static",
    )


def padded(problem: GemmProblem) -> GemmProblem:
    """The problem with every extent that is contiguous in memory rounded up to 16 bytes."""
    multiples = {"m": 1, "n": 1, "k": 1}
    layouts = (
        (problem.a_major, problem.a_dtype.bits),
        (problem.b_major, problem.b_dtype.bits),
        (problem.c_major, problem.out_dtype.bits),
    )
    for extent, bits in layouts:
        multiples[extent] = max(multiples[extent], ALIGNMENT_BITS // bits)
    if problem.a_scale is not None:
        # A scale belongs to a whole vector along K.
        multiples["k"] = max(multiples["k"], problem.a_scale.vec_size)
    sizes = {name: -(-getattr(problem, name) // multiple) * multiple for name, multiple in multiples.items()}
    return replace(problem, **sizes)
