from pathlib import Path

import pandas as pd
import pytest

from gemm_model.cli import main
from gemm_model.pipeline.machine import load_machine

PROBLEM_COLUMNS = ["m", "n", "k", "tile_m", "tile_n", "tile_k"]
FIT = ["--fit", "math_startup_us,load_startup_us,init_us"]
START = ["--machine", "paper_a6000", "load_startup_us=0.77", "math_startup_us=0.1", "init_us=1"]


@pytest.fixture
def table(tmp_path):
    paper = pd.read_csv(Path(__file__).with_name("paper_table2.csv"))
    runs = paper[PROBLEM_COLUMNS].assign(stages=3, runtime_us=paper.measured_ms * 1e3)
    path = tmp_path / "runs.csv"
    runs.to_csv(path, index=False)
    return path


def test_the_fitted_machine_can_be_used_again(table, tmp_path, capsys):
    fitted = tmp_path / "fitted.yaml"
    assert main(["estimate", "--input", str(table), *START, *FIT, "--output", str(fitted)]) == 0
    assert "36 runs" in capsys.readouterr().err
    machine = load_machine(str(fitted))
    assert machine.load_startup_us == pytest.approx(0.565, abs=1e-3)
    assert machine.tiles == load_machine("paper_a6000").tiles


def test_parameters_that_are_not_identified_are_named(table, capsys):
    words = ["estimate", "--input", str(table), *START, "--fit", "math_startup_us,epilogue_us"]
    assert main(words) == 0
    error = capsys.readouterr().err
    assert "math_startup_us is not identified" in error
    assert "epilogue_us is not identified" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda runs: runs.drop(columns="tile_k"), "column 'tile_k' is missing"),
        (lambda runs: runs.assign(k=0), "line 2, column k: '0'; expected a whole number"),
        (lambda runs: runs.assign(runtime_us="fast"), "line 2, column runtime_us: 'fast'"),
        (lambda runs: runs[:2], "2 measurements for 3 parameters"),
    ],
)
def test_bad_tables_are_one_sentence_and_exit_code_2(table, change, message, capsys):
    change(pd.read_csv(table)).to_csv(table, index=False)
    assert main(["estimate", "--input", str(table), *START, *FIT]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine", "paper_a6000", "--fit", "speed_us"], "--fit 'speed_us'; expected some of"),
        (["--machine", "paper_a6000", "--fit", "mac_per_us"], "start value of mac_per_us is inf"),
        (["--machine", "paper_a6000", "latency=3"], "unknown parameter 'latency'"),
    ],
)
def test_bad_parameters_are_one_sentence_and_exit_code_2(table, words, message, capsys):
    assert main(["estimate", "--input", str(table), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_file_is_named(tmp_path, capsys):
    assert main(["estimate", "--input", str(tmp_path / "none.csv"), *START]) == 2
    assert "none.csv: no such file" in capsys.readouterr().err
