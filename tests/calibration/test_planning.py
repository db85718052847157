"""Plans: within the time, of what the card can run, equal for equal questions."""

import csv

import pytest

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.sweep import estimated_row_ms, rows_of_table
from gemm_model.config.numbers import room_numbers


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch):
    monkeypatch.setattr(room_numbers("calibration"), "candidate_shapes", 25)


def test_a_plan_keeps_to_its_time_and_can_be_measured(tmp_path, gemm_model, answer):
    path = tmp_path / "plan.csv"
    words = ("plan", "--gpu", "h200", "--family", "quack", "--output", path)
    result = answer(*words, "--budget", "8s")["result"]
    rows = rows_of_table(path, regime="burst", l2="cold")
    assert len(rows) == result["rows"]
    spent_s = sum(estimated_row_ms(row, TimingSettings()) for row in rows) / 1e3
    assert 7 < spent_s <= 8
    assert result["measure_s"] == pytest.approx(spent_s)
    assert {row.problem.a_dtype.name for row in rows} == {"bf16", "e4m3"}
    assert result["pool"] > 2 * result["rows"]
    assert 0 < result["left_unknown"] < 1
    first = path.read_text()
    assert gemm_model(*words, "--budget", "8s").code == 0
    assert path.read_text() == first
    short = gemm_model(*words, "--budget", "0.001s")
    assert "a budget of 0.001 s buys no row" in short.err
    assert (short.code, path.read_text()) == (2, first)
    longer = answer(*words, "--budget", "16s")["result"]
    assert longer["left_unknown"] < result["left_unknown"]


def test_sizes_of_ones_own_are_chosen_from(tmp_path, gemm_model):
    sizes, path = tmp_path / "sizes.csv", tmp_path / "plan.csv"
    # Types of the table's own mean nothing: those of --dtype are planned.
    sizes.write_text("m,n,k,in_dtype,b_dtype\n64,4096,512,fp8,fp16\n4096,4096,4096,fp8,fp16\n")
    words = ("plan", "--budget", "1s", "--dtype", "bf16", "--input", sizes, "--output", path)
    assert gemm_model(*words).code == 0
    with path.open() as file:
        asked = {(row["asked_m"], row["asked_n"], row["asked_k"]) for row in csv.DictReader(file)}
    assert asked == {("64", "4096", "512"), ("4096", "4096", "4096")}


def test_a_plan_is_predicted_on_its_card(tmp_path, answer):
    words = ("plan", "--budget", "1s", "--dtype", "bf16", "--gpu", "b200_sxm", "--output", tmp_path / "p.csv")
    answer(*words)
    assert answer("predict", "--input", tmp_path / "p.csv")["gpu"] == "b200_sxm"
