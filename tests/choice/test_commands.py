import csv
import io
import json

import pytest

MODEL = "WSPersistentGEMMModel"
SIZES = ("--m", 4096, "--n", 4096, "--k", 4096, "--model", MODEL)


def test_rank_lists_the_candidates(gemm_model):
    outcome = gemm_model("rank", *SIZES, "--gpu", "h200", "--top", 3, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert outcome.code == 0
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert float(rows[0]["predicted_us"]) <= float(rows[2]["predicted_us"])
    assert "legal candidates on h200" in outcome.err
    assert "why the first" in outcome.err


def test_rank_as_json_holds_the_predictions(answer):
    found = answer("rank", *SIZES, "--top", 2)
    first, _ = found["result"]["choices"]
    assert first["prediction"]["predicted_us"] == first["predicted_us"] == found["rows"][0]["predicted_us"]


def test_rank_as_table_shows_no_empty_columns(gemm_model):
    out = gemm_model("rank", *SIZES, "--top", 1).out
    assert "stages" not in out
    assert "limiter" in out


def test_why_not_and_emit(gemm_model):
    assert "more than" in gemm_model("rank", *SIZES, "--why-not", "128x128,cluster=1x1").out
    assert gemm_model("rank", *SIZES, "--emit", "quack").out.startswith("GemmConfig(")


def test_what_is_emitted_as_json_is_read_back_with_the_same_time(gemm_model, answer, tmp_path):
    path, table = tmp_path / "emitted.json", tmp_path / "shapes.csv"
    table.write_text("m,n,k,epilogue,dtype\n8,57344,8192,bias,fp8\n64,8192,28672,,bf16\n")
    rows = answer("rank", "--input", table, "--family", "any")["rows"]
    path.write_text(gemm_model("rank", "--input", table, "--family", "any", "--emit", "json").out)
    found, expected = answer("predict", "--input", path)["rows"], [row["predicted_us"] for row in rows]
    assert [row["predicted_us"] for row in found] == pytest.approx(expected, rel=1e-12)
    alone = ("rank", "--m", 8, "--n", 57344, "--k", 8192, "--epilogue", "bias", "--dtype", "fp8")
    path.write_text(gemm_model(*alone, "--family", "any", "--emit", "json").out)
    found = answer("predict", "--input", path)["rows"]
    assert found[0]["predicted_us"] == pytest.approx(expected[0], rel=1e-12)


def test_a_predicted_table_is_ranked_without_the_figures_of_its_old_kernels(gemm_model, tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text(
        "m,n,k,dtype,cta_m,cta_n,cluster_m,cluster_n,layer\n1000,5000,3000,bf16,64,128,1,1,down\n"
    )
    path.write_text(gemm_model("predict", "--input", path, "--format", "csv").out)
    found = gemm_model("rank", "--input", path, "--gpu", "l40s", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(found.out))
    assert row["layer"] == "down"
    assert not [
        name for name in row if name.startswith("phase_") or name in ("l2_us", "energy_uj", "dram_bytes")
    ]
    assert "kernels are chosen anew, whatever the table says: cta_m, cta_n, " in found.err


def test_a_table_is_emitted_row_by_row_with_its_caveats(gemm_model, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("dtype,m,n,k,gpu\nfp8,64,7168,2048,b200\nbf16,4096,4096,4096,b200\n")
    found = gemm_model("rank", "--input", path, "--emit", "cutlass", "--format", "csv")
    for row in csv.DictReader(io.StringIO(found.out)):
        sizes = ("--m", row["m"], "--n", row["n"], "--k", row["k"], "--dtype", row["in_dtype"])
        alone = gemm_model("rank", *sizes, "--gpu", "b200", "--emit", "cutlass")
        assert alone.out == row["emit"] + "\n"
    assert "GPU b200_sxm: not validated against measurements" in found.err
    assert "rows of b200: answered for h200" in gemm_model("rank", "--input", path, "--gpu", "h200").err


def test_rank_across_families_against_one(gemm_model, answer):
    sizes = ("--m", 64, "--n", 7168, "--k", 2048)
    result = answer("rank", *sizes, "--family", "any", "--against", "triton")["result"]
    assert result["against"]["kernel"] == "triton"
    triton_us = result["against"]["predicted_us"]
    for choice in result["choices"]:
        assert choice["gain"] == pytest.approx(triton_us / choice["predicted_us"] - 1)
    alone = answer("rank", *sizes, "--family", "triton", "--top", 1)
    assert alone["result"]["choices"][0]["predicted_us"] == triton_us
    assert alone["result"]["against"] is None
    assert "triton takes" in gemm_model("rank", *sizes, "--family", "any", "--against", "triton").err


def test_a_table_across_families_against_one(gemm_model, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k\n64,7168,2048\n4096,4096,4096\n")
    words = ("rank", "--input", path, "--family", "any", "--against", "cublas", "--format", "csv")
    rows = list(csv.DictReader(gemm_model(*words).out.splitlines()))
    for row in rows:
        assert row["kernel"] in {"quack", "cublas", "cutlass", "triton"}
        gain = float(row["against_us"]) / float(row["predicted_us"]) - 1
        assert float(row["gain"]) == pytest.approx(gain)
        assert gain >= 0


def test_rank_of_a_table(gemm_model, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k\n128,4096,4096\n4096,4096,4096\n")
    output = tmp_path / "best.csv"
    outcome = gemm_model("rank", "--table", path, "--model", MODEL, "--output", output)
    assert outcome.code == 0
    rows = list(csv.DictReader(output.open()))
    assert [row["m"] for row in rows] == ["128", "4096"]
    assert all(float(row["predicted_us"]) > 0 for row in rows)
    printed = gemm_model("rank", "--table", path, "--model", MODEL, "--format", "csv").out
    assert printed == output.read_text()


def test_portfolio(gemm_model, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,count\n128,4096,4096,3\n4096,4096,4096,1\n8192,1024,2048,2\n")
    outcome = gemm_model(
        *("portfolio", "--table", path, "--max-kernels", 2, "--weight", "count", "--model", MODEL),
        *("--format", "json", "--output", tmp_path / "out.json"),
    )
    assert outcome.code == 0
    document = json.loads((tmp_path / "out.json").read_text())
    found = {**document["result"], "shapes": document["rows"]}
    assert len(found["kernels"]) <= 2
    assert sum(kernel["shapes"] for kernel in found["kernels"]) == 3
    weighted = sum(weight * (1 + row["loss"]) for weight, row in zip((3, 1, 2), found["shapes"], strict=True))
    assert weighted / 6 - 1 == pytest.approx(found["mean_loss"], abs=1e-6)
    assert "the best of its size" in outcome.err


def test_a_weight_that_is_no_number_is_named(gemm_model, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,count\n128,4096,4096,3\n4096,4096,4096,many\n")
    outcome = gemm_model("portfolio", "--table", path, "--max-kernels", 2, "--weight", "count")
    assert outcome.code == 2
    assert "line 3, column count" in outcome.err
