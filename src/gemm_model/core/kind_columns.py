"""Columns of the kinds of problem: fused epilogues, groups, scales,
convolutions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gemm_model.core.conv import WGRAD
from gemm_model.core.elementwise import Values, ceil, is_number, scattered, where
from gemm_model.core.epilogue import EPILOGUE_WORDS, Epilogue
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError

GROUPS, BLOCK_SCALING, CONV = KINDS = ("groups", "block_scaling", "conv")
NOT_OF_CONVOLUTIONS = (GROUPS, "group_layout", "capacity", BLOCK_SCALING, "broadcast", "batch_strides")
KIND_WORDS = (*EPILOGUE_WORDS, *KINDS)
"""Words of the kinds of problem; a set of them is stored as a number with a bit for each."""


def refuse_apart(texts: Mapping[str, str]) -> None:
    """Refuse cells of a table that contradict its other cells; empty cells may be missing.

    Raises InputError for a layout or capacity without groups, and for cells that no convolution has.
    """
    for name, apart in (
        *((name, "without groups") for name in ("group_layout", "capacity") if not texts.get("groups")),
        *((name, "with conv") for name in NOT_OF_CONVOLUTIONS if texts.get(CONV)),
    ):
        if texts.get(name):
            raise InputError(f"{name} has no effect {apart}; expected it left out")


def every_word(found: Any) -> tuple[str, ...]:
    """All words in some numbers of `bits_of`."""
    return words_of(int(np.bitwise_or.reduce(np.atleast_1d(found))))


def bits_of(words: Iterable[str]) -> int:
    """A set of KIND_WORDS as a number with a bit for each."""
    return sum(1 << KIND_WORDS.index(word) for word in words)


def words_of(bits: int) -> tuple[str, ...]:
    """The words of a number of `bits_of`."""
    return tuple(word for place, word in enumerate(KIND_WORDS) if bits >> place & 1)


def asked_of(problem: GemmProblem) -> tuple[str, ...]:
    """The KIND_WORDS that a kernel must support for a problem."""
    words = () if problem.epilogue is None else problem.epilogue.words
    kinds = zip(KINDS, (problem.groups, problem.block_scaling, problem.conv), strict=True)
    return (*words, *(kind for kind, found in kinds if found is not None))


OF_AN_EPILOGUE = (
    *("output_share", "source_share", "tangents", "sigmoids", "gated", "vectors", "reductions", "quantized"),
)
"""Columns of `KindColumns` that an epilogue's property of that name gives."""


@dataclass(slots=True, kw_only=True, eq=False)
class KindColumns:
    """Columns like those of a `GemmBatch`; with the values of a plain row each formula gives the plain
    result.
    """

    asked: Any
    """The words that a kernel must support (`bits_of`)."""
    grouped: Any
    unlike: Any
    """Whether groups differ in n or k."""
    longest: Values
    """Longest k of a group over the mean tile's; 1 if all groups agree."""
    places: Values
    """GEMMs of a strided data gradient, one for each place of a pixel in the stride; else 1."""
    packed: Values
    """Groups of channels that share a tile's columns; 1 for other problems."""
    packed_rows: Values
    """Groups of channels that share a tile's rows; 1 for other problems."""
    clusters_m: Values
    """Clusters along m of a group, averaged over groups with rows; for grouped rows."""
    clusters_n: Values
    rows_inside: Values
    """Share of the clusters' rows that lie in A; rows behind a group belong to the next one; for grouped
    rows."""
    output_share: Values
    """Outputs for each accumulator."""
    output_scale_bits: Values
    """Scale-factor bits written with one output."""
    source_share: Values
    """Elements of source matrices that the epilogue reads for each sum."""
    tangents: Values
    """Hyperbolic tangents for each accumulator."""
    sigmoids: Values
    gated: Values
    """1 if columns alternate gate and up, else 0."""
    vectors: Values
    """Number of vectors of which a tile reads its part."""
    reductions: Values
    """Number of reductions of each output."""
    quantized: Values
    """1 if outputs are scaled by the largest of their block, else 0."""
    software_scales: Any
    """Whether the kernel scales the sums of each k tile itself."""
    column_scales: Values
    """1 if software scales have a factor for each column and not one for the tile, else 0."""
    a_distinct: Values
    """Elements of A in memory over those of the GEMM."""
    b_distinct: Values
    a_shared: Any
    """Whether all matrices of a batch share A."""
    b_shared: Any
    k_runs: Values
    """Runs of K; a k tile lies within one."""
    n_runs: Values
    """Runs of n; a tile lies within one."""
    a_row_step: Values
    """Step whose multiples rows of A start at [elements], for strided batches and convolutions; 0 means the
    row length."""
    b_row_step: Values
    out_row_step: Values

    @property
    def kind(self) -> Any:
        """-1 for plain rows, 0 with an epilogue; 1, 2, 3 for the KINDS, the last one if there are several."""
        groups, block_scaling, conv = (bits_of((kind,)) for kind in KINDS)
        of_kinds = where(self.asked >= conv, 3.0, where(self.asked >= block_scaling, 2.0, 1.0))
        return where(self.asked >= groups, of_kinds, where(self.asked > 0, 0.0, -1.0))

    @property
    def looked_up(self) -> Any:
        """Whether tiles are located by a table: of groups, or of the places of a strided data gradient."""
        return self.grouped | (self.places > 1.0)

    def without_epilogue(self) -> KindColumns:
        """A copy with a plain epilogue; `asked` stays."""
        nothing = {**dict.fromkeys((*OF_AN_EPILOGUE, "output_scale_bits"), 0.0), "output_share": 1.0}
        return replace(self, **nothing)


_PLAIN: dict[str, Any] = {
    **dict.fromkeys(["grouped", "unlike", "software_scales", "a_shared", "b_shared"], False),
    **dict.fromkeys(["longest", "places", "packed", "packed_rows", "k_runs", "n_runs", "output_share"], 1.0),
    **dict.fromkeys(["clusters_m", "clusters_n", "rows_inside", "a_distinct", "b_distinct"], 1.0),
}
PLAIN = KindColumns(**{spec.name: _PLAIN.get(spec.name, 0.0) for spec in fields(KindColumns)} | {"asked": 0})
"""Plain products, in numbers: what they have none of comes to nothing in each formula."""


def kind_columns(problem: GemmProblem, cluster_rows: Values, cluster_columns: Values) -> KindColumns:
    """The columns of one problem, for clusters of `cluster_rows` x `cluster_columns` outputs."""
    epilogue, groups, conv = problem.epilogue or Epilogue(), problem.groups, problem.conv
    tiling: tuple[Values, Values, Values] = (1.0, 1.0, 1.0)
    if groups is not None:
        tiling = _tiling(groups, problem.n, cluster_rows, cluster_columns)
    clusters_m, clusters_n, rows_inside = tiling
    a_distinct, b_distinct = problem.distinct_share
    steps: tuple[float, ...] = (0.0, 0.0, 0.0)
    if problem.batch_strides is not None:
        steps = tuple(float(layout.row_step) for layout in problem.layouts)
    elif conv is not None:
        steps = tuple(map(float, conv.row_steps))
    plain_bits = problem.out_dtype.bits * epilogue.output_share
    return KindColumns(
        asked=bits_of(asked_of(problem)),
        grouped=groups is not None,
        unlike=groups is not None and not groups.alike,
        longest=1.0 if groups is None or groups.alike else groups.longest_k_share,
        places=1.0 if conv is None else float(conv.places),
        packed=1.0 if conv is None else float(conv.packed),
        packed_rows=1.0 if conv is None or conv.kind != WGRAD else float(conv.packed),
        clusters_m=clusters_m,
        clusters_n=clusters_n,
        rows_inside=rows_inside,
        output_scale_bits=(problem.output_bits - plain_bits) / epilogue.output_share,
        **{name: float(getattr(epilogue, name)) for name in OF_AN_EPILOGUE},
        software_scales=problem.block_scaling is not None,
        column_scales=float(problem.block_scaling is not None and problem.block_scaling.b_rows == 1),
        a_distinct=a_distinct,
        b_distinct=b_distinct,
        a_shared=problem.broadcast == "a",
        b_shared=problem.broadcast == "b",
        k_runs=1.0 if conv is None else conv.k_runs,
        n_runs=1.0 if conv is None else conv.n_runs,
        a_row_step=steps[0],
        b_row_step=steps[1],
        out_row_step=steps[2],
    )


def _tiling(groups: GroupedGemm, n: int, rows: Values, columns: Values) -> tuple[Values, Values, Values]:
    """Clusters along m and n of a mean group that has rows, and the share of their rows that lie in A.

    No tile holds the rows of two groups.
    """
    if is_number(rows) and is_number(columns):
        return _tiling_of(groups, n, rows, columns)
    pairs = np.stack(np.broadcast_arrays(rows, columns), axis=-1)
    tiles, places = np.unique(pairs, axis=0, return_inverse=True)
    found = np.array([_tiling_of(groups, n, *map(float, tile)) for tile in tiles])
    along_m, along_n, inside = found[places.reshape(-1)].T
    return along_m, along_n, inside


def _tiling_of(groups: GroupedGemm, n: int, rows: float, columns: float) -> tuple[float, float, float]:
    sizes = np.array(groups.rows, dtype=np.float64)
    along_m = np.ceil(sizes / rows)
    # Only the last tile of a group can reach beyond all groups.
    room = sizes if groups.capacity is None else np.full(len(sizes), float(groups.capacity))
    first = np.cumsum(room) - room
    beyond = np.maximum(first + along_m * rows - room.sum(), 0.0)[sizes > 0]
    inside = 1.0 - float(beyond.sum() / (along_m.sum() * rows))
    mean_m = float(along_m.sum()) / groups.active
    if groups.alike:
        return mean_m, float(ceil(n / columns)), inside
    along_n = np.ceil(np.array(groups.n) / columns)
    return mean_m, float(along_m @ along_n / along_m.sum()), inside


def assembled(parts: Iterable[tuple[Any, KindColumns]], rows: int) -> KindColumns:
    """Columns of `rows` rows, assembled from parts with the positions of their rows."""
    places, found = zip(*parts, strict=True)
    names = [spec.name for spec in fields(KindColumns)]
    return KindColumns(
        **{name: scattered(places, [getattr(each, name) for each in found], rows) for name in names}
    )
