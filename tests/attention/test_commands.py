"""Attention under the verbs predict, rank and explain: texts, JSON, tables and sentences for bad input."""

import csv
import json
import re
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
    sizes = {"batch": 1, "heads": 32, "kv_heads": 8, "seq_q": 4096, "seq_kv": 4096, "head_dim": 128}
    assert found["problem"] == {**sizes, "head_dim_v": 128, "window": 0, "causal": 1, "in_dtype": "bf16"}
    assert (found["kernel"]["tile_m"], found["kernel"]["pack_gqa"]) == (128, 1)
    assert found["prediction"]["predicted_us"] > 100.0


def test_documents_keep_to_the_schema(capsys):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(gemm_model.__file__).parent / "report" / "schema.json").read_text())
    for verb, words in (("predict", PREFILL), ("explain", DECODE), ("rank", DECODE)):
        jsonschema.validate(_json(capsys, verb, "--attention", words), schema)


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
    assert re.search("limited by TENSOR.*scheduler in_order", capsys.readouterr().out, re.DOTALL)


def test_explain_answers_what_ifs_of_units_card_and_configuration(capsys):
    asked = "dram x2,no exponentials,sms 66,clock x1.1,tile 128x64,num_splits 1,consumer_groups 1"
    options = [word for text in asked.split(",") for word in ("--what-if", text)]
    rows = _json(capsys, "explain", "--attention", PREFILL, *options)["rows"]
    assert {"change", "predicted_us", "relative"} == set(rows[0])
    relative = {row["change"]: row["relative"] for row in rows}
    assert relative["num_splits 1"] == 1.0
    assert relative["consumer_groups 1"] == relative["tile_m 64"] > 1.2
    assert 1.9 < relative["sms 66"] < 2.1
    assert 1 / 1.1 < relative["clock x1.1"] < relative["no exponentials"] < relative["dram x2"] < 1.0
    words = ("predict", "--attention", PREFILL, "--attention-config", "flash_attention tile=128x64")
    other, own = _json(capsys, *words), _json(capsys, *words[:3])
    times_us = [each["result"]["prediction"]["predicted_us"] for each in (other, own)]
    assert relative["tile 128x64"] == pytest.approx(times_us[0] / times_us[1])
    for bad, sentence in (("dram", "on no unit"), ("colour red", "expected tile"), ("sms x0", "above 0")):
        assert main(["explain", "--attention", PREFILL, "--what-if", bad]) == 2
        assert sentence in capsys.readouterr().err


AGAINST = {
    "tile=128x64,num_splits=8": {"tile", "num_splits"},
    "cudnn_attention": {"kernel"},
    "h100_sxm": {"card: clock", "card: L2", "card: DRAM"},
    "flash_attention_2 a100_sxm_80gb": {"kernel and card: the rest, with its calibration"},
    PREFILL.replace("4096", "4096,"): set(),
}


@pytest.mark.parametrize(("against", "settings"), AGAINST.items())
def test_explain_shares_out_the_difference_of_two_kernels(capsys, against, settings):
    found = _json(capsys, "explain", "--attention", PREFILL, "--against", against)
    own = _json(capsys, "predict", "--attention", PREFILL)["result"]["prediction"]["predicted_us"]
    apart_us = found["result"]["second_us"] - own
    for by in ("setting", "resource"):
        added_us = sum(row["added_us"] for row in found["rows"] if row["by"] == by)
        assert added_us == pytest.approx(apart_us, abs=1e-9)
    assert settings <= {row["name"] for row in found["rows"]}


def test_explore_writes_a_page(tmp_path, capsys):
    pytest.importorskip("plotly")
    page = tmp_path / "attention.html"
    assert main(["explore", "--attention", DECODE, "--html", str(page)]) == 0
    assert "flash_attention" in capsys.readouterr().out
    assert re.search("over the library(&#x27;|')s own choice", page.read_text())
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
    assert re.search(r"^32 +4096 +4096 +bf16 +flash_attention ", capsys.readouterr().out, re.MULTILINE)
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


def test_rank_takes_a_table_of_problems(tmp_path, capsys):
    table = tmp_path / "attention.csv"
    table.write_text(
        "name,batch,heads,kv_heads,seq_q,seq_kv,head_dim,causal,num_splits,runtime_us,gpu\n"
        "prompt,1,32,8,4096,4096,128,1,1,9,h200\ntoken,2,32,8,1,32768,128,0,1,9,h100_sxm\n"
    )
    assert main(["rank", "--input", str(table), "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    alone = [
        _json(capsys, "rank", "--attention", words, "--gpu", gpu)["rows"][0]
        for words, gpu in ((PREFILL, "h200"), (DECODE, "h100_sxm"))
    ]
    assert [row["name"] for row in rows] == ["prompt", "token"]
    assert [float(row["predicted_us"]) for row in rows] == [row["predicted_us"] for row in alone]
    assert [int(row["num_splits"]) for row in rows] == [row["num_splits"] for row in alone]
    assert "runtime_us" not in rows[0]
    table.write_text("heads,seq_q,head_dim\n8,512,128\n8,512,300\n")
    assert main(["rank", "--input", str(table)]) == 2
    assert "line 3: head_dim is 300 with flash_attention" in capsys.readouterr().err
    assert main(["rank", "--input", str(table), "--top", "2"]) == 2
    assert "--top has no effect with a table of attention" in capsys.readouterr().err


def test_rank_takes_a_table_of_measured_kernels(tmp_path, capsys):
    # flash-attn-4's own tile is 128x128; 64x128 is predicted faster for one query. The second shape has no own one.
    kernels = ("1,128,128,9", "1,64,128,6", "1,128,64,5", "2,64,128,6", "2,128,64,7")
    for left_out, code in ((0, 0), (1, 2)):
        table = [f"32,4096,128,{kernel}" for kernel in kernels[left_out:]]
        table.insert(0, "heads,seq_kv,head_dim,seq_q,tile_m,tile_n,runtime_us")
        (tmp_path / "measured.csv").write_text("\n".join(table))
        assert main(["rank", "--input", str(tmp_path / "measured.csv"), "--format", "csv"]) == code
        printed = capsys.readouterr()
        if code == 0:
            (row,) = csv.DictReader(printed.out.splitlines())
            assert "first choices reach 83.3% (p5 83.3%), the library's own 55.6% (p5 55.6%)" in printed.err
    cells = [float(row[name]) for name in ("runtime_us", "library_us", "over_library", "of_best")]
    assert cells == pytest.approx([6.0, 9.0, 0.5, 5.0 / 6.0])
    assert "no problem has times of the library's own kernel" in printed.err


def test_simulate_draws_groups_in_turn(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    found = _json(capsys, "simulate", "--attention", PREFILL, "--events", "--trace", str(trace))
    assert found["result"]["k_tiles"] == 32
    products = [row for row in found["rows"] if row["event"] in ("qk", "pv")]
    ends = [row["end_us"] for row in products]
    # One tensor core serves both groups, each of which has the scores and outputs of 32 blocks.
    assert all(start["start_us"] >= end - 1e-9 for start, end in zip(products[1:], ends, strict=False))
    assert {row["warp"] for row in products} == {"MMAs 1", "MMAs 2"}
    assert len(products) == 2 * 2 * 32
    assert max(ends) < found["result"]["predicted_us"]
    assert any(event.get("name") == "exponentials" for event in json.loads(trace.read_text())["traceEvents"])
    assert main(["simulate", "--attention", "full heads=8 seq_q=64 seq_kv=0 head_dim=64"]) == 2
    assert "reads no key" in capsys.readouterr().err
    assert main(["simulate", "--attention", PREFILL, "--cta", "128x128"]) == 2
    assert "--cta has no effect with --attention" in capsys.readouterr().err
