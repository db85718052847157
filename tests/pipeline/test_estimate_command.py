from pathlib import Path

import pandas as pd
import pytest

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


def test_the_fitted_machine_can_be_used_again(table, tmp_path, answer):
    fitted = tmp_path / "fitted.yaml"
    assert "36 runs" in answer("estimate", "--input", table, *START, *FIT, "--output", fitted)["err"]
    machine = load_machine(str(fitted))
    assert machine.load_startup_us == pytest.approx(0.565, abs=1e-3)
    assert machine.tiles == load_machine("paper_a6000").tiles


def test_parameters_that_are_not_identified_are_named(table, answer):
    error = answer("estimate", "--input", table, *START, "--fit", "math_startup_us,epilogue_us")["err"]
    assert "math_startup_us is not identified" in error
    assert "epilogue_us is not identified" in error
