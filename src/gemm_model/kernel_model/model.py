"""The kernel model: warp-specialized persistent GEMM kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from gemm_model.config.mechanisms import FUSED_EPILOGUE, IMPLICIT_GEMM, MECHANISM_NAMES, PROBLEM_KINDS
from gemm_model.core import prediction as predictions
from gemm_model.core.batch import OF_THE_CALL, FloatArray, GemmBatch, IntArray, kernel_of
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import Flags, Values, any_of, is_number
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.kind_columns import KINDS, KindColumns, every_word
from gemm_model.core.records import ReadOnly, formula_record, mapped
from gemm_model.core.regimes import regime_name
from gemm_model.errors import InputError, RefusedKernelError, refuse_all, require_one_of
from gemm_model.kernel_model import calibration_file as files
from gemm_model.kernel_model import residual as trees
from gemm_model.kernel_model.alignment import channels_unaligned
from gemm_model.kernel_model.card_band import with_card_band
from gemm_model.kernel_model.clock import energy_uj, work_of
from gemm_model.kernel_model.elasticity import LIMITERS, Composed
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.kernel import Geometry, Kernel, KernelWaves, geometry_of, kernel_on
from gemm_model.kernel_model.kernel_time import KernelTime, TileTimes, kernel_time, tile_times
from gemm_model.kernel_model.knowledge import Knowledge, knowledge
from gemm_model.kernel_model.launch_context import COLD, L2_STATES, REGIMES
from gemm_model.kernel_model.least_time import least_us
from gemm_model.kernel_model.pick_residual import load_pick_residual, picks_of
from gemm_model.kernel_model.situation import positions, situation_code
from gemm_model.kernel_model.tile_schedule import tile_waves
from gemm_model.kernel_model.traced import Inputs, Traced
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import Grid, Resources, at_cells, refuse_impossible, resources_of
from gemm_model.kernels.model import Model
from gemm_model.kernels.registry import families, family_at

KERNELS_KEPT = 4096
"""Kernels whose resources a model caches [1]; single predictions; chosen: a space of candidates has 3,480."""
ALONE = "burst"
"""Regime of the launches that residuals are trained on."""
SITUATION_OF = dict(zip(KINDS, PROBLEM_KINDS[1:], strict=True))
"""Situation of each kind of problem that is no epilogue."""
Searched: TypeAlias = tuple[Any, Values, Values, Any, tuple[Values | Flags, ...]]
"""What a search for fast kernels needs: times before a correction and at the speed of light [us], situations,
shares of the correction that apply [1], and what its trees see."""
Whole: TypeAlias = tuple[tuple[Any, ...], Searched]
"""Phases, details, bytes and elasticities, and what a search needs."""


@dataclass(eq=False)
class KernelModel(Model):
    """runtime = launch + first load + waves of tiles + last epilogue; a wave lasts as long as its slowest
    resource.

    The resources are the tensor cores with the epilogue, the L2-to-SM bandwidth (`port`), the load latency
    over the stages, L2 and DRAM; schedule, traffic and clock are the kernel's own (`docs/model.md`).

    Options: `calibration` is a name such as `h200:quack`, a YAML file, or 'auto' for that of the GPU and each
    kernel's family, the nearest being borrowed where there is none; `regime` is one of REGIMES or an alias;
    `l2` is 'cold' or 'warm' at the start, or 'written' where the kernel before wrote A; `without` names
    mechanisms to switch off.
    `residual` is 'auto' for the one beside the calibration's file where there is one, 'off', or an .npz file:
    a clipped correction by trees (`residual.py`), shown as a phase of its own. It covers the rate classes
    that it was trained on, of the family and on the GPU that were calibrated; in launches back to back it
    corrects by the share that it takes of the kernel launched alone.
    """

    needs_tile = True
    prices_split_k = True
    beyond_plain = True

    gpu: GpuSpec
    _: KW_ONLY
    calibration: str | files.Calibration = "auto"
    regime: str = "burst"
    l2: str = COLD
    without: Collection[str] = ()
    residual: str = trees.AUTO

    def __post_init__(self) -> None:
        self.regime = regime_name(self.regime)
        require_one_of(f"regime is {self.regime!r}", self.regime, REGIMES)
        require_one_of(f"l2 is {self.l2!r}", self.l2, L2_STATES)
        if not isinstance(self.without, list | tuple | set | frozenset):
            raise InputError(f"without is {self.without!r}; expected a list of {', '.join(MECHANISM_NAMES)}")
        for mechanism in self.without:
            if mechanism not in MECHANISM_NAMES:
                raise InputError(f"without {mechanism!r}; expected some of {', '.join(MECHANISM_NAMES)}")
        self.without = frozenset(self.without)
        self._named = _named_calibration(self.calibration)
        self._knowledge: dict[tuple[str, str], Knowledge] = {}
        self._kernels: dict[tuple[Any, ...], Inputs] = {}
        self._whole = Traced(lambda batch, resources: self._evaluation(batch, resources).whole())
        self._least = Traced(self._least_us)
        self._searched = Traced(lambda batch, resources: self._evaluation(batch, resources).searched())
        self._residuals = self._own_residuals(self.residual)

    def _own_residuals(self, wanted: str) -> dict[str, trees.Residual]:
        """The requested residuals by family; a borrowed calibration has none."""
        if wanted == trees.OFF:
            return {}
        found: dict[str, trees.Residual] = {}
        served = families(self.gpu)
        if self._named is not None and self._named.is_own_file:
            served = (self._named.family,)
        for family in served:
            calibration, borrowed = self.calibration_of(family)
            path = trees.residual_beside(calibration.path) if calibration.path is not None else None
            if wanted == trees.AUTO and borrowed == files.OWN and path is not None and path.is_file():
                found[family] = trees.load_residual(path, calibration)
            if wanted != trees.AUTO and family == served[0]:
                if borrowed != files.OWN:
                    raise InputError(
                        f"residual {wanted!r} corrects {calibration.name}, not {self.gpu.name}:{family}; "
                        f"expected {trees.OFF} or {trees.AUTO} without a calibration of its own"
                    )
                found[family] = trees.load_residual(wanted, calibration)
        return found

    def calibration_of(self, family: str) -> tuple[files.Calibration, str]:
        """The calibration for a family's kernels, and how it is borrowed.

        A shipped calibration may be borrowed by its name. A file serves only the GPU and the family that it
        was fitted to. Raises InputError for any other.
        """
        if self._named is None:
            return files.calibration_for(self.gpu, family)
        borrowed = files.how_borrowed(self._named, self.gpu, family)
        if borrowed != files.OWN and self._named.is_own_file:
            raise InputError(
                f"{self._named.path}: a calibration of {self._named.name}; "
                f"expected one of {self.gpu.name}:{family}, or the name of a shipped one to borrow"
            )
        return self._named, borrowed

    def heuristic_choice(self, family: str) -> HeuristicChoice:
        """A library's measured heuristic choice (`heuristic_choices.yaml`); no loss for other libraries.

        Trees correct it if the shipped calibration that they belong to is in use, for single launches on a
        cold L2, on which they were trained.
        """
        found = files.heuristic_choices().get(family, HeuristicChoice())
        path = picks_of(self.gpu.name, family)
        alone = self.regime == ALONE and self.l2 == COLD and not self.without
        if not (self.residual == trees.AUTO and alone and path.is_file()):
            return found
        residual = load_pick_residual(path)
        calibration, _ = self.calibration_of(family)
        return (
            found if residual.fingerprint != calibration.fingerprint() else replace(found, residual=residual)
        )

    def knowledge(self, family: KernelFamily, kind: str) -> Knowledge:
        """Numbers, bands and residual for a family's kernels on this GPU and a rate class."""
        found = self._knowledge.get((family.name, kind))
        if found is None:
            found = knowledge(
                self.calibration_of(family.name), self.gpu, family, kind, self._residuals.get(family.name)
            )
            if found.band_table is not None:
                found = replace(found, band_table=np.hypot(found.band_table, files.regime_band(self.regime)))
            self._knowledge[family.name, kind] = found
        return found

    @property
    def corrects(self) -> bool:
        """Whether a residual corrects some predictions; all predictions then have its phase."""
        return bool(self._residuals)

    def evaluate(self, grid: Grid) -> GridEvaluation:
        """The physical times of a grid of one type.

        A search for the fastest rows needs the rest for few rows: the residual's trees alone take ten times
        as long as the times.
        """
        return GridEvaluation(
            self, self._known(grid.batch), grid, self._searched.of(grid.batch, grid.resources)
        )

    def _known(self, batch: GemmBatch) -> Knowledge:
        return self.knowledge(family_at(int(batch.kernel), self.gpu), MATH_KINDS[int(batch.math_kind)])

    def least_times(self, grid: Grid) -> predictions.LeastTimes:
        """Lower bounds of the kernels' times in a grid."""
        kind, residual = MATH_KINDS[int(grid.batch.math_kind)], self._known(grid.batch).residual
        found = self._least.of(grid.batch, grid.resources)
        corrected = residual is not None and (kind in residual.splits or any_of(grid.batch.split_k <= 1.0))
        if np.ndim(found) != 1:
            # If the order of tiles pads the matrix, waves depend on it.
            found = np.broadcast_to(found, grid.shape).min(axis=0)
        return predictions.LeastTimes(np.asarray(found), 1.0 - trees.LIMIT if corrected else 1.0)

    def _least_us(self, batch: GemmBatch, resources: Resources) -> Values:
        family, kind = family_at(int(batch.kernel), self.gpu), MATH_KINDS[int(batch.math_kind)]
        schedule, rate = tile_waves(batch, resources, family.tile_order), self.gpu.flop_per_clk(kind)
        numbers = self._known(batch).numbers.without(self.without)
        of_problem = batch, family, rate, batch.flop, resources, schedule
        return least_us(KernelWaves(*of_problem, self.gpu, numbers, REGIMES[self.regime], self.l2))

    def predict_batch(self, batch: GemmBatch) -> predictions.BatchPrediction:
        """Raises RefusedKernelError for a kernel that cannot run."""
        alike = batch.kernel * len(MATH_KINDS) + batch.math_kind
        if len(batch) == 1 or bool((alike == alike[0]).all()):
            return self._predict_alike(batch)
        parts, rows, refused = [], [], []
        batch = _with_numbers(batch)
        for group in np.unique(alike):
            index = np.flatnonzero(alike == group)
            some = batch.mapped(partial(_number_or_rows, index))
            try:
                parts.append(self._predict_alike(some))
            except RefusedKernelError as error:
                refused.append(error.at(index.tolist()))
            rows.append(index)
        refuse_all(refused)
        return predictions.interleaved(parts, rows)

    def _predict_alike(self, table: GemmBatch) -> predictions.BatchPrediction:
        """Rows of one kernel family and one class of types."""
        rows, batch = len(table), _with_numbers(table)
        try:
            family = family_at(int(batch.kernel), self.gpu)
        except InputError as error:
            raise RefusedKernelError(range(rows), str(error)) from None
        return self.predicted(batch, self._checked_resources(batch, family), rows)

    def predicted(self, batch: GemmBatch, resources: Resources, rows: int) -> predictions.BatchPrediction:
        """Predictions of `rows` kernels of one type."""
        known, (groups, searched) = self._known(batch), self._whole.of(batch, resources)
        runtime, phase, detail, level, shares = _as_columns(({"runtime_us": searched[0]}, *groups), rows)
        if self.corrects:
            phase[predictions.RESIDUAL_PHASE] = np.zeros(rows)
        bands = None if known.band_table is None else known.band_table[positions(searched[2], rows)]
        if bands is not None and not self.gpu.validated:
            bands = np.asarray(with_card_band(bands, self.gpu, shares))
        prediction = predictions.BatchPrediction(
            runtime_us=runtime["runtime_us"],
            limiter=np.argmax(tuple(shares.values()), axis=0),
            limiter_names=LIMITERS,
            phases_us=phase,
            details=detail,
            bytes_by_level=level,
            caveats=self._caveats(known, batch, resources),
            error_band=bands,
        )
        if known.residual is None:
            return prediction
        return prediction.corrected(corrected_column(searched, known.residual.forests[known.served], rows))

    def predict_row(self, row: GemmBatch) -> predictions.Prediction:
        """The prediction of one row of Python numbers.

        It equals `predict_batch` on a batch of that row, but avoids columns of length one, which would take a
        fifth of the time.
        """
        inputs = None
        if not row.plain or row.split_k > 1.0:
            resources = self._checked_resources(row, family_at(int(row.kernel), self.gpu))
        else:
            function, resources, numbers = self._kernel(row)
            inputs = function, resources, (row.m, row.n, row.k, row.batch, *numbers[len(OF_THE_CALL) :])
        parts = self._whole.of(row, resources, inputs)
        (phases_us, details, bytes_by_level, shares), (physical_us, floor_us, code, share, seen) = parts
        known, runtime_us = self._known(row), physical_us
        if known.residual is not None:
            log_error = share * known.residual.forests[known.served].predict_row(
                trees.rounded(np.array(seen))
            )
            runtime_us = trees.corrected_us(physical_us, log_error, floor_us)
        if self.corrects:
            phases_us[predictions.RESIDUAL_PHASE] = runtime_us - physical_us
        band = None if known.band_table is None else predictions.known_band(known.band_table.item(int(code)))
        if band is not None and not self.gpu.validated:
            band = float(with_card_band(band, self.gpu, shares))
        return predictions.Prediction(
            runtime_us=runtime_us,
            limiter=max(shares, key=shares.__getitem__),
            phases_us=ReadOnly(phases_us),
            details=ReadOnly(details),
            bytes_by_level=ReadOnly(bytes_by_level),
            caveats=self._caveats(known, row, resources),
            error_band=band,
        )

    def _checked_resources(self, batch: GemmBatch, family: KernelFamily) -> Resources:
        """Resources of the rows. Raises RefusedKernelError for a kernel that cannot run."""
        resources = resources_of(batch, self.gpu, family)
        refuse_impossible(batch, self.gpu, family, resources)
        return resources

    def _evaluation(self, batch: GemmBatch, resources: Resources) -> PhysicalEvaluation:
        """Of kernels of one family and one class of types."""
        family, kind = family_at(int(batch.kernel), self.gpu), MATH_KINDS[int(batch.math_kind)]
        whole = geometry_of(batch, self.gpu.flop_per_clk(kind), self.gpu, family, resources)
        times = self.times(whole, kind, self.without)
        return PhysicalEvaluation(self, kind, self.knowledge(family, kind), whole, times)

    def times(self, geometry: Geometry, kind: str, without: Collection[str]) -> KernelTime:
        """The physical times of a geometry in this model's regime."""
        return self._times_in(self.regime, self.l2, geometry, kind, without)

    def _times_in(
        self, regime: str, l2: str, geometry: Geometry, kind: str, without: Collection[str]
    ) -> KernelTime:
        numbers = self.knowledge(geometry.family, kind).numbers.without(without)
        return kernel_time(geometry, self.gpu, numbers, regime=regime, l2=l2)

    def times_for_trees(self, geometry: Geometry, kind: str) -> KernelTime:
        """What a residual's trees have seen such times of: the complete model, of a chain launches alone on a
        cold L2.
        """
        chained = REGIMES[self.regime].chained
        regime, l2 = (ALONE, COLD) if chained else (self.regime, self.l2)
        return self._times_in(regime, l2, geometry, kind, ())

    def evaluate_row(self, row: GemmBatch) -> PhysicalEvaluation:
        """What the physical model finds out about one row of Python numbers.

        Raises RefusedKernelError for a kernel that cannot run.
        """
        family = family_at(int(row.kernel), self.gpu)
        return self._evaluation(row, self._checked_resources(row, family))

    def _kernel(self, row: GemmBatch) -> Inputs:
        """The kernel of a row of a plain GEMM that does not split K: no size changes its resources."""
        key = kernel_of(row)
        found = self._kernels.get(key)
        if found is None:
            if len(self._kernels) >= KERNELS_KEPT:
                self._kernels.clear()
            resources = self._checked_resources(row, family_at(int(row.kernel), self.gpu))
            found = self._kernels[key] = self._whole.inputs(row, resources)
        return found

    def _caveats(self, known: Knowledge, batch: GemmBatch, resources: Resources) -> tuple[str, ...]:
        """Caveats that apply to all of these rows."""
        spilled = resources.spilled_registers
        most = spilled if is_number(spilled) else float(np.max(spilled))
        spills = () if most == 0 else (f"up to {most:.0f} registers of a thread spill (spilled_registers)",)
        found = known.caveats + spills
        return found if batch.plain else found + self._kind_caveats(known, batch, batch.kinds)

    def _kind_caveats(self, known: Knowledge, batch: GemmBatch, kinds: KindColumns) -> tuple[str, ...]:
        """Caveats of the kind of problem: numbers that were not fitted, effects that are not modelled."""
        asked = {SITUATION_OF.get(word, FUSED_EPILOGUE) for word in every_word(kinds.asked)}
        caveats = [
            f"{name}: no such kernel was calibrated on"
            for name in PROBLEM_KINDS
            if name in asked and name in known.unfitted
        ]
        if any_of(kinds.unlike):
            caveats.append("grouped: groups of different n or k are taken for as many mean ones")
        numbers = known.numbers.without(self.without)
        if numbers.slow_division.warp_clk > 0.0 and any_of(kinds.sigmoids > 0.0):
            caveats.append(
                "slow_division: sums are taken to spread by the root of k, as of operands of unit variance; "
                "smaller ones take what is predicted with model_opts.without=[slow_division]"
            )
        if IMPLICIT_GEMM in asked:
            caveats.append("implicit_gemm: padding is taken to last as long as pixels")
            if any_of(channels_unaligned(batch, kinds)):
                caveats.append(
                    "implicit_gemm: channels or filters fill no row of 16 bytes; the kernels beside that pad "
                    "matrices are not in the time"
                )
            if any_of(kinds.places > 1.0):
                caveats.append(
                    "implicit_gemm: places of a strided data gradient are taken for as many mean ones"
                )
            if family_at(int(batch.kernel), self.gpu).tile_order.packs_groups:
                if any_of(kinds.packed > 1.0):
                    caveats.append(
                        "implicit_gemm: groups of few channels share tiles; libraries have other kernels for "
                        "groups of one"
                    )
            elif any_of(batch.batch > kinds.places):
                caveats.append(
                    "implicit_gemm: each group of channels is a product of its own; libraries have kernels "
                    "many times as fast for groups of few"
                )
        return tuple(caveats)


@formula_record
class PhysicalEvaluation:
    """What the physical model finds out about kernels of one type: numbers, columns, or symbols of them."""

    model: KernelModel
    kind: str
    known: Knowledge
    geometry: Geometry
    times: KernelTime

    @property
    def _kernel(self) -> Kernel:
        model, numbers = self.model, self.known.numbers.without(self.model.without)
        return kernel_on(self.geometry, model.gpu, numbers, regime=model.regime, l2=model.l2)

    def _parts(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Phases in us that add up, further figures, and bytes by level: floats of one row, or columns."""
        times, moved = self.times, self.times.traffic
        batch, schedule, resources = self.geometry.batch, self.geometry.schedule, self.geometry.resources
        phases_us = {
            "launch": times.launch_us,
            "first_load": times.first_load_us,
            "waves": times.runtime_us - times.launch_us - times.first_load_us - times.exposed_us,
            "last_epilogue": times.exposed_us,
        }
        details = {
            "tensor_us": times.tensor_us,
            "epilogue_us": times.epilogue_us,
            "port_us": times.port_us,
            "latency_us": times.latency_us,
            "l2_us": times.l2_us,
            "dram_us": times.dram_us,
            "launch_us": times.launch_us,
            "full_waves": schedule.full_waves,
            "last_wave_tiles": schedule.last_tiles,
            "tiles_per_wave": schedule.resident,
            "stages": resources.stages,
            "spilled_registers": resources.spilled_registers,
            "sm_clk_mhz": times.sm_clk_mhz,
            "set_clk_mhz": times.set_clk_mhz,
            **self._energy(),
        }
        bytes_by_level = {
            "dram": moved.dram_bytes,
            # As the counter lts__t_bytes sums them, and what SMs ask for.
            "l2": moved.l2_counted_bytes,
            "l2_requests": moved.l2_request_bytes,
            "smem": (
                resources.stage_bytes * schedule.k_tiles * schedule.tiles * batch.cluster_m * batch.cluster_n
            ),
        }
        return phases_us, details, bytes_by_level

    def whole(self) -> Whole:
        return (*self._parts(), Composed(self._kernel, self.times).elasticities()), self.searched()

    def searched(self) -> Searched:
        times, residual = self.times, self.known.residual
        share: Any = 0.0
        seen: tuple[Values | Flags, ...] = ()
        if residual is not None:
            # Of a correction.
            supported = trees.supported_share(times.set_clk_mhz / self.model.gpu.sm_clk_mhz)
            share, seen = (
                self._seen_alike(residual) * supported,
                trees.feature_columns(*self._seen_by_trees()),
            )
        return times.runtime_us, times.floor_us, situation_code(self.geometry, times), share, seen

    def _energy(self) -> dict[str, Values]:
        gpu, times, power = self.model.gpu, self.times, self.known.numbers.power
        share, work = times.set_clk_mhz / gpu.sm_clk_mhz, work_of(self.geometry, times.traffic)
        return {"energy_uj": energy_uj(power, gpu.resting_w, work, share, times.runtime_us)}

    def tile_times(self) -> TileTimes:
        """The times of one tile; of an evaluation of one row of numbers."""
        return tile_times(self._kernel)

    def _seen_alike(self, residual: trees.Residual) -> Flags:
        """Mask of the rows that the trees correct: plain GEMMs, and split-K kernels if they were trained on
        some.

        A fused epilogue does not change the rest of a kernel, so the trees see the kernel without it.
        """
        plain: Flags = self.geometry.batch.kinds.kind <= 0.0
        return plain if self.kind in residual.splits else plain & (self.geometry.schedule.sharers <= 1.0)

    def _seen_by_trees(self) -> tuple[Geometry, KernelTime]:
        """Geometry and times that the trees see.

        A fused epilogue, a what-if question and the launch context do not change the correction.
        """
        model, geometry, kinds = self.model, self.geometry, self.geometry.batch.kinds
        if any_of(kinds.kind == 0.0):
            plain = replace(geometry.batch, kinds=kinds.without_epilogue())
            geometry = geometry_of(plain, geometry.rate, model.gpu, geometry.family)
        elif not (model.without or REGIMES[model.regime].chained):
            return geometry, self.times
        return geometry, model.times_for_trees(geometry, self.kind)


@dataclass(frozen=True, slots=True)
class GridEvaluation:
    """The physical times of a grid (an `Evaluation`)."""

    model: KernelModel
    known: Knowledge
    grid: Grid
    searched: Searched

    @property
    def runtime_us(self) -> FloatArray:
        return np.broadcast_to(self.searched[0], self.grid.shape)

    def correction(self, orders: IntArray, kernels: IntArray) -> predictions.Correction | None:
        residual, table = self.known.residual, self.known.band_table
        if residual is None or not np.any(self.searched[3]):
            return None
        searched = at_cells(self.searched, orders, kernels)
        bands: FloatArray | None
        if table is None or not self.model.gpu.validated:
            bands = self.predictions(orders, kernels).error_band
        else:
            bands = table[positions(searched[2], len(kernels))]
        return corrected_column(searched, residual.forests[self.known.served], len(kernels)), bands

    def predictions(self, orders: IntArray, kernels: IntArray) -> predictions.BatchPrediction:
        of_cells = partial(at_cells, orders=orders, kernels=kernels)
        batch = self.grid.batch.mapped(lambda _, values: of_cells(values))
        return self.model.predicted(batch, mapped(self.grid.resources, of_cells), len(kernels))


def corrected_column(searched: Searched, forest: Forest, rows: int) -> FloatArray:
    """Runtimes of a batch, corrected by a residual's trees [us]; one for each row."""
    physical_us, floor_us, _, share, seen = searched
    log_error = share * forest.predict(trees.feature_table(seen, rows))
    return np.broadcast_to(trees.corrected_us(physical_us, log_error, floor_us), (rows,))


def _named_calibration(calibration: str | files.Calibration) -> files.Calibration | None:
    """The requested calibration; None for 'auto'."""
    if isinstance(calibration, files.Calibration):
        return calibration
    return None if calibration == "auto" else files.load_calibration(calibration)


def _with_numbers(batch: GemmBatch) -> GemmBatch:
    """The same rows, columns of one value as Python numbers: formulas of numbers run without numpy.

    Several rows keep the column of m, so that their times are columns too.
    """
    return batch.mapped(_number_or_column)


def _number_or_column(name: str, column: Any) -> Any:
    if not isinstance(column, np.ndarray) or (name == "m" and len(column) > 1):
        return column
    return column[0].item() if column.strides == (0,) or (column == column[0]).all() else column


def _number_or_rows(rows: IntArray, _name: str, column: Any) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column


def _as_columns(groups: Sequence[Mapping[str, Values]], rows: int) -> list[dict[str, FloatArray]]:
    """The groups of named values as columns of `rows` rows.

    Numbers share one array, because making an array for each would take as long as the model.
    """
    values = [value for group in groups for value in group.values()]
    columns = iter([np.full(rows, value) if is_number(value) else value for value in values])
    # Each group takes as many columns as it has names.
    return [dict(zip(group, columns, strict=False)) for group in groups]
