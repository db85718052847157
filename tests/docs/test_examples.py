"""The scripts of examples/ run as a user runs them, and stay short."""

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
BURST = EXAMPLES.parent / "data/measurements/h200/burst.csv.gz"
LINES = 40


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_examples_are_short():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    assert [path.name for path in scripts if len(path.read_text(encoding="utf-8").splitlines()) > LINES] == []


def test_choose_for_a_model(monkeypatch, capsys):
    run("choose_for_a_model", monkeypatch)
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines()[:4]] == [
        "qkv",
        "attention output",
        "gate and up",
        "down",
    ]
    assert "all four:" in out


def test_prune_triton_autotuner(monkeypatch, capsys):
    pytest.importorskip("triton", reason="the example needs triton")
    run("prune_triton_autotuner", monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("18 configurations")
    assert len(lines) == 1 + 4


def test_time_a_torch_model(monkeypatch, capsys):
    pytest.importorskip("torch", reason="the example needs torch")
    run("time_a_torch_model", monkeypatch)
    # Three linear layers: one GEMM forward and two backward each, 2 x 2048 x 4096 x 14336 FLOP a GEMM.
    assert "9 GEMMs, 2.165e+12 FLOP" in capsys.readouterr().out


def test_calibrate_from_a_table(monkeypatch, capsys, tmp_path):
    rows = pd.read_csv(BURST, dtype=str, keep_default_na=False)
    rows = rows[(rows["cta_m"] != "") & (rows["in_dtype"] == "bf16")]
    few = rows.merge(rows[["m", "n", "k"]].drop_duplicates()[::14]).groupby(["m", "n", "k"]).head(6)
    few.to_csv(table := tmp_path / "few.csv", index=False)
    run("calibrate_from_a_table", monkeypatch, str(table))
    out = capsys.readouterr().out
    assert "shipped  mean error" in out
    assert "fitted   mean error" in out


def test_add_a_gpu(monkeypatch, capsys):
    run("add_a_gpu", monkeypatch)
    known, smaller = (
        float(line.split()[1]) for line in capsys.readouterr().out.splitlines() if " us with " in line
    )
    assert 1.5 < smaller / known < 2.5
