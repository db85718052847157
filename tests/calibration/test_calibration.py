"""Calibration: it finds parameters that made the data, holds out honestly, and refuses bad tables."""

import re
import threading
import time

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError
from gemm_model.calibration.fit import DEFAULT_FREE, Donor, fit, free_from
from gemm_model.calibration.observations import folds_of, observe, of_twins, size_groups
from gemm_model.calibration.pick_residual_fit import calls_of
from gemm_model.calibration.residual_fit import HoldOut
from gemm_model.calibration.run import Choices, KindResult, best_of_top, calibrate, full_names
from gemm_model.calibration.tables import load_tables, measured_family
from gemm_model.config.numbers import room_numbers
from gemm_model.core.processes import local_processes
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernel_model.kernel_time import kernel_time
from tests.cases import cases
from tests.made_rows import H200, QUACK, rows_made_by
from tests.typed_numbers import VALUES, calibration_file, numbers

ABSENT = QUACK.absent_mechanisms
NUMBERS = numbers().without(ABSENT)
FREE = (
    *("launch.kernel_us", "tensor.efficiency", "l2.efficiency", "dram.efficiency"),
    "epilogue.store_bytes_per_clk",
)
CLOCK = ("light_share", "droop_mma", "droop_memory")
OTHER_CLOCK = ("droop_us",)


def measured(shapes=24, noise=0.0, dtype="bf16", seed=3):
    """A table that the typed numbers made."""
    return rows_made_by(NUMBERS, shapes, dtype, noise, seed)


def test_a_fit_finds_the_numbers_that_made_the_data():
    seen = observe(measured(noise=0.003), H200, QUACK)
    start = {**VALUES, "tensor.efficiency": 0.9, "l2.efficiency": 1.2}
    found = fit({"burst": seen}, H200, free=FREE, start=start, without=ABSENT)
    values = found.numbers.values()
    for name in FREE:
        assert values[name] == pytest.approx(VALUES[name], rel=0.05), name
        assert 0 < found.half_width[name] < 0.2 * VALUES[name], name
    assert all(values[name] == VALUES[name] for name in VALUES if name not in FREE)
    assert found.at_bound == ()
    error = np.abs(kernel_time(seen.shape, H200, found.numbers.without(ABSENT)).runtime_us)
    assert np.median(np.abs(error / seen.runtime_us - 1)) < 0.01


def test_a_fit_says_which_numbers_it_left_at_a_bound():
    frame = measured()
    frame["runtime_us"] *= 0.5
    seen = {"burst": observe(frame, H200, QUACK)}
    found = fit(seen, H200, free=("tensor.efficiency",), start=VALUES, without=ABSENT)
    assert found.at_bound == ("tensor.efficiency",)
    assert found.numbers.tensor.efficiency == pytest.approx(1.0, abs=1e-3)


def test_a_donor_keeps_what_few_rows_cannot_tell():
    frame = measured(shapes=2)
    frame["runtime_us"] *= 1.1
    seen = {"burst": observe(frame, H200, QUACK)}

    def furthest(**options):
        found = fit(seen, H200, free=FREE, start=VALUES, without=ABSENT, **options).numbers.values()
        return max(abs(found[name] / VALUES[name] - 1) for name in FREE)

    known = furthest(donor=Donor(values=VALUES, same_kernels=True))
    assert 0.02 < known < furthest(donor=Donor(values=VALUES, same_kernels=False)) < furthest()


def test_a_number_stays_where_direct_measurements_allow_it():
    frame = measured()
    frame["runtime_us"] *= 1.3
    held = Donor(values=VALUES, same_kernels=True, bounds={"l2.efficiency": (0.95, 1.05)})
    seen = {"burst": observe(frame, H200, QUACK)}
    found = fit(seen, H200, free=("l2.efficiency",), start=VALUES, donor=held, without=ABSENT)
    assert found.numbers.l2.efficiency == pytest.approx(0.95, abs=1e-3)
    assert found.at_bound == ("l2.efficiency",)


def test_another_card_of_a_family_moves_the_cards_numbers_and_the_launch():
    free = free_from("quack", "quack")
    assert {"launch.kernel_us", "l2.efficiency", "clock.droop_mma"} <= set(free)
    assert not {"round_trip.single_clk", "epilogue.store_clk"} & set(free)
    assert {"round_trip.single_clk", "epilogue.store_clk"} <= set(free_from("quack", "cublas"))


def test_held_out_rows_come_from_fits_that_did_not_see_them():
    seen = observe(measured(shapes=24), H200, QUACK)
    folds = folds_of(seen.shape_id, seed=1, count=3)
    for shape in np.unique(seen.shape_id):
        assert len(np.unique(folds[seen.shape_id == shape])) == 1
    folds[folds == 2] = -1
    known = {"free": FREE, "start": VALUES, "donor": None, "without": ABSENT}
    hold_out = HoldOut(regimes={"burst": seen}, main="burst", gpu=H200, **known)
    for fold in (0, 1):
        each = hold_out.fit_without(folds == fold)
        sizes = [set(map(tuple, rows.frame[["m", "n", "k"]].values)) for rows in (each.seen, each.unseen)]
        assert not sizes[0] & sizes[1]
    predicted = hold_out.times(folds, map).runtime_us
    assert np.isnan(predicted[folds == -1]).all()
    assert np.abs(predicted[folds >= 0] / seen.runtime_us[folds >= 0] - 1).max() < 0.05


def test_a_size_is_held_out_in_all_types_at_once():
    """Types of one size in different folds would tell of each other: their times are almost the same."""
    bf16 = measured(shapes=6)
    both = pd.concat([bf16, bf16.assign(in_dtype="fp16", out_dtype="fp16")], ignore_index=True)
    seen = observe(both, H200, QUACK)
    groups = size_groups(seen)
    assert len(np.unique(groups)) == 6
    assert (groups[: len(bf16)] == groups[len(bf16) :]).all()


def test_folds_are_reproducible_by_seed():
    groups = np.repeat(np.arange(20), 3)
    assert (folds_of(groups, 5) == folds_of(groups, 5)).all()
    assert (folds_of(groups, 5) != folds_of(groups, 6)).any()


def test_best_of_top_looks_at_the_first_few_predictions_only():
    frame = pd.DataFrame({"predicted_us": [1.0, 2.0, 3.0], "runtime_us": [4.0, 2.0, 1.0]})
    frame = frame.assign(in_dtype="bf16", m=1, n=1, k=1)
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
    frame.loc[7, "runtime_us"] = np.nan
    data = load_tables([save(frame, tmp_path / "t.csv")], H200, QUACK)
    assert len(data.by_kind["fp16"]["burst"]) == len(frame) - 3
    assert data.notes == [
        f"{tmp_path / 't.csv'}: left out 1 row of kernels other than quack (first at line 7)",
        f"{tmp_path / 't.csv'}: left out 1 row without a measured time (first at line 9)",
        f"{tmp_path / 't.csv'}: left out 1 row faster than the speed of light (first at line 5)",
    ]


def test_a_row_is_named_by_its_line_in_its_own_table(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    save(measured(shapes=10), first)
    broken = measured(shapes=10, seed=4)
    broken.loc[3, "runtime_us"] = np.nan
    # A comment moves the fourth row from line 5 to line 6.
    second.write_text("# measured twice\n" + broken.to_csv(index=False, na_rep="nan"))
    words = f"{second}: line 6, column runtime_us: 'nan'; expected a positive number of microseconds"
    with pytest.raises(InputError, match=re.escape(words)):
        load_tables([first, second], H200, QUACK)


def test_rows_whose_role_is_not_fit_are_left_out(tmp_path):
    rows = measured(shapes=10).assign(role="fit")
    held_out = measured(shapes=12).assign(role="held_out", runtime_us="1e6")
    data = load_tables([save(pd.concat([rows, held_out]), tmp_path / "t.csv")], H200, QUACK)
    assert len(data.by_kind["fp16"]["burst"]) == len(rows)
    assert any(f"left out {len(held_out)} rows whose role is not fit" in note for note in data.notes)


def test_too_few_shapes_with_a_whole_k_are_refused(tmp_path):
    split = measured(shapes=10, seed=4).assign(split_k=2)
    path = save(pd.concat([measured(shapes=3).assign(split_k=1), split]), tmp_path / "t.csv")
    with pytest.raises(InputError, match="3 shapes of fp16 operands in the burst regime; expected 8"):
        load_tables([path], H200, QUACK)


def test_the_captured_graph_tells_how_a_library_launched(tmp_path):
    rows = measured(shapes=10).assign(programmatic_edges=1)
    path = save(rows.assign(pdl=["", "0"] * (len(rows) // 2)), tmp_path / "t.csv")
    # What was asked for stays.
    assert load_tables([path], H200, QUACK).by_kind["fp16"]["burst"]["pdl"][:4].tolist() == [
        "1",
        "0",
        "1",
        "0",
    ]
    # A table that does not say what was asked for is read too.
    assert len(load_tables([save(rows, tmp_path / "u.csv")], H200, QUACK).by_kind["fp16"]["burst"]) == len(
        rows
    )


def test_calls_of_other_libraries_are_no_choices_of_cudnn(tmp_path):
    conv = GemmProblem.of_conv("fprop n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1")
    rows = pd.DataFrame({"kernel": ["cudnn", "cublas"], "conv": [conv.conv.name, ""], "runtime_us": 20.0})
    rows = rows.assign(in_dtype="bf16", m=conv.m, n=conv.n, k=conv.k)
    found = calls_of([save(rows, tmp_path / "t.csv")], H200)
    assert len(found.layer) == len(found.log_error) == 1


def test_a_kernel_is_its_own_twin_and_no_other_tiles():
    seen = observe(measured(shapes=10), H200, QUACK)
    assert of_twins(seen, seen, seen.runtime_us) == pytest.approx(seen.runtime_us)


def test_kernels_with_a_whole_k_tell_nothing_of_splits_chains_and_kinds():
    others = ("split_k.", "power.", "chain.", "grouped.", "fused_epilogue.")
    assert not [name for name in DEFAULT_FREE if name.startswith(others)]


def test_a_table_of_rows_with_a_warm_l2_leaves_those_of_the_others(tmp_path):
    cold, warm = tmp_path / "cold.csv", tmp_path / "warm.csv"
    save(measured(shapes=10), cold)
    save(measured(shapes=10).assign(l2="warm"), warm)
    data = load_tables([cold, warm], H200, QUACK)
    assert len(data.by_kind["fp16"]["burst"]) == len(measured(shapes=10))
    words = r"warm.csv: no row is left; .*warm.csv: left out \d+ rows in the burst"
    with pytest.raises(InputError, match=words):
        load_tables([warm], H200, QUACK)


@pytest.mark.parametrize(*cases(__file__, "test_a_list_that_cannot_be_held_out_is_refused_before_any_fit"))
def test_a_list_that_cannot_be_held_out_is_refused_before_any_fit(tmp_path, gemm_model, text, words):
    listed = tmp_path / "list.csv"
    if text is not None:
        listed.write_text(text)
    output = tmp_path / "out.yaml"
    outcome = gemm_model(
        *("calibrate", "--input", save(measured(shapes=10), tmp_path / "t.csv"), "--output", output),
        *("--hold-out", listed, "--residual", "off"),
    )
    assert outcome.code == 2
    assert f"{listed}: {words}" in outcome.err
    assert "fit" not in outcome.err
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dram"], ("dram.efficiency",)),
        (["clock"], tuple("clock." + rest for rest in (*CLOCK, *OTHER_CLOCK))),
        (["l2.gpc_efficiency", "dram.efficiency"], ("l2.gpc_efficiency", "dram.efficiency")),
    ],
)
def test_a_word_names_a_number_or_a_whole_mechanism(words, expected):
    assert sorted(full_names(words)) == sorted(expected)


def test_calibrate_adapts_a_calibration_to_few_rows(tmp_path, gemm_model):
    """The typed numbers as donor, rows that a DRAM of other efficiency made."""
    table = save(measured(shapes=10), tmp_path / "t.csv")
    donor = calibration_file(tmp_path / "donor.yaml")
    output, report = tmp_path / "out.yaml", tmp_path / "report.txt"
    words = ("--input", table, "--output", output, "--report", report, "--from", donor, "--residual", "off")
    outcome = gemm_model("calibrate", *words, "--fit", "tensor,dram", "--hold-outs", "shapes")
    assert outcome.code == 0, outcome.err
    text = report.read_text()
    assert "HELD-OUT ACCURACY" in text
    # The fitted numbers, none of which was left at a bound.
    assert {name for name in VALUES if f"{name} " in text} == {
        "tensor.efficiency",
        "tensor.issue_clk",
        "dram.efficiency",
    }
    assert "(at bound)" not in text
    found = load_calibration(output)
    assert found.fitted == {"tensor.efficiency", "tensor.issue_clk", "dram.efficiency"}
    values = found.numbers["fp16"].values()
    assert values == pytest.approx(VALUES, rel=0.02)
    assert found.sources["dram.efficiency"] == "fitted to t.csv"
    assert found.fitted_to["rows"] == {"fp16": {"burst": 80}}
    assert set(found.error_band) == {"fp16"}
    bands = dict(found.error_band["fp16"])
    # No row splits K: the band of those that do stays the donor's.
    assert bands.pop("split_k") == 0.2
    assert all(0 <= band < 0.02 for band in bands.values())


def test_calibrate_adapts_to_the_family_that_the_rows_name(tmp_path, gemm_model):
    rows = measured(shapes=10)
    rows = rows[rows["cta_m"] != 64].assign(kernel="cutlass", stages=4)
    output = tmp_path / "out.yaml"
    words = ("--output", output, "--from", calibration_file(tmp_path / "donor.yaml"), "--residual", "off")
    words += ("--fit", "tensor", "--hold-outs", "shapes")
    outcome = gemm_model("calibrate", "--input", save(rows, tmp_path / "t.csv"), *words)
    assert outcome.code == 0, outcome.err
    assert load_calibration(output).family == "cutlass"


def test_rows_of_an_unknown_family_beside_a_known_one_are_left_out_and_counted(tmp_path):
    rows = measured(shapes=10).assign(kernel="cutlass")
    rows.loc[rows.index[3], "kernel"] = "kutlass"
    path = save(rows, tmp_path / "t.csv")
    family = measured_family("auto", [path], H200)
    assert family.name == "cutlass"
    notes = load_tables([path], H200, family).notes
    # The header is line 1, so that the fourth row is line 5.
    assert f"{path}: left out 1 row of kernels other than cutlass (first at line 5)" in notes


def test_rows_of_two_families_neither_of_which_is_the_default_one(tmp_path):
    rows = measured(shapes=10)
    rows["kernel"] = ["triton", "cublas"] * (len(rows) // 2)
    path = save(rows, tmp_path / "t.csv")
    words = "rows of cublas and triton kernels; expected one family, or --family"
    with pytest.raises(InputError, match=words):
        measured_family("auto", [path], H200)
    assert measured_family("triton", [path], H200).name == "triton"
    rows["kernel"] = ["triton", "quack"] * (len(rows) // 2)
    assert measured_family("auto", [save(rows, tmp_path / "u.csv")], H200).name == "quack"


def test_explain_prints_resources_and_what_ifs(gemm_model):
    words = ("--m", 4096, "--n", 7168, "--k", 2048, "--cta", "128x256", "--cluster", "2x1")
    outcome = gemm_model("explain", *words)
    assert outcome.code == 0
    assert "limited by TENSOR" in outcome.out
    for word in ("LIMITED BY", "WAY TO THE PEAK", "WHAT IF", "l2_bytes x2", "no wave quantization", "LAUNCH"):
        assert word in outcome.out


def two_rate_classes(folder, **more):
    both = pd.concat([measured(shapes=10, dtype="bf16"), measured(shapes=10, dtype="e4m3", seed=4)])
    donor = load_calibration(calibration_file(folder / "donor.yaml"))
    choices = Choices(family="quack", donor=donor, free=("tensor.efficiency",), with_residual=False, **more)
    return save(both, folder / "t.csv"), choices


@pytest.mark.slow
def test_rate_classes_fitted_at_once_are_those_fitted_one_after_the_other(tmp_path, monkeypatch):
    table, choices = two_rate_classes(tmp_path, shapes_only=True)
    alone = calibrate([table], H200, choices)
    monkeypatch.setattr(room_numbers("calibration"), "process_rows", 1)
    with local_processes(2) as executor:
        apart = calibrate([table], H200, choices, run_all=executor.map)
    assert list(apart.kinds) == list(alone.kinds) == ["fp16", "fp8"]
    for kind, found in alone.kinds.items():
        assert apart.kinds[kind].predicted_us == pytest.approx(found.predicted_us, rel=1e-9)
        assert apart.calibration.numbers[kind].values() == pytest.approx(
            alone.calibration.numbers[kind].values(), rel=1e-9
        )
        assert apart.calibration.error_band[kind] == alone.calibration.error_band[kind]


def test_an_interruption_ends_all_rate_classes(tmp_path):
    table, choices = two_rate_classes(tmp_path)
    before, later = set(threading.enumerate()), []
    ended = threading.Event()

    def interrupted(step, _done, _total):
        if ended.is_set():
            later.append(step)
            time.sleep(0.2)
        elif step == "fp16: shape held out":
            ended.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate([table], H200, choices, progress=interrupted, run_all=lambda call, jobs: map(call, jobs))
    for thread in set(threading.enumerate()) - before:
        thread.join(600.0)
    assert len(later) < 3


@pytest.mark.slow
def test_folds_in_two_processes_say_what_one_says(monkeypatch):
    seen = observe(measured(shapes=12, noise=0.01), H200, QUACK)
    known = {"free": ("tensor.efficiency", "dram.efficiency"), "start": VALUES, "donor": None}
    hold_out = HoldOut(regimes={"burst": seen}, main="burst", gpu=H200, without=ABSENT, **known)
    folds = folds_of(size_groups(seen), 1, 3)
    folds[folds == 2] = -1
    here = hold_out.times(folds, map)
    monkeypatch.setattr(room_numbers("calibration"), "process_rows", 1)
    with local_processes(2) as executor:
        apart = hold_out.times(folds, executor.map)
    assert apart.runtime_us == pytest.approx(here.runtime_us, rel=1e-9, nan_ok=True)
    assert np.isnan(apart.runtime_us).tolist() == (folds < 0).tolist()
    assert apart.corrected_us is None


@pytest.mark.parametrize(
    *cases(__file__, "test_a_residual_helps_where_shapes_that_it_had_not_seen_gain_by_it")
)
def test_a_residual_helps_where_shapes_that_it_had_not_seen_gain_by_it(alone, corrected, helps):
    rows = observe(measured(shapes=3), H200, QUACK)
    result = KindResult(
        fit=None, later=(), rows=rows, taken=None, error_band={}, split=None, corrected_split_band=0.05,
        predicted_us=alone * rows.runtime_us, validations=[], chained={},
        corrected_us=None if corrected is None else corrected * rows.runtime_us,
    )  # fmt: skip
    assert result.residual_helps is helps


@pytest.mark.slow
def test_a_residual_that_does_not_help_is_left_out_and_said(tmp_path, gemm_model):
    # Noise alone, which no residual can foretell.
    table = save(measured(shapes=12, noise=0.05), tmp_path / "t.csv")
    output = tmp_path / "out.yaml"
    words = ("--input", table, "--output", output, "--from", calibration_file(tmp_path / "donor.yaml"))
    outcome = gemm_model("calibrate", *words, "--hold-outs", "shapes", "--fit", "tensor.efficiency")
    assert outcome.code == 0
    assert "fp16: no residual, since it does not surely lower the errors of held-out shapes" in outcome.out
    assert not (tmp_path / "out.residual.npz").exists()
