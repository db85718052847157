"""The main job: rows of several cards and regimes, tables of the fit, and the files that it writes."""

import json

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, predict, predict_table
from gemm_model.classic_scripts import predict_main
from gemm_model.report.table_job import FITTED_ROWS, with_classic_names
from tests.conftest import ROOT
from tests.gate.fitted_rows import fitted_rows

MEASUREMENTS = ROOT / "data/measurements/h200"
HEADER = "m,n,k,in_dtype,cta_m,cta_n,cluster_m,cluster_n,gpu,runtime_us\n"


def test_the_tables_card_decides_and_a_contradiction_is_refused(gemm_model, tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text(HEADER + "4096,4096,4096,bf16,128,256,2,1,NVIDIA H100 80GB HBM3,200\n")
    found = gemm_model("predict", "--input", path, "--format", "json")
    asked = gemm_model("predict", "--input", path, "--format", "json", "--gpu", "h100_sxm")
    assert json.loads(found.out)["gpu"] == "h100_sxm"
    assert json.loads(found.out)["rows"] == json.loads(asked.out)["rows"]
    refused = gemm_model("predict", "--input", path, "--gpu", "h200")
    assert refused.code == 2
    assert "line 2, column gpu: 'NVIDIA H100 80GB HBM3', but the GPU asked for is h200" in refused.err
    with pytest.raises(InputError, match="expected h100_sxm, or rows of h200 alone"):
        predict_table(pd.read_csv(path), "h200")


def test_mixed_regimes_are_reported_apart(gemm_model, tmp_path):
    path = tmp_path / "measured.csv"
    row = "4096,4096,4096,bf16,128,256,2,1,{},200\n"
    path.write_text(HEADER.replace("gpu", "regime") + row.format("kernel-only") + row.format(""))
    found = json.loads(gemm_model("predict", "--input", path, "--format", "json").out)
    assert [row["rows of"] for row in found["result"]["accuracy"]] == ["kernel-only all", "burst all"]
    alone, burst = (row["predicted_us"] for row in found["rows"])
    assert alone < burst
    asked = gemm_model("predict", "--input", path, "--format", "json", "--regime", "burst")
    assert {row["predicted_us"] for row in json.loads(asked.out)["rows"]} == {burst}
    assert "1 row measured in the regime kernel-only: predicted in burst" in asked.err


def test_mixed_cards_are_reported_apart(gemm_model, tmp_path):
    path = tmp_path / "measured.csv"
    row = "4096,4096,4096,bf16,128,256,2,1,{},200\n"
    path.write_text(HEADER + row.format("h200") + row.format("NVIDIA H100 80GB HBM3") + row.format("h200"))
    found = json.loads(gemm_model("predict", "--input", path, "--format", "json").out)
    problem, config = GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=256, cluster_m=2)
    expected = [predict(problem, config, gpu).runtime_us for gpu in ("h200", "h100_sxm", "h200")]
    assert [row["predicted_us"] for row in found["rows"]] == pytest.approx(expected)
    assert [row["rows of"] for row in found["result"]["accuracy"]] == ["h200 all", "h100_sxm all"]
    assert found["gpu"] == "h200, h100_sxm"


def test_an_unknown_card_is_refused_unless_one_is_named(gemm_model, tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text(HEADER + "4096,4096,4096,bf16,128,256,2,1,my card,200\n")
    assert "'my card' is no described GPU" in gemm_model("predict", "--input", path).err
    assert gemm_model("predict", "--input", path, "--gpu", "h200").code == 0


def test_rows_of_the_fit_are_told_whatever_the_table_is_called(gemm_model, tmp_path):
    rows = pd.read_csv(MEASUREMENTS / "burst.csv.gz", nrows=300)
    rows[::7].to_csv(tmp_path / "mine.csv.gz", index=False)
    one = rows[[*"mnk", "in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "runtime_us"]].tail(1)
    one.to_json(tmp_path / "one.json", orient="records")
    for name in ("mine.csv.gz", "one.json"):
        fitted = gemm_model("predict", "--input", tmp_path / name)
        assert "ACCURACY IN THE FIT of KernelModel" in fitted.out
        assert len(fitted.out.splitlines()) <= 40
        assert "in the fit: h200:quack was fitted to rows of this table" in fitted.err
    # Measured anew, the same kernels are held out, as other kernels are under the name of a table of the fit.
    rows.assign(runtime_us=rows["runtime_us"] * 1.01).to_csv(tmp_path / "again.csv", index=False)
    pd.read_csv(MEASUREMENTS / "unseen.csv.gz", nrows=300).to_csv(tmp_path / "burst.csv.gz", index=False)
    for name in ("again.csv", "burst.csv.gz"):
        assert "IN THE FIT" not in gemm_model("predict", "--input", tmp_path / name).out


@pytest.mark.slow
def test_the_codes_of_fitted_rows_are_those_of_the_shipped_tables():
    expected = fitted_rows()
    with np.load(FITTED_ROWS) as kept:
        assert {name: kept[name].tolist() for name in kept} == {
            name: each.tolist() for name, each in expected.items()
        }


def test_predictions_file_holds_inputs_times_ratio_and_phases(tmp_path, classic_table, gemm_model):
    words = ("--model", "WSPersistentGEMMModel", "--gpu", "b200_1300mhz")
    assert gemm_model("predict", "--input", classic_table, "--output", tmp_path, *words).code == 0
    written = pd.read_csv(tmp_path / "predictions_WSPersistentGEMMModel.csv")
    assert written["predicted_us"].iloc[0] == pytest.approx(376.1631394230768, rel=1e-12)
    assert written["ratio"].iloc[1] == pytest.approx(0.5794853639180193, rel=1e-9)
    assert written["limiter"].tolist()[:2] == ["LOAD", "EPILOGUE"]
    phases = written[[name for name in written if name.startswith("phase_")]].sum(axis=1)
    assert phases.tolist() == pytest.approx(written["predicted_us"].tolist())
    assert len(list(tmp_path.glob("*.png"))) == 2
    summary = json.loads((tmp_path / "summary_WSPersistentGEMMModel.json").read_text())
    assert summary["rows"] == 3
    assert {group["rows of"] for group in summary["accuracy"]} == {"all", "e2m1", "fp8"}


def test_classic_columns_stand_side_by_side_where_rows_were_measured():
    rows = pd.DataFrame({"m": [64], "predicted_us": [2.0], "runtime_us": [3.0]})
    named = with_classic_names(rows)
    assert named.columns.tolist() == ["m", "actual_runtime", "predicted_runtime", "runtime_us"]
    assert named["actual_runtime"].tolist() == [3.0]
    assert with_classic_names(rows[["predicted_us"]]).columns.tolist() == ["predicted_runtime"]


def test_the_classic_script_tells_each_extreme_kernel_with_its_ratio(tmp_path, classic_table, capsys):
    words = (f"+input_csv={classic_table}", f"+output_dir={tmp_path}", "gpu=b200_1300mhz")
    assert predict_main([*words, "model=WSPersistentGEMMModel"]) == 0
    written = pd.read_csv(tmp_path / "predictions_WSPersistentGEMMModel.csv")
    out = capsys.readouterr().out
    for predicted_us, actual_us in zip(written["predicted_runtime"], written["actual_runtime"], strict=True):
        assert f"RATIO: {predicted_us / actual_us:.6g}\n    predicted: {predicted_us:.6g} us" in out


def test_a_table_s_output_is_a_file_by_its_ending_or_a_folder(tmp_path, classic_table, gemm_model):
    words = ("predict", "gpu=b200_1300mhz", "model=SOLModel", "--input", classic_table, "--output")
    (tmp_path / "held.csv").mkdir()
    for name in ("rows.csv", "rows.json", "folder", "held.csv", "v1.5"):
        assert gemm_model(*words, tmp_path / name).code == 0
    written = (tmp_path / "rows.csv").read_text()
    for name in ("folder", "held.csv", "v1.5"):
        assert (tmp_path / name / "predictions_SOLModel.csv").read_text() == written
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) == 3
    refused = gemm_model(*words, tmp_path / "rows.csv.gz")
    assert (refused.code, (tmp_path / "rows.csv.gz").exists()) == (2, False)
    assert "expected a name that ends in one of" in refused.err
