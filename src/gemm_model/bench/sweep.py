"""The rows of a benchmark, and their order."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.problem_kinds import extras
from gemm_model.bench.provider import Config, KernelError, Provider
from gemm_model.bench.rows import Chain, Row, padded, row_from_columns
from gemm_model.config.numbers import room_numbers
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError

SHUFFLE_SEED = 17
PDL_KERNELS = ("quack",)
"""Libraries that use programmatic dependent launch by default."""

SWAPPED = "swapped"
"""The partner with n and k exchanged: the second half of a feed-forward layer."""


K_TILE_BITS = 1024
"""Width of a k tile of kernels that choose it themselves [bits]: a line of 128 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFilter:
    """Which of a provider's configurations to run; an empty selection takes all."""

    listed: Sequence[Config] | None = None
    """Configurations that replace the provider's own, unless its library chooses itself."""
    tiles: tuple[tuple[int, int], ...] = ()
    clusters: tuple[tuple[int, int], ...] = ()
    schedules: tuple[str, ...] = ()
    swizzles: tuple[int, ...] = ()
    split_k: tuple[int, ...] = (1,)

    def apply(self, configs: Sequence[Config]) -> Sequence[Config]:
        if self.listed is not None and isinstance(configs[0], KernelConfig):
            return self.listed
        kept: list[Config] = []
        for config in configs:
            if not isinstance(config, KernelConfig):
                kept.append(config)
            elif self._takes(config):
                kept.extend(replace(config, split_k=split) for split in self.split_k)
        return kept

    def _takes(self, config: KernelConfig) -> bool:
        return (
            (not self.tiles or (config.cta_m, config.cta_n) in self.tiles)
            and (not self.clusters or (config.cluster_m, config.cluster_n) in self.clusters)
            and (not self.schedules or config.schedule in self.schedules)
            and (not self.swizzles or config.swizzle in self.swizzles)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """Launch context of the graph regime; options that are not given keep the row's values."""

    pdl: tuple[bool, ...] = ()
    rotation: int | None = None
    partner: str | None = None
    settled: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        if self.partner not in (None, SWAPPED):
            Chain(partner=self.partner)


def chained(rows: Sequence[Row], options: ChainOptions) -> list[Row]:
    """The rows in their chains, once for each choice of PDL; each row once."""
    found: dict[str, Row] = {}
    for row in rows:
        problem = row.problem
        partner = row.chain.partner if options.partner is None else options.partner
        if partner == SWAPPED:
            partner = f"{problem.m}x{problem.k}x{problem.n}"
        rotation = row.chain.rotation if options.rotation is None else options.rotation
        paired = isinstance(row.config, KernelConfig) and (options.paired or row.chain.paired)
        settled = options.settled or row.chain.settled
        chain = Chain(rotation=rotation, partner=partner, settled=settled, paired=paired)
        configs: list[Config] = [row.config]
        if isinstance(row.config, KernelConfig):
            own = row.kernel in PDL_KERNELS if row.config.pdl is None else row.config.pdl
            configs = [replace(row.config, pdl=pdl) for pdl in options.pdl or (own or paired,)]
        for config in configs:
            variant = replace(row, config=config, chain=chain)
            found.setdefault(row_key(variant), variant)
    return list(found.values())


def rows_of_problems(
    problems: Sequence[GemmProblem],
    provider: Provider,
    compute_capability: tuple[int, int],
    config_filter: ConfigFilter,
    *,
    regime: str,
    l2: str,
) -> list[Row]:
    """Every problem that the provider can run, with each of its configurations that the filter takes."""
    rows: list[Row] = []
    for problem in problems:
        fitting = padded(problem)
        if provider.unsupported(fitting, compute_capability):
            continue
        configs = config_filter.apply(provider.configs(fitting, compute_capability))
        asked = (problem.m, problem.n, problem.k)
        rows.extend(
            Row(kernel=provider.name, problem=fitting, config=config, asked=asked, regime=regime, l2=l2)
            for config in configs
            if _every_split_has_a_k_tile(config, fitting)
        )
    return rows


def _every_split_has_a_k_tile(config: Config, problem: GemmProblem) -> bool:
    """Whether there are as many k tiles as splits; libraries run such kernels, but no prediction takes them."""
    if not isinstance(config, KernelConfig):
        return True
    k_tile = config.cta_k or K_TILE_BITS // problem.a_dtype.bits
    return config.split_k <= -(-problem.k // k_tile)


def rows_of_table(path: Path, *, regime: str, l2: str) -> list[Row]:
    """The rows of an earlier table, to be measured again."""
    needed = ("kernel", "in_dtype", "m", "n", "k")
    rows: dict[str, Row] = {}
    for row in _rows_read(path, needed, "the columns of a benchmark table", {}, regime=regime, l2=l2):
        rows.setdefault(row_key(row), row)
    return list(rows.values())


def configs_of_table(path: Path, kernel: str) -> list[Config]:
    """The configurations listed in a CSV: cta_m, cta_n and, where given, cluster, schedule, swizzle, ..."""
    sizes = {"kernel": kernel, "m": 1, "n": 1, "k": 1, "in_dtype": "bf16", "out_dtype": "bf16"}
    return [row.config for row in _rows_read(path, ("cta_m", "cta_n"), "cta_m and cta_n", sizes)]


def _rows_read(
    path: Path, needed: Sequence[str], expected: str, missing: Mapping[str, object], **situation: str
) -> Iterator[Row]:
    """The rows of a table that has the `needed` columns; `missing` holds cells that it may leave out."""
    from gemm_model.tables.schema import understood
    from gemm_model.tables.table import read_table

    frame = understood(read_table(path))
    for name in needed:
        if name not in frame:
            raise InputError(f"{path}: column {name!r} is missing; expected {expected}")
    for line, cells in zip(frame.index, frame.to_dict("records"), strict=True):
        try:
            yield row_from_columns(
                {**missing, **{str(name): cell for name, cell in cells.items()}}, **situation
            )
        except (InputError, ValueError) as error:
            raise InputError(f"{path}: line {line}: {error}") from None


def row_key(row: Row) -> str:
    """A text that is equal for equal rows."""
    return json.dumps(row.columns(), sort_keys=True)


def kernel_key(row: Row, providers: Mapping[str, Provider]) -> Hashable:
    """Equal for rows that share one compiled kernel; of a row whose library has none, its own."""
    try:
        provider = providers[row.kernel]
        return row.kernel, *(provider.kernel_key(row.problem, config) for config in row.configs)
    except KernelError:
        return row.kernel, row_key(row)


def digest(rows: Sequence[Row]) -> str:
    """Identifies a sweep: its rows in their order."""
    summary = hashlib.sha256()
    for row in rows:
        summary.update(row_key(row).encode())
    return summary.hexdigest()[:16]


def arranged(
    rows: Sequence[Row],
    *,
    seed: int,
    sample: int | None = None,
    sample_shapes: int | None = None,
    shard: tuple[int, int] = (0, 1),
    in_order: bool = False,
) -> list[Row]:
    """Rows in an order that mixes shapes and configurations, so that a drifting clock favours none of them.

    Rows `in_order` keep their order, so that drift cancels in differences of neighbours. `sample` keeps that
    many rows, `sample_shapes` all rows of that many shapes. Shard (i, n) is the i-th of n parts of about
    equal length; a shape stays on one card, where all its configurations are compared.
    """
    draw = random.Random(seed)
    order = list(rows)
    draw.shuffle(order)
    order = order[:sample]
    if sample_shapes is not None:
        names = sorted({shape_key(row) for row in order})
        chosen = set(draw.sample(names, min(sample_shapes, len(names))))
        order = [row for row in order if shape_key(row) in chosen]
    if in_order:
        place = {id(row): index for index, row in enumerate(rows)}
        order.sort(key=lambda row: place[id(row)])
    index, count = shard
    owner = _shard_of_shapes(order, count)
    return [row for row in order if owner[shape_key(row)] == index]


def shape_key(row: Row) -> tuple[str | int, ...]:
    """Types, sizes, batch, groups and convolution: equal keys mean matrices of the same sizes."""
    problem = row.problem
    types = (problem.a_dtype.name, problem.b_dtype.name, problem.out_dtype.name)
    around = extras(problem)
    parts = (around.get(name, "") for name in ("batch", "groups", "conv"))
    return (*types, problem.m, problem.n, problem.k, *parts)


def problem_key(row: Row) -> tuple[str | int, ...]:
    """Rows with equal keys have the same result."""
    return (*shape_key(row), *extras(row.problem).values())


def _shard_of_shapes(rows: Sequence[Row], count: int) -> dict[tuple[str | int, ...], int]:
    """Longest shapes first, each to the shard that has least to do so far."""
    cost_ms: dict[tuple[str | int, ...], float] = {}
    settings = TimingSettings()
    for row in rows:
        key = shape_key(row)
        cost_ms[key] = cost_ms.get(key, 0.0) + estimated_row_ms(row, settings)
    loads = [0.0] * count
    owner = {}
    for key in sorted(cost_ms, key=lambda key: (-cost_ms[key], key)):
        owner[key] = loads.index(min(loads))
        loads[owner[key]] += cost_ms[key]
    return owner


def estimated_kernel_us(problem: GemmProblem) -> float:
    """A rough time of a good kernel on a large GPU, for the estimate of a dry run only."""
    moved = problem.a_bytes + problem.b_bytes + problem.output_bytes
    rough = room_numbers("bench")
    rate = rough.assumed_flop_per_us * (2.0 if problem.a_dtype.bits <= 8 else 1.0)
    return rough.assumed_launch_us + max(problem.flop / rate, moved / rough.assumed_bytes_per_us)


def estimated_row_ms(row: Row, settings: TimingSettings) -> float:
    """Time that one row takes, from the protocol's own rules."""
    overhead_ms = room_numbers("bench").row_overhead_ms
    if row.regime == "counters":
        return room_numbers("bench").counters_row_ms
    if row.regime == "sustained":
        return overhead_ms + settings.settle_ms + settings.sustained_ms
    kernel_ms = estimated_kernel_us(row.problem) / 1e3
    if row.chain.paired:
        return overhead_ms + settings.pair_budget_ms
    if row.regime == "graph":
        return overhead_ms + (2.0 if row.chain.partner else 1.0) * _estimated_graph_ms(
            kernel_ms, settings, settled=row.chain.settled
        )
    launch_ms = max(settings.spin_ms, settings.spin_factor * kernel_ms) + kernel_ms
    count = min(settings.repeats, max(settings.min_repeats, int(settings.row_budget_ms / launch_ms)))
    return overhead_ms + (count + 1) * launch_ms


def _estimated_graph_ms(kernel_ms: float, settings: TimingSettings, *, settled: bool) -> float:
    """Time to capture and replay a graph of about `graph_ms`."""
    numbers = room_numbers("bench")
    launches = min(numbers.most_copies, max(4.0, settings.graph_ms / kernel_ms))
    capture_ms = numbers.capture_launch_ms * launches
    if settled:
        return capture_ms + settings.settle_ms + settings.graph_settled_ms
    return (
        capture_ms + (1 + settings.graph_repeats) * (1.0 + settings.graph_rest_factor) * launches * kernel_ms
    )
