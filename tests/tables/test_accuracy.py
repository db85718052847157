"""Accuracy figures, each against numbers worked out by hand."""

import pandas as pd
import pytest

from gemm_model.tables.accuracy import best_single_config, choice_figures, top1_efficiency


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


def test_rows_of_other_batches_are_other_shapes():
    assert top1_efficiency(choices().assign(batch=[1, 2, 1, 2])).tolist() == [1.0] * 4


def test_a_single_config_needs_half_of_the_shapes():
    # Config 64 on shape 1 of 3, config 128 on shape 2 of 3, config 256 on shapes 2 and 3.
    rows = [(1, 64, 10.0), (2, 128, 10.0), (2, 256, 20.0), (3, 256, 30.0)]
    frame = pd.DataFrame(rows, columns=["m", "cta_m", "runtime_us"]).assign(n=1, k=1)
    assert best_single_config(frame).tolist() == pytest.approx([0.5, 1.0])
    assert best_single_config(frame.iloc[[0, 1]].assign(m=[1, 2])).tolist() == [1.0]
    three_apart = frame.iloc[[0, 1, 3]]
    assert best_single_config(three_apart) is None
