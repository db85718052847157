"""Answers as text: a kernel's explanation, a screen of a table, the version."""

import json

import pytest

from gemm_model import GemmProblem, KernelConfig, predict
from gemm_model.report.console import explanation
from gemm_model.report.document import text_table


def test_one_kernel_is_predicted_and_explained(gemm_model):
    words = ("--m", 4096, "--n", 4096, "--k", 4096, "--dtype", "fp8", "--cta", "128x256", "--cluster", "2x1")
    words += ("--gpu", "h200", "--model", "WSPersistentGEMMModel")
    text = gemm_model("predict", *words)
    assert text.code == 0
    assert "MNK 4096 4096 4096" in text.out
    assert "limiter: LOAD" in text.out
    result = json.loads(gemm_model("predict", *words, "--format", "json").out)["result"]
    assert (result["problem"]["a_dtype"], result["kernel"]["cta_n"]) == ("e4m3", 256)
    assert result["prediction"]["limiter"] == "LOAD"
    assert sum(result["prediction"]["phases_us"].values()) == pytest.approx(
        result["prediction"]["predicted_us"]
    )


def test_a_measured_time_stands_beside_the_predicted_one_with_their_ratio():
    config = KernelConfig(cta_m=128, cta_n=128)
    found = predict(GemmProblem.of(4096, 4096, 4096), config, "h200", "SOLModel")
    text = explanation({"m": 4096, "n": 4096, "k": 4096}, found, 2.0 * found.runtime_us)
    assert "RATIO: 0.5\n" in text
    assert f"actual: {2.0 * found.runtime_us:.6g} us" in text


def test_a_band_says_what_it_was_held_out_of_and_stands_only_where_there_was_any(gemm_model):
    words = ("predict", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x128")
    assert "(90 % of measured rows launched alone, held out of the fit)" in gemm_model(*words).out
    lent = gemm_model(*words, "--gpu", "a100_sxm_80gb").out
    assert "(90 % of rows elsewhere that were predicted with numbers lent like these)" in lent
    assert "error band" not in gemm_model(*words, "--model", "SOLModel").out


def test_long_times_are_told_without_exponents(gemm_model):
    sizes = ("--m", 32768, "--n", 32768, "--k", 32768)
    for words in (("rank", *sizes), ("predict", *sizes, "--cta", "128x256")):
        assert "e+0" not in gemm_model(*words).out


def test_a_table_of_kernels_is_told_on_a_screen_by_what_tells_its_rows_apart(gemm_model, tmp_path):
    path = tmp_path / "kernels.csv"
    rows = [f"64,64,64,bf16,128,128,1,1,{2 ** (place % 3)}" for place in range(100)]
    path.write_text("\n".join(["m,n,k,in_dtype,cta_m,cta_n,cluster_m,cluster_n,swizzle", *rows]))
    found = gemm_model("predict", "--input", path)
    assert len(found.out.splitlines()) <= 40
    assert "swizzle" in found.out.splitlines()[0]
    assert "cta_m" not in found.out
    assert "... and 62 rows more" in found.out


def test_a_text_leaves_out_a_column_without_any_value():
    rows = [{"a": 1, "b": None, "c": None}, {"a": 2, "b": 3, "c": None}]
    assert text_table(rows) == "a b\n1 -\n2 3"


def test_version_has_fingerprints_of_data_and_calibrations(gemm_model):
    lines = gemm_model("--version").out.splitlines()
    assert lines[0].startswith("gemm-model ")
    names = [line.split()[0] for line in lines[1:]]
    assert names[:3] == ["gpu", "model", "pipeline"]
    assert "calibration" in names
    assert all(len(line.split()[1]) == 12 for line in lines[1:])
