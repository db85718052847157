"""What a calibration to few rows takes over of another card's residual."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu, predict
from gemm_model.calibration.fit import free_from
from gemm_model.calibration.observations import observe
from gemm_model.calibration.report import report_text
from gemm_model.calibration.residual_fit import borne_out, taken_forest
from gemm_model.calibration.run import DONOR_KEPT, Choices, calibrate, surely_nearer
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.residual import TakenOver, load_residual, residual_beside, write_residual
from gemm_model.kernels.registry import family_of
from tests.typed_numbers import calibration, calibration_with_residual, residual

H200 = load_gpu("h200")
QUACK = family_of("quack", H200)
NUMBERS = calibration().numbers["fp16"]
FOLDS = np.arange(48) // 4 % 3
"""Of 12 shapes with four kernels each."""


def measured(wide_takes):
    """What the typed calibration says of rows; those with 256 columns take so many times as long."""
    rows = [
        {
            **{"in_dtype": "bf16", "out_dtype": "bf16", "m": 512 * m, "n": 4096, "k": 512 * k},
            **{"kernel": "quack", "cta_m": 128, "cta_n": cta_n, "cluster_m": cluster, "cluster_n": 1},
            **{"schedule": "cooperative", "runtime_us": 1.0},
        }
        for m in (1, 3, 5, 9)
        for k in (1, 4, 8)
        for cta_n in (128, 256)
        for cluster in (1, 2)
    ]
    frame = pd.DataFrame(rows)
    times = kernel_time(observe(frame, H200, QUACK).shape, H200, NUMBERS.without(QUACK.absent_mechanisms))
    frame["runtime_us"] = times.runtime_us * np.where(frame["cta_n"] == 256, wide_takes, 1.0)
    return frame


def taken(wide_takes):
    """By a donor whose kernels with 256 columns take exp(0.05) times as long."""
    seen = observe(measured(wide_takes), H200, QUACK)
    physical_us = kernel_time(seen.shape, H200, NUMBERS.without(QUACK.absent_mechanisms)).runtime_us
    donor = residual(log_error=-0.05).forests["fp16"]
    return seen, physical_us, taken_forest(donor, seen, physical_us, NUMBERS, H200, FOLDS)


def test_the_share_is_the_slope_of_the_error_over_what_was_told():
    correction = np.array([0.02, -0.04, 0.0])
    # Errors of 0.01, -0.03 and 0.5: (0.0002 + 0.0012) / (0.0004 + 0.0016) = 0.7.
    assert borne_out(np.array([0.01, -0.03, 0.5]), correction) == pytest.approx(0.7)
    assert borne_out(3.0 * correction, correction) == 1.0
    assert borne_out(-correction, correction) == 0.0
    assert borne_out(np.ones(3), np.zeros(3)) == 0.0


@pytest.mark.parametrize(("hidden", "share"), [(0.05, 1.0), (0.03, 0.6), (0.01, 0.2)])
def test_a_card_with_part_of_the_donors_error_takes_that_part(hidden, share):
    seen, _, found = taken(float(np.exp(hidden)))
    assert found.share == pytest.approx(share, abs=0.005)
    assert found.forest.leaves.tolist() == [[0, round(-5000 * share)]]
    assert found.corrected_us == pytest.approx(seen.runtime_us, rel=1e-3)


def test_a_share_is_judged_on_other_shapes_than_it_was_found_on():
    seen, physical_us, found = taken(np.exp(np.where(FOLDS == 0, 0.05, 0.03)))
    # The first fold takes 0.03 of the others, these the mean of 0.05 and 0.03.
    expected = np.where(seen.frame["cta_n"] == 256, np.where(FOLDS == 0, 0.03, 0.04), 0.0)
    assert np.log(found.corrected_us / physical_us) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("wide_takes", [1.0, 0.95])
def test_where_held_out_rows_do_not_bear_it_out_nothing_is_taken(wide_takes):
    _, physical_us, found = taken(wide_takes)
    assert found.share == 0.0
    assert found.corrected_us == pytest.approx(physical_us)


def calibration_with_a_share(folder, share):
    """A calibration, and beside it that share of a donor's residual."""
    path, own = calibration_with_residual(folder), residual()
    taken_over = TakenOver(donor="h100_sxm:quack", shares=dict.fromkeys(own.forests, share))
    shared = replace(own, taken_over=taken_over)
    write_residual(shared, residual_beside(path))
    return path, shared


def test_a_residual_that_was_taken_over_says_so(tmp_path):
    path, shared = calibration_with_a_share(tmp_path, 0.6)
    assert load_residual(residual_beside(path), load_calibration(path)).taken_over == shared.taken_over
    wide = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, cluster_n=1)
    caveats = predict(
        GemmProblem.of(4096, 4096, 4096, "bf16"), wide, H200, options={"calibration": str(path)}
    ).caveats
    assert "residual of h100_sxm:quack, 0.60 of it, as this GPU's own rows bear out" in caveats


def test_a_share_beyond_the_whole_is_refused(tmp_path):
    path, _ = calibration_with_a_share(tmp_path, 1.5)
    with pytest.raises(InputError, match="shares are .*1.5.*; expected 0 to 1 by rate class"):
        load_residual(residual_beside(path), load_calibration(path))


def test_the_command_takes_over_what_its_rows_bear_out(gemm_model, tmp_path):
    table, output = tmp_path / "t.csv", tmp_path / "mine.yaml"
    measured(1.03).to_csv(table, index=False)
    donor = calibration_with_residual(tmp_path)
    words = ("--input", table, "--output", output, "--from", donor, "--fit", "misalignment.write_cost")
    outcome = gemm_model("calibrate", *words, "--residual", "donor", "--hold-outs", "shapes")
    assert outcome.code == 0, outcome.err
    assert "of the donor's residual, as the rows bear out" in outcome.out
    share = load_calibration(output).fitted_to["residual_of_donor"]["fp16"]
    # log(1.03) / 0.05: what is fitted moves no row that starts on a line.
    assert share == pytest.approx(0.59, abs=0.03)
    assert load_residual(residual_beside(output), load_calibration(output)).taken_over == TakenOver(
        donor="h200:quack", shares={"fp16": share}
    )


@pytest.mark.parametrize("words", [(), ("--from", "typed.yaml")])
def test_without_a_donors_residual_there_is_nothing_to_take(gemm_model, tmp_path, words):
    donor = calibration_with_residual(tmp_path)
    residual_beside(donor).unlink()
    given = [str(tmp_path / word) if word.endswith(".yaml") else word for word in words]
    measured(1.0).to_csv(tmp_path / "t.csv", index=False)
    places = ("--input", tmp_path / "t.csv", "--output", tmp_path / "o.yaml")
    outcome = gemm_model("calibrate", *places, "--residual", "donor", *given)
    assert outcome.code == 2
    assert "expected --from with a calibration that has a residual" in outcome.err


def test_nearer_is_by_more_than_two_standard_errors_of_the_rows_differences():
    measured_us = np.full(4, 100.0)
    # Errors 4, 2, 4, 2 % against 1 % each: gained 3, 1, 3, 1, mean 2, deviation 1, standard error 0.5.
    donor_us, fitted_us = np.array([104.0, 102.0, 96.0, 98.0]), np.full(4, 101.0)
    assert surely_nearer(fitted_us, donor_us, measured_us)
    assert not surely_nearer(donor_us, fitted_us, measured_us)
    assert not surely_nearer(fitted_us, fitted_us, measured_us)
    # Gained 5, -1, 5, -1: mean 2, deviation 3, standard error 1.5.
    assert not surely_nearer(fitted_us, np.array([106.0, 100.0, 94.0, 100.0]), measured_us)


@pytest.mark.slow
@pytest.mark.parametrize(("slower", "kept"), [(1.0, True), (1.3, False)])
def test_a_donor_is_kept_unless_held_out_rows_speak_against_it(tmp_path, slower, kept):
    rows = measured(1.0)
    path = tmp_path / "rows.csv"
    rows.assign(runtime_us=rows["runtime_us"] * slower).to_csv(path, index=False)
    choices = Choices(donor=calibration(), with_residual=False, keeps_donor=True, shapes_only=True)
    result = calibrate([path], H200, choices)
    found = result.calibration
    assert any(each.what == DONOR_KEPT for each in result.kinds["fp16"].validations) is kept
    assert (found.numbers["fp16"].values() == NUMBERS.values()) is kept
    assert found.fitted == (frozenset() if kept else {*free_from("quack", "quack")})
    assert ("fp16: moved nothing" in report_text(result)) is kept


@pytest.mark.parametrize("keep", [True, False])
def test_keep_reaches_the_fit(gemm_model, monkeypatch, tmp_path, keep):
    def seen(_inputs, _gpu, choices, **_):
        raise InputError(f"keeps_donor is {choices.keeps_donor}")

    monkeypatch.setattr("gemm_model.commands.calibrate.calibrate", seen)
    table = tmp_path / "x.csv"
    table.write_text("gpu,runtime_us\nh200,1\n")
    words = ("--input", table, "--from", "h100_sxm:quack", "--output", tmp_path / "mine.yaml")
    assert f"keeps_donor is {keep}" in gemm_model("calibrate", *words, *["--keep"] * keep).err
