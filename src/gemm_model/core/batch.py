"""Many (problem, kernel configuration) pairs as columns: what every model's formulas take.

A single prediction is a batch of one row, so that scalar and table go through the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import Values, where
from gemm_model.core.kernel_config import KERNELS, RASTERS, SCHEDULES, STREAM_K, TWO_CTA, KernelConfig
from gemm_model.core.kind_columns import PLAIN, KindColumns, assembled, kind_columns
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import mapped, require_kind
from gemm_model.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NO_SECOND_USE = float("inf")
"""Footprint [bytes]; operands that are used once; by definition."""
EMPTY_KERNEL_UNKNOWN = -1.0
"""Placeholder for an empty kernel's event reading [us]; rows whose host did not record it; by definition."""


@dataclass(slots=True)
class GemmBatch:
    """Columns of equal length; sizes in elements, widths in bits, codes as positions in their tuples.

    Formulas also take one row as numbers, and columns that broadcast (`feasibility.Grid`). The class is not
    frozen, for speed: a prediction makes two of them, and setting 30 frozen fields takes 5 us.
    """

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    a_bits: FloatArray
    b_bits: FloatArray
    out_bits: FloatArray
    acc_bits: FloatArray
    a_scale_bits: FloatArray
    """Scale-factor bits that travel with one element of A; 0 without block scales."""
    b_scale_bits: FloatArray
    math_kind: IntArray
    """Position in `dtypes.MATH_KINDS`."""
    multiplier_share: FloatArray
    """Current of the MMAs over that of the widest type in the rate class (`dtypes.multiplier_share`)."""
    a_k_major: BoolArray
    b_k_major: BoolArray
    c_n_major: BoolArray
    cta_m: FloatArray
    cta_n: FloatArray
    cta_k: FloatArray
    """0 where the kernel family chooses."""
    mma_m: FloatArray
    mma_n: FloatArray
    cluster_m: FloatArray
    cluster_n: FloatArray
    stages: FloatArray
    """0 where the kernel family chooses."""
    kernel: IntArray
    """The kernel family: position in `kernel_config.KERNELS`."""
    schedule: IntArray
    """Position in `kernel_config.SCHEDULES`."""
    raster: IntArray
    """Position in `kernel_config.RASTERS`."""
    swizzle: FloatArray
    split_k: FloatArray
    fast_accum: BoolArray
    stream_k: BoolArray
    """Whether the scheduler is 'stream_k', which deals k tiles evenly to the clusters."""
    empty_kernel_us: FloatArray
    """Event reading around an empty kernel on the measuring host, which every burst time includes.
        EMPTY_KERNEL_UNKNOWN if the host did not record it."""
    warps: FloatArray
    """Warps of a CTA in families whose kernels differ by it; 0 lets the family choose."""
    pdl: FloatArray
    """1 with programmatic dependent launch, 0 without, -1 for the family's default."""
    footprint_bytes: FloatArray
    """Bytes touched before the same operands are used again; infinite leaves it to the regime."""
    kinds: KindColumns = PLAIN
    """Columns of the kind of problem; PLAIN if every row is a plain GEMM. For groups, m is the mean over the
    groups that have rows, and `batch` is their number."""

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: slice | IntArray | BoolArray) -> GemmBatch:
        """The batch of some rows."""
        return self.mapped(lambda _, column: column[rows])

    def mapped(self, change: Callable[[str, Any], Any]) -> GemmBatch:
        """A copy with each column changed by `change(name, column)`."""
        columns = map(change, COLUMNS, columns_of(self))
        kinds = self.kinds if self.plain else mapped(self.kinds, lambda column: change("", column))
        return GemmBatch(*[*columns, kinds])

    @property
    def plain(self) -> bool:
        """Whether every row is known to be a plain GEMM."""
        return self.kinds is PLAIN

    @property
    def multiplies_bf16(self) -> BoolArray:
        """Whether the operands are bf16: the only 16-bit type with a shorter significand than its rate
        class's widest.
        """
        multiplies: BoolArray = (self.a_bits == 16) & (self.b_bits == 16) & (self.multiplier_share < 1.0)
        return multiplies

    @property
    def flop(self) -> FloatArray:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def a_bytes_per_element(self) -> FloatArray:
        """Bytes of one element of A with its share of the scale factors."""
        return (self.a_bits + self.a_scale_bits) / 8.0

    @property
    def b_bytes_per_element(self) -> FloatArray:
        """Bytes of one element of B with its share of the scale factors."""
        return (self.b_bits + self.b_scale_bits) / 8.0

    @property
    def b_holders(self) -> Values:
        """CTAs that share a tile of B [CTAs]: in a pair on one MMA each CTA loads half of its rows."""
        return where(self.schedule == TWO_CTA, 2.0, 1.0)

    @property
    def a_once_bytes(self) -> FloatArray:
        """Bytes of A with its scale factors, once."""
        return self.m * self.k * self.batch * self.a_bytes_per_element * self.kinds.a_distinct

    @property
    def operand_bytes(self) -> FloatArray:
        """Bytes of A and B with their scale factors, each once."""
        a_bytes = self.a_bytes_per_element * self.kinds.a_distinct
        b_bytes = self.b_bytes_per_element * self.kinds.b_distinct
        return (self.m * a_bytes + self.n * b_bytes) * self.k * self.batch

    @property
    def stored_bits(self) -> FloatArray:
        """Bits written for each accumulator."""
        return (self.out_bits + self.kinds.output_scale_bits) * self.kinds.output_share

    @property
    def output_bytes(self) -> FloatArray:
        return self.m * self.n * self.batch * self.stored_bits / 8.0

    @property
    def source_bits(self) -> FloatArray:
        """Bits of source matrices (C, a residual) that the epilogue reads for each accumulator."""
        return self.out_bits * self.kinds.source_share

    @property
    def source_bytes(self) -> FloatArray:
        """Bytes of source matrices (C, a residual) that the epilogue reads, each once."""
        return self.m * self.n * self.batch * self.source_bits / 8.0

    @property
    def a_pitch_bytes(self) -> FloatArray:
        """Step whose multiples rows of A start at [bytes]: the row pitch, or what the strides of a batch
        leave of it.

        Rows are contiguous along the major extent.
        """
        pitch: Values = where(self.a_k_major, self.k, self.m)
        pitch = where(self.kinds.a_row_step > 0.0, self.kinds.a_row_step, pitch)
        return pitch * self.a_bits / 8.0

    @property
    def b_pitch_bytes(self) -> FloatArray:
        pitch: Values = where(self.b_k_major, self.k, self.n)
        pitch = where(self.kinds.b_row_step > 0.0, self.kinds.b_row_step, pitch)
        return pitch * self.b_bits / 8.0

    @property
    def output_pitch_bytes(self) -> FloatArray:
        row = where(self.c_n_major, self.n, self.m) * self.kinds.output_share
        pitch = where(self.kinds.out_row_step > 0.0, self.kinds.out_row_step, row)
        return pitch * self.out_bits / 8.0


COLUMNS = tuple(name for name in GemmBatch.__dataclass_fields__ if name != "kinds")
"""Names of a batch's columns."""
_KIND_OF = {"IntArray": np.int64, "BoolArray": np.bool_}
_KINDS = [_KIND_OF.get(str(spec.type), np.float64) for spec in fields(GemmBatch) if spec.name != "kinds"]
columns_of = attrgetter(*COLUMNS)
OF_THE_CALL = ("m", "n", "k", "batch")
"""Columns that do not describe the kernel, its types or its launch."""
kernel_of = attrgetter(*COLUMNS[len(OF_THE_CALL) :])
"""The others of a row, as a tuple."""


def batch_of(pairs: Sequence[tuple[GemmProblem, KernelConfig]]) -> GemmBatch:
    """The batch of some (problem, configuration) pairs, in their order."""
    if not pairs:
        raise InputError("no (problem, configuration) pair given; expected at least one")
    for problem, config in pairs:
        require_kind("problem", problem, GemmProblem)
        require_kind("config", config, KernelConfig)
    # One array of all, because building arrays takes most of a single prediction.
    columns = np.array([_values(*pair) for pair in pairs], dtype=np.float64).T.copy()
    typed = [column.astype(kind, copy=False) for column, kind in zip(columns, _KINDS, strict=True)]
    if all(problem.plain for problem, _ in pairs):
        return GemmBatch(*typed)
    kinds = assembled(((row, _kind_columns(*pair)) for row, pair in enumerate(pairs)), len(pairs))
    return GemmBatch(*[*typed, kinds])


def numbers_of(problem: GemmProblem, config: KernelConfig) -> GemmBatch:
    """One row as Python numbers: the formulas then run without numpy."""
    require_kind("problem", problem, GemmProblem)
    require_kind("config", config, KernelConfig)
    kinds = PLAIN if problem.plain else _kind_columns(problem, config)
    return GemmBatch(*[*_values(problem, config), kinds])


def _kind_columns(problem: GemmProblem, config: KernelConfig) -> KindColumns:
    rows, columns = config.cta_m * config.cluster_m, config.cta_n * config.cluster_n
    return kind_columns(problem, float(rows), float(columns))


def _values(p: GemmProblem, c: KernelConfig) -> tuple[Any, ...]:
    """The values of COLUMNS: numbers, codes and flags.

    Raises InputError for a kernel of a provider that no family describes.
    """
    if c.kernel not in KERNELS:
        raise InputError(f"kernel family {c.kernel!r} is not described; expected one of {', '.join(KERNELS)}")
    bits = p.a_dtype.bits, p.b_dtype.bits, p.out_dtype.bits, p.acc_dtype.bits, p.a_scale_bits, p.b_scale_bits
    tile = c.cta_m, c.cta_n, c.cta_k, c.mma_m, c.mma_n, c.cluster_m, c.cluster_n, c.stages
    return (
        *map(float, (*p.sizes, *bits)),
        *(MATH_KINDS.index(p.math_kind), float(p.multiplier_share)),
        *(p.a_major == "k", p.b_major == "k", p.c_major == "n"),
        *map(float, tile),
        *(KERNELS.index(c.kernel), SCHEDULES.index(c.schedule), RASTERS.index(c.raster)),
        *(float(c.swizzle), float(c.split_k), c.fast_accum, c.scheduler == STREAM_K),
        *(EMPTY_KERNEL_UNKNOWN, float(c.warps), -1.0 if c.pdl is None else float(c.pdl), NO_SECOND_USE),
    )
