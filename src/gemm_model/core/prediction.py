"""A model's prediction of a kernel: runtime, limiter, and phases that add up to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from gemm_model.core.batch import FloatArray, GemmBatch, IntArray
from gemm_model.core.elementwise import scattered
from gemm_model.core.records import ReadOnly
from gemm_model.errors import RefusedKernelError, refuse_all

RESIDUAL_PHASE = "residual"
"""The phase of a correction: what it adds to the model's own time (negative if it subtracts)."""
ROWS_PER_CHUNK = 16384
"""Rows predicted at once [rows]; long tables; measured: enough for two threads, few enough for a core's cache
(0.29 M rows/s by default, 1.5 times the speed of eight times as many rows, 1.05 times that of half or twice)."""
THREADS = 2
"""Threads that predict chunks [1]; long tables; measured: 1.3 times as fast as one on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One kernel's prediction; times are microseconds, sizes bytes. It cannot be changed.

    Fields:
        runtime_us: time of one launch [us], in the regime that was asked for.
        limiter: the resource whose speed governs most of it, such as 'TENSOR', 'L2', 'DRAM' or 'LAUNCH'.
        phases_us: parts [us] by name, which add up to `runtime_us`; a correction by trees is 'residual'.
        details: further figures by name, each with its unit in the name.
        bytes_by_level: bytes moved by 'dram', 'l2' and 'smem'.
        caveats: sentences on what was not measured.
        error_band: relative error [1] that 90 % of held-out measurements stay within; None without any.

    >>> from gemm_model import GemmProblem, KernelConfig, predict
    >>> kernel = KernelConfig(cta_m=128, cta_n=256, cluster_m=2)
    >>> found = predict(GemmProblem.of(4096, 4096, 4096, "bf16"), kernel, "h200")
    >>> found.limiter, 150 < found.runtime_us < 200, 0.01 < found.error_band < 0.1
    ('TENSOR', True, True)
    >>> abs(sum(found.phases_us.values()) - found.runtime_us) < 1e-6
    True
    """

    runtime_us: float
    limiter: str
    phases_us: Mapping[str, float]
    """Parts that add up to the runtime."""
    details: Mapping[str, float]
    """Further figures of the model, each with its unit in its name."""
    bytes_by_level: Mapping[str, float]
    """Bytes moved at each level of the memory hierarchy ('dram', 'l2', 'smem')."""
    caveats: tuple[str, ...] = ()
    error_band: float | None = None
    """Relative error that 90 % of held-out measurements stay within; None if there are none."""

    @property
    def residual_share(self) -> float | None:
        """Correction as a share of the model's own time; None without one."""
        added_us = self.phases_us.get(RESIDUAL_PHASE)
        return None if added_us is None else added_us / (self.runtime_us - added_us)


def known_band(value: float) -> float | None:
    """The error band of one row from a column: NaN becomes None."""
    return None if value != value else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPrediction:
    """Predictions of a batch, column by column; the fields are those of `Prediction`."""

    runtime_us: FloatArray
    limiter: IntArray
    """Position in `limiter_names`."""
    limiter_names: tuple[str, ...]
    phases_us: Mapping[str, FloatArray]
    details: Mapping[str, FloatArray] = field(default_factory=dict)
    bytes_by_level: Mapping[str, FloatArray] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    error_band: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.runtime_us)

    def row(self, index: int) -> Prediction:
        """The prediction of one row."""
        groups = self.phases_us, self.details, self.bytes_by_level
        phases_us, details, bytes_by_level = (
            ReadOnly({name: column.item(index) for name, column in group.items()}) for group in groups
        )
        return Prediction(
            runtime_us=float(self.runtime_us[index]),
            limiter=self.limiter_names[self.limiter[index]],
            phases_us=phases_us,
            details=details,
            bytes_by_level=bytes_by_level,
            caveats=self.caveats,
            error_band=None if self.error_band is None else known_band(self.error_band[index]),
        )

    def rows(self, index: IntArray) -> BatchPrediction:
        """The predictions of some rows."""
        return _combined([self], lambda column: column[index])

    def corrected(self, runtime_us: FloatArray) -> BatchPrediction:
        """A copy with other runtimes; RESIDUAL_PHASE takes the difference."""
        added_us = runtime_us - self.runtime_us
        return replace(self, runtime_us=runtime_us, phases_us={**self.phases_us, RESIDUAL_PHASE: added_us})


def _combined(parts: Sequence[BatchPrediction], combine: Callable[..., Any]) -> BatchPrediction:
    """A prediction whose columns are `combine` of those of the parts; without a band where one has none."""

    def each(name: str) -> dict[str, FloatArray]:
        mappings = [getattr(part, name) for part in parts]
        return {key: combine(*(columns[key] for columns in mappings)) for key in mappings[0]}

    bands = [part.error_band for part in parts if part.error_band is not None]
    return replace(
        parts[0],
        runtime_us=combine(*(part.runtime_us for part in parts)),
        limiter=combine(*(part.limiter for part in parts)),
        phases_us=each("phases_us"),
        details=each("details"),
        bytes_by_level=each("bytes_by_level"),
        error_band=combine(*bands) if len(bands) == len(parts) else None,
    )


Correction: TypeAlias = tuple[FloatArray, FloatArray | None]
"""Corrected runtimes of some rows [us], and their error bands."""


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """Lower bounds for the kernels of a grid, before the model evaluates them."""

    physical_us: FloatArray
    """No kernel is faster than this in any tile order, before a correction [us]; 0 if unknown."""
    kept: float = 1.0
    """Smallest share of a kernel's time that a correction leaves."""


class Evaluation(Protocol):
    """A model's answer for a grid (`CandidateSpace.grid_of_shapes`): all runtimes, the rest for few rows."""

    @property
    def runtime_us(self) -> FloatArray:
        """Before a correction, of shape (tile orders, kernels)."""
        ...

    def correction(self, orders: IntArray, kernels: IntArray) -> Correction | None:
        """The correction of some cells; None if the model has none."""
        ...

    def predictions(self, orders: IntArray, kernels: IntArray) -> BatchPrediction:
        """The full predictions of some cells."""
        ...


@dataclass(frozen=True, slots=True)
class PredictedEvaluation:
    """The `Evaluation` of a model without a faster way than predicting every row of a grid."""

    prediction: BatchPrediction
    """Kernel by kernel, each in all orders."""
    orders: int

    @property
    def runtime_us(self) -> FloatArray:
        return self.prediction.runtime_us.reshape(-1, self.orders).T

    def correction(self, _orders: IntArray, _kernels: IntArray) -> None:
        return None

    def predictions(self, orders: IntArray, kernels: IntArray) -> BatchPrediction:
        return self.prediction.rows(kernels * self.orders + orders)


def predict_in_chunks(
    predict: Callable[[GemmBatch], BatchPrediction],
    batch: GemmBatch,
    advance: Callable[[int], None] = lambda _: None,
) -> BatchPrediction:
    """Predict a long batch in chunks, two at a time; calls `advance(rows)` as rows are done.

    numpy releases the interpreter lock within an operation on long columns, so that two threads are 1.3 times
    as fast as one on two cores.
    """
    starts = range(0, len(batch), ROWS_PER_CHUNK)
    if len(starts) <= 1:
        return predict(batch)
    chunks = [slice(start, min(start + ROWS_PER_CHUNK, len(batch))) for start in starts]
    refused: list[RefusedKernelError] = []

    def predicted(rows: slice) -> list[BatchPrediction]:
        try:
            part = predict(batch[rows])
        except RefusedKernelError as error:
            refused.append(error.at(range(rows.start, rows.stop)))
            return []
        advance(rows.stop - rows.start)
        return [part]

    with ThreadPoolExecutor(THREADS) as pool:
        parts = [part for found in pool.map(predicted, chunks) for part in found]
    refuse_all(refused)
    return interleaved(parts, chunks)


def interleaved(
    parts: Sequence[BatchPrediction], rows: Sequence[slice | Sequence[int] | IntArray]
) -> BatchPrediction:
    """One prediction from those of disjoint rows."""
    total = sum(map(len, parts))
    caveats = tuple(dict.fromkeys(caveat for part in parts for caveat in part.caveats))
    return replace(_combined(parts, lambda *columns: scattered(rows, columns, total)), caveats=caveats)
