"""Accuracy figures, each against numbers worked out by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_model import load_gpu, predict_table
from gemm_model.tables.accuracy import best_single_config, choice_figures, error_figures, top1_efficiency
from gemm_model.tables.table import read_table


def test_error_figures_by_hand():
    figures = error_figures(np.array([110.0, 90.0, 200.0, 100.0]), np.array([100.0, 100.0, 100.0, 100.0]))
    assert figures.rows == 4
    assert figures.mape == pytest.approx((0.1 + 0.1 + 1.0 + 0.0) / 4)
    assert figures.median == pytest.approx(0.1)
    assert figures.worst == pytest.approx(1.0)
    assert figures.mean_ratio == pytest.approx((1.1 + 0.9 + 2.0 + 1.0) / 4)


def test_rank_correlation_of_reversed_order_is_minus_one():
    figures = error_figures(np.array([1.0, 2.0, 3.0]), np.array([30.0, 20.0, 10.0]))
    assert figures.rank_correlation == pytest.approx(-1)


def choices():
    rows = [
        # shape 1: config 64 is measured best (10), config 128 is predicted best (measured 20)
        (1, 64, 10.0, 12.0),
        (1, 128, 20.0, 11.0),
        # shape 2: both are predicted alike, measured 10 and 40
        (2, 64, 40.0, 5.0),
        (2, 128, 10.0, 5.0),
    ]
    return pd.DataFrame(rows, columns=["m", "cta_m", "runtime_us", "predicted_us"]).assign(n=1, k=1)


def test_top1_efficiency_by_hand_with_ties_shared():
    efficiency = top1_efficiency(choices())
    assert efficiency.tolist() == pytest.approx([10 / 20, (10 / 40 + 10 / 10) / 2])
    figures = choice_figures(efficiency)
    assert (figures.shapes, figures.mean, figures.minimum) == (2, pytest.approx((0.5 + 0.625) / 2), 0.5)


def test_best_single_config_by_hand():
    # config 64: 1 and 1/4; config 128: 1/2 and 1.
    assert best_single_config(choices()).tolist() == pytest.approx([0.5, 1.0])


def test_a_single_config_needs_half_of_the_shapes():
    # Config 64 on shape 1 of 3, config 128 on shape 2 of 3, config 256 on shapes 2 and 3.
    rows = [(1, 64, 10.0), (2, 128, 10.0), (2, 256, 20.0), (3, 256, 30.0)]
    frame = pd.DataFrame(rows, columns=["m", "cta_m", "runtime_us"]).assign(n=1, k=1)
    assert best_single_config(frame).tolist() == pytest.approx([0.5, 1.0])
    assert best_single_config(frame.iloc[[0, 1]].assign(m=[1, 2])).tolist() == [1.0]
    three_apart = frame.iloc[[0, 1, 3]]
    assert best_single_config(three_apart) is None


B200 = Path(__file__).parents[3] / "shared" / "data" / "b200"


@pytest.mark.parametrize(
    ("table", "hit_rate", "mape", "top1"),
    [
        ("dsv3_fp8", 0.0, 0.338, 0.953),
        ("dsv3_fp8", 0.4, 0.172, 0.952),
        ("dsv3_nvfp4", 0.0, 0.250, 0.953),
        ("dsv3_nvfp4", 0.4, 0.329, 0.904),
    ],
)
def test_the_classic_model_has_its_known_accuracy_on_b200(table, hit_rate, mape, top1):
    path = B200 / f"{table}.csv"
    if not path.exists():
        pytest.skip("the B200 table is not here")
    result = predict_table(
        read_table(path), "b200", "WSPersistentGEMMModel", options={"l2_hit_rate": hit_rate}
    )
    figures = error_figures(result["predicted_us"].to_numpy(), result["runtime_us"].to_numpy())
    assert figures.mape == pytest.approx(mape, abs=6e-4)
    assert choice_figures(top1_efficiency(result)).mean == pytest.approx(top1, abs=6e-4)


def test_blackwell_fitted_to_fp8_predicts_nvfp4_and_chooses_well():
    tables = [B200 / f"dsv3_{dtype}.csv" for dtype in ("fp8", "nvfp4")]
    if not all(path.exists() for path in tables):
        pytest.skip("the B200 tables are not here")
    source = Path(__file__).parents[2] / "benchmarks" / "transfer_between_types.py"
    spec = importlib.util.spec_from_file_location("transfer_between_types", source)
    assert spec is not None
    assert spec.loader is not None
    transfer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(transfer)
    gpu = load_gpu("b200")
    known, unseen = (transfer.observations(path, gpu) for path in tables)
    errors, choices = transfer.figures(unseen, gpu, transfer.fit_to(known, gpu).numbers)
    assert errors.mape < 0.10
    assert choices.mean > 0.98
