"""Models whose formulas take arrays only: single rows and grids of kernels go through a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gemm_model.core.batch import GemmBatch
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.prediction import (
    BatchPrediction,
    Evaluation,
    LeastTimes,
    PredictedEvaluation,
    Prediction,
)
from gemm_model.kernels.feasibility import Grid


class ArrayModel(ABC):
    """The rest of a `Model` from its `predict_batch`."""

    prices_split_k = False
    beyond_plain = False
    regime: str | None = None
    l2: str | None = None

    def heuristic_choice(self, _family: str) -> HeuristicChoice:
        """Such a model knows no library, so the heuristic choice equals the fastest kernel."""
        return HeuristicChoice()

    @abstractmethod
    def predict_batch(self, batch: GemmBatch) -> BatchPrediction: ...

    def predict_row(self, row: GemmBatch) -> Prediction:
        """The prediction of one row of Python numbers, made as a batch of one."""
        return self.predict_batch(row.mapped(lambda _, value: np.array([value]))).row(0)

    def least_times(self, grid: Grid) -> LeastTimes:
        """No lower bounds: 0 for every kernel."""
        return LeastTimes(np.zeros(len(grid.batch)))

    def evaluate(self, grid: Grid) -> Evaluation:
        """All rows of a grid, predicted at once."""
        return PredictedEvaluation(self.predict_batch(grid.rows()), grid.orders)
