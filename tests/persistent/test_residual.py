"""The clipped residual: bounded, off unless asked for, tied to its calibration, honest on held-out shapes."""

import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.calibration.cross_validation import FoldFit, folds_of
from gemm_model.calibration.observations import observe
from gemm_model.calibration.residual_fit import held_out_with_residual, train
from gemm_model.classic_models.sol import SOLModel
from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import InputError, MissingExtraError
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.calibration_file import load_calibration
from gemm_model.persistent.kernel_time import geometry, kernel_time
from gemm_model.persistent.model import WarpSpecializedModel
from gemm_model.persistent.residual import (
    FEATURES,
    LIMIT,
    RESIDUAL_DIR,
    Residual,
    as_text,
    corrected_us,
    features,
    fingerprint,
    lightgbm,
    load_residual,
)

H200 = load_gpu("h200")
QUACK = family_of("quack", H200)
CALIBRATION = load_calibration("h200")
HIDDEN = 1.05
"""What kernels with 256 columns take longer than the physical model knows."""

try:
    lightgbm()
    HAS_TREES = True
except MissingExtraError:
    HAS_TREES = False
needs_trees = pytest.mark.skipif(not HAS_TREES, reason="LightGBM or its OpenMP library is not installed")


def measured(shapes, dtype="bf16", hidden=HIDDEN):
    """Rows that the shipped calibration made, but for an effect of cta_n that it does not know."""
    random = np.random.default_rng(3)
    sizes = np.maximum(np.round(np.exp(random.uniform(np.log(64), np.log(9000), (shapes, 3))) / 64) * 64, 64)
    rows = [
        {
            "in_dtype": dtype, "out_dtype": "bf16", "m": int(m), "n": int(n), "k": int(k), "kernel": "quack",
            "cta_m": cta_m, "cta_n": cta_n, "cluster_m": cluster, "cluster_n": 1, "schedule": "cooperative",
            "runtime_us": 1.0,
        }
        for m, n, k in sizes
        for cta_m, cta_n in ((64, 128), (128, 128), (128, 256), (256, 128))
        for cluster in (1, 2)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    kind = "fp16" if dtype == "bf16" else "fp8"
    times = kernel_time(observe(frame, H200).shape, H200, CALIBRATION.parameters[kind])
    frame["runtime_us"] = times.runtime_us * np.where(frame["cta_n"] == 256, hidden, 1.0)
    return frame


@pytest.fixture(scope="module")
def trained():
    if not HAS_TREES:
        pytest.skip("LightGBM or its OpenMP library is not installed")
    return Residual(
        gpu="h200",
        fingerprint=fingerprint(CALIBRATION),
        boosters={
            kind: train(observe(measured(16, dtype), H200), H200, CALIBRATION.parameters[kind])
            for kind, dtype in (("fp16", "bf16"), ("fp8", "fp8"))
        },
        error_band={
            kind: dict.fromkeys(CALIBRATION.error_band[kind], 0.0123) for kind in CALIBRATION.error_band
        },
    )


@pytest.fixture(scope="module")
def trained_file(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("residual") / "trained.yaml"
    path.write_text(as_text(trained))
    return path


times_us = st.floats(0.5, 1e5)


@given(physical=times_us, log_error=st.floats(allow_nan=False, allow_infinity=True), floor=times_us)
def test_the_correction_is_bounded_and_never_below_the_floor(physical, log_error, floor):
    result = corrected_us(np.array([physical]), np.array([log_error]), np.array([floor]))[0]
    assert result >= floor
    if result > floor:
        assert 1 - LIMIT - 1e-12 <= result / physical <= 1 + LIMIT + 1e-12


def test_a_kernel_said_to_be_too_fast_gets_slower_by_that():
    result = corrected_us(np.full(3, 100.0), np.log([0.95, 1.05, 0.5]), np.zeros(3))
    assert result == pytest.approx([100 / 0.95, 100 / 1.05, 108.0])


@needs_trees
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=len(FEATURES), max_size=len(FEATURES))
)
@settings(max_examples=60, deadline=None)
def test_any_features_give_a_bounded_correction(trained, values):
    log_error = trained.log_error("fp16", np.array([values]))
    assert 0.92 - 1e-12 <= corrected_us(np.ones(1), log_error, np.zeros(1))[0] <= 1.08 + 1e-12


def test_features_are_those_of_the_kernel():
    problem = GemmProblem.of(300, 1000, 136)
    config = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, cluster_n=1, schedule="pingpong", swizzle=4)
    batch = batch_of([(problem, config)])
    shape = geometry(batch, flop_per_clk_per_sm(batch, H200), H200, QUACK)
    times = kernel_time(shape, H200, CALIBRATION.parameters["fp16"])
    found = dict(zip(FEATURES, features(shape, times)[0], strict=True))
    # Three CTA rows in clusters of two leave one CTA row empty; 272-byte and 2000-byte pitches.
    expected = {
        "cta_m": 128, "cta_n": 256, "cluster_m": 2, "cluster_n": 1, "pingpong": 1, "swizzle": 4,
        "filled_m": 300 / 512, "filled_n": 1000 / 1024, "empty_ctas_m": 1, "empty_ctas_n": 0,
        "operand_alignment": 16, "output_alignment": 16, "waves": 1, "last_wave_share": 0,
        "slots": 8, "ctas": 16, "k_steps": 3,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert found["dram_share"] == pytest.approx(times.dram_us[0] / times.runtime_us[0], abs=1e-6)


def test_no_feature_is_a_size_of_the_problem():
    assert not {"m", "n", "k"} & set(FEATURES)


def fold_of(seen, test, parameters):
    unseen = seen.rows(test, H200)
    times = kernel_time(unseen.shape, H200, parameters)
    return FoldFit(test, seen.rows(~test, H200), unseen, parameters, times)


@needs_trees
def test_a_hidden_effect_is_learned_on_shapes_held_out():
    seen = observe(measured(32), H200)
    parameters = CALIBRATION.parameters["fp16"]
    folds = folds_of(seen.shape_id, seed=0, count=4)
    fits = [fold_of(seen, folds == fold, parameters) for fold in range(4)]
    physical, corrected = held_out_with_residual(fits, len(seen), H200)
    wide = (seen.frame["cta_n"] == 256).to_numpy()
    assert physical[wide] / seen.runtime_us[wide] == pytest.approx(1 / HIDDEN)
    error = np.abs(corrected / seen.runtime_us - 1)
    assert error[wide].mean() < 0.005
    assert error[~wide].mean() < 0.002


@needs_trees
def test_rows_in_no_fold_stay_unpredicted():
    seen = observe(measured(8), H200)
    test = seen.shape_id < 4
    fold = fold_of(seen, test, CALIBRATION.parameters["fp16"])
    physical, corrected = held_out_with_residual([fold], len(seen), H200)
    assert np.isfinite(corrected[test]).all()
    assert np.isnan(corrected[~test]).all()
    assert np.isnan(physical[~test]).all()


@needs_trees
def test_the_same_rows_give_the_same_file(trained):
    again = train(observe(measured(16), H200), H200, CALIBRATION.parameters["fp16"])
    assert again.model_to_string() == trained.boosters["fp16"].model_to_string()


@needs_trees
def test_a_file_gives_back_what_was_written(trained, trained_file):
    found = load_residual(str(trained_file), CALIBRATION)
    rows = np.random.default_rng(0).uniform(0, 256, (50, len(FEATURES)))
    for kind in ("fp16", "fp8"):
        assert (found.log_error(kind, rows) == trained.log_error(kind, rows)).all()
    assert found.error_band == trained.error_band
    assert trained_file.stat().st_size < 1e6


sizes = st.integers(1, 20000)
problems = st.builds(GemmProblem.of, sizes, sizes, sizes, st.sampled_from(["bf16", "fp16", "fp8"]))
configs = st.builds(
    KernelConfig,
    cta_m=st.sampled_from([64, 128, 256]),
    cta_n=st.sampled_from([64, 128, 256]),
    cluster_m=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["cooperative", "pingpong"]),
)
legal = st.tuples(problems, configs).filter(lambda pair: check(*pair, H200) is None)


@needs_trees
@given(pairs=st.lists(legal, min_size=2, max_size=6), regime=st.sampled_from(["burst", "counters"]))
@settings(max_examples=30, deadline=None)
def test_scalar_is_table_and_both_stay_within_the_bounds(trained_file, pairs, regime):
    options = {"regime": regime, "residual": str(trained_file)}
    batch = batch_of(pairs)
    table = WarpSpecializedModel(H200, **options).predict_batch(batch)
    one_by_one = [
        WarpSpecializedModel(H200, **options).predict_batch(batch_of([pair])).runtime_us[0] for pair in pairs
    ]
    assert table.runtime_us == pytest.approx(one_by_one, rel=1e-9)
    assert sum(table.phases_us.values()) == pytest.approx(table.runtime_us)
    physical = WarpSpecializedModel(H200, regime=regime).predict_batch(batch).runtime_us
    assert (table.runtime_us >= SOLModel(H200).predict_batch(batch).runtime_us * (1 - 1e-9)).all()
    assert (np.abs(table.runtime_us / physical - 1) <= LIMIT + 1e-9).all()


@needs_trees
def test_equal_rows_are_predicted_as_one(trained_file):
    model = WarpSpecializedModel(H200, residual=str(trained_file))
    one = model.predict_batch(EXAMPLE)
    three = model.predict_batch(EXAMPLE[np.zeros(3, dtype=np.int64)])
    assert three.runtime_us == pytest.approx(one.runtime_us.repeat(3))
    assert three.error_band == pytest.approx(one.error_band.repeat(3))
    for name, values in three.details.items():
        assert values == pytest.approx(one.details[name].repeat(3))


EXAMPLE = batch_of([(GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=256))])


def test_off_is_the_physical_model():
    plain = WarpSpecializedModel(H200).predict_batch(EXAMPLE)
    off = WarpSpecializedModel(H200, residual="off").predict_batch(EXAMPLE)
    assert (off.runtime_us == plain.runtime_us).all()
    assert off.phases_us.keys() == plain.phases_us.keys()
    assert "residual" not in off.phases_us


@needs_trees
def test_the_correction_is_a_phase_and_narrows_the_band(trained_file):
    plain = WarpSpecializedModel(H200).predict_batch(EXAMPLE).row(0)
    found = WarpSpecializedModel(H200, residual=str(trained_file)).predict_batch(EXAMPLE).row(0)
    assert found.runtime_us / plain.runtime_us == pytest.approx(HIDDEN, abs=0.01)
    assert found.phases_us["residual"] == pytest.approx(found.runtime_us - plain.runtime_us)
    assert found.error_band == 0.0123


@needs_trees
def test_a_what_if_question_keeps_the_correction(trained_file):
    plain = WarpSpecializedModel(H200, without=("dram",)).predict_batch(EXAMPLE).runtime_us
    world = WarpSpecializedModel(H200, without=("dram",), residual=str(trained_file))
    whole = WarpSpecializedModel(H200).predict_batch(EXAMPLE).runtime_us
    corrected = WarpSpecializedModel(H200, residual=str(trained_file)).predict_batch(EXAMPLE).runtime_us
    assert world.predict_batch(EXAMPLE).runtime_us / plain == pytest.approx(corrected / whole)


@needs_trees
def test_sustained_and_unfitted_types_are_left_to_the_physical_model(trained_file):
    sustained = {"regime": "sustained", "residual": str(trained_file)}
    plain = WarpSpecializedModel(H200, regime="sustained").predict_batch(EXAMPLE)
    found = WarpSpecializedModel(H200, **sustained).predict_batch(EXAMPLE)
    assert (found.runtime_us == plain.runtime_us).all()
    assert any("sustained" in caveat for caveat in found.caveats)

    tile = KernelConfig(cta_m=128, cta_n=128)
    mixed = [(GemmProblem.of(512, 512, 512, name), tile) for name in ("tf32", "bf16")]
    both = WarpSpecializedModel(H200, residual=str(trained_file)).predict_batch(batch_of(mixed))
    assert both.phases_us["residual"][0] == 0
    assert any("tf32" in caveat and "residual" in caveat for caveat in both.caveats)


def changed(path, tmp_path, **values):
    new = tmp_path / "changed.yaml"
    new.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
    return new


@needs_trees
@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"fingerprint": "0123456789abcdef"}, "another calibration"),
        ({"version": 9}, "version"),
        ({"trees": {}}, "trees"),
        ({"trees": {"fp16": "not trees"}}, "LightGBM"),
    ],
)
def test_a_residual_that_does_not_fit_is_refused(trained_file, tmp_path, gemm_model, values, word):
    path = changed(trained_file, tmp_path, **values)
    words = ("--m", 512, "--n", 512, "--k", 512, "--cta", "128x128", f"model_opts.residual={path}")
    outcome = gemm_model("predict", *words)
    assert outcome.code == 2
    assert word in outcome.err
    assert "Traceback" not in outcome.err


@needs_trees
def test_another_parameter_is_another_calibration(trained_file, tmp_path):
    from gemm_model.persistent.calibration_file import CALIBRATION_DIR

    values = yaml.safe_load((CALIBRATION_DIR / "h200.yaml").read_text())
    values["parameters"]["fp8"]["launch_us"] += 1e-3
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(InputError, match="another calibration"):
        WarpSpecializedModel(H200, calibration=str(path), residual=str(trained_file))


def test_a_gpu_that_borrows_its_calibration_has_no_residual():
    with pytest.raises(InputError, match="b200"):
        WarpSpecializedModel(load_gpu("b200"), residual="auto")


@pytest.mark.parametrize("value", ["on", "h200", False])
def test_other_words_are_refused(value):
    with pytest.raises(InputError, match="expected off, auto or a YAML file"):
        WarpSpecializedModel(H200, residual=value)


@needs_trees
def test_the_shipped_residual_belongs_to_the_shipped_calibration(gemm_model):
    assert RESIDUAL_DIR.joinpath("h200.yaml").stat().st_size < 1e6
    words = ("--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x256", "model_opts.residual=auto")
    outcome = gemm_model("predict", *words)
    assert outcome.code == 0, outcome.err
    assert "residual" in outcome.out


def test_without_lightgbm_the_extra_is_named(monkeypatch, gemm_model, tmp_path):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(MissingExtraError, match=r"gemm-model\[residual\]"):
        lightgbm()
    table = tmp_path / "table.csv"
    measured(8).to_csv(table, index=False)
    words = ("--input", table, "--output", tmp_path / "c.yaml", "--residual", tmp_path / "r.yaml")
    outcome = gemm_model("calibrate", *words)
    assert outcome.code == 3
    assert "gemm-model[residual]" in outcome.err
    assert not (tmp_path / "c.yaml").exists()


@needs_trees
def test_calibrate_writes_and_judges_a_residual(tmp_path, gemm_model):
    table, output, residual = tmp_path / "table.csv", tmp_path / "c.yaml", tmp_path / "r.yaml"
    measured(8).to_csv(table, index=False)
    outcome = gemm_model("calibrate", "--input", table, "--output", output, "--residual", residual)
    assert outcome.code == 0, outcome.err
    assert "shape + residual" in outcome.out
    assert "config + residual" in outcome.out
    found = load_residual(str(residual), load_calibration(str(output)))
    assert tuple(found.boosters) == ("fp16",)
