from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "data/measurements/h200/simt.csv.gz"


def test_the_picture_as_json(answer):
    found = answer("hierarchy", "--gpu", "a100_sxm_80gb", "--no-l2", "--tile", "thread:4x4")
    result = found["result"]
    assert [level["level"] for level in result["levels"]] == ["dram", "l2", "smem", "registers"]
    assert found["rows"][0]["required"] == pytest.approx(38.24, rel=1e-3)
    assert result["figures"]["intensity_fma_per_byte"] == pytest.approx(4096 / 12)
    modes = result["fraction_of_peak_by_output_mode"]
    assert modes["ignored"] >= modes["once"] >= modes["each_slice"]


def test_the_picture_as_table_and_csv(gemm_model):
    tensor_cores = ("--datapath", "tensor_cores", "--dtype", "bf16", "--tile", "cta:128x32")
    assert "smem -> mma" in gemm_model("hierarchy", *tensor_cores).out
    out = gemm_model("hierarchy", "--format", "csv").out
    assert out.splitlines()[0].startswith("stage,bytes_per_clk,tile")


def test_solve(answer, tmp_path):
    plot = tmp_path / "frontier.svg"
    document = answer("hierarchy", "--solve", "--plot", plot)
    assert document["result"]["smallest"]["fraction_of_peak"] >= 0.9
    assert document["rows"][-1]["limiting_stage"] == "instruction slots"
    assert plot.read_text().count("<svg") == 1
    assert "frontier.svg" in document["err"]


def test_solve_says_what_to_change(gemm_model):
    found = gemm_model("hierarchy", "--solve", "--target", "1.0")
    assert "FRONTIER" in found.out
    assert "no tile reaches 100% of peak" in found.err


def test_ladder_against_measurements(gemm_model, tmp_path):
    if not TABLE.is_file():
        pytest.skip("the measurements are not beside this checkout")
    plot = tmp_path / "ladder.png"
    assert "BY RUNG" in gemm_model("hierarchy", "--ladder", "--measurements", TABLE, "--plot", plot).out
    assert plot.stat().st_size > 10_000


def test_the_text_s_kernels(answer):
    rows = answer("hierarchy", "--text")["rows"]
    assert [row["measured_tflops"] for row in rows] == [1.9, 3.7, 10.7]


def test_ladder_of_another_gpu(answer):
    rows = answer("hierarchy", "--ladder", "--gpu", "a100_sxm_80gb")["rows"]
    assert {row["rung"] for row in rows} == {"naive", "shared", "registers", "pipelined"}


def test_roofline_plot(answer, tmp_path):
    plot = tmp_path / "roofline.png"
    answer("hierarchy", "--plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
