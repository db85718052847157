"""Attention under the verbs predict, rank and explain: texts, JSON, tables and sentences for bad input."""

import csv
import json
from pathlib import Path

import pytest

import gemm_model
from gemm_model.cli import main

PREFILL = "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128"
DECODE = "full batch=2 heads=32 kv_heads=8 seq_q=1 seq_kv=32768 head_dim=128"


def _json(capsys, *words):
    assert main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_predict_tells_the_problem_and_the_resolved_kernel(capsys):
    found = _json(capsys, "predict", "--attention", PREFILL)["result"]
    assert found["problem"] == {
        "batch": 1,
        "heads": 32,
        "kv_heads": 8,
        "seq_q": 4096,
        "seq_kv": 4096,
        "head_dim": 128,
        "head_dim_v": 128,
        "window": 0,
        "causal": 1,
        "in_dtype": "bf16",
    }
    assert (found["kernel"]["tile_m"], found["kernel"]["pack_gqa"]) == (128, 1)
    assert found["prediction"]["predicted_us"] > 100.0


def test_documents_keep_to_the_schema(capsys):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(gemm_model.__file__).parent / "report" / "schema.json").read_text())
    for words in (
        ("predict", "--attention", PREFILL),
        ("explain", "--attention", DECODE),
        ("rank", "--attention", DECODE),
    ):
        jsonschema.validate(_json(capsys, *words), schema)


def test_rank_lists_and_says_why(capsys):
    found = _json(capsys, "rank", "--attention", DECODE, "--top", "3")
    assert [row["rank"] for row in found["rows"]] == [1, 2, 3]
    assert found["rows"][0]["num_splits"] > 1
    assert "num_splits" in found["result"]["reason"]
    assert main(["rank", "--attention", DECODE, "--why-not", "flash_attention tile=128x64"]) == 0
    assert "more than the best" in capsys.readouterr().out


def test_rank_emits_splits_for_servers(capsys):
    assert main(["rank", "--attention", DECODE, "--emit", "splits"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["max_num_splits"] == max(found["num_splits_by_seq_kv"].values())


def test_explain_tells_units_and_what_ifs(capsys):
    assert main(["explain", "--attention", PREFILL]) == 0
    text = capsys.readouterr().out
    assert "limited by TENSOR" in text
    assert "tiles in order" in text
    found = _json(capsys, "explain", "--attention", PREFILL)
    assert found["result"]["limiter"] == "TENSOR"
    assert {"change", "predicted_us", "relative"} == set(found["rows"][0])


def test_explore_writes_a_page(tmp_path, capsys):
    pytest.importorskip("plotly")
    page = tmp_path / "attention.html"
    assert main(["explore", "--attention", DECODE, "--html", str(page)]) == 0
    assert "flash_attention" in capsys.readouterr().out
    text = page.read_text()
    assert "over the library&#x27;s own choice" in text or "over the library's own choice" in text
    assert main(["explore", "--html", str(page)]) == 2
    assert "--m is missing" in capsys.readouterr().err


def test_a_table_of_attention_goes_through_predict(tmp_path, capsys):
    table = tmp_path / "attention.csv"
    table.write_text(
        "kernel,batch,heads,kv_heads,seq_q,seq_kv,head_dim,causal,window,in_dtype,runtime_us\n"
        "flash_attention,1,32,8,4096,4096,128,1,0,bf16,220\n"
        "cudnn_attention,1,32,8,4096,4096,128,1,0,bf16,250\n"
        "flash_attention_2,1,32,32,2048,2048,64,0,0,fp16,150\n"
    )
    assert main(["predict", "--input", str(table), "--output", str(tmp_path / "out")]) == 0
    assert "ATTENTION batch=1 heads=32" in capsys.readouterr().out
    with (tmp_path / "out" / "predictions_KernelModel.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == ["flash_attention", "cudnn_attention", "flash_attention_2"]
    assert all(0.6 < float(row["ratio"]) < 1.4 for row in rows)


def test_a_benchmark_of_attention_needs_a_gpu(tmp_path, capsys):
    pytest.importorskip("torch")
    table = tmp_path / "attention.csv"
    table.write_text("heads,kv_heads,seq_q,seq_kv,head_dim\n8,8,64,64,64\n")
    assert main(["benchmark", "--rows", str(table), "--output", str(tmp_path / "out.csv")]) in (0, 3)
    assert main(["benchmark", "--rows", str(table), "--input", "x.csv"]) == 2
    assert "no effect with a table of attention" in capsys.readouterr().err
