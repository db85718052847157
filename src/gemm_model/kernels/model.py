"""What every model answers; one whose formulas take arrays only says what it predicts of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gemm_model.core.batch import GemmBatch
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.prediction import (
    BatchPrediction,
    Evaluation,
    LeastTimes,
    PredictedEvaluation,
    Prediction,
)
from gemm_model.kernels.feasibility import Grid


class Model(ABC):
    """A pure function from a batch to predictions, for a given GPU and given options.

    It is made as `Model(gpu, **options)`; options are the keys of `config/model/<name>.yaml`. What is written here
    serves models whose formulas take arrays only: single rows and grids of kernels go through a batch.
    """

    gpu: GpuSpec
    needs_tile: bool
    """Whether the model needs the kernel's tile besides the problem."""
    beyond_plain = False
    """Whether the model supports other kinds of problem: epilogues, groups, scales, convolutions."""
    prices_split_k = False
    """Whether the model prices split-K; rankings by other models split nothing."""
    regime: str | None = None
    """The regime whose times it predicts; None for a model with a single one."""
    l2: str | None = None
    """What L2 holds at the start; None for a model that does not ask."""

    def heuristic_choice(self, family: str) -> HeuristicChoice:  # noqa: ARG002 - a model that knows libraries asks
        """A library's heuristic choice, relative to the kernel predicted fastest; the same without knowledge of it."""
        return HeuristicChoice()

    @abstractmethod
    def predict_batch(self, batch: GemmBatch) -> BatchPrediction: ...

    def predict_row(self, row: GemmBatch) -> Prediction:
        """The prediction of one row of Python numbers (`batch.numbers_of`), made as a batch of one."""
        return self.predict_batch(row.mapped(lambda _, value: np.array([value]))).row(0)

    def least_times(self, grid: Grid) -> LeastTimes:
        """Lower bounds of the kernels' times in a grid, at a fraction of the cost of `evaluate`: 0 where unknown."""
        return LeastTimes(np.zeros(len(grid.batch)))

    def evaluate(self, grid: Grid) -> Evaluation:
        """The kernels of a grid, in all of their tile orders, predicted at once."""
        return PredictedEvaluation(self.predict_batch(grid.rows()), grid.orders)
