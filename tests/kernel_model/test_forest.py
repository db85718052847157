"""Oblivious trees in numpy, against leaves found by hand and by the package that trained them."""

import numpy as np
import pytest

from gemm_model.kernel_model.forest import Forest


def forest(**changed):
    """Two trees of two questions over x > 1, x > 5 and y > 0."""
    arrays = {
        "features": 2,
        "split_feature": np.array([0, 0, 1], dtype=np.uint8),
        "split_border": np.array([1.0, 5.0, 0.0], dtype=np.float32),
        # The first asks x > 1 and y > 0, the second x > 5 and y > 0.
        "tree_splits": np.array([[0, 1], [2, 2]], dtype=np.uint16),
        "leaves": np.array([[1, 2, 4, 8], [100, 200, 400, 800]], dtype=np.int16),
    }
    return Forest(**{**arrays, **changed})


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.0, -1.0, 101e-5),
        (1.0, 0.0, 101e-5),
        (2.0, 0.0, 102e-5),
        (2.0, 1.0, 408e-5),
        (6.0, 0.0, 202e-5),
        (6.0, 1.0, 808e-5),
        (np.nan, np.inf, 404e-5),
    ],
)
def test_answers_number_the_leaves(x, y, expected):
    assert forest().predict(np.array([[x], [y]], dtype=np.float32)) == pytest.approx([expected])


def test_a_row_in_a_long_table_is_predicted_as_alone():
    rows = np.random.default_rng(0).uniform(-2, 8, (2, 5000)).astype(np.float32)
    table = forest().predict(rows)
    assert len(table) == 5000
    for row in (0, 1023, 1024, 4999):
        assert table[row] == forest().predict(rows[:, [row]])[0]
    other = forest(split_border=np.array([2.0, 5.0, 1.0], dtype=np.float32))
    both = Forest.mean([forest(), other]).predict(rows)
    assert both == pytest.approx((table + other.predict(rows)) / 2.0, abs=2e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split_feature", np.array([0, 0, 2], dtype=np.uint8)),
        ("split_border", np.array([1.0, 5.0], dtype=np.float32)),
        ("split_border", np.array([1.0, 5.0, np.nan], dtype=np.float32)),
        ("tree_splits", np.array([[0, 1], [2, 3]], dtype=np.uint16)),
        ("tree_splits", np.zeros((9, 2), dtype=np.uint16)),
        ("tree_splits", np.zeros(2, dtype=np.uint16)),
        ("leaves", np.zeros((2, 8), dtype=np.int16)),
        ("leaves", np.zeros((2, 4))),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        forest(**{name: value})


@pytest.mark.slow
def test_a_trained_forest_predicts_what_its_package_says():
    catboost = pytest.importorskip("catboost")
    from gemm_model.calibration.residual_fit import train

    random = np.random.default_rng(1)
    seen = random.uniform(0, 4, (3, 2000)).astype(np.float32)
    errors = 0.05 * (seen[0] > 2) - 0.03 * (seen[1] > 1) * (seen[2] > 3)
    weight = random.uniform(0.5, 2.0, 2000)
    package = catboost.CatBoostRegressor(
        iterations=450, depth=8, learning_rate=0.15, l2_leaf_reg=3, border_count=32, thread_count=1,
        loss_function="Huber:delta=0.1", boosting_type="Plain", bootstrap_type="No", random_strength=0,
        random_seed=0, allow_writing_files=False, verbose=False,
    ).fit(seen.T, errors, sample_weight=weight)  # fmt: skip
    predicted = train(seen, errors, weight).predict(seen)
    assert predicted == pytest.approx(package.predict(seen.T), abs=1e-3)
    assert np.abs(predicted - errors).mean() < 2e-3


@pytest.mark.slow
def test_a_forest_never_rises_with_a_feature_that_it_falls_with():
    pytest.importorskip("catboost")
    from gemm_model.calibration.residual_fit import train

    random = np.random.default_rng(2)
    seen = random.uniform(0, 4, (2, 2000)).astype(np.float32)
    errors = 0.05 * np.sin(3 * seen[0]) + 0.03 * seen[1]
    line = np.stack([np.linspace(0, 4, 200), np.full(200, 2.0)]).astype(np.float32)
    free, falling = (np.diff(train(seen, errors, falling=some).predict(line)) for some in ((), (0,)))
    assert free.max() > 1e-3
    assert falling.max() <= 1e-9
    assert falling.min() < -1e-3
