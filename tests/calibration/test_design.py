"""Rows that are chosen to tell numbers apart."""

import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from gemm_model import InputError, cli, load_gpu
from gemm_model.calibration.planning import (
    d_optimal,
    designed_rows,
    log_jacobian,
    planned,
    spread_out,
)
from gemm_model.commands.calibrate import quick_calibration
from gemm_model.config import CONFIG_DIR
from gemm_model.core.batch import batch_of
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernels.feasibility import feasible_mask
from gemm_model.kernels.registry import family_of


def test_derivatives_are_in_units_of_a_step():
    # log(a b^2): one step of 0.01 in a = 2 is 0.005, of 0.02 in b = 4 twice 0.005.
    found = log_jacobian(
        lambda v: np.array([math.log(v[0] * v[1] ** 2)]), np.array([2.0, 4.0]), np.array([0.01, 0.02])
    )
    assert found == pytest.approx(np.array([[0.005, 0.01]]), rel=1e-4)


def test_the_first_row_is_the_longest_and_the_second_points_elsewhere():
    rows = np.array([[1.0, 0.0], [0.99, 0.0], [0.0, 0.5], [0.4, 0.4]])
    assert d_optimal(rows, 3, noise=0.1).tolist()[:2] == [0, 2]


def test_the_design_is_close_to_the_best_of_all_sets():
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(9, 3))

    def information(chosen):
        part = rows[list(chosen)]
        return math.log(np.linalg.det(np.eye(3) + part.T @ part / 0.25))

    best = max(information(chosen) for chosen in combinations(range(9), 4))
    found = information(d_optimal(rows, 4, noise=0.5))
    assert best * (1 - 1 / math.e) <= found <= best
    assert found > np.mean([information(chosen) for chosen in combinations(range(9), 4)])


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_rows_are_refused(count):
    with pytest.raises(InputError, match=f"a design of {count} rows from 2; expected 1 to 2"):
        d_optimal(np.eye(2), count)


def test_spread_out_rows_stand_for_groups_of_equal_size():
    """Eight rows on a line in four pairs, far apart: one of each pair is taken."""
    line = np.array([[0.0], [0.1], [10.0], [10.1], [20.0], [20.1], [30.0], [30.1]])
    jacobian = np.hstack([line, np.zeros((8, 1))])
    assert sorted(position // 2 for position in spread_out(jacobian, 4)) == [0, 1, 2, 3]
    assert sorted(spread_out(jacobian, 8)) == list(range(8))
    with pytest.raises(InputError, match="a design of 9 rows from 8"):
        spread_out(jacobian, 9)


def test_a_plan_is_mostly_spread_out_and_takes_no_row_twice():
    """Of 40 rows a quarter, 10, tell most: the last rows, whose derivatives are a hundred times larger."""
    random = np.random.default_rng(1)
    jacobian = random.normal(size=(400, 3))
    jacobian[-20:] *= 100.0
    chosen = planned(jacobian, 40)
    assert len(set(chosen.tolist())) == 40
    assert set(spread_out(jacobian, 30)) <= set(chosen)
    assert all(position >= 380 for position in chosen[30:])


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


def test_quick_runs_three_commands_in_turn(tmp_path, monkeypatch, h100_rows):
    monkeypatch.setattr("gemm_model.commands.calibrate.designed_rows", lambda _gpu, _donor: h100_rows)
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
