import json
from pathlib import Path

import pytest

from gemm_model.cli import main

TABLE = Path(__file__).parents[2] / "data/measurements/h200/simt.csv.gz"


def answer(capsys, *words):
    """What the verb writes to stdout and stderr."""
    assert main(["hierarchy", *words]) == 0
    return capsys.readouterr()


def test_the_picture_as_json(capsys):
    out, _ = answer(capsys, "--gpu", "a100_sxm_80gb", "--no-l2", "--tile", "thread:4x4", "--format", "json")
    result = json.loads(out)["result"]
    assert [level["level"] for level in result["levels"]] == ["dram", "l2", "smem", "registers"]
    assert json.loads(out)["rows"][0]["required"] == pytest.approx(38.24, rel=1e-3)
    assert result["figures"]["intensity_fma_per_byte"] == pytest.approx(4096 / 12)
    modes = result["fraction_of_peak_by_output_mode"]
    assert modes["ignored"] >= modes["once"] >= modes["each_slice"]


def test_the_picture_as_table_and_csv(capsys):
    out, _ = answer(capsys, "--datapath", "tensor_cores", "--dtype", "bf16", "--tile", "cta:128x32")
    assert "smem -> mma" in out
    out, _ = answer(capsys, "--format", "csv")
    assert out.splitlines()[0].startswith("stage,bytes_per_clk,tile")


def test_solve(capsys, tmp_path):
    plot = tmp_path / "frontier.svg"
    out, err = answer(capsys, "--solve", "--format", "json", "--plot", str(plot))
    document = json.loads(out)
    assert document["result"]["smallest"]["fraction_of_peak"] >= 0.9
    assert document["rows"][-1]["limiting_stage"] == "instruction slots"
    assert plot.read_text().count("<svg") == 1
    assert "frontier.svg" in err


def test_solve_says_what_to_change(capsys):
    out, err = answer(capsys, "--solve", "--target", "1.0")
    assert "FRONTIER" in out
    assert "no tile reaches 100% of peak" in err


def test_ladder_against_measurements(capsys, tmp_path):
    if not TABLE.is_file():
        pytest.skip("the measurements are not beside this checkout")
    plot = tmp_path / "ladder.png"
    out, _ = answer(capsys, "--ladder", "--measurements", str(TABLE), "--plot", str(plot))
    assert "BY RUNG" in out
    assert plot.stat().st_size > 10_000


def test_the_text_s_kernels(capsys):
    out, _ = answer(capsys, "--text", "--format", "json")
    rows = json.loads(out)["rows"]
    assert [row["measured_tflops"] for row in rows] == [1.9, 3.7, 10.7]


def test_ladder_of_another_gpu(capsys):
    out, _ = answer(capsys, "--ladder", "--gpu", "a100_sxm_80gb", "--format", "json")
    rows = json.loads(out)["rows"]
    assert {row["rung"] for row in rows} == {"naive", "shared", "registers", "pipelined"}


def test_roofline_plot(capsys, tmp_path):
    plot = tmp_path / "roofline.png"
    answer(capsys, "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")
