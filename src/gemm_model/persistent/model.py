"""The calibrated model of warp-specialized persistent GEMM kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np

from gemm_model.classic_models.throughput import flop_per_clk_of
from gemm_model.core.batch import BoolArray, FloatArray, GemmBatch, GridRows, picked
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import Values, is_number, maximum
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import RESIDUAL_PHASE, BatchPrediction, Correction, Prediction, limiting
from gemm_model.kernels.feasibility import Grid, Resources
from gemm_model.persistent.calibration_file import (
    FALLBACK,
    SITUATIONS,
    UNCALIBRATED_BAND_FACTOR,
    Calibration,
    calibration_names,
    calibration_path,
    load_calibration,
    situation,
)
from gemm_model.persistent.clock import PowerModel, energy_uj
from gemm_model.persistent.kernel_time import MECHANISMS, REGIMES, Geometry, KernelTime, geometry, kernel_time
from gemm_model.persistent.residual import (
    AUTO,
    OFF,
    Residual,
    corrected_us,
    features,
    load_residual,
    residual_beside,
)

LIMITERS = ("TENSOR", "EPILOGUE", "PORT", "LATENCY", "L2", "DRAM", "LAUNCH")
LIMITER_DETAILS = tuple(f"{name.lower()}_us" for name in LIMITERS)
"""Where a prediction's details hold the time of each."""
L2_STATES = ("cold", "warm")
_COLUMNS = tuple(spec.name for spec in fields(GemmBatch))
_columns_of = attrgetter(*_COLUMNS)


class WarpSpecializedModel:
    """runtime = launch + first load + waves of tiles + last epilogue, each wave as its slowest resource.

    The resources are the tensor cores with the epilogue, the SM's port, the load latency over the stages, L2
    and DRAM; the schedule, the traffic and the clock are the kernel's own (`docs/model.md`).

    Options: `calibration` is a name, a YAML file, or 'auto' for the GPU's own; `regime` is one of REGIMES;
    `l2` is 'cold' or 'warm' at the start; `without` names mechanisms to leave out.
    `residual` is 'auto' for the one beside the calibration's file where there is one, 'off', or an .npz file:
    a clipped correction by trees (`residual.py`), shown as a phase of its own. It covers the rate classes
    that it was trained on, in single launches on the GPU that was calibrated.
    """

    needs_tile = True

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        calibration: str | Calibration = "auto",
        regime: str = "burst",
        l2: str = "cold",
        without: Sequence[str] = (),
        residual: str = AUTO,
    ) -> None:
        if regime not in REGIMES:
            raise InputError(f"regime is {regime!r}; expected one of {', '.join(REGIMES)}")
        if l2 not in L2_STATES:
            raise InputError(f"l2 is {l2!r}; expected one of {', '.join(L2_STATES)}")
        for mechanism in without:
            if mechanism not in MECHANISMS:
                raise InputError(f"without {mechanism!r}; expected some of {', '.join(MECHANISMS)}")
        self.gpu = gpu
        self.regime = regime
        self.warm = l2 == "warm"
        self.without = frozenset(without)
        self.calibration = _calibration_for(gpu, calibration)
        self.calibrated_gpu = self.calibration.gpu == gpu.name
        if regime == "sustained" and not self.calibration.power:
            raise InputError(
                f"calibration {self.calibration.gpu} has no power model; the sustained regime needs one"
            )
        self.residual = self._residual(residual, calibration)
        self.residual_named = residual not in (OFF, AUTO)

    def _residual(self, wanted: str, calibration: str | Calibration) -> Residual | None:
        """The residual asked for; a borrowed calibration has none."""
        if wanted == OFF:
            return None
        if wanted != AUTO:
            if not self.calibrated_gpu:
                raise InputError(
                    f"residual {wanted!r} corrects {self.calibration.gpu}, not {self.gpu.name}; "
                    f"expected {OFF} or {AUTO} for a GPU without a calibration of its own"
                )
            return load_residual(wanted, self.calibration)
        if not self.calibrated_gpu or self.regime == "sustained" or isinstance(calibration, Calibration):
            return None
        path = residual_beside(calibration_path(_calibration_name(self.gpu, calibration)))
        return load_residual(path, self.calibration) if path.is_file() else None

    def first_look(self, grid: Grid) -> PhysicalLook:
        """The physical times of a grid of one type.

        Who looks for the fastest rows asks for the rest of few: the residual's trees alone take longer than
        the times.
        """
        kind = MATH_KINDS[int(grid.batch.math_kind)]
        return self._look(grid.batch, kind, grid.shape, grid.resources)

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        first = int(batch.math_kind[0])
        if len(batch) == 1 or bool((batch.math_kind == first).all()):
            return self._predict_kind(batch, MATH_KINDS[first])
        kinds = np.unique(batch.math_kind)
        rows = [np.flatnonzero(batch.math_kind == kind) for kind in kinds]
        parts = [
            self._predict_kind(batch[index], MATH_KINDS[int(kind)])
            for index, kind in zip(rows, kinds, strict=True)
        ]
        return _interleaved(parts, rows)

    def _predict_kind(self, table: GemmBatch, kind: str) -> BatchPrediction:
        rows = len(table)
        # One row goes through the formulas as Python numbers.
        look = self._look(_with_numbers(table), kind, (rows,))
        prediction = look.prediction()
        residual = self.residual_of(kind)
        if residual is None:
            return prediction
        return prediction.corrected(look.corrected_by(residual).runtime_us(slice(None)))

    def predict_row(self, row: GemmBatch) -> Prediction:
        """The prediction of one row of Python numbers.

        What `predict_batch` says of a batch of that row, without columns of one: a fifth of the time of
        one prediction was theirs.
        """
        return self._look(row, MATH_KINDS[row.math_kind], (1,)).row()

    def _look(
        self, batch: GemmBatch, kind: str, shape: tuple[int, ...], found: Resources | None = None
    ) -> PhysicalLook:
        whole = geometry(batch, flop_per_clk_of(kind, self.gpu), self.gpu, self.without, found)
        return PhysicalLook(self, kind, whole, self.times(whole, kind, self.without), shape)

    def times(self, found: Geometry, kind: str, without: Collection[str]) -> KernelTime:
        """The physical times of a geometry in this model's regime."""
        return kernel_time(
            found,
            self.gpu,
            self.calibration.parameters[self.calibration.kind_for(kind)],
            regime=self.regime,
            power=self.power(kind),
            warm=self.warm,
            without=without,
        )

    def residual_of(self, kind: str) -> Residual | None:
        """The residual where it applies: a fitted class of types, and single launches."""
        if self.residual is None or self.regime == "sustained" or kind not in self.residual.forests:
            return None
        return self.residual

    def power(self, kind: str) -> PowerModel | None:
        """The power model that serves a class of types."""
        return self.calibration.power.get(self.calibration.kind_for(kind))

    def caveats(self, kind: str) -> tuple[str, ...]:
        """What to keep in mind about predictions of a class of types."""
        caveats = self.gpu.caveats
        if not self.calibrated_gpu:
            caveats += (f"calibrated on {self.calibration.gpu}, not on {self.gpu.name}",)
        served = self.calibration.kind_for(kind)
        if served != kind:
            caveats += (f"{kind} is not calibrated; the parameters are those of {served}",)
        if self.residual_named and self.residual_of(kind) is None:
            where = "the sustained regime" if self.regime == "sustained" else kind
            caveats += (f"the residual does not cover {where}: the physical model alone",)
        return caveats


@dataclass(frozen=True, slots=True)
class PhysicalLook:
    """What the physical model found out about the rows of a batch, or of a grid (a `Look`)."""

    model: WarpSpecializedModel
    kind: str
    geometry: Geometry
    times: KernelTime
    shape: tuple[int, ...]
    """Rows; of a grid, tile orders and kernels."""

    @property
    def runtime_us(self) -> FloatArray:
        return np.broadcast_to(self.times.runtime_us, self.shape)

    def predictions(self, rows: GridRows) -> BatchPrediction:
        return self._picked(rows).prediction()

    def correction(self, rows: GridRows) -> Correction | None:
        residual = self.model.residual_of(self.kind)
        return None if residual is None else self._picked(rows).corrected_by(residual)

    def _picked(self, rows: GridRows) -> PhysicalLook:
        found, times = picked(self.geometry, rows), picked(self.times, rows)
        return PhysicalLook(self.model, self.kind, found, times, rows.cells.shape)

    def _parts(self) -> tuple[dict[str, Values], dict[str, Values], dict[str, Values]]:
        """Phases in us that add up, further figures, and bytes by level."""
        times, moved = self.times, self.times.traffic
        batch, schedule, found = self.geometry.batch, self.geometry.schedule, self.geometry.resources
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
            "tiles_per_wave": schedule.slots,
            "stages": found.stages,
            "spilled_registers": found.spilled_registers,
            "sm_clk_mhz": times.sm_clk_mhz,
            "set_clk_mhz": times.set_clk_mhz,
            **self._energy(),
        }
        bytes_by_level = {
            "dram": moved.dram_bytes,
            "l2": moved.l2_request_bytes,
            "smem": (
                found.stage_bytes * schedule.k_steps * schedule.tiles * batch.cluster_m * batch.cluster_n
            ),
        }
        return phases_us, details, bytes_by_level

    def row(self) -> Prediction:
        """All about a single row of numbers, with the residual where it applies."""
        phases_us, details, bytes_by_level = self._parts()
        runtime_us = self.times.runtime_us
        residual = self.model.residual_of(self.kind)
        if residual is not None:
            runtime_us = self.corrected_by(residual).runtime_us(slice(None)).item()
        if self.model.residual is not None:
            phases_us[RESIDUAL_PHASE] = runtime_us - self.times.runtime_us
        slowest = max(LIMITER_DETAILS, key=details.__getitem__)
        band = self.error_band()
        return Prediction(
            runtime_us=runtime_us,
            limiter=LIMITERS[LIMITER_DETAILS.index(slowest)],
            phases_us=phases_us,
            details=details,
            bytes_by_level=bytes_by_level,
            caveats=self.model.caveats(self.kind),
            error_band=None if band is None else band.item(),
        )

    def prediction(self) -> BatchPrediction:
        """All about these rows, without a residual."""
        (rows,) = self.shape
        groups = ({"runtime_us": self.times.runtime_us}, *self._parts())
        runtime, phase, detail, level = _as_columns(groups, rows)
        if self.model.residual is not None:
            phase[RESIDUAL_PHASE] = np.zeros(rows)
        return BatchPrediction(
            runtime_us=runtime["runtime_us"],
            limiter=limiting(LIMITERS, tuple(detail[name] for name in LIMITER_DETAILS)),
            limiter_names=LIMITERS,
            phases_us=phase,
            details=detail,
            bytes_by_level=level,
            caveats=self.model.caveats(self.kind),
            error_band=self.error_band(),
        )

    def _energy(self) -> dict[str, Values]:
        power = self.model.power(self.kind)
        if power is None:
            return {}
        times, moved = self.times, self.times.traffic
        share = times.set_clk_mhz / self.model.gpu.sm_clk_mhz
        batch = self.geometry.batch
        switched = batch.flop * batch.multiplier_share
        spent = energy_uj(power, switched, moved.l2_request_bytes, moved.dram_bytes, share, times.runtime_us)
        return {"energy_uj": spent}

    def error_band(self) -> FloatArray | None:
        """Of each row, as in `BatchPrediction`."""
        calibration, times = self.model.calibration, self.times
        served = calibration.kind_for(self.kind)
        bands = (self.model.residual_of(self.kind) or calibration).error_band.get(served)
        if bands is None:
            return None
        factor = 1.0 if self.model.calibrated_gpu and served == self.kind else UNCALIBRATED_BAND_FACTOR
        table = np.array([bands[name] * factor for name in SITUATIONS])
        memory_us = maximum(times.l2_us, times.dram_us)
        result: FloatArray = table[
            situation(self.geometry.schedule.waves, times.waves_us, memory_us, times.tensor_us)
        ]
        return result

    def corrected_by(self, residual: Residual) -> Correction:
        """What corrects these rows by a residual's trees."""
        model, times = self.model, self.times
        complete, complete_times = self.geometry, times
        if model.without:
            # Trees see the complete model: a what-if question leaves the correction as it is.
            complete = geometry(complete.batch, complete.rate, model.gpu)
            complete_times = model.times(complete, self.kind, ())
        seen = features(complete, complete_times)
        physical_us, floor_us = np.atleast_1d(times.runtime_us, times.floor_us)
        forest = residual.forests[self.kind]

        def runtime_us(rows: BoolArray | slice) -> FloatArray:
            return corrected_us(physical_us[rows], forest.predict(seen[:, rows]), floor_us[rows])

        return Correction(runtime_us=runtime_us, error_band=self.error_band)


def _calibration_for(gpu: GpuSpec, calibration: str | Calibration) -> Calibration:
    if isinstance(calibration, Calibration):
        return calibration
    return load_calibration(_calibration_name(gpu, calibration))


def _calibration_name(gpu: GpuSpec, calibration: str) -> str:
    if calibration != "auto":
        return calibration
    return gpu.name if gpu.name in calibration_names() else FALLBACK


def _with_numbers(batch: GemmBatch) -> GemmBatch:
    """The same rows, columns of one value as Python numbers: formulas of numbers run without numpy.

    Several rows keep the column of m, so that their times are columns too.
    """
    one = len(batch) == 1
    columns = zip(_COLUMNS, _columns_of(batch), strict=True)
    return GemmBatch(
        **{name: column.item() if one else _number_or_column(name, column) for name, column in columns}
    )


def _number_or_column(name: str, column: np.ndarray) -> Values:
    return column[0].item() if name != "m" and (column == column[0]).all() else column


def _as_columns(groups: Sequence[Mapping[str, Values]], rows: int) -> list[dict[str, FloatArray]]:
    """The same groups of named values as columns of so many rows.

    One array for all where they are numbers: to make one for each would take as long as the model.
    """
    values = [value for group in groups for value in group.values()]
    if rows == 1 and set(map(type, values)) == {float}:
        columns = iter(np.array(values)[:, np.newaxis])
    else:
        columns = iter([np.full(rows, value) if is_number(value) else value for value in values])
    # Each group takes as many columns as it has names.
    return [dict(zip(group, columns, strict=False)) for group in groups]


def _interleaved(parts: Sequence[BatchPrediction], rows: Sequence[np.ndarray]) -> BatchPrediction:
    """One prediction from those of disjoint rows."""
    total = sum(len(index) for index in rows)

    def merged(columns: Sequence[np.ndarray]) -> Any:
        result = np.empty(total, dtype=columns[0].dtype)
        for index, values in zip(rows, columns, strict=True):
            result[index] = values
        return result

    first = parts[0]
    bands = [part.error_band for part in parts if part.error_band is not None]
    return BatchPrediction(
        runtime_us=merged([part.runtime_us for part in parts]),
        limiter=merged([part.limiter for part in parts]),
        limiter_names=first.limiter_names,
        phases_us={name: merged([part.phases_us[name] for part in parts]) for name in first.phases_us},
        details={name: merged([part.details[name] for part in parts]) for name in first.details},
        bytes_by_level={
            name: merged([part.bytes_by_level[name] for part in parts]) for name in first.bytes_by_level
        },
        caveats=tuple(dict.fromkeys(caveat for part in parts for caveat in part.caveats)),
        error_band=merged(bands) if len(bands) == len(parts) else None,
    )
