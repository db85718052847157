"""Tables with a column `tokens` in predict and rank."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gemm_model.core.gpu import load_gpu
from gemm_model.serving import planner_tables
from gemm_model.serving.layers import MoeCell
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.residual import predicted
from gemm_model.serving.routing import row_tiles
from gemm_model.serving.tile_config import TileConfig, TileGrid
from tests.cases import calls, cases

test_calls = calls(__file__)

EXPERTS = ServedProduct(tokens=64, n=1536, k=2048, experts=128, topk=8)
DENSE = ServedProduct(tokens=512, n=2112, k=7168, in_dtype="e4m3", scaling="block128x128")
HEADER = (
    "tokens,experts,topk,n,k,in_dtype,gathered,kernel,cta_m,cta_n,cta_k,group_m,warps,stages,runtime_us,note"
)
ROWS = (
    "64,128,8,1536,2048,bf16,1,triton_moe,16,64,128,1,4,3,130,first",
    "512,,,2112,7168,,,triton_block_fp8,64,128,128,32,4,3,,second",
    "64,128,8,1536,2048,bf16,1,triton_moe,16,128,64,16,4,4,150,third",
    "64,128,8,1536,2048,int4,1,triton_moe,16,64,256,1,4,3,,fourth",
    "64,128,8,1536,2048,bf16,1,triton_moe,256,256,256,1,8,5,,fifth",
)


def table(folder, *rows, header=HEADER):
    path = folder / "served.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def time_us(product, *config):
    return float(predicted(product, TileGrid.of([TileConfig(*config)]), load_gpu("h200")).total_us[0])


def test_predict_keeps_rows_and_their_order(gemm_model, tmp_path):
    path = table(tmp_path, *ROWS)
    outcome = gemm_model("predict", "--input", path, "--gpu", "h200", "--output", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    rows = pd.read_csv(tmp_path / "out" / "predictions_serving.csv")
    assert list(rows.note) == ["first", "second", "third", "fourth", "fifth"]
    asked = (EXPERTS, 16, 64, 128, 1, 4, 3), (DENSE, 64, 128, 128, 32, 4, 3), (EXPERTS, 16, 128, 64, 16, 4, 4)
    expected = [time_us(*each) for each in asked]
    assert rows.predicted_us[:3].to_numpy() == pytest.approx(expected, rel=1e-9)
    assert rows.predicted_us[3] < 0.5 * expected[0]  # w4a16: a quarter of the bytes
    assert np.isnan(rows.predicted_us[4])
    assert list(rows.disposition) == ["ok"] * 4 + ["does not fit"]
    assert rows.ratio[0] == pytest.approx(expected[0] / 130)
    assert "triton_moe" in outcome.out


def test_rank_finds_the_best_of_all_that_fit(gemm_model, tmp_path):
    header = "tokens,experts,topk,n,k,note"
    path = table(tmp_path, "64,128,8,1536,2048,a", "64,128,8,1536,2048,b", header=header)
    outcome = gemm_model("rank", "--input", path, "--gpu", "h200", "--format", "json")
    assert outcome.code == 0, outcome.err
    first, second = json.loads(outcome.out)["rows"]
    assert (first["note"], second["note"]) == ("a", "b")
    assert first["predicted_us"] == second["predicted_us"]
    config = [first[name] for name in ("cta_m", "cta_n", "cta_k", "group_m", "warps", "stages")]
    assert first["predicted_us"] == pytest.approx(time_us(EXPERTS, *config), rel=1e-9)
    assert first["predicted_us"] < time_us(EXPERTS, 64, 128, 128, 1, 8, 3)


def test_a_routing_is_heard(gemm_model, tmp_path):
    path = table(tmp_path, ROWS[0])
    answers = [
        json.loads(gemm_model("predict", "--input", path, "--routing", each, "--format", "json").out)
        for each in ("uniform", "zipf:1.5")
    ]
    uniform, skewed = (answer["rows"][0]["predicted_us"] for answer in answers)
    assert skewed < uniform


@pytest.mark.parametrize(*cases(__file__, "test_bad_cells_are_named_by_line"))
def test_bad_cells_are_named_by_line(gemm_model, tmp_path, row, said):
    outcome = gemm_model("predict", "--input", table(tmp_path, row), "--gpu", "h200")
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_needed_and_misspelt_columns_are_named(gemm_model, tmp_path):
    path = tmp_path / "t.csv"
    for verb, columns, said in (
        ("rank", "tokens,experts", "column 'n' is missing; expected tokens, n, k (its tokens are of served"),
        ("predict", "tokens,n,k", "column 'cta_m' is missing; expected tokens, n, k, cta_m"),
        ("rank", "tokens,n,k,exprts", "column 'exprts' is not known; did you mean 'experts'?"),
        ("portfolio", "tokens,n,k", "m, n, k (its tokens are of served layers, for predict and rank"),
        ("portfolio", "heads,head_dim,seq_q", "are of attention, for predict, rank and benchmark)"),
    ):
        path.write_text(f"{columns}\n{','.join(['64'] * len(columns.split(',')))}\n")
        found = gemm_model(verb, "--input", path, *(["--max-kernels", "1"] if verb == "portfolio" else []))
        assert found.code == 2
        assert said in found.err


def test_options_that_nothing_reads_are_refused(gemm_model, tmp_path):
    path = table(tmp_path, *ROWS)
    for verb, words in (("rank", ("--against", "cublas")), ("predict", ("--model", "SOLModel"))):
        outcome = gemm_model(verb, "--input", path, *words)
        assert outcome.code == 2
        assert "has no effect with a table of served layers" in outcome.err


def experts(tokens, count=8, topk=2, total=0):
    return ServedProduct(tokens=tokens, n=256, k=256, experts=count, topk=topk, experts_total=total)


def test_expected_tiles_agree_with_random_routings():
    random = np.random.default_rng(1)
    counts = []
    for _ in range(400):
        chosen = np.argsort(random.random((96, 8)), axis=1)[:, :2]
        counts.append(np.bincount(chosen.ravel(), minlength=8))
    tiles = np.ceil(np.array(counts) / 16).sum(axis=1).mean()
    assert row_tiles(experts(96), 16).tiles == pytest.approx(tiles, rel=0.01)


def test_skew_leaves_experts_out_and_balance_leaves_none():
    tokens = experts(64, count=64, topk=2)
    skewed, uniform, balanced = (row_tiles(tokens, 16, each) for each in ("zipf:1.5", "uniform", "balanced"))
    assert skewed.active_experts < uniform.active_experts < balanced.active_experts == 64
    assert row_tiles(tokens, 16, "zipf:1.5:worst").tiles > skewed.tiles


@pytest.mark.parametrize(*cases(__file__, "test_a_layer_of_experts_by_hand"))
def test_a_layer_of_experts_by_hand(monkeypatch, tensor, cell, tokens, name, latency_ms):
    """Products take 10 us as chosen and 20 as by default; DRAM moves 1,000,000 bytes a us."""
    times = SimpleNamespace(predicted_us=10.0, default_us=20.0)
    monkeypatch.setattr(planner_tables, "choose_layers", lambda *_: [times])
    gpu = SimpleNamespace(dram_read_bytes_per_us=1e6)
    row = planner_tables._experts_row(tensor, MoeCell(**cell), gpu, tokens, name)
    assert row["latency"] == pytest.approx(latency_ms, rel=1e-9)
