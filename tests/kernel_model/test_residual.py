"""The clipped residual: bounded, on where it was trained and nowhere else, tied to its calibration."""

import contextlib
import json
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import Epilogue, GemmProblem, KernelConfig, load_gpu, predict, predict_table
from gemm_model.calibration.observations import FoldFit, folds_of, observe
from gemm_model.calibration.report import write_calibration
from gemm_model.calibration.residual_fit import catboost, corrected_fold_us, train, train_on
from gemm_model.calibration.run import CalibrationResult, Choices, calibrate
from gemm_model.calibration.tables import CalibrationData
from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.residual import (
    FEATURES,
    Residual,
    corrected_us,
    features,
    load_residual,
    residual_beside,
    write_residual,
)
from tests.cases import cases
from tests.made_rows import H200, QUACK, rows_made_by
from tests.typed_numbers import one_tree

CALIBRATION = load_calibration("h200:quack")
NUMBERS = {kind: known.without(QUACK.absent_mechanisms) for kind, known in CALIBRATION.numbers.items()}
"""As the family's kernels see them: mechanisms that these lack are switched off."""
SHIPPED = residual_beside(CALIBRATION.path)
needs_shipped = pytest.mark.skipif(not SHIPPED.is_file(), reason="no residual is shipped with h200:quack")
HIDDEN = 1.05
"""What kernels with 256 columns take longer than the physical model knows."""
WIDE_TILES_ARE_SLOWER = one_tree(FEATURES, "cta_n", 200.0, 0, -4879)
"""One tree: kernels with more than 200 columns take exp(0.04879) = 1.05 times as long."""


def measured(shapes, dtype="bf16", hidden=HIDDEN):
    """Rows that the shipped calibration made, but for an effect of cta_n that it does not know."""
    kind = "fp16" if dtype == "bf16" else "fp8"
    frame = rows_made_by(NUMBERS[kind], shapes, dtype)
    wide = frame["cta_n"] == 256
    return frame.assign(runtime_us=frame["runtime_us"] * np.where(wide, hidden, 1.0))


RESIDUAL = Residual(
    gpu="h200",
    fingerprint=CALIBRATION.fingerprint(),
    forests=dict.fromkeys(("fp16", "fp8"), WIDE_TILES_ARE_SLOWER),
    error_band={
        kind: dict.fromkeys(("tiny", "memory_bound", "few_waves", "many_waves", "split_k"), 0.0123)
        for kind in ("fp16", "fp8")
    },
)


@pytest.fixture(scope="module")
def residual_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("residual") / "made.npz"
    write_residual(RESIDUAL, path)
    return path


times_us = st.floats(0.5, 1e5)


@given(physical=times_us, log_error=st.floats(allow_nan=False, allow_infinity=True), floor=times_us)
def test_the_correction_is_bounded_and_never_below_the_floor(physical, log_error, floor):
    result = corrected_us(np.array([physical]), np.array([log_error]), np.array([floor]))[0]
    assert result >= floor
    if result > floor:
        assert 0.92 - 1e-12 <= result / physical <= 1.08 + 1e-12


def test_a_kernel_said_to_be_too_fast_gets_slower_by_that():
    result = corrected_us(np.full(3, 100.0), np.log([0.95, 1.05, 0.5]), np.zeros(3))
    assert result == pytest.approx([100 / 0.95, 100 / 1.05, 108.0])


def test_features_are_those_of_the_kernel():
    problem = GemmProblem.of(300, 1000, 136)
    config = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, cluster_n=1, schedule="pingpong", swizzle=4)
    batch = batch_of([(problem, config)])
    shape = geometry_of(batch, flop_per_clk_per_sm(batch, H200), H200, QUACK)
    times = kernel_time(shape, H200, NUMBERS["fp16"])
    found = dict(zip(FEATURES, features(shape, times)[:, 0], strict=True))
    # Clusters of two cover 512 x 256; pitches of 272 and 2000 bytes.
    expected = {
        "cta_m": 128, "cta_n": 256, "cluster_m": 2, "cluster_n": 1, "pingpong": 1,
        "filled_m": 300 / 512, "filled_n": 1000 / 1024,
        "operand_alignment": 16, "output_alignment": 16, "waves": 1, "last_wave_share": 0,
        "resident": 8, "k_tiles": 3,
        "rows_of_clusters": 2, "columns_of_clusters": 4, "ctas_at_once": 16,
        "sharers": 1,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    # The ring holds what 232448 bytes leave beside the epilogue's buffers, in k tiles of 384 rows of 128.
    assert found["stages"] == 4
    slowest = ("tensor_us", "epilogue_us", "port_us", "latency_us", "l2_us", "dram_us")
    longest_us = max(getattr(times, name)[0] for name in slowest)
    assert found["slowest_share"] == pytest.approx(longest_us / times.waves_us[0], abs=1e-6)
    assert found["exposed_share"] == pytest.approx(times.exposed_us[0] / times.runtime_us[0], abs=1e-6)
    moved = times.traffic
    read, written = moved.dram_read_bytes[0], moved.dram_write_bytes[0]
    assert found["read_share"] == pytest.approx(read / (read + written), abs=1e-6)
    assert found["merged_share"] == pytest.approx(moved.merged_bytes[0] / moved.l2_request_bytes[0], abs=1e-6)
    # Bytes in a microsecond are millionths of a TB/s.
    filled_bytes = times.edge.bytes_per_wave[0] * 1
    assert found["fill_tb_per_s"] == pytest.approx(filled_bytes / times.runtime_us[0] / 1e6, rel=1e-4)
    assert found["fill_tb_per_s"] > 0.0
    assert found["dram_share"] == pytest.approx(times.dram_us[0] / times.runtime_us[0], abs=1e-6)


def test_features_tell_how_clusters_share_a_tile():
    problem = GemmProblem.of(64, 1024, 8192)
    batch = batch_of([(problem, KernelConfig(cta_m=64, cta_n=128, split_k=4))])
    shape = geometry_of(batch, flop_per_clk_per_sm(batch, H200), H200, QUACK)
    found = dict(zip(FEATURES, features(shape, kernel_time(shape, H200, NUMBERS["fp16"]))[:, 0], strict=True))
    # 8 tiles in 4 parts each run at once; 8192 / 64 k tiles, a quarter for each part.
    assert (found["sharers"], found["splits_at_once"], found["k_tiles"]) == (4, 4, 32)


def test_no_feature_is_a_size_of_the_problem():
    assert not {"m", "n", "k"} & set(FEATURES)


def fold_of(seen, test, parameters):
    unseen = seen.rows(test, H200)
    times = kernel_time(unseen.shape, H200, parameters)
    return FoldFit(seen.rows(~test, H200), unseen, parameters, times)


try:
    catboost()
    HAS_TREES = True
except MissingExtraError:
    HAS_TREES = False
needs_trees = pytest.mark.skipif(not HAS_TREES, reason="CatBoost is not installed")


@pytest.mark.slow
@needs_trees
def test_the_same_rows_give_the_same_trees():
    seen = observe(measured(8), H200, QUACK)
    first, again = (train_on([seen], H200, NUMBERS["fp16"]) for _ in range(2))
    for name in ("split_feature", "split_border", "tree_splits", "leaves"):
        assert (getattr(first, name) == getattr(again, name)).all()


@pytest.mark.slow
@needs_trees
def test_a_hidden_effect_is_learned_on_shapes_held_out():
    seen = observe(measured(32), H200, QUACK)
    parameters = NUMBERS["fp16"]
    folds = folds_of(seen.shape_id, seed=0, count=4)
    physical, corrected = np.full((2, len(seen)), np.nan)
    for test in (folds == fold for fold in range(4)):
        fold = fold_of(seen, test, parameters)
        physical[test], corrected[test] = fold.times.runtime_us, corrected_fold_us(fold, H200)
    wide = (seen.frame["cta_n"] == 256).to_numpy()
    assert physical[wide] / seen.runtime_us[wide] == pytest.approx(1 / HIDDEN)
    error = np.abs(corrected / seen.runtime_us - 1)
    assert error[wide].mean() < 0.005
    assert error[~wide].mean() < 0.002


@needs_trees
@pytest.mark.parametrize(("of_held_out_sizes", "learned"), [(False, True), (True, False)])
def test_rows_beside_a_fold_teach_it_unless_they_are_of_its_sizes(of_held_out_sizes, learned):
    frame = measured(32)
    frame["runtime_us"] *= np.where(frame["cta_m"] == 256, 1.01, 1.0)
    seen = observe(frame, H200, QUACK)
    wide = (seen.frame["cta_n"] == 256).to_numpy()
    held_out = seen.shape_id < 8
    # What the fold itself has seen holds no wide tile.
    fold = replace(fold_of(seen, held_out, NUMBERS["fp16"]), seen=seen.rows(~held_out & ~wide, H200))
    beside = seen.rows(wide & (held_out == of_held_out_sizes), H200)
    corrected = corrected_fold_us(fold, H200, beside)
    error = np.abs(corrected / fold.unseen.runtime_us - 1)[wide[held_out]]
    assert (error.mean() < 0.01) == learned


@pytest.mark.slow
@needs_trees
@pytest.mark.parametrize(("shapes", "splits"), [(12, ("fp16",)), (3, ())])
def test_kernels_that_split_k_teach_a_residual_where_there_are_enough(shapes, splits, tmp_path):
    whole = measured(12)
    whole["runtime_us"] *= np.where(whole["cta_m"] == 256, 1.01, 1.0)
    split = measured(shapes, hidden=1.0).assign(split_k=2)
    split["k"] += 1024
    times = kernel_time(observe(split, H200, QUACK).shape, H200, NUMBERS["fp16"])
    split["runtime_us"] = times.runtime_us * np.where(split["cta_n"] == 256, HIDDEN, 1.0)
    path = tmp_path / "table.csv"
    pd.concat([whole.assign(split_k=1), split]).to_csv(path, index=False)
    free = ("tensor.efficiency", "split_k.turn_clk")
    found = calibrate([path], H200, Choices(donor=CALIBRATION, free=free, shapes_only=True))
    assert found.residual.splits == splits
    with_trees = found.residual.error_band["fp16"]["split_k"]
    physical = found.calibration.error_band["fp16"]["split_k"]
    assert (with_trees < physical / 2) == bool(splits)


def test_a_file_gives_back_what_was_written(residual_file, tmp_path):
    found = load_residual(residual_file, CALIBRATION)
    for kind in ("fp16", "fp8"):
        for name in ("split_feature", "split_border", "tree_splits", "leaves"):
            assert (getattr(found.forests[kind], name) == getattr(RESIDUAL.forests[kind], name)).all()
    assert (found.gpu, found.fingerprint, found.error_band) == (
        "h200",
        RESIDUAL.fingerprint,
        RESIDUAL.error_band,
    )
    write_residual(found, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == residual_file.read_bytes()


WIDE = (GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=256))
NARROW = (GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=128))
EXAMPLE = batch_of([WIDE])


def test_equal_rows_are_predicted_as_one():
    model = KernelModel(H200)
    one = model.predict_batch(EXAMPLE)
    three = model.predict_batch(EXAMPLE[np.zeros(3, dtype=np.int64)])
    assert three.runtime_us == pytest.approx(one.runtime_us.repeat(3))
    assert three.error_band == pytest.approx(one.error_band.repeat(3))
    for name, values in three.details.items():
        assert values == pytest.approx(one.details[name].repeat(3))


def test_the_correction_is_a_phase_and_brings_its_own_band(residual_file):
    model, plain = (KernelModel(H200, residual=str(residual_file)), KernelModel(H200, residual="off"))
    physical = plain.predict_row(numbers_of(*WIDE))
    found = model.predict_row(numbers_of(*WIDE))
    assert "residual" not in physical.phases_us
    assert physical.residual_share is None
    assert found.runtime_us / physical.runtime_us == pytest.approx(1.05, abs=1e-5)
    assert found.phases_us["residual"] == pytest.approx(0.05 * physical.runtime_us, rel=1e-3)
    assert found.residual_share == pytest.approx(0.05, rel=1e-3)
    assert found.error_band == 0.0123
    both = model.predict_batch(batch_of([WIDE, NARROW]))
    assert both.phases_us["residual"] == pytest.approx([found.phases_us["residual"], 0.0])


@pytest.mark.parametrize(("splits", "factor"), [((), 1.0), (("fp16",), 1.05), (("fp8",), 1.0)])
def test_kernels_that_split_k_are_corrected_where_trees_have_seen_such(splits, factor, tmp_path):
    write_residual(replace(RESIDUAL, splits=splits), tmp_path / "made.npz")
    problem, config = GemmProblem.of(64, 4096, 8192), KernelConfig(cta_m=128, cta_n=256, split_k=4)
    physical, found = (
        KernelModel(H200, residual=residual) for residual in ("off", str(tmp_path / "made.npz"))
    )
    row, answer = (model.predict_row(numbers_of(problem, config)) for model in (physical, found))
    assert answer.runtime_us / row.runtime_us == pytest.approx(factor, abs=1e-5)
    both = found.predict_batch(batch_of([(problem, config), WIDE]))
    assert both.runtime_us[0] == pytest.approx(answer.runtime_us)


def test_a_what_if_question_keeps_the_correction(residual_file):
    options = {"without": ("dram",)}
    plain = KernelModel(H200, residual="off", **options).predict_batch(EXAMPLE).runtime_us
    corrected = KernelModel(H200, residual=str(residual_file), **options).predict_batch(EXAMPLE).runtime_us
    assert corrected / plain == pytest.approx(1.05, abs=1e-5)


@needs_shipped
@pytest.mark.parametrize("epilogue", ["gelu", "residual", "gated_silu,bias"])
def test_a_fused_epilogue_keeps_the_correction_of_the_kernel_without_it(epilogue):
    problem, config = WIDE
    fused = replace(problem, epilogue=Epilogue.parse(epilogue))
    pairs = batch_of([WIDE, (fused, config), NARROW])
    auto, physical = (
        KernelModel(H200, residual=residual).predict_batch(pairs).runtime_us for residual in ("auto", "off")
    )
    shares = auto / physical
    assert shares[1] == pytest.approx(shares[0], rel=1e-9)
    assert abs(shares[1] - 1.0) > 1e-4
    alone = predict(fused, config, "h200")
    assert alone.runtime_us == pytest.approx(auto[1], rel=1e-9)
    assert physical[1] > 1.005 * physical[0]


@needs_shipped
def test_a_chain_is_corrected_by_the_share_of_the_kernel_launched_alone():
    def found(regime, residual):
        return KernelModel(H200, regime=regime, residual=residual).predict_batch(batch_of([WIDE, NARROW]))

    def shares(regime):
        return found(regime, "auto").runtime_us / found(regime, "off").runtime_us

    alone = shares("burst")
    assert np.all(np.abs(alone - 1.0) > 1e-4)
    assert shares("graph") == pytest.approx(alone, rel=1e-6)
    # No tree has seen a clock that the power cap holds deep under boost: below 0.8 of it none corrects.
    capped = np.asarray(found("sustained", "off").details["set_clk_mhz"])
    assert np.all(capped < 0.8 * H200.sm_clk_mhz)
    assert shares("sustained") == pytest.approx([1.0, 1.0])


@needs_shipped
def test_it_is_on_by_default_where_it_was_trained():
    auto = predict(*WIDE, "h200")
    assert auto.residual_share != 0.0
    assert abs(auto.residual_share) <= 0.08
    assert auto == predict(*WIDE, "h200", options={"residual": str(SHIPPED)})
    assert auto.caveats == ()


@pytest.mark.parametrize(*cases(__file__, "test_it_is_off_elsewhere_without_a_word"))
def test_it_is_off_elsewhere_without_a_word(gpu, options):
    found = predict(*NARROW, gpu, options=options)
    assert found == predict(*NARROW, gpu, options={**options, "residual": "off"})
    assert "residual" not in found.phases_us
    assert not any("residual" in caveat for caveat in found.caveats)


@needs_shipped
def test_types_without_trees_keep_the_physical_time():
    tile = KernelConfig(cta_m=128, cta_n=128)
    mixed = [(GemmProblem.of(512, 512, 512, name), tile) for name in ("tf32", "bf16")]
    both = KernelModel(H200).predict_batch(batch_of(mixed))
    plain = KernelModel(H200, residual="off").predict_batch(batch_of(mixed))
    assert both.phases_us["residual"][0] == 0
    assert both.phases_us["residual"][1] != 0
    assert both.runtime_us[0] == plain.runtime_us[0]
    assert both.caveats == plain.caveats


def test_every_explanation_shows_its_share(residual_file, gemm_model):
    words = [
        *["--m", "4096", "--n", "4096", "--k", "4096", "--cta", "128x256"],
        f"model_opts.residual={residual_file}",
    ]
    physical_us = predict(*WIDE, "h200", options={"residual": "off"}).runtime_us
    line = f"residual: {0.05 * physical_us:+.4g}"[:14]
    for command in ("predict", "explain"):
        text = gemm_model(command, *words)
        assert text.code == 0, text.err
        assert line in text.out
        assert "(+5.0%" in text.out
        found = json.loads(gemm_model(command, *words, "--format", "json").out)
        found = found["result"]
        found = found.get("prediction", found)
        assert found["phases_us"]["residual"] == pytest.approx(0.05 * physical_us, rel=1e-3)
        assert found["residual_share"] == pytest.approx(0.05, rel=1e-3)
    off = gemm_model("explain", *words[:-1], "model_opts.residual=off")
    assert "residual" not in off.out


def changed(path, tmp_path, about=None, **arrays):
    """The file at `path` with other values in `about` (None leaves one out) and other arrays (None too)."""
    values = {**dict(np.load(path)), **arrays}
    found = {**json.loads(str(values.get("about"))), **(about or {})}
    values["about"] = np.array(
        json.dumps({name: value for name, value in found.items() if value is not None})
    )
    new = tmp_path / "changed.npz"
    np.savez(new, **{name: value for name, value in values.items() if value is not None})
    return new


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"about": {"fingerprint": "0123456789abcdef"}}, "another calibration"),
        ({"about": {"version": 9}}, "version 9"),
        ({"about": {"gpu": None}}, "gpu"),
        ({"about": {"features": ["m", "n"]}}, "other features"),
        ({"about": {"error_band": {"fp16": {"tiny": 0.1}}}}, "error_band"),
        *[({"about": {"splits": each}}, "splits is") for each in ("fp16", ["bf16"], [1], {"fp16": True})],
        ({"fp16.leaves": None}, "fp16.leaves is missing"),
        ({"fp16.leaves": np.zeros((2, 2), dtype=np.int16)}, "leaves of shape (2, 2)"),
        ({"fp16.leaves": np.full((1, 2), np.nan)}, "leaves of type float64"),
        ({"fp16.split_border": np.array([np.inf], dtype=np.float32)}, "finite"),
        ({"fp16.split_feature": np.array([99], dtype=np.uint8)}, "split_feature"),
        ({"fp16.tree_splits": np.array([[5]], dtype=np.uint16)}, "tree_splits"),
    ],
)
def test_a_residual_that_does_not_fit_is_refused(residual_file, tmp_path, change, word):
    path = changed(residual_file, tmp_path, **change)
    with pytest.raises(InputError) as refused:
        load_residual(path, CALIBRATION)
    assert word in str(refused.value)
    assert path.name in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"version: 1", b"PK\x03\x04 cut short"])
def test_a_file_of_another_kind_is_refused(tmp_path, gemm_model, content):
    path = tmp_path / "r.npz"
    path.write_bytes(content)
    words = ("--m", 512, "--n", 512, "--k", 512, "--cta", "128x128", f"model_opts.residual={path}")
    outcome = gemm_model("predict", *words)
    assert outcome.code == 2
    assert "not a residual" in outcome.err
    assert "Traceback" not in outcome.err
    path.unlink()
    assert "no such file" in gemm_model("predict", *words).err


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path, residual_file):
    whole = residual_file.read_bytes()
    path = tmp_path / "damaged.npz"
    for place in range(0, len(whole), 23):
        path.write_bytes(whole[:place] + bytes(40) + whole[place + 40 :])
        with contextlib.suppress(InputError):
            load_residual(path, CALIBRATION)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a residual of gemm-model calibrate; expected an .npz file"):
        load_residual(path, CALIBRATION)


def test_a_file_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path):
    path = tmp_path / "large.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as members,
        members.open("about.npy", "w") as member,
    ):
        for _ in range(65):
            member.write(bytes(1 << 20))
    with pytest.raises(InputError, match="holds 68157440 bytes; expected a residual of at most 67108864"):
        load_residual(path, CALIBRATION)


def test_another_parameter_is_another_calibration(tmp_path, residual_file):
    path = tmp_path / "other.yaml"
    values = yaml.safe_load(CALIBRATION.path.read_text())
    values["numbers"]["launch.kernel_us"]["value"] += 1e-3
    path.write_text(yaml.safe_dump(values))
    # A changed copy has no residual beside it; the one of the original is refused.
    assert not KernelModel(H200, calibration=str(path)).corrects
    (tmp_path / "other.residual.npz").write_bytes(residual_file.read_bytes())
    with pytest.raises(InputError, match="another calibration"):
        KernelModel(H200, calibration=str(path))
    assert not KernelModel(H200, calibration=str(path), residual="off").corrects


def test_a_residual_is_not_borrowed(residual_file):
    with pytest.raises(InputError, match="b200_sxm"):
        KernelModel(load_gpu("b200_sxm"), residual=str(residual_file))


@needs_shipped
def test_predicting_needs_no_library_of_trees(monkeypatch):
    for name in ("catboost", "lightgbm", "sklearn"):
        monkeypatch.setitem(sys.modules, name, None)
    frame = pd.DataFrame(
        {"in_dtype": ["bf16", "fp8"], "m": 4096, "n": 4096, "k": 4096, "cta_m": 128, "cta_n": 256}
        | {"cluster_m": 1, "cluster_n": 1}
    )
    assert (predict_table(frame, H200)["phase_residual_us"] != 0).all()
    assert (SHIPPED).stat().st_size < 600e3


def test_without_catboost_training_names_the_extra(monkeypatch, gemm_model, tmp_path):
    monkeypatch.setitem(sys.modules, "catboost", None)
    with pytest.raises(MissingExtraError, match=r"gemm-model\[residual\]"):
        train(np.zeros((2, 3), dtype=np.float32), np.zeros(3))
    table = tmp_path / "table.csv"
    words = ("calibrate", "--input", table, "--output", tmp_path / "c.yaml")
    measured(8).drop(columns="runtime_us").to_csv(table, index=False)
    assert "column 'runtime_us' is missing" in gemm_model(*words).err
    measured(8).to_csv(table, index=False)
    outcome = gemm_model(*words)
    assert outcome.code == 3
    assert "gemm-model[residual]" in outcome.err
    assert not (tmp_path / "c.yaml").exists()


@pytest.mark.slow
@needs_trees
def test_calibrate_writes_and_judges_a_residual(tmp_path, gemm_model):
    table, output = tmp_path / "table.csv", tmp_path / "c.yaml"
    frame = measured(24)
    frame[(frame["cta_m"] == 128) & (frame["cluster_m"] == 1)].to_csv(table, index=False)
    outcome = gemm_model("calibrate", "--input", table, "--output", output)
    assert outcome.code == 0, outcome.err
    assert "shape + residual" in outcome.out
    assert "config + residual" in outcome.out
    assert str(tmp_path / "c.residual.npz") in outcome.err
    found = load_residual(tmp_path / "c.residual.npz", load_calibration(str(output)))
    assert tuple(found.forests) == ("fp16",)
    assert KernelModel(H200, calibration=str(output)).corrects


def test_a_calibration_without_a_residual_leaves_none_of_an_earlier_one(tmp_path):
    result = CalibrationResult(CALIBRATION, {}, RESIDUAL, CalibrationData({}, [], ()))
    path = tmp_path / "c.yaml"
    assert write_calibration(result, path) == [path, tmp_path / "c.residual.npz"]
    assert KernelModel(H200, calibration=str(path)).corrects
    assert write_calibration(replace(result, residual=None), path) == [path]
    assert not KernelModel(H200, calibration=str(path)).corrects


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


@pytest.mark.parametrize(*cases(__file__, "test_answers_number_the_leaves"))
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
