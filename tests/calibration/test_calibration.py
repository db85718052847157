"""Calibration: it finds parameters that made the data, holds out honestly, and refuses bad tables."""

import numpy as np
import pandas as pd
import pytest

from gemm_model.calibration.cross_validation import fold_fits, folds_of, held_out, size_groups
from gemm_model.calibration.fit import fit
from gemm_model.calibration.observations import observe
from gemm_model.calibration.run import best_of_top
from gemm_model.calibration.tables import load_tables
from gemm_model.core.gpu import load_gpu
from gemm_model.persistent.calibration_file import load_calibration
from gemm_model.persistent.kernel_time import kernel_time

H200 = load_gpu("h200")
TILES = ((64, 128), (128, 128), (128, 256), (256, 128))


def measured(shapes=24, noise=0.0, dtype="bf16", seed=3):
    """A table that the shipped calibration itself made."""
    random = np.random.default_rng(seed)
    sizes = np.round(np.exp(random.uniform(np.log(64), np.log(9000), (shapes, 3))) / 64) * 64
    rows = [
        {
            "in_dtype": dtype, "out_dtype": "bf16", "m": int(m), "n": int(n), "k": int(k), "kernel": "quack",
            "cta_m": cta_m, "cta_n": cta_n, "cluster_m": cluster, "cluster_n": 1, "schedule": "cooperative",
            "runtime_us": 1.0,
        }
        for m, n, k in np.maximum(sizes, 64)
        for cta_m, cta_n in TILES
        for cluster in (1, 2)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    seen = observe(frame, H200)
    kind = "fp16" if dtype == "bf16" else "fp8"
    truth = kernel_time(seen.shape, H200, load_calibration("h200").parameters[kind])
    frame["runtime_us"] = truth.runtime_us * np.exp(random.normal(0, noise, len(frame)))
    return frame


def test_a_fit_explains_the_data_that_the_model_made():
    frame = measured(noise=0.003)
    seen = observe(frame, H200)
    found = fit(seen, None, H200, frozen=("spill_clk",))
    predicted = kernel_time(seen.shape, H200, found.parameters)
    error = np.abs(predicted.runtime_us / seen.runtime_us - 1)
    assert np.median(error) < 0.01
    assert error.max() < 0.06
    assert set(found.at_bound) <= set(found.half_width)


def test_held_out_rows_come_from_fits_that_did_not_see_them():
    seen = observe(measured(shapes=24), H200)
    folds = folds_of(seen.shape_id, seed=1, count=3)
    for shape in np.unique(seen.shape_id):
        assert len(np.unique(folds[seen.shape_id == shape])) == 1
    start = load_calibration("h200").parameters["fp16"]
    folds[folds == 2] = -1
    predicted = held_out(fold_fits(seen, None, H200, folds, start=start), len(seen))
    assert np.isnan(predicted[folds == -1]).all()
    assert np.abs(predicted[folds >= 0] / seen.runtime_us[folds >= 0] - 1).max() < 0.05


def test_a_size_is_held_out_in_all_types_at_once():
    """Types of one size in different folds would tell of each other: their times are almost the same."""
    bf16 = measured(shapes=6)
    seen = observe(pd.concat([bf16, bf16.assign(in_dtype="fp16", out_dtype="fp16")], ignore_index=True), H200)
    groups = size_groups(seen)
    assert len(np.unique(groups)) == 6
    assert (groups[: len(bf16)] == groups[len(bf16) :]).all()


def test_folds_are_reproducible_by_seed():
    groups = np.repeat(np.arange(20), 3)
    assert (folds_of(groups, 5) == folds_of(groups, 5)).all()
    assert (folds_of(groups, 5) != folds_of(groups, 6)).any()


def test_best_of_top_looks_at_the_first_few_predictions_only():
    frame = pd.DataFrame(
        {
            "in_dtype": "bf16", "m": 1, "n": 1, "k": 1,
            "predicted_runtime": [1.0, 2.0, 3.0],
            "actual_runtime": [4.0, 2.0, 1.0],
        }
    )  # fmt: skip
    assert best_of_top(frame, 1).tolist() == [0.25]
    assert best_of_top(frame, 2).tolist() == [0.5]
    assert best_of_top(frame, 3).tolist() == [1.0]


def save(frame, path):
    frame.to_csv(path, index=False)
    return path


def test_impossible_and_foreign_rows_are_left_out_and_counted(tmp_path):
    frame = measured(shapes=10)
    frame.loc[3, "runtime_us"] = 1e-3
    frame.loc[5, "kernel"] = "cublas"
    data = load_tables([save(frame, tmp_path / "t.csv")], H200)
    assert len(data.by_kind["fp16"]["burst"]) == len(frame) - 2
    assert any("faster than the speed of light" in note for note in data.notes)
    assert any("other than quack" in note for note in data.notes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda frame: frame[frame["m"] == frame["m"].iloc[0]], "shapes"),
        (lambda frame: frame.assign(gpu=["h200"] * 40 + ["b200"] * (len(frame) - 40)), "several GPUs"),
        (lambda frame: frame.assign(regime="idle"), "regime"),
        (lambda frame: frame.assign(kernel="cublas"), "quack"),
        (lambda frame: frame.drop(columns="runtime_us"), "runtime_us"),
        (lambda frame: frame.assign(runtime_us=-1.0), "runtime_us"),
        (lambda frame: frame.drop(columns="cta_m"), "cta_m"),
    ],
)
def test_a_table_that_cannot_be_calibrated_on_says_why(tmp_path, gemm_model, change, word):
    path = save(change(measured(shapes=10)), tmp_path / "bad.csv")
    outcome = gemm_model("calibrate", "--input", path, "--output", tmp_path / "out.yaml")
    assert outcome.code == 2
    assert word in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("version: 2", "version: 9"), "version"),
        (("kernel: quack", "kernel: cublas"), "cublas"),
        (("parameters:\n  fp16:", "parameters:\n  fp17:"), "rate class"),
        (("    launch_us:", "    lunch_us:"), "launch_us"),
        (
            ("    mma_efficiency: 0.", "    mma_efficiency: 9."),
            "c.yaml, fp16: parameter mma_efficiency is 9.",
        ),
        (("    idle_w: ", "    idle_w: -"), "c.yaml, power of fp16: power parameter idle_w is -"),
        (("    idle_w: ", "    idle: "), "c.yaml, power of fp16: parameter idle_w is missing"),
    ],
)
def test_a_calibration_of_another_kind_is_refused(tmp_path, gemm_model, change, word):
    from gemm_model.persistent.calibration_file import CALIBRATION_DIR

    text = (CALIBRATION_DIR / "h200.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "c.yaml"
    path.write_text(text.replace(*change, 1))
    words = ("--m", 512, "--n", 512, "--k", 512, "--cta", "128x128", f"model_opts.calibration={path}")
    outcome = gemm_model("explain", *words)
    assert outcome.code == 2
    assert word in outcome.err


def test_explain_prints_mechanisms_and_what_if(gemm_model):
    outcome = gemm_model(
        "explain", "--m", 4096, "--n", 7168, "--k", 2048, "--cta", "128x256", "--cluster", "2x1"
    )
    assert outcome.code == 0
    assert "limited by TENSOR" in outcome.out
    for word in ("MECHANISMS", "WHAT IF", "twice the L2 capacity", "no wave quantization", "LAUNCH"):
        assert word in outcome.out
