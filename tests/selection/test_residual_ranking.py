"""Ranking with the clipped residual: it corrects few kernels, and the order is that of correcting all."""

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, predict
from gemm_model.models import DEFAULT_MODEL
from gemm_model.prediction import BatchPrediction
from gemm_model.selection import Ranker, describe
from gemm_model.table_ranking import problems_of_table, rank_table
from tests.selection.test_selection import config_of, transposed

pytest.importorskip("lightgbm")

CORRECTED = Ranker("h200", options={"residual": "auto"})
PHYSICAL = Ranker("h200")


@pytest.mark.parametrize(
    "sizes", [(1024, 4096, 4096), (64, 4096, 7168), (8192, 8192, 8192), (264, 1544, 7168)]
)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_first_kernels_are_those_of_correcting_every_candidate(sizes, dtype):
    problem = GemmProblem.of(*sizes, dtype)
    space, _, corrected_us = CORRECTED.predict(problem)
    _, _, physical_us = PHYSICAL.predict(problem)
    orders = len(space) // space.kernels
    best_order = physical_us.reshape(space.kernels, orders).argmin(axis=1)
    kernel_us = corrected_us.reshape(space.kernels, orders)[np.arange(space.kernels), best_order]
    ranking = CORRECTED.rank(problem, 8)
    found = [choice.prediction.runtime_us for choice in ranking.choices]
    assert found == pytest.approx(np.sort(kernel_us)[:8], rel=1e-9)
    assert all("residual" in choice.prediction.phases_us for choice in ranking.choices)
    assert ranking.candidates == PHYSICAL.rank(problem, 8).candidates


def test_the_best_is_not_told_why_it_did_not_win():
    problem = GemmProblem.of(1024, 4096, 4096)
    best = CORRECTED.rank(problem, 1).best.candidate
    assert "as fast as any" in CORRECTED.why_not(problem, describe(best))


def test_a_table_takes_kernels_by_their_corrected_times():
    sizes = np.random.default_rng(5).integers(1, 500, (30, 3)) * 16
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"])
    result = rank_table(frame, CORRECTED)
    losses = []
    for row, problem in zip(result.itertuples(), problems_of_table(frame), strict=True):
        same = transposed(problem) if row.swap_ab else problem
        told = predict(same, config_of(row), "h200", DEFAULT_MODEL, options={"residual": "auto"})
        assert told.runtime_us == pytest.approx(row.predicted_runtime)
        best = CORRECTED.rank(problem, 1).best.prediction.runtime_us
        losses.append(row.predicted_runtime / best - 1.0)
    assert min(losses) >= -1e-9
    assert np.mean(losses) < 2e-3


def test_corrected_rows_differ_by_a_phase():
    before = BatchPrediction(
        runtime_us=np.array([1.0, 2.0, 3.0]),
        limiter=np.array([0, 1, 0]),
        limiter_names=("A", "B"),
        phases_us={"waves": np.array([1.0, 2.0, 3.0])},
    )
    after = before.corrected(np.array([2, 0]), np.array([2.5, 1.25]), "residual")
    assert after.runtime_us.tolist() == [1.25, 2.0, 2.5]
    assert after.phases_us["residual"].tolist() == [0.25, 0.0, -0.5]
    assert after.phases_us["waves"].tolist() == [1.0, 2.0, 3.0]
    assert before.runtime_us.tolist() == [1.0, 2.0, 3.0]
