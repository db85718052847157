"""Forests of oblivious trees: every node of a level asks the same question, so that answers number the leaf.

Few questions are asked of every row alike, which numpy does column by column: no library of trees is needed
to predict.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.batch import FloatArray
from gemm_model.core.compiled import machine_code

WALK = Path(__file__).with_suffix(".c").read_text()
"""Source of the walk through all trees, where formulas are compiled."""
WALKED_AT_ONCE = 64
"""Rows that it walks at once [rows]."""
LEAF_UNIT = 1e-5
"""Unit of a stored leaf [log time]; all forests; chosen: sums of whole numbers do not depend on their order,
so that one row is predicted exactly as within a table."""
MAX_DEPTH = 8
"""Most levels of a tree [1]; all forests; a leaf's number must fit a byte."""
ROWS_PER_BLOCK = 512
"""Rows predicted at once [rows]; tables; chosen: their answers for all trees stay in a core's own cache."""

Features = NDArray[np.float32]
"""Of shape (features, rows)."""


FOREST_ARRAYS = {
    "split_feature": np.uint8,
    "split_border": np.float32,
    "tree_splits": np.uint16,
    "leaves": np.int16,
}
"""Arrays of a forest and their stored types."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """Sum of oblivious trees; each split is a question `feature > border`, asked once for all trees.

    Raises ValueError if its arrays do not fit together.
    """

    features: int
    """How many there are."""
    split_feature: NDArray[np.uint8]
    """Of shape (splits,): position of the feature."""
    split_border: NDArray[np.float32]
    """Of shape (splits,)."""
    tree_splits: NDArray[np.uint16]
    """Of shape (depth, trees): the split that gives each bit of a leaf's number, the lowest first."""
    leaves: NDArray[np.int16]
    """Of shape (trees, 2**depth), in LEAF_UNIT."""

    def __post_init__(self) -> None:
        for name, kind in FOREST_ARRAYS.items():
            if getattr(self, name).dtype != kind:
                raise ValueError(f"{name} of type {getattr(self, name).dtype}; expected {kind.__name__}")
        splits = self.split_feature.size
        if self.split_feature.ndim != 1 or not (self.split_feature < self.features).all():
            raise ValueError(f"split_feature; expected a list of positions below {self.features}")
        if self.split_border.shape != (splits,) or not np.isfinite(self.split_border).all():
            raise ValueError(f"split_border; expected a finite number for each of {splits} splits")
        depth, trees = self.tree_splits.shape if self.tree_splits.ndim == 2 else (0, 0)
        if not 1 <= depth <= MAX_DEPTH or not trees or not (self.tree_splits < splits).all():
            raise ValueError(f"tree_splits; expected 1 to {MAX_DEPTH} of {splits} splits for each tree")
        if self.leaves.shape != (trees, 1 << depth):
            raise ValueError(f"leaves of shape {self.leaves.shape}; expected {(trees, 1 << depth)}")

    def scaled(self, share: float) -> Forest:
        """The same trees with every leaf multiplied by `share`."""
        return replace(self, leaves=np.round(self.leaves * share).astype(self.leaves.dtype))

    @classmethod
    def mean(cls, forests: Sequence[Forest]) -> Forest:
        """One forest that predicts the mean of several with equally many trees, which take turns in it."""
        asked = [list(zip(each.split_feature, each.split_border, strict=True)) for each in forests]
        splits = sorted({split for of in asked for split in of})
        at = {split: place for place, split in enumerate(splits)}
        trees = [
            np.array([at[split] for split in of])[each.tree_splits]
            for of, each in zip(asked, forests, strict=True)
        ]
        depth, count = trees[0].shape
        leaves = np.stack([each.leaves for each in forests], axis=1) / len(forests)
        return cls(
            features=forests[0].features,
            split_feature=np.array([feature for feature, _ in splits], dtype=np.uint8),
            split_border=np.array([border for _, border in splits], dtype=np.float32),
            tree_splits=np.stack(trees, axis=2).reshape(depth, -1).astype(np.uint16),
            leaves=np.round(leaves).reshape(count * len(forests), -1).astype(np.int16),
        )

    def predict(self, features: Features) -> FloatArray:
        """The forest's value of each row of `features`, of shape (features, rows)."""
        steps = np.empty(features.shape[1], dtype=np.int64)
        for start in range(0, len(steps), ROWS_PER_BLOCK):
            rows = slice(start, start + ROWS_PER_BLOCK)
            steps[rows] = self._steps(features[:, rows])
        values: FloatArray = steps.astype(np.float64) * LEAF_UNIT
        return values

    def predict_row(self, features: NDArray[np.float32]) -> float:
        """The forest's value of one row of `features`."""
        answers = features.take(self.split_feature) > self.split_border
        leaf = np.packbits(answers.take(self.tree_splits), axis=0, bitorder="little")[0]
        width = self.leaves.shape[1]
        found = self.leaves.take(leaf + np.arange(0, width * len(leaf), width))
        return int(np.add.reduce(found, dtype=np.int64)) * LEAF_UNIT

    def _steps(self, features: Features) -> NDArray[np.int64]:
        depth, trees = self.tree_splits.shape
        machine = machine_code(WALK)
        if machine is not None:
            rows, splits = features.shape[1], self.split_feature.size
            steps, answers = np.zeros(rows, dtype=np.int64), np.empty(splits * WALKED_AT_ONCE, dtype=np.uint8)
            trees_of = (getattr(self, name) for name in FOREST_ARRAYS)
            arrays = np.ascontiguousarray(features), *trees_of, steps, answers
            pointers = (ctypes.c_void_p(each.ctypes.data) for each in arrays)
            machine.walk(*pointers, *map(ctypes.c_long, (rows, splits, depth, trees)))
            return steps
        answers = (features.take(self.split_feature, axis=0) > self.split_border[:, None]).view(np.uint8)
        leaf = answers.take(self.tree_splits[-1], axis=0)
        for level in self.tree_splits[-2::-1]:
            leaf += leaf
            leaf += answers.take(level, axis=0)
        first_leaf = np.arange(0, trees << depth, 1 << depth)[:, np.newaxis]
        found: NDArray[np.int64] = self.leaves.reshape(-1).take(leaf + first_leaf).sum(axis=0, dtype=np.int64)
        return found
