"""One row of a benchmark: the kernel, the problem and the outcome, as columns of a CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemm_model.bench.problem_kinds import BATCH_COLUMNS, EXTRA_COLUMNS, MASK_COLUMNS, extras
from gemm_model.bench.provider import Config, LibraryChoice
from gemm_model.config import read_toml
from gemm_model.core.fields import problem_of_row, whole_number
from gemm_model.core.files import atomic_write, csv_rows
from gemm_model.core.kernel_config import AUTO_KERNEL, KERNELS, KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.core.regimes import REGIME_NAMES
from gemm_model.errors import InputError, require_one_of

L2_STATES = ("cold", "warm", "rotated")
"""States of L2; 'rotated' is whatever the graph regime's rotation of the operands leaves there."""

_PARTS = {part: tuple(names) for part, names in read_toml("benchmark_columns").items()}
IDENTITY_COLUMNS, DETAIL_COLUMNS, CHAIN_COLUMNS, PAIR_COLUMNS = (
    _PARTS[part] for part in ("identity", "detail", "chain", "pair")
)


def _table(*parts: str) -> tuple[str, ...]:
    """The columns of a table: what was launched and its time, some parts, then the card's state and the log."""
    between = [name for part in parts for name in _PARTS[part]]
    return (*IDENTITY_COLUMNS, "runtime_us", *DETAIL_COLUMNS, *between, *_PARTS["state"], *_PARTS["log"])


COLUMNS = _table("launch", "timing")
TABLE_COLUMNS = {"counters": _table("counters"), "graph": _table("chain", "launch", "timing", "graph")}
"""Columns of a table of plain GEMMs by regime; the others have COLUMNS."""

ASKED = ("asked_m", "asked_n", "asked_k")
CONFIG_SIZES: Sequence[str] = read_toml("columns")["benchmarked_sizes"]
CONFIG_WORDS = ("schedule", "raster", "scheduler")

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
    asked: tuple[int, ...] = ()
    """The problem's own m, n and k where none are given."""
    regime: str = "burst"
    l2: str = "cold"
    chain: Chain = Chain()
    """Of the graph regime alone."""

    def __post_init__(self) -> None:
        require_one_of(f"regime is {self.regime!r}", self.regime, REGIME_NAMES)
        require_one_of(f"l2 is {self.l2!r}", self.l2, L2_STATES)
        if not self.asked:
            object.__setattr__(self, "asked", (self.problem.m, self.problem.n, self.problem.k))

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
            **{f"{name}_dtype": getattr(problem, f"{name}_dtype").name for name in ("b", "acc", "out")},
            "sf_dtype": problem.a_scale.dtype.name if problem.a_scale else "",
            "sf_vec_size": problem.a_scale.vec_size if problem.a_scale else "",
            **{name: getattr(problem, name) for name in ("a_major", "b_major", "c_major", "m", "n", "k")},
            **dict(zip(ASKED, self.asked, strict=True)),
            "regime": self.regime,
            "l2": self.l2,
        }
        if isinstance(config, LibraryChoice):
            cells["heuristic_rank"] = config.rank
        elif config is not None:
            cells |= {name: getattr(config, name) for name in (*CONFIG_SIZES, *CONFIG_WORDS)}
            cells |= {name: cells[name] or "" for name in ("stages", "cta_k", "warps")}
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


def write_plan(rows: Sequence[Row], path: Path, gpu: str = "") -> None:
    """Rows to be measured, of one regime, as a table for `gemm-model benchmark --rows`; `gpu` names their card."""
    columns = (*IDENTITY_COLUMNS, *DETAIL_COLUMNS, *(CHAIN_COLUMNS if rows[0].regime == "graph" else ()))
    names = [name for name in columns if name not in ("gpu", "gpu_uuid")]
    card = {"gpu": gpu} if gpu else {}
    names += [*extra_columns(rows), *card]
    atomic_write(path, csv_rows([row.columns() | card for row in rows], names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a row; `values` holds more cells, and times only if the disposition is 'ok'."""

    disposition: str
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def row_from_columns(cells: Mapping[str, Any], *, regime: str = "", l2: str = "") -> Row:
    """The row from cells that `Row.columns` wrote, as text; `regime` and `l2` override the cells.

    With `swap_ab` its problem is the transposed one, which is what the kernel computes.
    """
    extents = [name if cells.get(name) else name.removeprefix("asked_") for name in ASKED]
    m, n, k = (whole_number(cells, name) for name in extents)
    problem = problem_of_row({**cells, "batch": cells.get("batch") or 1})
    if _flag(cells, "swap_ab"):
        if not problem.plain:
            raise InputError("column swap_ab is 1 beside a kind of problem; expected 0")
        problem, m, n = swapped(problem), n, m
    return Row(
        kernel=cells["kernel"],
        problem=problem,
        config=_config(cells),
        asked=(m, n, k),
        regime=regime or cells.get("regime") or "burst",
        l2=l2 or cells.get("l2") or "cold",
        chain=Chain(
            rotation=whole_number(cells, "rotation") if cells.get("rotation") else 0,
            partner=cells.get("partner") or "",
            settled=_flag(cells, "settled"),
            paired=_flag(cells, "paired"),
        ),
    )


def _flag(cells: Mapping[str, Any], name: str) -> bool:
    return str(cells.get(name) or "0") not in ("0", "0.0", "False")


def _config(cells: Mapping[str, Any]) -> Config:
    if cells.get("heuristic_rank") not in (None, ""):
        return LibraryChoice(rank=whole_number(cells, "heuristic_rank"))
    if not cells.get("cta_m"):
        return None
    if not cells.get("cta_n"):
        raise InputError("column cta_n is empty; expected a tile of cta_m x cta_n")
    given: dict[str, Any] = {name: whole_number(cells, name) for name in CONFIG_SIZES if cells.get(name)}
    given |= {name: cells[name] for name in CONFIG_WORDS if cells.get(name)}
    return KernelConfig(
        **given,
        # A provider need not be one of a known family.
        kernel=cells["kernel"] if cells["kernel"] in KERNELS else AUTO_KERNEL,
        fast_accum=_flag(cells, "fast_accum"),
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
