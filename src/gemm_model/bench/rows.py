"""One row of a benchmark: the kernel, the problem and the outcome, as columns of a CSV."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemm_model.bench.extended import BATCH_COLUMNS, EXTRA_COLUMNS, MASK_COLUMNS, extras, with_extras
from gemm_model.bench.provider import Config, LibraryChoice
from gemm_model.config import CONFIG_DIR
from gemm_model.core.dtypes import BlockScale, element_type
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_write, csv_rows
from gemm_model.core.kernel_config import AUTO_KERNEL, KERNELS, KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem
from gemm_model.core.regimes import REGIME_NAMES

L2_STATES = ("cold", "warm", "rotated")
"""States of L2; 'rotated' is whatever the graph regime's rotation of the operands leaves there."""

_PARTS = {
    part: tuple(names)
    for part, names in tomllib.loads((CONFIG_DIR / "benchmark_columns.toml").read_text()).items()
}
IDENTITY_COLUMNS, DETAIL_COLUMNS, CHAIN_COLUMNS, PAIR_COLUMNS = (
    _PARTS[part] for part in ("identity", "detail", "chain", "pair")
)


def _table(*parts: str) -> tuple[str, ...]:
    """The columns of a table: what was launched and its time, some parts, then the card's state and the log."""
    between = [name for part in parts for name in _PARTS[part]]
    return (*IDENTITY_COLUMNS, "runtime_us", *DETAIL_COLUMNS, *between, *_PARTS["state"], *_PARTS["log"])


COLUMNS = _table("launch", "timing")
TABLE_COLUMNS = {
    "counters": _table("counters"),
    "graph": _table("chain", "launch", "timing", "graph"),
}
"""Columns of a table of plain GEMMs by regime; the others have COLUMNS."""

NORM = "rmsnorm"
"""The partner that writes the activations: a root-mean-square norm over their rows."""

ALIGNMENT_BITS = 128
"""Alignment of rows [bit]; operands of TMA and cuBLAS; CUDA driver API, tensor maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The launch context of a row in the graph regime.

    `rotation` is the number of copies of the weights; 0 takes enough to fill four times L2. `partner` is a
    second kernel in each link of the chain: an `MxNxK` GEMM of the same configuration that follows, or NORM,
    which precedes; without one the kernel follows itself. `settled` runs until clock and power settle;
    otherwise the card rests before each replay. `paired` replays the chain in turn with one without
    programmatic dependent launch.
    """

    rotation: int = 0
    partner: str = ""
    settled: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        if self.rotation < 0:
            raise InputError(f"rotation is {self.rotation}; expected a whole number from 0 on")
        if self.partner not in ("", NORM):
            parse_extent(self.partner, "partner", (3,), beside=f"{NORM}, swapped or ")
        if self.paired and (self.partner or self.settled):
            raise InputError("a chain is paired and has a partner or is settled; expected one kernel, rested")

    def partner_problem(self, problem: GemmProblem) -> GemmProblem:
        """The GEMM that takes turns with `problem`."""
        m, n, k = parse_extent(self.partner, "partner", (3,))
        return replace(problem, m=m, n=n, k=k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One launch to be measured: a kernel on a (padded) problem, and the sizes that were asked for."""

    kernel: str
    problem: GemmProblem
    config: Config
    asked: tuple[int, int, int]
    regime: str = "burst"
    l2: str = "cold"
    chain: Chain = Chain()
    """Of the graph regime alone."""

    def __post_init__(self) -> None:
        if self.regime not in REGIME_NAMES:
            raise InputError(f"regime is {self.regime!r}; expected one of {', '.join(REGIME_NAMES)}")
        if self.l2 not in L2_STATES:
            raise InputError(f"l2 is {self.l2!r}; expected one of {', '.join(L2_STATES)}")

    @property
    def configs(self) -> tuple[Config, ...]:
        """The launched configurations: the row's, and in a paired chain the same without PDL."""
        if not self.chain.paired or not isinstance(self.config, KernelConfig):
            return (self.config,)
        return (self.config, replace(self.config, pdl=False))

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
        if self.regime == "graph":
            pdl = config.pdl if isinstance(config, KernelConfig) else None
            cells["pdl"] = "" if pdl is None else int(pdl)
            cells["rotation"], cells["partner"] = self.chain.rotation, self.chain.partner
            cells["settled"] = int(self.chain.settled)
            if self.chain.paired:
                cells["paired"] = 1
        return cells | extras(problem)


def extra_columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns for kinds of problem among the rows, beside those of their regime."""
    used = {name for row in rows for name in extras(row.problem)}
    used |= {"paired"} if any(row.chain.paired for row in rows) else set()
    columns = (EXTRA_COLUMNS, BATCH_COLUMNS, MASK_COLUMNS, PAIR_COLUMNS)
    return tuple(name for some in columns if used.intersection(some) for name in some)


def table_columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Columns of the table of these rows, which are of one regime."""
    return (*TABLE_COLUMNS.get(rows[0].regime, COLUMNS), *extra_columns(rows))


def write_plan(rows: Sequence[Row], path: Path) -> None:
    """Rows to be measured, of one regime, as a table for `gemm-model benchmark --rows`."""
    columns = (*IDENTITY_COLUMNS, *DETAIL_COLUMNS, *(CHAIN_COLUMNS if rows[0].regime == "graph" else ()))
    names = [name for name in columns if name not in ("gpu", "gpu_uuid")]
    names += extra_columns(rows)
    atomic_write(path, csv_rows([row.columns() for row in rows], names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a row; `values` holds more cells, and times only if the disposition is 'ok'."""

    disposition: str
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def row_from_columns(cells: Mapping[str, Any], *, regime: str = "", l2: str = "") -> Row:
    """The row from cells that `Row.columns` wrote, as text; `regime` and `l2` override the cells."""
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
        problem=with_extras(problem, cells),
        config=_config(kernel, cells),
        asked=(asked[0], asked[1], asked[2]),
        regime=regime or cells.get("regime") or "burst",
        l2=l2 or cells.get("l2") or "cold",
        chain=Chain(
            rotation=_whole(cells, "rotation") if cells.get("rotation") else 0,
            partner=cells.get("partner") or "",
            settled=_flag(cells, "settled"),
            paired=_flag(cells, "paired"),
        ),
    )


def _whole(cells: Mapping[str, Any], name: str) -> int:
    """A cell as a whole number; other programs write 128 as 128.0 in a column with gaps."""
    try:
        value = float(cells[name])
    except ValueError:
        value = float("nan")
    if not value.is_integer():
        raise InputError(f"column {name} is {cells[name]!r}; expected a whole number")
    return int(value)


def _flag(cells: Mapping[str, Any], name: str) -> bool:
    return str(cells.get(name) or "0") not in ("0", "0.0", "False")


def _scale(cells: Mapping[str, Any]) -> BlockScale | None:
    name = cells.get("sf_dtype")
    return BlockScale(dtype=element_type(name), vec_size=_whole(cells, "sf_vec_size")) if name else None


def _config(kernel: str, cells: Mapping[str, Any]) -> Config:
    if cells.get("heuristic_rank") not in (None, ""):
        return LibraryChoice(rank=_whole(cells, "heuristic_rank"))
    if not cells.get("cta_m"):
        return None
    if not cells.get("cta_n"):
        raise InputError("column cta_n is empty; expected a tile of cta_m x cta_n")
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
    return KernelConfig(
        **numbers,
        schedule=cells.get("schedule") or "cooperative",
        raster=cells.get("raster") or "heuristic",
        # A provider need not be one of a known family.
        kernel=kernel if kernel in KERNELS else AUTO_KERNEL,
        fast_accum=_flag(cells, "fast_accum"),
        scheduler=cells.get("scheduler") or "static",
        pdl=_flag(cells, "pdl") if cells.get("pdl") not in (None, "") else None,
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
