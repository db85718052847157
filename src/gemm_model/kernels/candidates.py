"""Candidates: all configurations of a kernel family that can run.

A family's `ConfigSpace` lists the values of each part of a configuration; `kernels.feasibility` alone decides
which combinations are legal. The columns are built once for a GPU and a set of types, shared by all problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from gemm_model.core.batch import (
    EMPTY_KERNEL_UNKNOWN,
    NO_SECOND_USE,
    BoolArray,
    FloatArray,
    GemmBatch,
    IntArray,
    batch_of,
)
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.elementwise import Values, ceil, where
from gemm_model.core.epilogue import ACTIVATIONS, REDUCTIONS, SCALARS, SOURCES, VECTORS
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import AUTO, KERNELS, RASTERS, SCHEDULES, TWO_CTA, KernelConfig
from gemm_model.core.kind_columns import BLOCK_SCALING, GROUPS, PLAIN, KindColumns, assembled, kind_columns
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import mapped
from gemm_model.core.sizes import MAX_SIZE
from gemm_model.errors import InputError
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import (
    Grid,
    Resources,
    check,
    deepest_split,
    feasible_mask,
    resources_of,
    unknown_work,
)

COUNTS = ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "stages", "swizzle", "split_k")
"""Parts of a configuration that are whole numbers, as columns name them."""
UNSET: Mapping[str, float] = {
    "empty_kernel_us": EMPTY_KERNEL_UNKNOWN,
    "warps": float(AUTO),
    "pdl": -1.0,
    "footprint_bytes": NO_SECOND_USE,
    "stream_k": False,
}
"""Columns of a batch that no candidate sets."""
EXCHANGED = frozenset({*SCALARS, *SOURCES, *VECTORS, *ACTIVATIONS, *REDUCTIONS})
"""Epilogue words that kernels computing D^T = B A^T support: those without an extent of the output."""
UNSPLIT = frozenset({GROUPS, BLOCK_SCALING})
"""Kinds of problem that no split-K kernel supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run a problem: a configuration, on the problem itself or with its operands swapped."""

    config: KernelConfig
    swap_ab: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSpace:
    """The legal candidates of a family for given types, as columns; the candidates of one kernel are
    adjacent.
    """

    family: KernelFamily
    swapped: BoolArray
    types: Mapping[str, Any]
    """The batch's type and layout columns, exchanged for candidates that swap their operands."""
    kernel: Mapping[str, Any]
    """The batch's kernel columns."""
    grid: Mapping[str, Values]
    """`swapped`, `types` and `kernel` without repeats: a number, one value for each kernel, or a column of
    shape (tile orders, 1) for values that depend on the tile order."""
    resources: Resources
    """Resources of each kernel; numbers if all kernels agree."""
    _built: dict[int, Candidate] = field(default_factory=dict)
    """Cache of candidates by position: successive shapes ask for the same ones."""

    def __len__(self) -> int:
        return len(self.swapped)

    @property
    def kernels(self) -> int:
        """Distinct compiled kernels."""
        return len(self) // self.family.space.orders_per_kernel

    def candidate(self, index: int) -> Candidate:
        if index not in self._built:
            self._built[index] = self._candidate(index)
        return self._built[index]

    def _candidate(self, index: int) -> Candidate:
        whole: dict[str, Any] = {name: int(self.kernel[name][index]) for name in COUNTS}
        config = KernelConfig(
            **whole,
            schedule=SCHEDULES[int(self.kernel["schedule"][index])],
            raster=RASTERS[int(self.kernel["raster"][index])],
            kernel=self.family.name,
            fast_accum=bool(self.kernel["fast_accum"][index]),
        )
        return Candidate(config=config, swap_ab=bool(self.swapped[index]))

    def batch(self, problem: GemmProblem) -> GemmBatch:
        """All candidates of one problem, in order."""
        return self.grid_of(problem).rows()

    def grid_of(self, problem: GemmProblem) -> Grid:
        """All candidates of one problem."""
        return self.grid_of_shapes(sizes_of(problem), not_plain=() if problem.plain else (problem,))

    def grid_of_shapes(
        self, sizes: FloatArray, *, kernels: IntArray | None = None, not_plain: Sequence[GemmProblem] = ()
    ) -> Grid:
        """The grid of several problems' kernels, problem by problem, in their tile orders.

        `sizes` holds m, n, k and batch as rows, one column for each problem. `kernels`, of shape (problems,
        kernels of each), holds positions among the kernels of this space; None gives each problem all
        kernels. `not_plain` holds the problems if some are not plain GEMMs, else nothing.
        """
        m, n, k, batch = sizes
        problems, each = len(m), self.kernels if kernels is None else kernels.shape[1]

        def of_kernel(values: Any) -> Any:
            if not isinstance(values, np.ndarray):
                return values
            if kernels is not None and values.ndim == 1:
                return values[kernels.reshape(-1)]
            return values if problems == 1 or values.ndim == 2 else np.tile(values, problems)

        def of_problem(values: FloatArray) -> Any:
            return values.item() if problems == 1 else np.repeat(values, each)

        columns = {name: of_kernel(values) for name, values in self.grid.items()}
        swapped = columns.pop("swapped")
        m, n = np.repeat(m, each), np.repeat(n, each)
        columns["m"], columns["n"] = where(swapped, n, m), where(swapped, m, n)
        columns |= UNSET
        columns["kinds"] = _kinds_of_grid(not_plain, columns, each)
        return Grid(
            GemmBatch(**columns, k=of_problem(k), batch=of_problem(batch)),
            self.family.space.orders_per_kernel,
            mapped(self.resources, of_kernel),
        )

    @property
    def splits(self) -> bool:
        """Whether these kernels split K."""
        return self.family.space.split_k != (1,)

    def worth_a_look(self, sizes: FloatArray, gpu: GpuSpec) -> BoolArray:
        """Mask of the kernels worth predicting for problems of these sizes, of shape (problems, kernels).

        `sizes` are those of `grid_of_shapes`. Every kernel with whole K is. A split-K kernel is if half as
        many parts would leave SMs idle and each part has a k tile.
        """
        everywhere = np.ones((sizes.shape[1], self.kernels), dtype=bool)
        if not self.splits:
            return everywhere
        kernel: Mapping[str, Any] = self.grid
        parts, tile = kernel["split_k"], kernel["cta_m"] * kernel["cta_n"]
        fewest = sizes[0] * sizes[1] * sizes[3] * np.min(parts / tile)
        if (fewest / 2.0 >= gpu.sm_count).all():
            # Half the parts would fill the SMs for every kernel, so that no split helps.
            return ~everywhere
        m, n, k, batch = sizes[:, :, np.newaxis]
        swapped = kernel["swapped"]
        clusters_m = ceil(ceil(where(swapped, n, m) / kernel["cta_m"]) / kernel["cluster_m"])
        clusters_n = ceil(ceil(where(swapped, m, n) / kernel["cta_n"]) / kernel["cluster_n"])
        ctas = clusters_m * clusters_n * batch * kernel["cluster_m"] * kernel["cluster_n"]
        long_enough = parts <= deepest_split(k, self.resources.cta_k)
        worth: BoolArray = everywhere & (ctas * parts / 2.0 < gpu.sm_count) & long_enough
        return worth


def sizes_of(problem: GemmProblem) -> FloatArray:
    """Sizes of one problem in the form of `CandidateSpace.grid_of_shapes`."""
    return np.array(problem.sizes, dtype=np.float64)[:, np.newaxis]


def _kinds_of_grid(problems: Sequence[GemmProblem], columns: Mapping[str, Any], each: int) -> KindColumns:
    """Columns of the kinds of problem for a grid with `each` kernels for each problem; PLAIN for plain GEMMs."""
    if not problems:
        return PLAIN
    rows = columns["cta_m"] * columns["cluster_m"]
    cluster_columns = columns["cta_n"] * columns["cluster_n"]
    if len(problems) == 1:
        return kind_columns(problems[0], rows, cluster_columns)
    total = each * len(problems)
    rows, cluster_columns = np.broadcast_to(rows, (total,)), np.broadcast_to(cluster_columns, (total,))
    places = (slice(start, start + each) for start in range(0, total, each))
    return assembled(
        (
            (place, kind_columns(problem, rows[place], cluster_columns[place]))
            for place, problem in zip(places, problems, strict=True)
        ),
        total,
    )


def types_of(problem: GemmProblem) -> GemmProblem:
    """A problem of the same types, layouts and epilogue with fixed sizes; a key for caching."""
    strides, shared = problem.batch_strides, problem.broadcast
    if strides is not None:
        # Keep the presence of a gap between matrices, at these sizes.
        strides = BatchStrides(a=0 if shared == "a" else 2, b=0 if shared == "b" else 3, out=3)
    batch = 2 if shared or strides else 1
    return replace(problem, m=1, n=2, k=1, batch=batch, groups=None, conv=None, batch_strides=strides)


def candidate_spaces(
    family: KernelFamily, gpu: GpuSpec, problem: GemmProblem, asked: Sequence[str] = ()
) -> tuple[CandidateSpace, ...]:
    """The candidates with whole K and, if the family has some, those that split K.

    They are separate because most problems need no split. Tiles of a problem that needs one all run at once,
    so splits come in the family's first swizzle only. Kernels must support the KIND_WORDS in `asked`.
    Raises InputError with the reason if there is no candidate.
    """
    space = family.space
    missing = [word for word in asked if word not in family.knows]
    if missing:
        raise InputError(unknown_work(missing, family, gpu))
    if problem.broadcast or problem.batch_strides or not EXCHANGED.issuperset(asked):
        space = replace(space, swaps=(False,))
    # Apart from swapping (above), strides do not change what is offered.
    problem = replace(problem, batch_strides=None)
    whole = replace(family, space=replace(space, split_k=(1,)))
    found = [_offered(whole, gpu, problem)]
    splits = tuple(parts for parts in space.split_k if parts > 1)
    if splits and not UNSPLIT.intersection(asked):
        split = replace(family, space=replace(space, split_k=splits, swizzles=space.swizzles[:1]))
        found.append(_offered(split, gpu, problem))
    return tuple(found)


def _offered(family: KernelFamily, gpu: GpuSpec, problem: GemmProblem) -> CandidateSpace:
    """The candidates that can run the types and layouts of `problem`, at any size."""
    if problem.a_scale or problem.b_scale:
        # No family swaps block-scaled operands.
        family = replace(family, space=replace(family.space, swaps=(False,)))
    space = _all_combinations(family, gpu, problem)
    unlimited = replace(problem, k=MAX_SIZE)
    rows = space.batch(unlimited)
    legal = feasible_mask(rows, gpu, family) & family.space.combines(rows)
    if not legal.any():
        example = KernelConfig(cta_m=128, cta_n=128, kernel=family.name, fast_accum=family.space.fast_accum)
        reason = check(unlimited, example, gpu) or "no tile of the family is one that the GPU's kernels offer"
        raise InputError(f"no legal {family.name} configuration on {gpu.name}: {reason}")
    kernel = {name: values[legal] for name, values in space.kernel.items()}
    return _space(family, gpu, problem, space.swapped[legal], kernel)


def _space(
    family: KernelFamily, gpu: GpuSpec, problem: GemmProblem, swapped: BoolArray, kernel: Mapping[str, Any]
) -> CandidateSpace:
    """The kernels of some columns for the types and layouts of `problem`."""
    orders, types = family.space.orders_per_kernel, _type_columns(problem, swapped)
    columns = {name: _without_repeats(values, orders) for name, values in {**types, **kernel}.items()}
    # Resources do not depend on sizes.
    sizes: dict[str, Any] = {
        **dict.fromkeys(("m", "n", "k", "batch"), 1.0),
        **UNSET,
        "kinds": PLAIN if problem.plain else kind_columns(problem, 1.0, 1.0),
    }
    found = resources_of(GemmBatch(**columns, **sizes), gpu, family)
    return CandidateSpace(
        family=family,
        swapped=swapped,
        types=types,
        kernel=kernel,
        grid={"swapped": _without_repeats(swapped, orders), **columns},
        resources=Resources(**{name: _number_if_alike(values) for name, values in asdict(found).items()}),
    )


def _without_repeats(values: Any, orders: int) -> Any:
    """A column in the form of `CandidateSpace.grid`; every kernel has the same tile orders."""
    by_kernel = values.reshape(-1, orders)
    if (values == values[0]).all():
        return values[0].item()
    if (by_kernel == by_kernel[:, :1]).all():
        return by_kernel[:, 0].copy()
    return by_kernel[0][:, np.newaxis].copy()


def _number_if_alike(values: Any) -> Any:
    """A column whose values all agree becomes a number; other columns stay."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and (values == values[0]).all():
        return values[0].item()
    return values


def _all_combinations(family: KernelFamily, gpu: GpuSpec, problem: GemmProblem) -> CandidateSpace:
    """Every combination, legal or not; tile orders vary fastest, so that a kernel's candidates are
    adjacent.
    """
    space = family.space
    schedules = [SCHEDULES.index(name) for name in space.schedules]
    rasters = [RASTERS.index(name) for name in space.rasters]
    clusters = range(len(space.clusters))
    axes = (
        *(space.swaps, schedules, space.cta_m, space.cta_n, space.cta_k),
        *(space.stages, clusters, space.split_k, rasters, space.swizzles),
    )
    grid = np.array(list(product(*axes)), dtype=np.int64)
    swap, schedule, cta_m, cta_n, cta_k, stages, cluster, split_k, raster, swizzle = grid.T.copy()
    swapped = swap == 1
    cluster_m, cluster_n = np.array(space.clusters)[cluster].T
    counts = (cta_m, cta_n, cta_k, cluster_m, cluster_n, stages, swizzle, split_k)
    kernel: dict[str, Any] = {
        **{name: values.astype(np.float64) for name, values in zip(COUNTS, counts, strict=True)},
        "mma_m": np.where(schedule == TWO_CTA, 2.0, 1.0) * cta_m,
        "mma_n": cta_n.astype(np.float64),
        "kernel": np.full(len(grid), KERNELS.index(family.name)),
        "schedule": schedule,
        "raster": raster,
        "fast_accum": np.full(len(grid), space.fast_accum and problem.math_kind == "fp8"),
    }
    return _space(family, gpu, problem, swapped, kernel)


def _type_columns(problem: GemmProblem, swapped: BoolArray) -> dict[str, Any]:
    one = batch_of([(problem, KernelConfig(cta_m=128, cta_n=128))])

    def column(name: str, exchanged: str) -> Any:
        return np.where(swapped, getattr(one, exchanged)[0], getattr(one, name)[0])

    pairs = {"a_bits": "b_bits", "a_scale_bits": "b_scale_bits", "a_k_major": "b_k_major"}
    columns = {name: column(name, other) for name, other in pairs.items()}
    columns |= {other: column(other, name) for name, other in pairs.items()}
    for name in ("out_bits", "acc_bits", "math_kind", "multiplier_share"):
        columns[name] = np.full(len(swapped), getattr(one, name)[0])
    columns["c_n_major"] = one.c_n_major[0] != swapped
    return columns
