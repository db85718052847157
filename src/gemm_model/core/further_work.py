"""What kernels do beyond a plain product, as columns: fused epilogues, groups, scales, convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.conv import WGRAD
from gemm_model.core.elementwise import Values, ceil, is_number, where
from gemm_model.core.epilogue import EPILOGUE_WORDS, Epilogue
from gemm_model.core.errors import InputError
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.problem import GemmProblem

GROUPS, BLOCK_SCALING, CONV = KINDS = ("groups", "block_scaling", "conv")
NOT_OF_CONVOLUTIONS = (GROUPS, "group_layout", "capacity", BLOCK_SCALING, "broadcast", "batch_strides")
FURTHER_WORDS = (*EPILOGUE_WORDS, *KINDS)
"""All that a kernel can be asked for beyond a plain product; a set of them is a number, a bit for each."""


def refuse_apart(texts: Mapping[str, str]) -> None:
    """Refuse cells of a table that mean nothing beside its others; empty ones may be left out.

    Raises InputError for a layout or capacity without groups, and for what no convolution has.
    """
    for name, apart in (
        *((name, "without groups") for name in ("group_layout", "capacity") if not texts.get("groups")),
        *((name, "with conv") for name in NOT_OF_CONVOLUTIONS if texts.get(CONV)),
    ):
        if texts.get(name):
            raise InputError(f"{name} has no effect {apart}; expected it left out")


def every_word(found: Any) -> tuple[str, ...]:
    """The words that some of such numbers hold."""
    return words_of(int(np.bitwise_or.reduce(np.atleast_1d(found))))


def bits_of(words: Iterable[str]) -> int:
    """A set of FURTHER_WORDS as a number."""
    return sum(1 << FURTHER_WORDS.index(word) for word in words)


def words_of(bits: int) -> tuple[str, ...]:
    """The words of such a number."""
    return tuple(word for place, word in enumerate(FURTHER_WORDS) if bits >> place & 1)


def asked_of(problem: GemmProblem) -> tuple[str, ...]:
    """The FURTHER_WORDS that a problem asks of a kernel."""
    words = () if problem.epilogue is None else problem.epilogue.words
    kinds = zip(KINDS, (problem.groups, problem.block_scaling, problem.conv), strict=True)
    return (*words, *(kind for kind, found in kinds if found is not None))


COLUMNS_OF_AN_EPILOGUE = (
    *("output_scale_bits", "source_share", "tangents", "sigmoids", "gated", "vectors", "reductions"),
    "quantized",
)
"""Columns of `FurtherWork` that are 0 without an epilogue."""


@dataclass(slots=True, kw_only=True)
class FurtherWork:
    """Columns like those of a `GemmBatch`; with those of a plain row each formula gives the plain number."""

    asked: Any
    """The words that a kernel has to know (`bits_of`)."""
    grouped: Any
    unlike: Any
    """Whether groups have an n and k of their own."""
    longest: Values
    """Longest k of a group over the mean tile's; 1 where all are alike."""
    places: Values
    """Products that a strided data gradient falls into, one for each place of a pixel in the stride; or 1."""
    packed: Values
    """Groups of channels that a tile may hold beside each other, in its columns; 1 for others."""
    packed_rows: Values
    """The same in its rows."""
    clusters_m: Values
    """Of grouped rows: clusters along m of a group, the mean of those that have rows."""
    clusters_n: Values
    rows_inside: Values
    """Of grouped rows: share of the rows of clusters that lie in A; behind a group lie the next one's."""
    output_share: Values
    """Outputs for each sum."""
    output_scale_bits: Values
    """Scale-factor bits that are written with one output."""
    source_share: Values
    """Elements of further matrices that the epilogue reads for each sum."""
    tangents: Values
    """Values of a hyperbolic tangent for each sum."""
    sigmoids: Values
    gated: Values
    """1 where columns are gate and up in turn, else 0."""
    vectors: Values
    """Vectors whose part a tile reads."""
    reductions: Values
    """Reductions of each output."""
    quantized: Values
    """1 where outputs are scaled by their largest, else 0."""
    software_scales: Any
    """Whether the kernel scales the sums of each k tile itself."""
    column_scales: Values
    """1 where that multiplies by a factor of each column too, not by one for the tile, else 0."""
    a_distinct: Values
    """Elements of A in memory over those of the product."""
    b_distinct: Values
    a_shared: Any
    """Whether all matrices of a batch are multiplied by the same A."""
    b_shared: Any
    k_runs: Values
    """Parts of K that a k tile does not reach beyond."""
    n_runs: Values
    """Parts of n that a tile does not reach beyond."""
    a_row_step: Values
    """Of batches with strides and convolutions: what rows of A start at multiples of [elements]; 0: the
    length of a row."""
    b_row_step: Values
    out_row_step: Values

    @property
    def kind(self) -> Any:
        """-1 for plain rows, 0 with an epilogue; 1, 2, 3 with the KINDS, of several the last."""
        groups, block_scaling, conv = (bits_of((kind,)) for kind in KINDS)
        of_kinds = where(self.asked >= conv, 3.0, where(self.asked >= block_scaling, 2.0, 1.0))
        return where(self.asked >= groups, of_kinds, where(self.asked > 0, 0.0, -1.0))

    @property
    def looked_up(self) -> Any:
        """Whether a table tells where a tile lies: of groups, or of the places of a strided data gradient."""
        return self.grouped | (self.places > 1.0)

    def without_epilogue(self) -> FurtherWork:
        """The same with the epilogue of a plain product; what was asked is told as before."""
        nothing = dict.fromkeys(COLUMNS_OF_AN_EPILOGUE, 0.0)
        return replace(self, output_share=1.0, **nothing)


def further_work(problem: GemmProblem, cluster_rows: Values, cluster_columns: Values) -> FurtherWork:
    """The columns of one problem for kernels whose clusters cover so many rows and columns of the output."""
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
    return FurtherWork(
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
        output_share=epilogue.output_share,
        output_scale_bits=(problem.output_bits - plain_bits) / epilogue.output_share,
        source_share=epilogue.source_share,
        tangents=epilogue.tangents,
        sigmoids=epilogue.sigmoids,
        gated=float(epilogue.gated),
        vectors=float(epilogue.vectors),
        reductions=float(epilogue.reductions),
        quantized=float(epilogue.quantized),
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


def assembled(parts: Iterable[tuple[Any, FurtherWork]], rows: int) -> FurtherWork:
    """Columns of so many rows from those of parts of them, each with the positions of its rows."""
    parts = list(parts)

    def column(name: str) -> NDArray[Any]:
        found = [getattr(work, name) for _, work in parts]
        values = np.empty(rows, dtype=np.asarray(found[0]).dtype)
        for (places, _), value in zip(parts, found, strict=True):
            values[places] = value
        return values

    return FurtherWork(**{spec.name: column(spec.name) for spec in fields(FurtherWork)})
