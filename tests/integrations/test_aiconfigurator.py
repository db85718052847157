import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_model import AttentionProblem, GemmProblem, Ranker, load_gpu
from gemm_model.attention.choice import rank_attention
from gemm_model.cli import main
from gemm_model.config.numbers import room_numbers
from gemm_model.integrations import aiconfigurator as planner
from gemm_model.integrations.huggingface import shapes_of
from gemm_model.serving import planner_tables
from gemm_model.serving.choose import choose_layers
from gemm_model.serving.frameworks import framework_of
from gemm_model.serving.layers import Parallelism, moe_cells
from gemm_model.serving.planner_tables import power_law_rows, products_of
from gemm_model.tables.schema import understood
from gemm_model.tables.table import batch_from_frame

SIZES = "m,n,k\n16,4096,4096\n2048,4096,4096\n8192,8192,8192\n"


def emit(tmp_path, *more, sizes=SIZES):
    (tmp_path / "sizes.csv").write_text(sizes)
    words = ["emit", "aiconfigurator", "--gpu", "h200", "--memory-gib", "141"]
    return main([*words, "--output", str(tmp_path / "out"), "--input", str(tmp_path / "sizes.csv"), *more])


def test_a_system_and_its_table_of_gemms_are_written(tmp_path):
    assert emit(tmp_path) == 0
    system = yaml.safe_load((tmp_path / "out/h200.yaml").read_text())
    assert system["gpu"]["sm_version"] == 90
    assert system["gpu"]["mem_capacity"] == 141 * 2**30
    assert system["gpu"]["fp8_tc_flops"] == 2 * system["gpu"]["bfloat16_tc_flops"]
    table = pd.read_parquet(tmp_path / "out" / system["data_dir"] / "gemm/vllm/0.24.0/gemm_perf.parquet")
    assert sorted(table["gemm_dtype"].unique()) == ["bfloat16", "fp8"]
    late = [call_us(GemmProblem.of(8192, 8192, 8192), regime) for regime in ("graph", "sustained")]
    # The last 36 of 72 calls are timed; the clock falls after 66 ms.
    part = (72 - 66e3 / late[0]) / 36
    assert 0.0 < part < 1.0
    found = understood(table[table["gemm_dtype"] == "bfloat16"])["runtime_us"]
    assert found.iloc[0] == pytest.approx(call_us(GemmProblem.of(16, 4096, 4096), "graph"), rel=1e-6)
    assert found.iloc[2] == pytest.approx(late[0] + part * (late[1] - late[0]), rel=1e-6)
    # fp8: 16 x 4096 activations are read in 16 bits and written in 8, by a kernel of 1.5 us.
    alone_us = call_us(GemmProblem.of(16, 4096, 4096, "e4m3", "bf16"), "graph")
    quantized_us = 1.5 + 3 * 16 * 4096 / load_gpu("h200").dram_read_bytes_per_us
    assert table["latency"].iloc[3] * 1e3 == pytest.approx(alone_us + quantized_us, rel=1e-6)


def call_us(problem, regime):
    ranker = Ranker("h200", family="cublas", options={"regime": regime, "l2": "written"})
    best = ranker.rank(problem, 1).to_dataframe()
    # Six layers, which write 16 bits, share A.
    width = problem.a_dtype.bits / 8
    between_bytes = (
        6 * (width * problem.n + 2 * problem.m * problem.n / problem.k + width * problem.m / 6) * problem.k
    )
    found = ranker.model.predict_batch(
        batch_from_frame(best.assign(footprint_bytes=between_bytes), needs_tile=True)
    )
    return ranker.heuristic_choice.time_us(found.runtime_us[0], found.row(0).limiter)


MODEL = {
    "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024, "vocab_size": 0, "hidden_act": "silu",
}  # fmt: skip
EXPERTS = {**MODEL, "num_local_experts": 8, "num_experts_per_tok": 2}


def test_the_grid_holds_a_model_s_own_products():
    own = products_of([shapes_of(MODEL)], 2)
    halves = {(384, 512), (512, 256), (1024, 512), (512, 512)}
    assert set(own) == halves | {(768, 512), (2048, 512), (512, 1024)}
    rows = planner.grid(own).query("n == 384 and k == 512")["m"]
    assert len(rows) == 30
    # 1,028 rows take nine rows of tiles of 128, which no line between 1,024 and 1,536 knows.
    assert {1024, 1025, 8192, 8193} <= {*rows}


@pytest.fixture
def small(monkeypatch):
    sizes = {"BATCHES": (1, 4), "LENGTHS": (64, 256), "TOKENS": (4, 64)}
    few = {"room_numbers": lambda room: room_numbers(room).having(vidur_sizes=0.5)}
    for name, values in (sizes | {"LONGEST": 512, "CHUNK": 256, "REQUESTS": 4} | few).items():
        monkeypatch.setattr(planner_tables, name, values)


def rows_of(tmp_path, name, where):
    table = pd.read_parquet(next((tmp_path / "out").rglob(f"{name}_perf.parquet")))
    return table[np.logical_and.reduce([table[column] == value for column, value in where.items()])]


def test_attention_and_experts_of_models_are_the_kernels_and_what_vllm_runs_beside_them(tmp_path, small):
    (tmp_path / "config.json").write_text(json.dumps(EXPERTS))
    of_six = {**EXPERTS, "num_experts_per_tok": 6}
    (tmp_path / "six.json").write_text(json.dumps(of_six))
    models = f"{tmp_path}/config.json,{tmp_path}/six.json"
    assert emit(tmp_path, "--model", models, "--node-gpus", "2") == 0
    gpu, numbers = load_gpu("h200"), room_numbers("serving")
    for name, queries, step in (("context", 256, 0), ("generation", 1, 255)):
        where = {"batch_size": 4, "num_heads": 4, "num_key_value_heads": 1, "isl": queries, "step": step}
        (row,) = rows_of(tmp_path, f"{name}_attention", where).itertuples()
        sizes = {"batch": 4, "heads": 4, "kv_heads": 1, "seq_q": queries, "seq_kv": 256, "head_dim": 64}
        problem = AttentionProblem.of(**sizes, head_dim_v=64, dtype="bf16", causal=queries > 1, page_size=64)
        # 64 threads a token of 40 registers: 25 CTAs an SM, each of 2,870 clocks, beside 512 bytes a token of DRAM's.
        parts_us = 4 * queries / (132 * 25) * 2870 / 1980, 4 * queries * 512 / 4.582e6
        written_us = sum(each_us**1.5 for each_us in parts_us) ** (1 / 1.5)
        beside_us = numbers.attention_beside_us + written_us
        kernel_us = rank_attention(problem, gpu, "flash_attention_3").best.prediction.runtime_us
        assert row.latency * 1e3 == pytest.approx(kernel_us + beside_us)
    where = {"num_tokens": 64, "moe_tp_size": 2, "moe_ep_size": 1, "distribution": "balanced", "topk": 2}
    (row,) = rows_of(tmp_path, "moe", where).itertuples()
    cell = moe_cells(shapes_of(EXPERTS), Parallelism(tensor=2))[0]
    layer = [[cell.product(64, down=down) for down in (False, True)]]
    products_us = choose_layers(layer, gpu, framework_of("vllm"), "balanced")[0].predicted_us
    moved = 2 * 64 * (2 * (3 * 512 + 512) + 512)
    expected_us = products_us + numbers.experts_beside_us + moved / gpu.dram_read_bytes_per_us
    assert row.latency * 1e3 == pytest.approx(expected_us)
    assert (row.inter_size, row.hidden_size, row.num_experts, row.topk) == (1024, 512, 8, 2)
    # Spread over two cards: 192 rows, vLLM's default configuration, and zeros in the second product of all rows.
    # torch sums six rows of a token as slowly as eight.
    (row,) = rows_of(tmp_path, "moe", {**where, "topk": 6, "moe_tp_size": 1, "moe_ep_size": 2}).itertuples()
    cell = moe_cells(shapes_of(of_six), Parallelism(tensor=2, expert=2))[0]
    layer = [[replace(cell.product(192, down=down), topk=1, experts_total=4) for down in (False, True)]]
    products_us = choose_layers(layer, gpu, framework_of("vllm"), "balanced")[0].default_us
    moved = 2 * 64 * (6 * (3 * 1024 + 512 / 0.71) + (8 + 1) * 512 / 0.64)
    expected_us = products_us + numbers.experts_beside_us + moved / gpu.dram_read_bytes_per_us
    assert row.latency * 1e3 == pytest.approx(expected_us)
    assert len(rows_of(tmp_path, "moe", {"moe_dtype": "bfloat16", "topk": 2})) == 3 * 3 * 2


@pytest.mark.parametrize("tokens", [1, 3, 64, 4096])
def test_a_skewed_routing_gives_every_row_once_and_the_busiest_card_the_most(tokens):
    alone, of_four = (moe_cells(shapes_of(EXPERTS), Parallelism(tensor=4, expert=ep))[0] for ep in (1, 4))
    rows, busiest = (power_law_rows(tokens, cell, 1.2) for cell in (alone, of_four))
    assert (len(rows), sum(rows)) == (8, 2 * tokens)
    assert max(rows) <= tokens
    assert len(busiest) == 2
    assert sum(busiest) >= 2 * tokens / 4
    assert tokens < 64 or max(rows) > 2 * 2 * tokens / 8


def test_vidur_reads_a_layer_by_operator(tmp_path, small):
    (tmp_path / "tiny.json").write_text(json.dumps(MODEL))
    words = ["emit", "vidur", "--gpu", "h200", "--node-gpus", "2", "--model", str(tmp_path / "tiny.json")]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").rglob("predicted")
    layers, attention = (pd.read_csv(folder / f"{name}.csv.xz") for name in ("mlp", "attention"))
    assert layers["num_tokens"].tolist() == 2 * [8, 32, 128, 512]
    layers = layers.query("num_tokens == 32").reset_index()
    assert layers["num_tensor_parallel_workers"].tolist() == [1, 2]
    ranker = Ranker("h200", family="cublas", options={"regime": "sustained", "l2": "written"})
    for name, n, k in (("attn_pre_proj", 384, 512), ("mlp_up_proj", 1024, 512), ("mlp_down_proj", 512, 512)):
        best = ranker.rank(GemmProblem.of(32, n, k), 1).best.prediction
        own_us = ranker.heuristic_choice.time_us(best.runtime_us, best.limiter)
        assert layers[f"time_stats.{name}.median"][1] == pytest.approx(own_us / 1e3)
    # A normalization reads and writes 32 rows of 512 elements of 2 bytes.
    moved_us = 2 * 32 * 512 * 2 / load_gpu("h200").dram_read_bytes_per_us
    norm_us = room_numbers("serving").small_kernel_us + moved_us
    assert layers["time_stats.input_layernorm.median"][0] == pytest.approx(norm_us / 1e3)
    decode = attention[~attention["is_prefill"]]
    assert decode["time_stats.attn_decode.median"].notna().all()
    assert decode["time_stats.attn_prefill.median"].isna().all()
    assert set(decode["batch_size"]) == {1, 4}


def test_an_interruption_leaves_no_file(tmp_path, small, monkeypatch):
    whole, done = planner_tables.tables_of, []

    def interrupted(*words):
        if done:
            raise KeyboardInterrupt
        done.append(words)
        return whole(*words)

    monkeypatch.setattr(planner_tables, "tables_of", interrupted)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(MODEL))
    models = f"{tmp_path}/a.json,{tmp_path}/b.json"
    words = ["emit", "vidur", "--gpu", "h200", "--node-gpus", "1", "--model", models]
    assert main([*words, "--output", str(tmp_path / "out")]) == 130
    assert done
    assert not (tmp_path / "out").exists()


def test_aiconfigurator_plans_with_our_tables_alone(tmp_path, small):
    reason = "aiconfigurator is not installed: pip install 'aiconfigurator>=0.12,<0.13'"
    estimate = pytest.importorskip("aiconfigurator.cli.api", reason=reason).cli_estimate
    widths = ((5120, 2048), (2048, 4096), (128, 2048), (151936, 2048))
    sizes = "m,n,k\n" + "".join(f"{m},{n},{k}\n" for m in (1, 256, 4096) for n, k in widths)
    moe = {"hidden_size": 2048, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, **moe, **heads}))
    assert emit(tmp_path, "--model", str(tmp_path / "config.json"), "--node-gpus", "1", sizes=sizes) == 0
    types = dict.fromkeys(("gemm_quant_mode", "moe_quant_mode"), "bfloat16")
    types["systems_paths"] = f"default,{tmp_path / 'out'}"
    asked = {"isl": 256, "osl": 32, "batch_size": 4, "tp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1}
    asked |= {"backend_name": "vllm", "backend_version": "0.24.0"}
    found = estimate("Qwen/Qwen3-30B-A3B", "h200", **asked, **types)
    assert 1.0 < found.tpot < 30.0
