"""From a new card to a calibration: which rows are measured, and which commands run."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_model import InputError, cli, load_gpu
from gemm_model.calibration.planning import designed_rows
from gemm_model.commands.calibrate import quick_calibration
from gemm_model.config import CONFIG_DIR
from gemm_model.core.batch import batch_of
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of


@pytest.fixture(scope="module")
def h100_rows():
    return designed_rows(load_gpu("h100_sxm"), load_calibration("h200"))


def test_250_legal_rows_of_two_types_and_few_kernels(h100_rows):
    assert len(h100_rows) == 250
    assert sum(row.problem.a_dtype.name == "bf16" for row in h100_rows) == 125
    assert len({(row.problem, row.config) for row in h100_rows}) == 250
    gpu = load_gpu("h100_sxm")
    for name in ("bf16", "e4m3"):
        pairs = [(row.problem, row.config) for row in h100_rows if row.problem.a_dtype.name == name]
        assert feasible_mask(batch_of(pairs), gpu, family_of("quack", gpu)).all()
    # Each kernel takes seconds to compile: types x tiles x clusters.
    kernels = {
        (row.problem.a_dtype, row.config.cta_m, row.config.cta_n, row.config.cluster_m, row.config.cluster_n)
        for row in h100_rows
    }
    assert len(kernels) <= 60


def test_the_design_covers_short_and_long_kernels(h100_rows):
    flop = [row.problem.flop for row in h100_rows]
    assert min(flop) < 1e9
    assert max(flop) > 1e11
    assert min(row.problem.m for row in h100_rows) <= 16


def test_a_card_without_fp8_gets_its_own_type_alone():
    gpu = replace(load_gpu("h100_sxm"), flop_per_clk_per_sm={"fp16": 4096})
    rows = designed_rows(gpu, load_calibration("h200"))
    assert {row.problem.a_dtype.name for row in rows} == {"bf16"}


def test_a_card_without_such_kernels_is_refused():
    with pytest.raises(InputError, match="a100_sxm_80gb"):
        designed_rows(load_gpu("a100_sxm_80gb"), load_calibration("h200"))


def test_quick_runs_three_commands_in_turn(tmp_path, monkeypatch, h100_rows):
    monkeypatch.setattr("gemm_model.calibration.planning.designed_rows", lambda _gpu, _donor: h100_rows)
    ran: list[list[str]] = []

    def run_command(words):
        ran.append(words)
        if words[0] == "characterize":
            shutil.copy(CONFIG_DIR / "gpu" / "h100_sxm.yaml", words[2])
        return 0

    quick_calibration(tmp_path / "mine.yaml", run_command)
    assert [words[0] for words in ran] == ["characterize", "benchmark", "calibrate"]
    plan, rows = str(tmp_path / "mine_plan.csv"), str(tmp_path / "mine_rows.csv")
    assert ran[1][1:5] == ["--rows", plan, "--output", rows]
    assert ran[2][1:] == [
        *("--from", "h100_sxm:quack", "--residual", "donor", "--keep", "--hold-outs", "shapes"),
        *("--input", rows),
        *("--gpu", str(tmp_path / "mine_gpu.yaml"), "--output", str(tmp_path / "mine.yaml")),
    ]
    assert len(Path(plan).read_text().splitlines()) == 251


def test_a_step_that_fails_ends_the_steps(tmp_path):
    def run_command(words):
        raise InputError(f"{words[0]} was disturbed")

    with pytest.raises(InputError, match="characterize was disturbed"):
        quick_calibration(tmp_path / "mine.yaml", run_command)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_an_earlier_run_are_told_before_the_first_step(tmp_path):
    (tmp_path / "mine_rows.csv").write_text("measured")

    def run_command(words):
        raise AssertionError(words)

    with pytest.raises(InputError, match=r"mine_rows.csv: already there"):
        quick_calibration(tmp_path / "mine.yaml", run_command)


@pytest.mark.parametrize("option", ["--report", "--html"])
@pytest.mark.parametrize("place", ["mine.yaml", "folder/page.html", "mine.residual.npz"])
def test_outputs_are_tested_before_the_tables_are_read(tmp_path, option, place, capsys):
    (tmp_path / "folder").write_text("in the way")
    words = ["--input", "nowhere.csv", "--output", str(tmp_path / "mine.yaml")]
    assert cli.main(["calibrate", *words, option, str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert "nowhere.csv" not in error
    assert any(words in error for words in ("named for two outputs", "cannot be written", "ends in .html"))
