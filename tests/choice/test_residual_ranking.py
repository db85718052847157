"""Ranking with the clipped residual: it corrects few kernels, and the order is that of correcting all."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError, Ranker, predict, rank
from gemm_model.choice.table_ranking import rank_table
from gemm_model.core.prediction import BatchPrediction
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.models import DEFAULT_MODEL
from tests.choice.test_selection import transposed
from tests.typed_numbers import calibration_with_residual


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Of a model whose residual says of wide tiles that they take 5 % longer."""
    return {"calibration": str(calibration_with_residual(tmp_path_factory.mktemp("residual")))}


@pytest.fixture(scope="module")
def loaded(options):
    """The same options, their file read once."""
    return {"calibration": load_calibration(options["calibration"])}


@pytest.fixture(scope="module")
def corrected(options):
    return Ranker("h200", options=options)


def kernels_corrected_one_and_all(ranker, problem):
    """The time of every kernel in its best order in us, and the band of the best."""
    kernel_us, bands = [], []
    for space, _, prediction in ranker.predictions(problem):
        orders_us = prediction.runtime_us.reshape(-1, space.family.space.orders_per_kernel)
        rows = np.arange(0, orders_us.size, orders_us.shape[1]) + orders_us.argmin(axis=1)
        kernel_us.append(prediction.runtime_us[rows])
        bands.append(prediction.error_band[rows])
    kernel_us = np.concatenate(kernel_us)
    return kernel_us, np.concatenate(bands)[kernel_us.argmin()]


@pytest.mark.parametrize("family", ["quack", "any"])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        *[((2048, 14336, 256), "fp8"), ((2048, 14336, 256), "bf16"), ((8192, 8192, 2048), "fp8")],
        *[((8192, 8192, 2048), "bf16"), ((8192, 1024, 2048), "bf16"), ((4096, 3000, 4096), "bf16")],
    ],
)
def test_the_first_is_the_least_of_all_candidates_in_all_tile_orders(sizes, dtype, family):
    ranker, problem = Ranker("h200", family=family), GemmProblem.of(*sizes, dtype)
    least_us = min(prediction.runtime_us.min() for _, _, prediction in ranker.predictions(problem))
    assert ranker.rank(problem, 8).best.prediction.runtime_us == pytest.approx(least_us, rel=1e-9)
    row = rank_table(pd.DataFrame([{**dict(zip("mnk", sizes, strict=True)), "in_dtype": dtype}]), ranker)
    assert row["predicted_us"].item() == pytest.approx(least_us, rel=1e-9)


def test_a_shape_seen_before_is_answered_from_memory_and_a_file_read_again(tmp_path, options):
    problem = GemmProblem.of(1024, 4096, 4096)
    named = rank(problem, "h200", 3, options={"residual": "auto"})
    assert rank(problem, "h200", 3, options={"residual": "auto"}) is named
    # A file may be another one at the next call.
    beside = Path(options["calibration"]).with_suffix(".residual.npz")
    copy = tmp_path / "residual.npz"
    copy.write_bytes(beside.read_bytes())
    from_file = rank(problem, "h200", 3, options={**options, "residual": str(copy)})
    assert from_file == rank(problem, "h200", 3, options=options)
    copy.write_text("version: 1")
    with pytest.raises(InputError, match=f"{copy}: not a residual"):
        rank(problem, "h200", 3, options={**options, "residual": str(copy)})


@pytest.mark.parametrize("top_k", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_ties_and_the_runner_up_are_those_of_correcting_every_kernel(corrected, dtype, top_k):
    sizes = np.exp2(np.random.default_rng(top_k).uniform(1, 11, (12, 3))).astype(int) * 8
    for m, n, k in sizes.tolist():
        problem = GemmProblem.of(m, n, k, dtype)
        kernel_us, band = kernels_corrected_one_and_all(corrected, problem)
        ranking = corrected.rank(problem, top_k)
        best_us = kernel_us.min()
        times = [choice.prediction.runtime_us for choice in ranking.choices]
        assert times == pytest.approx(np.sort(kernel_us)[:top_k], rel=1e-12)
        assert ranking.tied_with_best == (kernel_us <= best_us * (1.0 + band)).sum()
        slower_us = kernel_us[kernel_us > best_us * (1.0 + 1e-9)].min()
        assert ranking.runner_up.prediction.runtime_us == pytest.approx(slower_us, rel=1e-12)


def test_a_choice_is_predicted_like_the_same_kernel_alone(options):
    options = {**options, "without": ["whole_waves"]}
    ranking = Ranker("h200", options=options).rank(GemmProblem.of(640, 4096, 1544), 3)
    for choice in (*ranking.choices, ranking.runner_up):
        same = transposed(ranking.problem) if choice.candidate.swap_ab else ranking.problem
        alone = predict(same, choice.candidate.config, "h200", DEFAULT_MODEL, options=options)
        found = choice.prediction
        assert found.runtime_us == pytest.approx(alone.runtime_us, rel=1e-9)
        assert found.phases_us == pytest.approx(alone.phases_us, rel=1e-9)
        assert found.details == pytest.approx(alone.details, rel=1e-9)
        assert found.bytes_by_level == pytest.approx(alone.bytes_by_level, rel=1e-9)
        assert (found.limiter, found.error_band) == (alone.limiter, alone.error_band)


def test_corrected_rows_differ_by_a_phase():
    before = BatchPrediction(
        runtime_us=np.array([1.0, 2.0, 3.0]),
        limiter=np.array([0, 1, 0]),
        limiter_names=("A", "B"),
        phases_us={"waves": np.array([1.0, 2.0, 3.0])},
    )
    after = before.corrected(np.array([1.25, 2.0, 2.5]))
    assert after.runtime_us.tolist() == [1.25, 2.0, 2.5]
    assert after.phases_us["residual"].tolist() == [0.25, 0.0, -0.5]
    assert after.phases_us["waves"].tolist() == [1.0, 2.0, 3.0]
    assert before.runtime_us.tolist() == [1.0, 2.0, 3.0]
