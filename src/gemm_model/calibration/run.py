"""A calibration from start to end: fit, cross-validation, error bands, power, residual."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.calibration import residual_fit as trees
from gemm_model.calibration import tables as measurements
from gemm_model.calibration.fit import (
    CHAIN_FREE,
    DEFAULT_FREE,
    KIND_NUMBERS,
    SPLIT_NUMBERS,
    WHOLE_NUMBERS,
    Donor,
    Fit,
    fitted,
    free_from,
)
from gemm_model.calibration.observations import (
    MEASURED,
    Observations,
    beside_twins,
    config_groups,
    folds_of,
    observe,
    size_groups,
)
from gemm_model.config import mechanisms
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.processes import RunAll
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import (
    PLAIN_SITUATIONS,
    SPLIT_SITUATION,
    Calibration,
    calibration_for,
    measured_bounds,
)
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.residual import Residual, TakenOver
from gemm_model.kernel_model.situation import situation
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.registry import family_of
from gemm_model.tables import accuracy
from gemm_model.tables.table import read_table, require_columns, sizes

SINGLE_LAUNCH_REGIMES = ("burst", "counters")
"""Regimes that the kernel's own numbers are fitted to; the first that a table has is held out and judged."""
DONOR_KEPT = "the donor's numbers, kept"
"""What the figures of a class are called whose rows are no nearer by a fit."""
CHAINED_REGIMES = ("graph", "sustained")
"""Regimes that tell what launches back to back add, fitted while the kernel's own numbers stay."""

Size = tuple[int, int, int]
"""m, n and k."""
Progress = Callable[[str, int, int], None]
"""Called with a step, the number of parts done, and the approximate total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a calibration fits and what it judges itself by."""

    family: str = "auto"
    donor: Calibration | None = None
    """The calibration whose numbers are the prior, and stay where the rows do not determine them; None takes
    weak priors at the start values."""
    free: Collection[str] | None = None
    """Numbers to fit; None for those that a calibration fits by default."""
    frozen: Collection[str] = ()
    """Numbers that keep their values all the same."""
    hold_out_lists: Sequence[Path] = ()
    """Test lists whose shapes are held out together, as a family of shapes."""
    seed: int = 0
    with_residual: bool = True
    donor_residual: Residual | None = None
    """The donor's residual, to be borrowed as far as the rows support it, instead of training one."""
    keeps_donor: bool = False
    """Whether a donor of the same kernels stays unless held-out rows are surely nearer by the fit."""
    shapes_only: bool = False
    """Whether only shapes are held out, for the error bands, not configurations, lists and cards too."""

    @property
    def trains_residual(self) -> bool:
        return self.with_residual and self.donor_residual is None


@dataclass(frozen=True, slots=True)
class Validation:
    """Figures of one way of holding out, for one type and one table."""

    what: str
    table: str
    in_dtype: str
    errors: accuracy.ErrorFigures
    top1: accuracy.ChoiceFigures | None
    top4: accuracy.ChoiceFigures | None


@dataclass(frozen=True, slots=True)
class ChainedErrors:
    """Errors on held-out shapes of a regime of launches back to back."""

    runtime: accuracy.ErrorFigures
    short: accuracy.ErrorFigures | None
    """Of kernels below `short_us`, if any."""
    clock: float | None
    """Mean |predicted / settled clock - 1|, the clock as the driver reports it; None where it does not."""


@dataclass(frozen=True, slots=True)
class KindResult:
    """Result of one rate class."""

    fit: Fit
    later: tuple[Fit, ...]
    """Fits to split-K rows, to each of KIND_STAGES and to launches back to back, if there are such rows;
    each keeps earlier numbers."""
    rows: Observations
    """Rows of the judged regime."""
    predicted_us: FloatArray
    """Times of these rows, each from a fit that had not seen its shape."""
    corrected_us: FloatArray | None
    """The same with a residual that had not seen the shape either; None without a residual."""
    taken: trees.TakenForest | None
    """The share of the donor's residual that the rows support; None if none was to be borrowed."""
    error_band: dict[str, float]
    """Error band by situation, from `predicted_us` and from held-out rows of the later fits."""
    split: Observations | None
    """Split-K rows that the residual is trained on too; None if they are too few to judge it."""
    corrected_split_band: float
    """Error band of `split` with a residual that had not seen the shape; NaN without such rows."""
    validations: list[Validation]
    chained: dict[str, ChainedErrors]

    @property
    def fits(self) -> tuple[Fit, ...]:
        return (self.fit, *self.later)

    @property
    def numbers(self) -> mechanisms.KernelNumbers:
        return self.fits[-1].numbers

    @property
    def residual_helps(self) -> bool:
        """Whether a residual was asked for and surely lowers the mean error of shapes that it had not seen."""
        if self.corrected_us is None:
            return False
        known = np.isfinite(self.corrected_us)
        return surely_nearer(self.corrected_us[known], self.predicted_us[known], self.rows.runtime_us[known])


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The calibration, the result of each rate class, and the rows it is based on."""

    calibration: Calibration
    kinds: dict[str, KindResult]
    residual: Residual | None
    data: measurements.CalibrationData


def calibrate(
    inputs: Sequence[Path],
    gpu: GpuSpec,
    choices: Choices,
    progress: Progress = lambda _step, _done, _total: None,
    run_all: RunAll = map,
) -> CalibrationResult:
    """Fit each rate class of types in the tables, and judge the fit on held-out rows.

    Calls `progress` with the step, the fits done, and their approximate total. `run_all` runs the folds of a
    hold-out, such as the `map` of an executor. Raises InputError for tables that cannot be calibrated on, and
    MissingExtraError for a residual without CatBoost.
    """
    listed = {size for path in choices.hold_out_lists for size in _asked_sizes(read_table(path))}
    family = measurements.measured_family(choices.family, inputs, gpu)
    data = measurements.load_tables(inputs, gpu, family)
    if choices.trains_residual:
        trees.catboost()
    base = choices.donor or calibration_for(gpu, family.name)[0]
    steps = _Steps(progress)
    run = _Run(gpu, family, base, choices, steps, run_all, listed)
    fitted = {kind: _Kind(kind, regimes, run) for kind, regimes in data.by_kind.items()}
    steps.total = sum(each.fits for each in fitted.values())
    kinds = dict(zip(fitted, _at_once(_Kind.result, fitted.values(), run_all, steps), strict=True))
    calibration = _calibration([path.name for path in inputs], data, kinds, run)
    steps.begin("residual")
    residual = _trained(calibration, kinds, gpu, run_all) if choices.trains_residual else None
    if choices.donor_residual is not None:
        residual = _taken_over(calibration, kinds, gpu, base.name)
    return CalibrationResult(calibration, kinds, residual, data)


def _calibration(
    tables: list[str], data: measurements.CalibrationData, kinds: Mapping[str, KindResult], run: _Run
) -> Calibration:
    """The calibration of these rate classes, without its residual."""
    rows = {kind: {name: len(rows) for name, rows in found.items()} for kind, found in data.by_kind.items()}
    return Calibration(
        gpu=run.gpu.name,
        family=run.family.name,
        architecture=run.gpu.kernel_architecture,
        numbers={kind: _rounded(found.numbers) for kind, found in kinds.items()},
        intervals={kind: _intervals(found.fits) for kind, found in kinds.items()},
        sources=_sources(kinds, run.base, ", ".join(tables)),
        error_band={kind: found.error_band for kind, found in kinds.items()},
        fitted_to={
            "tables": tables,
            "rows": rows,
            "donor": run.base.name,
            **_shares_of(kinds),
            "seed": run.choices.seed,
        },
        within_phases=run.base.within_phases,
    )


def _at_once(
    result: Callable[[_Kind], KindResult], kinds: Iterable[_Kind], run_all: RunAll, steps: _Steps
) -> Iterable[KindResult]:
    """The result of each rate class; with several processes, classes are fitted at once.

    An interruption or an error ends all classes with their next fit.
    """
    if run_all is map:
        return map(result, kinds)
    # The threads only wait; processes do the fits.
    threads = ThreadPoolExecutor()
    try:
        return list(threads.map(result, kinds))
    except BaseException:
        steps.ended = True
        raise
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Steps:
    """Counts fits towards an approximate total, from several threads; ends them with CancelledError."""

    tell: Progress
    total: int = 0
    done: int = 0
    step: str = ""
    ended: bool = False
    lock: Lock = field(default_factory=Lock)

    def begin(self, step: str) -> None:
        with self.lock:
            self._go_on()
            self.step = step
            self.tell(step, self.done, self.total)

    def fitted(self) -> None:
        with self.lock:
            self._go_on()
            self.done += 1
            self.tell(self.step, self.done, max(self.done, self.total))

    def _go_on(self) -> None:
        if self.ended:
            raise CancelledError


def extend(
    inputs: Sequence[Path],
    gpu: GpuSpec,
    base: Calibration,
    *,
    seed: int = 0,
    progress: Progress = lambda _step, _done, _total: None,
    run_all: RunAll = map,
) -> tuple[Calibration, dict[str, list[Validation]]]:
    """A calibration whose numbers for the kinds of problem are fitted to such rows.

    Numbers of plain GEMMs stay, so that its residual stays valid. Plain rows show the time that epilogues add
    to the same kernels. Also returns held-out figures by rate class. Raises InputError for tables with plain
    GEMMs only.
    """
    family = family_of(base.family, gpu)
    data = measurements.load_tables(inputs, gpu, family, plain_shapes=False)
    steps = _Steps(progress)
    run = _Run(gpu, family, base, Choices(seed=seed), steps, run_all)
    kinds = {kind: _Kind(kind, data.by_kind[kind], run) for kind in data.by_kind if kind in base.numbers}
    steps.total = sum(each.kind_fits for each in kinds.values())
    fits = {kind: found for kind, each in kinds.items() if (found := each.kind_stages())}
    if not fits:
        raise InputError(f"no row of {base.name} goes beyond plain products; expected some of that family")
    extended = _extended([path.name for path in inputs], kinds, fits, run)
    return extended, {kind: kinds[kind].validations for kind in fits}


def _extended(
    tables: list[str], kinds: Mapping[str, _Kind], fits: Mapping[str, Sequence[Fit]], run: _Run
) -> Calibration:
    """The base with the numbers, intervals and bands of `fits` to kinds of problem."""
    base = run.base
    kept = {name for name in mechanisms.NUMBERS if name.partition(".")[0] not in mechanisms.KIND_MECHANISMS}
    intervals, bands = dict(base.intervals), dict(base.error_band)
    for kind, found in fits.items():
        known = {name: width for name, width in base.intervals.get(kind, {}).items() if name in kept}
        intervals[kind] = {**known, **_intervals(found)}
        bands[kind] = {**bands.get(kind, {}), **kinds[kind].bands}
    fitted = {name for widths in intervals.values() for name in widths} - kept
    rows = {
        kind: {name: sum(map(len, rows.values())) for name, rows in kinds[kind].kind_rows.items() if rows}
        for kind in fits
    }
    extended_to = {"tables": tables, "rows": rows, "seed": run.choices.seed}
    return replace(
        base,
        numbers={**base.numbers, **{kind: _rounded(found[-1].numbers) for kind, found in fits.items()}},
        intervals=intervals,
        error_band=bands,
        sources={**base.sources, **dict.fromkeys(fitted, f"fitted to {', '.join(tables)}")},
        fitted_to={**base.fitted_to, "extended_to": extended_to},
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """What all rate classes of a calibration share."""

    gpu: GpuSpec
    family: KernelFamily
    base: Calibration
    choices: Choices
    steps: _Steps
    run_all: RunAll
    listed: Collection[Size] = ()


class _Kind:
    """The calibration of one rate class."""

    def __init__(self, kind: str, regimes: Mapping[str, pd.DataFrame], run: _Run) -> None:
        self.run_all, self.listed, self.steps = run.run_all, run.listed, run.steps
        self.kind, self.gpu, self.family, self.choices = kind, run.gpu, run.family, run.choices
        base, gpu, family, choices = run.base, run.gpu, run.family, run.choices
        served = base.kind_for(kind)
        self.start = base.numbers_on(gpu, kind, family).values()
        self.bands = {
            name: band
            for name, band in base.error_band.get(served, {}).items()
            if name not in PLAIN_SITUATIONS
        }
        self.donor = None
        if choices.donor is not None:
            same = choices.donor.family == family.name
            allowed = measured_bounds(choices.donor.silicon) if same and choices.donor.silicon else {}
            self.donor = Donor(values=self.start, same_kernels=same, bounds=allowed)
        single = {name: regimes[name] for name in SINGLE_LAUNCH_REGIMES if name in regimes}
        kinds = {name: measurements.main_situation(rows, family) for name, rows in single.items()}

        def rows_of(kind: str, *, split: bool) -> dict[str, Observations]:
            parts = {
                name: rows[(measurements.splits_k(rows) == split) & (kinds[name] == kind)]
                for name, rows in single.items()
            }
            return _observed(parts, gpu, family)

        self.seen, self.split = rows_of("", split=False), rows_of("", split=True)
        self.kind_rows = {kind: rows_of(kind, split=False) for kind in mechanisms.KIND_STAGES}
        self.main = next(iter(self.seen), SINGLE_LAUNCH_REGIMES[0])
        self.chained = _observed(
            {name: regimes[name] for name in CHAINED_REGIMES if name in regimes}, gpu, family
        )
        self.validations: list[Validation] = []
        self.corrected_split_band = np.nan

    @property
    def fits(self) -> int:
        """Approximate number of fits: one for each stage, and one for each of its folds."""
        stages = sum(map(bool, (self.seen, self.split)))
        folds = int(room_numbers("calibration").folds)
        other_folds = 0 if self.choices.shapes_only else folds
        chained = 1 + folds * len(self.chained) if self.chained else 0
        return (1 + folds) * stages + other_folds + chained + self.kind_fits

    @property
    def kind_fits(self) -> int:
        """Approximate number of fits for the kinds of problem."""
        return (1 + int(room_numbers("calibration").folds)) * sum(map(bool, self.kind_rows.values()))

    @property
    def rows(self) -> Observations:
        """Plain GEMMs with whole K, in the first regime that has some."""
        return self.seen[self.main]

    @property
    def _judged_splits(self) -> Observations | None:
        """Split-K rows, once the residual has been judged on them."""
        return None if np.isnan(self.corrected_split_band) else self.split[self.main]

    @property
    def free(self) -> Collection[str]:
        donor = self.choices.donor
        default = DEFAULT_FREE if donor is None else free_from(donor.family, self.family.name)
        if self.family.plain_products:
            return self._asked(WHOLE_NUMBERS, default)
        # In a family for convolutions, strided data gradients are groups.
        of_groups = fitted(KIND_NUMBERS[mechanisms.GROUPED])
        return self._asked((*WHOLE_NUMBERS, *of_groups), (*default, *of_groups))

    def _asked(self, stage: Collection[str], default: Collection[str]) -> Collection[str]:
        """The numbers of a stage that are to be fitted and that the family's kernels have."""
        asked = self.choices.free
        wanted = default if asked is None else [name for name in asked if name in stage]
        kept = {
            name for name in mechanisms.NUMBERS if name.partition(".")[0] in self.family.absent_mechanisms
        }
        return [name for name in wanted if name not in kept.union(self.choices.frozen)]

    def result(self) -> KindResult:
        self.steps.begin(f"{self.kind}: fit to {len(self.rows)} rows")
        found = self._fit(self.seen, self.free)
        self.start = found.numbers.values()
        splits = self._stage("kernels that split K", self.split, SPLIT_SITUATION, SPLIT_NUMBERS)
        folds = folds_of(size_groups(self.rows), self.choices.seed)
        predicted_us, corrected_us = self._held_out("shape", folds)
        taken = self._taken_over(found.numbers, predicted_us, folds)
        if kept := self._donor_kept(predicted_us if taken is None else taken.corrected_us):
            found, predicted_us, taken = kept
            self.start = found.numbers.values()
        if not self.choices.shapes_only:
            self._kind_hold_outs()
        bands = error_bands(self.rows, predicted_us, self.gpu, found.numbers)
        kinds = self.kind_stages()
        # In a family for convolutions all figures are of these rows.
        of_images = {} if self.family.plain_products else {mechanisms.IMPLICIT_GEMM: max(bands.values())}
        power, chained = self._chains()
        return KindResult(
            fit=found,
            later=tuple(stage for stage in (splits, *kinds, power) if stage is not None),
            rows=self.rows,
            predicted_us=predicted_us,
            corrected_us=corrected_us if taken is None else taken.corrected_us,
            taken=taken,
            error_band={**bands, SPLIT_SITUATION: max(bands.values()), **self.bands, **of_images},
            split=self._judged_splits,
            corrected_split_band=self.corrected_split_band,
            validations=self.validations,
            chained=chained,
        )

    def _taken_over(
        self, numbers: mechanisms.KernelNumbers, predicted_us: FloatArray, folds: IntArray
    ) -> trees.TakenForest | None:
        """The share of the donor's residual that the rows support, from their held-out times
        `predicted_us`.
        """
        donor = self.choices.donor_residual
        if donor is None or self.kind not in donor.forests:
            return None
        taken = trees.taken_forest(
            donor.forests[self.kind], self.rows, predicted_us, numbers, self.gpu, folds
        )
        what = "shape + the donor's residual"
        self.validations.extend(_figures(what, self.rows, taken.corrected_us, whole_shapes=True))
        return taken

    def _donor_kept(self, fitted_us: FloatArray) -> tuple[Fit, FloatArray, trees.TakenForest | None] | None:
        """The donor's own numbers and whole residual, where the fit is no nearer on held-out rows; else None.

        No row was fitted to them, so that all rows are held out of them. Asked of a donor of the same kernels
        alone: another family's numbers are a start, not an answer.
        """
        if self.donor is None or not self.donor.same_kernels or not self.choices.keeps_donor:
            return None
        absent = self.family.absent_mechanisms
        numbers = mechanisms.kernel_numbers(self.donor.values)
        times = kernel_time(self.rows.shape, self.gpu, numbers.without(absent), regime=self.main)
        physical_us = np.asarray(times.runtime_us)
        residual = self.choices.donor_residual
        taken = None
        if residual is not None and self.kind in residual.forests:
            taken = trees.whole_forest(residual.forests[self.kind], self.rows, physical_us, times)
        donor_us = physical_us if taken is None else taken.corrected_us
        if surely_nearer(fitted_us, donor_us, self.rows.runtime_us):
            return None
        self.validations.extend(_figures(DONOR_KEPT, self.rows, donor_us, whole_shapes=True))
        return Fit(numbers, {}, ()), physical_us, taken

    def _fit(self, seen: Mapping[str, Observations], free: Collection[str]) -> Fit:
        job = partial(self._hold_out(seen, self.main, free).fit, seen)
        at_once = trees.worth_it(self.run_all, sum(map(len, seen.values())))
        found: Fit = next(iter(at_once(_call, [job])))
        self.steps.fitted()
        return found

    def _kind_hold_outs(self) -> None:
        self._held_out("config", folds_of(config_groups(self.rows), self.choices.seed))
        listed = np.array([size in self.listed for size in _asked_sizes(self.rows.frame)], dtype=bool)
        if listed.any() and not listed.all():
            self._held_out("family", np.where(listed, 0, -1))
        cards = _cards(self.rows)
        if cards is not None:
            self._held_out("card", cards)

    def _held_out(self, what: str, folds: IntArray) -> tuple[FloatArray, FloatArray | None]:
        self.steps.begin(f"{self.kind}: {what} held out")
        held_out = self._hold_out(self.seen, self.main, self.free)
        if self.choices.trains_residual:
            held_out = replace(held_out, with_residual=True, beside=self._judged_splits)
        found = held_out.times(folds, self.run_all, self.steps.fitted)
        self._judge(what, what + " + residual", self.rows, found, what in ("shape", "family"))
        return found.runtime_us, found.corrected_us

    def _judge(
        self, what: str, corrected: str, rows: Observations, found: trees.HeldOutTimes, whole_shapes: bool
    ) -> None:
        """Keep the figures of held-out times, called `what`, and of those with a residual."""
        self.validations.extend(_figures(what, rows, found.runtime_us, whole_shapes))
        if found.corrected_us is not None:
            self.validations.extend(_figures(corrected, rows, found.corrected_us, whole_shapes))

    def _hold_out(self, seen: Mapping[str, Observations], main: str, free: Collection[str]) -> trees.HoldOut:
        return trees.HoldOut(
            regimes=seen,
            main=main,
            gpu=self.gpu,
            free=free,
            start=self.start,
            donor=self.donor,
            without=self.family.absent_mechanisms,
        )

    def kind_stages(self) -> list[Fit]:
        """Fits to the kinds of problem, one mechanism after another."""
        self._learn_what_epilogues_add()
        stages = [
            self._stage(f"{kind} rows", seen, kind, KIND_NUMBERS[kind])
            for kind, seen in self.kind_rows.items()
        ]
        return [stage for stage in stages if stage is not None]

    def _learn_what_epilogues_add(self) -> None:
        """Rescale epilogue rows with a plain twin, so that fits learn the difference of the two."""
        epilogues = self.kind_rows[mechanisms.FUSED_EPILOGUE]
        if self.main not in epilogues or self.main not in self.seen:
            return
        numbers = mechanisms.kernel_numbers(self.start).without(self.family.absent_mechanisms)
        plain_us = kernel_time(self.rows.shape, self.gpu, numbers, regime=self.main).runtime_us
        frame = beside_twins(epilogues[self.main], self.rows, np.asarray(plain_us))
        epilogues[self.main] = observe(frame, self.gpu, self.family)

    def _stage(
        self, what: str, seen: Mapping[str, Observations], situation: str, numbers: Collection[str]
    ) -> Fit | None:
        """Fit numbers that only some rows determine, while all others stay, and set their error band.

        Without enough such rows the band is that of the starting calibration, if it has one.
        """
        free = self._asked(numbers, fitted(numbers))
        if not seen or not free:
            return None
        self.steps.begin(f"{self.kind}: {what}")
        found, chosen = self._fit(seen, free), room_numbers("calibration")
        name, rows = next(iter(seen.items()))
        groups = size_groups(rows)
        if len(np.unique(groups)) >= chosen.fewest_shapes:
            folds = folds_of(groups, self.choices.seed)
            judged = self._hold_out(seen, name, free)
            if situation == SPLIT_SITUATION and name == self.main and self.choices.trains_residual:
                judged = replace(judged, with_residual=True, beside=self.rows)
            held_out = judged.times(folds, self.run_all, self.steps.fitted)
            if MEASURED in rows.frame:
                rows = replace(rows, runtime_us=rows.frame[MEASURED].to_numpy(dtype=np.float64))
            to_choose = bool(np.median(np.bincount(rows.shape_id)) > 1)
            self._judge(f"shape, {what}", f"shape + residual, {what}", rows, held_out, to_choose)
            if len(rows) >= chosen.fewest_band_rows:
                self.bands[situation] = band(held_out.runtime_us, rows.runtime_us)
                if held_out.corrected_us is not None:
                    self.corrected_split_band = band(held_out.corrected_us, rows.runtime_us)
        self.start = found.numbers.values()
        return found

    def _chains(self) -> tuple[Fit | None, dict[str, ChainedErrors]]:
        """Fit power and boundaries to launches back to back, while the kernel's own numbers stay."""
        if not self.chained:
            return None, {}
        self.steps.begin(f"{self.kind}: launches back to back")
        found = self._fit(self.chained, CHAIN_FREE)
        shapes = {name: len(np.unique(size_groups(rows))) for name, rows in self.chained.items()}
        fewest = room_numbers("calibration").fewest_shapes
        enough = [name for name, found_shapes in shapes.items() if found_shapes >= fewest]
        self.start = found.numbers.values()
        return found, {name: self._chained_errors(name) for name in enough}

    def _chained_errors(self, name: str) -> ChainedErrors:
        rows = self.chained[name]
        folds = folds_of(size_groups(rows), self.choices.seed)
        found = self._hold_out(self.chained, name, CHAIN_FREE).times(folds, self.run_all, self.steps.fitted)
        known, short = np.isfinite(rows.sm_clk_mhz), rows.runtime_us < room_numbers("calibration").short_us
        clock_error = np.abs(found.set_clk_mhz[known] / rows.sm_clk_mhz[known] - 1.0)
        return ChainedErrors(
            accuracy.error_figures(found.runtime_us, rows.runtime_us),
            accuracy.error_figures(found.runtime_us[short], rows.runtime_us[short]) if short.any() else None,
            float(clock_error.mean()) if known.any() else None,
        )


def _observed(
    regimes: Mapping[str, pd.DataFrame], gpu: GpuSpec, family: KernelFamily
) -> dict[str, Observations]:
    """Observations of the regimes that have rows."""
    return {
        name: observe(rows.reset_index(drop=True), gpu, family) for name, rows in regimes.items() if len(rows)
    }


def full_names(words: Sequence[str]) -> tuple[str, ...]:
    """The numbers that words name: a number, or a mechanism for all its numbers.

    Raises InputError for an unknown word.
    """
    names: list[str] = []
    for word in words:
        found = [name for name in mechanisms.NUMBERS if name == word or name.partition(".")[0] == word]
        if not found:
            raise InputError(f"unknown number {word!r}; expected one of {', '.join(mechanisms.NUMBERS)}")
        names += found
    return tuple(names)


def _call(job: Callable[[], Any]) -> Any:
    """Run a job in an executor's process."""
    return job()


def surely_nearer(fitted_us: FloatArray, donor_us: FloatArray, measured_us: FloatArray) -> bool:
    """Whether one prediction's mean error is less than another's by more than some of its standard errors.

    The difference is taken row by row, so that what is hard to predict by either does not count.
    """
    gained = np.abs(donor_us / measured_us - 1.0) - np.abs(fitted_us / measured_us - 1.0)
    surely = room_numbers("calibration").standard_errors * gained.std() / np.sqrt(len(gained))
    return bool(gained.mean() > surely)


def _shares_of(kinds: Mapping[str, KindResult]) -> dict[str, dict[str, float]]:
    """Share of the donor's residual that the rows support, by rate class; empty if none was requested."""
    shares = {kind: result.taken.share for kind, result in kinds.items() if result.taken is not None}
    return {"residual_of_donor": shares} if shares else {}


def _taken_over(
    calibration: Calibration, kinds: Mapping[str, KindResult], gpu: GpuSpec, donor: str
) -> Residual | None:
    """The borrowed part of the donor's residual; None if nothing is borrowed."""
    taken = {kind: result.taken for kind, result in kinds.items() if result.taken and result.taken.share > 0}
    if not taken:
        return None
    return Residual(
        gpu=calibration.gpu,
        fingerprint=calibration.fingerprint(),
        forests={kind: found.forest for kind, found in taken.items()},
        error_band={kind: _corrected_bands(kinds[kind], gpu) for kind in taken},
        taken_over=TakenOver(donor=donor, shares={kind: found.share for kind, found in taken.items()}),
    )


def _trained(
    calibration: Calibration, kinds: Mapping[str, KindResult], gpu: GpuSpec, run_all: RunAll
) -> Residual | None:
    """Trained on all judged rows and the times that the finished calibration gives them; None where no class
    of types gains by it.
    """
    helped = {kind: result for kind, result in kinds.items() if result.residual_helps}
    if not helped:
        return None
    jobs = []
    for kind, result in helped.items():
        parts = [rows for rows in (result.rows, result.split) if rows is not None]
        jobs.append(partial(trees.train_on, parts, gpu, calibration.numbers[kind]))
    at_once = trees.worth_it(run_all, sum(len(result.rows) for result in helped.values()))
    return Residual(
        gpu=gpu.name,
        fingerprint=calibration.fingerprint(),
        forests=dict(zip(helped, at_once(_call, jobs), strict=True)),
        error_band={kind: _corrected_bands(result, gpu) for kind, result in helped.items()},
        splits=tuple(kind for kind, result in helped.items() if result.split is not None),
    )


def _corrected_bands(result: KindResult, gpu: GpuSpec) -> dict[str, float]:
    """Error bands with the residual; those of split-K kernels without it unless it was trained on some."""
    assert result.corrected_us is not None
    split = result.error_band[SPLIT_SITUATION] if result.split is None else result.corrected_split_band
    return {**error_bands(result.rows, result.corrected_us, gpu, result.fit.numbers), SPLIT_SITUATION: split}


def _intervals(fits: Iterable[Fit]) -> dict[str, float]:
    """Half-widths of the fitted numbers; a number without influence has none and is frozen."""
    widths = {name: width for each in fits for name, width in each.half_width.items()}
    found: dict[str, float] = rounded({name: width for name, width in widths.items() if np.isfinite(width)})
    return found


def _sources(kinds: Mapping[str, KindResult], base: Calibration, tables: str) -> dict[str, str]:
    fitted = {name for found in kinds.values() for name in _intervals(found.fits)}
    return {
        name: f"fitted to {tables}" if name in fitted else base.sources.get(name, spec.source)
        for name, spec in mechanisms.NUMBERS.items()
    }


def _figures(what: str, seen: Observations, predicted_us: FloatArray, whole_shapes: bool) -> list[Validation]:
    """Figures by table and type; figures of choices only if whole shapes were predicted."""
    known = np.isfinite(predicted_us)
    frame = seen.frame[known].assign(runtime_us=seen.runtime_us[known], predicted_us=predicted_us[known])
    result = []
    for (table, name), rows in frame.groupby(["table", "in_dtype"]):
        result.append(
            Validation(
                what=what,
                table=str(table),
                in_dtype=str(name),
                errors=accuracy.error_figures(rows["predicted_us"].to_numpy(), rows["runtime_us"].to_numpy()),
                top1=accuracy.choice_figures(accuracy.top1_efficiency(rows)) if whole_shapes else None,
                top4=accuracy.choice_figures(best_of_top(rows, 4)) if whole_shapes else None,
            )
        )
    return result


def best_of_top(frame: pd.DataFrame, count: int) -> pd.Series:
    """For each shape: best measured time over the best among the `count` configurations predicted fastest."""
    keys = accuracy.shape_columns(frame)
    shapes = frame.groupby(keys, sort=False, dropna=False)
    rank = shapes["predicted_us"].rank(method="first")
    chosen = frame[rank <= count].groupby(keys, sort=False, dropna=False)["runtime_us"].min()
    efficiency: pd.Series = shapes["runtime_us"].min() / chosen
    return efficiency


def band(predicted_us: FloatArray, measured_us: FloatArray) -> float:
    """Error that `band_share` of the rows stay within."""
    share = room_numbers("calibration").band_share
    return round(float(np.nanquantile(np.abs(predicted_us / measured_us - 1.0), share)), 4)


def situations(seen: Observations, gpu: GpuSpec, numbers: mechanisms.KernelNumbers) -> IntArray:
    """The situation of each row by the model."""
    times = kernel_time(seen.shape, gpu, numbers.without(seen.shape.family.absent_mechanisms))
    return situation(seen.shape, times)


def error_bands(
    seen: Observations, predicted_us: FloatArray, gpu: GpuSpec, numbers: mechanisms.KernelNumbers
) -> dict[str, float]:
    """Held-out error that `band_share` of the rows stay within, by situation (of all rows where few are)."""
    where, bands = situations(seen, gpu, numbers), {}
    for code, name in enumerate(PLAIN_SITUATIONS):
        rows = where == code
        if rows.sum() < room_numbers("calibration").fewest_band_rows:
            rows = np.full(len(seen), True)
        bands[name] = band(predicted_us[rows], seen.runtime_us[rows])
    return bands


def _asked_sizes(frame: pd.DataFrame) -> list[Size]:
    """m, n, k of each row, before padding if the table has those sizes."""
    require_columns(frame, ("m", "n", "k"))
    asked = [sizes(frame, f"asked_{name}", default=sizes(frame, name)) for name in ("m", "n", "k")]
    return list(zip(*(column.astype(int) for column in asked), strict=True))


def _cards(seen: Observations) -> IntArray | None:
    """A fold for each card, if several cards have enough rows; else None."""
    if "gpu_uuid" not in seen.frame:
        return None
    codes, names = pd.factorize(seen.frame["gpu_uuid"])
    if len(names) < 2:
        return None
    rows = np.bincount(codes)
    fewest = room_numbers("calibration").least_card_share * len(codes)
    return np.where(rows[codes] >= fewest, codes, -1).astype(np.int64)


def rounded(value: Any) -> Any:
    """A value, or each of a mapping's, with as many digits as a calibration file holds."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{room_numbers('calibration').significant_digits}g}")


def _rounded(numbers: mechanisms.KernelNumbers) -> mechanisms.KernelNumbers:
    return mechanisms.kernel_numbers(rounded(numbers.values()))
