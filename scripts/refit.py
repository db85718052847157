"""Fit a card's numbers and those of its kernel families anew, all together, and train the residuals.

python scripts/refit.py [GPU] [--families A,B] [--free NUMBERS] [--no-residual] [--reports DIR]
python scripts/refit.py [GPU] --classes | --never-timed

Each calibration names the tables that it is fitted to. Sizes are held out in four folds: error bands and the figures in
DIR/<gpu>.md come from fits that had not seen the size in any type, family or regime. Files are replaced when all
fits have ended.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gemm_model.calibration.fit import Group, JointFit, Kind, Parameter, byte_errors, joint_fit, parameters
from gemm_model.calibration.observations import FoldFit, Observations, observe, sizes
from gemm_model.calibration.report import write_numbers, write_silicon
from gemm_model.calibration.residual_fit import corrected_fold_us, train_on
from gemm_model.calibration.run import band, error_bands, rounded
from gemm_model.calibration.tables import load_tables, main_situation, splits_k
from gemm_model.config.mechanisms import KERNEL, NUMBERS, kernel_numbers
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import (
    SPLIT_SITUATION,
    Calibration,
    known_numbers,
    load_calibration,
    measured_bounds,
    silicon_entries,
)
from gemm_model.kernel_model.kernel_time import KernelTime, kernel_time
from gemm_model.kernel_model.residual import Residual, residual_beside, write_residual
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import top1_efficiency

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "data" / "measurements"
FOLDS = 4
MOST_ROWS = 2500
"""Rows of a table of one type and regime that a fit looks at, whole sizes [rows]; larger ones say no more."""
WIDEST_INTERVAL = 1.0 / 3.0
"""Half-width of a 90 % interval over its number [1]: from there on it spans more than a factor of two."""
FIXED = (
    "tensor.efficiency",
    "port.efficiency",
    "overlap.loads_dram_order",
    "overlap.math_loads_order",
    "power.voltage_floor",
    "power.steady_share",
    "whole_waves.quantized",
    "scale_factors.row_bytes",
    "pointer_stores.spilled_registers",
    "fused_epilogue.ring_share",
    "chain.gap_us",
    "chain.cooperative_us",
)
"""Numbers that direct measurements, or the kernels' code, tell exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All rows of one family, rate class, regime and situation, and what fits that had not seen them say."""

    family: str
    kind: str
    regime: str
    situation: str
    rows: Observations
    folds: IntArray
    predicted_us: FloatArray = field(default_factory=lambda: np.array([]))
    corrected_us: FloatArray | None = None
    byte_errors: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.family} {self.kind} {self.regime} {self.situation}".strip()


def tables_of(calibration: Calibration, gpu: GpuSpec) -> list[Table]:
    """The tables of a calibration, by rate class, regime and kind of problem."""
    family = family_of(calibration.family, gpu)
    paths = [MEASUREMENTS / gpu.name / name for name in calibration.fitted_to["tables"]]
    found = []
    for kind, regimes in load_tables(paths, gpu, family, plain_shapes=False).by_kind.items():
        for regime, rows in regimes.items():
            situations = main_situation(rows, family).mask(splits_k(rows), SPLIT_SITUATION)
            for situation, part in rows.groupby(situations):
                seen = observe(part.reset_index(drop=True), gpu, family)
                fields = {"family": family.name, "kind": kind, "regime": regime, "situation": str(situation)}
                found.append(Table(rows=seen, folds=fold_of_sizes(seen), **fields))
    return found


def fold_of_sizes(rows: Observations) -> IntArray:
    """A fold for each row: the same for a size in every table."""
    names, place = np.unique(sizes(rows), return_inverse=True)
    drawn = [int(hashlib.md5(name.encode()).hexdigest()[:8], 16) % FOLDS for name in names]
    return np.array(drawn, dtype=np.int64)[place]


def groups_of(tables: Sequence[Table], gpu: GpuSpec, fold: int | None) -> list[Group]:
    """What a fit sees: all folds but one, at most MOST_ROWS of each table."""
    groups = []
    for table in tables:
        keep = np.ones(len(table.rows), dtype=bool) if fold is None else table.folds != fold
        keep &= thinned(table.rows, keep)
        if keep.any():
            groups.append(Group(table.family, table.kind, table.regime, table.rows.rows(keep, gpu)))
    return groups


def thinned(rows: Observations, keep: np.ndarray) -> np.ndarray:
    """Whole sizes in a fixed order until MOST_ROWS of those to keep."""
    names, place, count = np.unique(sizes(rows)[keep], return_inverse=True, return_counts=True)
    order = np.argsort([hashlib.md5(("order" + name).encode()).hexdigest() for name in names])
    taken = np.zeros(len(names), dtype=bool)
    taken[order[: max(int(np.searchsorted(np.cumsum(count[order]), MOST_ROWS)), 1)]] = True
    found = np.zeros(len(rows), dtype=bool)
    found[np.flatnonzero(keep)] = taken[place]
    return found


def identifiable(free: Collection[Parameter], groups: Sequence[Group], gpu: GpuSpec) -> list[Parameter]:
    """Parameters that some row can tell: of mechanisms that the family has, and of the problems that rows have."""
    found = []
    for each in free:
        mechanism = each.number.partition(".")[0]
        for group in groups:
            absent = mechanism in family_of(group.family, gpu).absent_mechanisms
            # Only kernels timed without events tell what events add.
            launched = each.number != "launch.events_us" or group.regime == "counters"
            if each.serves(group.family, group.kind) and launched and not absent:
                found.append(each)
                break
    return found


def identified(
    fit: JointFit, start: Mapping[Kind, Mapping[str, float]]
) -> tuple[list[Parameter], dict[Kind, dict[str, float]]]:
    """The parameters that rows tell within a factor of two, and where all begin.

    One that they do not tell takes the value that switches it off, where that lies within its interval, else it keeps
    its start.
    """
    free, near = [], {kind: dict(values) for kind, values in fit.numbers.items()}
    for each, value in fit.values.items():
        width, neutral = fit.half_width[each], NUMBERS[each.number].neutral
        if width <= abs(value) * WIDEST_INTERVAL:
            free.append(each)
            continue
        off = neutral is not None and np.isfinite(neutral) and abs(value - neutral) <= 2.0 * width
        for kind in near:
            if each.serves(*kind):
                near[kind][each.number] = neutral if off and np.isfinite(width) else start[kind][each.number]
    return free, near


def all_times(
    fit: JointFit, table: Table, gpu: GpuSpec, keep: np.ndarray, off: frozenset[str] = frozenset()
) -> tuple[Observations, KernelTime]:
    rows = table.rows.rows(keep, gpu)
    absent = family_of(table.family, gpu).absent_mechanisms | off
    numbers = fit.numbers_of(table.family, table.kind).without(absent)
    return rows, kernel_time(rows.shape, gpu, numbers, regime=table.regime)


def judged(table: Table, fits: Sequence[JointFit], gpu: GpuSpec, *, trees: bool) -> Table:
    """The table with what each fold's fit says of rows that it had not seen."""
    predicted, corrected = np.full(len(table.rows), np.nan), np.full(len(table.rows), np.nan)
    errors: dict[str, list[FloatArray]] = {"dram_read_bytes": [], "l2_bytes": []}
    for fold, fit in enumerate(fits):
        test = table.folds == fold
        if not test.any():
            continue
        unseen, times = all_times(fit, table, gpu, test)
        predicted[test] = times.runtime_us
        for name, found in errors.items():
            if table.regime == "counters":
                off = byte_errors(name, unseen, times)
                found.append(off[np.isfinite(off)])
        if trees and not test.all():
            numbers = fit.numbers_of(table.family, table.kind)
            each = FoldFit(table.rows.rows(~test, gpu), unseen, numbers, times)
            corrected[test] = corrected_fold_us(each, gpu)
    bytes_ = {name: np.concatenate(found) for name, found in errors.items() if found}
    return replace(
        table, predicted_us=predicted, corrected_us=corrected if trees else None, byte_errors=bytes_
    )


def line_of(table: Table, predicted_us: FloatArray, what: str) -> str:
    """One row of the report."""
    known = np.isfinite(predicted_us)
    ratio = predicted_us[known] / table.rows.runtime_us[known]
    error = np.abs(ratio - 1.0)
    frame = table.rows.frame[known].assign(
        predicted_us=predicted_us[known], runtime_us=table.rows.runtime_us[known]
    )
    first = top1_efficiency(frame) if np.median(np.bincount(table.rows.shape_id)) > 1 else None
    cells = [table.name, what, f"{len(error)}", f"{error.mean():.2%}", f"{np.quantile(error, 0.95):.1%}"]
    cells += [f"{np.median(ratio) - 1.0:+.1%}", "" if first is None else f"{first.mean():.2%}"]
    for name in ("dram_read_bytes", "l2_bytes"):
        found = table.byte_errors.get(name, np.array([]))
        off = np.abs(np.expm1(found))
        cells.append(f"{off.mean():.1%} ({np.quantile(off, 0.95):.0%})" if len(found) else "")
    return "| " + " | ".join(cells) + " |"


HEADER = """| table | held out by size | rows | MAPE | p95 | median | first choice | DRAM bytes (p95) | L2 bytes (p95) |
|---|---|---:|---:|---:|---:|---:|---:|---:|"""


def bands_of(tables: Sequence[Table], gpu: GpuSpec, fit: JointFit, *, corrected: bool) -> dict[str, float]:
    """By situation the held-out error of 90 % of the rows of one family and rate class."""
    bands: dict[str, float] = {}
    fewest = room_numbers("calibration").fewest_band_rows
    for table in tables:
        values = table.corrected_us if corrected and table.corrected_us is not None else table.predicted_us
        if table.regime not in ("burst", "counters") or len(values) < fewest:
            continue
        if table.situation:
            name = table.situation
            bands.setdefault(name, band(values, table.rows.runtime_us))
        elif "tiny" not in bands:
            numbers = kernel_numbers(fit.numbers[table.family, table.kind])
            bands |= error_bands(table.rows, values, gpu, numbers)
    widest = max(bands.values())
    return {**bands, SPLIT_SITUATION: bands.get(SPLIT_SITUATION, widest)}


def number_line(each: Parameter, fit: JointFit, fits: Sequence[JointFit]) -> str:
    """One fitted number: its value, 90 % interval, how the folds differ, and its strongest correlation."""
    other, share = fit.correlated[each]
    folds = [found.values[each] for found in fits if each in found.values]
    owner = " ".join(filter(None, (each.family or "card", each.kind)))
    cells = [each.number, owner, f"{fit.values[each]:.4g}", f"{fit.half_width[each]:.2g}"]
    cells += [f"{min(folds):.4g} to {max(folds):.4g}" if folds else ""]
    cells.append(f"{other.number} {other.family or ''} ({share:+.2f})")
    return "| " + " | ".join(cells) + " |"


def words() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gpu", nargs="?", default="h200")
    parser.add_argument("--families", default="", help="fit these alone, while the card's numbers stay")
    parser.add_argument(
        "--free", default="", help="fit these numbers alone; those of the card may be among them"
    )
    parser.add_argument(
        "--classes", action="store_true", help="print what each rate class tells of others; writes nothing"
    )
    parser.add_argument(
        "--never-timed", action="store_true", help="print what the others tell of each family; writes nothing"
    )
    parser.add_argument("--no-residual", action="store_true")
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "refit")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def main() -> int:
    args = words()
    gpu = load_gpu(args.gpu)
    folder = ROOT / "src" / "gemm_model" / "config" / "calibration" / gpu.name
    every = [path.stem for path in sorted(folder.glob("*.yaml")) if path.stem not in ("silicon", "cudnn")]
    named = args.families.split(",") if args.families else every
    known = {name: load_calibration(f"{gpu.name}:{name}") for name in named}
    tables = [table for calibration in known.values() for table in tables_of(calibration, gpu)]
    entries = silicon_entries(gpu.name, gpu.name)
    bounds = measured_bounds(gpu.name)
    start: dict[Kind, Mapping[str, float]] = {
        (name, kind): found.values() for name, each in known.items() for kind, found in each.numbers.items()
    }
    if args.classes or args.never_timed:
        judge = classes if args.classes else never_timed
        print(HEADER, *judge(tables, gpu, start, names_to_fit(args), bounds), sep="\n")
        return 0
    free, fit, fits = fitted(tables, gpu, start, names_to_fit(args), bounds)
    with ProcessPoolExecutor(args.processes) as processes:
        jobs = [
            processes.submit(judged, table, fits, gpu, trees=trains(table, args.no_residual))
            for table in tables
        ]
        tables = [job.result() for job in jobs]
    lines = report_lines(tables, free, fit, fits)
    args.reports.mkdir(parents=True, exist_ok=True)
    report = args.reports / f"{gpu.name}{'-' + args.families if args.families else ''}.md"
    report.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    widths = {each: fit.half_width[each] for each in free}
    if not args.families:
        write_silicon(gpu.name, fit.numbers, widths, entries, folder / "silicon.yaml")
    for calibration in known.values():
        write_family(calibration, fit, widths, tables, gpu, args.no_residual)
    return 0


def report_lines(
    tables: Sequence[Table], free: Sequence[Parameter], fit: JointFit, fits: Sequence[JointFit]
) -> list[str]:
    """The report: a row for each table's held-out errors, then one for each fitted number."""
    lines = [HEADER]
    for table in tables:
        lines.append(line_of(table, table.predicted_us, "formulas"))
        if table.corrected_us is not None:
            lines.append(line_of(table, table.corrected_us, "residual"))
    lines += ["", "| number | of | value | 90 % | folds | correlated with |", "|---|---|---:|---:|---|---|"]
    lines += [number_line(each, fit, fits) for each in free]
    return lines


def classes(
    tables: Sequence[Table],
    gpu: GpuSpec,
    start: Mapping[Kind, Mapping[str, float]],
    names: Collection[str],
    bounds: Mapping[str, tuple[float, float]],
) -> Iterator[str]:
    """A row for each plain table of a rate class, by numbers fitted to the other classes' rows alone.

    Fits begin at each number's first value, which tables of the class had no part in.
    """
    first = {
        kind: {**values, **{name: NUMBERS[name].start for name in names}} for kind, values in start.items()
    }
    plain = [table for table in tables if table.situation in ("", SPLIT_SITUATION)]
    for seen in dict.fromkeys(table.kind for table in plain):
        groups = groups_of([table for table in plain if table.kind == seen], gpu, None)
        free = identifiable(parameters([kind for kind in start if kind[1] == seen], names), groups, gpu)
        fit = joint_fit(groups, gpu, first, free, bounds=bounds, evaluations=10)
        for table in plain:
            if table.kind == seen or table.regime != "burst" or table.situation:
                continue
            every = np.ones(len(table.rows), dtype=bool)
            rows, times = all_times(fit, replace(table, kind=seen), gpu, every)
            within = f"90 % within {band(times.runtime_us, rows.runtime_us):.1%}"
            yield line_of(table, times.runtime_us, f"by {seen}, {within}")


def never_timed(
    tables: Sequence[Table],
    gpu: GpuSpec,
    start: Mapping[Kind, Mapping[str, float]],
    names: Collection[str],
    bounds: Mapping[str, tuple[float, float]],
) -> Iterator[str]:
    """A row for each plain table of a family: the card's numbers come from the other families' rows, its own from
    another family and from what compiled code tells. Fits begin at each number's first value,
    which the numbers of spills keep: only QuACK's kernels tell them.
    """
    plain = [table for table in tables if not table.situation]
    first = {name: NUMBERS[name].start for name in names}
    for family in dict.fromkeys(table.family for table in plain):
        others = {kind: {**values, **first} for kind, values in start.items() if kind[0] != family}
        groups = groups_of([table for table in plain if table.family != family], gpu, None)
        free = identifiable(parameters(list(others), names), groups, gpu)
        free = [each for each in free if not each.number.startswith("spilling.")]
        fit = joint_fit(groups, gpu, others, free, bounds=bounds, evaluations=10)
        donor = "cublas" if family == "quack" else "quack"
        for table in plain:
            if table.family == family and table.regime == "burst":
                numbers = kernel_numbers(fit.numbers[donor, table.kind])
                known = known_numbers(family_of(family, gpu), numbers, table.kind)
                borrowed = replace(fit, numbers={(family, table.kind): numbers.having(known).values()})
                _, times = all_times(borrowed, table, gpu, np.ones(len(table.rows), dtype=bool))
                yield line_of(table, times.runtime_us, f"never timed, by {donor}")


def names_to_fit(args: argparse.Namespace) -> list[str]:
    """The numbers that the words ask for: the card's too unless families are named."""
    if args.free:
        return args.free.split(",")
    names = [name for name in NUMBERS if name not in FIXED]
    return [name for name in names if NUMBERS[name].of == KERNEL] if args.families else names


def fitted(
    tables: Sequence[Table],
    gpu: GpuSpec,
    start: Mapping[Kind, Mapping[str, float]],
    names: Collection[str],
    bounds: Mapping[str, tuple[float, float]],
) -> tuple[list[Parameter], JointFit, list[JointFit]]:
    """The parameters that rows tell, the fit to all rows, and those of the folds."""
    whole = groups_of(tables, gpu, None)
    free = identifiable(parameters(list(start), names), whole, gpu)
    fit = joint_fit(whole, gpu, start, free, bounds=bounds, evaluations=12)
    free, near = identified(fit, start)
    fit = joint_fit(whole, gpu, near, free, bounds=bounds, evaluations=5)
    fit = replace(fit, numbers={kind: rounded(values) for kind, values in fit.numbers.items()})
    near = {kind: fit.numbers[kind] for kind in start}
    print(f"{len(free)} numbers fitted to {sum(len(group.rows) for group in whole)} rows", flush=True)
    fits = [
        joint_fit(groups_of(tables, gpu, fold), gpu, near, free, bounds=bounds, evaluations=4)
        for fold in range(FOLDS)
    ]
    return free, fit, fits


def trains(table: Table, no_residual: bool) -> bool:
    """Whether trees are trained on a table: plain products launched alone."""
    return not no_residual and table.regime == "burst" and table.situation in ("", SPLIT_SITUATION)


def write_family(
    calibration: Calibration,
    fit: JointFit,
    widths: Mapping[Parameter, float],
    tables: Sequence[Table],
    gpu: GpuSpec,
    no_residual: bool,
) -> None:
    """A family's file, and the residual beside it."""
    name = calibration.family
    own = [table for table in tables if table.family == name]
    kinds = list(calibration.numbers)
    table_names = calibration.fitted_to["tables"]
    fitted = {each.number for each in widths if each.family == name}
    found = replace(
        calibration,
        numbers={kind: fit.numbers_of(name, kind) for kind in kinds},
        intervals={
            kind: dict(calibration.intervals.get(kind, {}))
            | rounded({each.number: width for each, width in widths.items() if each.serves(name, kind)})
            for kind in kinds
        },
        sources={**calibration.sources, **dict.fromkeys(fitted, "joint fit")},
        error_band={
            kind: bands_of([each for each in own if each.kind == kind], gpu, fit, corrected=False)
            for kind in kinds
        },
        fitted_to={
            "tables": table_names,
            "rows": {
                kind: {
                    f"{each.regime} {each.situation}".strip(): len(each.rows)
                    for each in own
                    if each.kind == kind
                }
                for kind in kinds
            },
        },
    )
    write_numbers(found, calibration.path)
    if not no_residual:
        write_trees(load_calibration(calibration.path), fit, own, gpu)


def write_trees(found: Calibration, fit: JointFit, own: Sequence[Table], gpu: GpuSpec) -> None:
    """The residual beside a family's file, trained on the times that its numbers give."""
    forests, bands, splits = {}, {}, []
    for kind, numbers in found.numbers.items():
        plain = [each for each in own if each.kind == kind and each.situation in ("", SPLIT_SITUATION)]
        parts = [each for each in plain if each.corrected_us is not None]
        if not any(each.situation == "" for each in parts):
            continue
        forests[kind] = train_on([each.rows for each in parts], gpu, numbers)
        bands[kind] = bands_of(plain, gpu, fit, corrected=True)
        splits += [kind] if any(each.situation == SPLIT_SITUATION for each in parts) else []
    residual = Residual(
        gpu=gpu.name,
        fingerprint=found.fingerprint(),
        forests=forests,
        error_band=bands,
        splits=tuple(splits),
    )
    write_residual(residual, residual_beside(found.path))


if __name__ == "__main__":
    sys.exit(main())
