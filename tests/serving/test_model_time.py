"""The verb model: parts of a pass by hand, times against predictions of the parts, laws, bands, refusals."""

import json
import math
from importlib.resources import files

import jsonschema
import pytest

import gemm_model as gm
from gemm_model.attention.choice import rank_attention
from gemm_model.attention.model import AttentionModel
from gemm_model.choice.selection import Call
from gemm_model.core.gpu import load_gpu
from gemm_model.integrations.huggingface import shapes_of
from gemm_model.serving.model_parts import LatentDecode, Part, parts_of
from gemm_model.serving.model_time import ModelTime, PartTime
from tests.cases import cases
from tests.conftest import ROOT

LLAMA = str(ROOT / "examples" / "llama_8b.json")
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads(files("gemm_model.report").joinpath("schema.json").read_text())
)
SMALL = {
    "model_type": "deepseek_v3", "hidden_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 32000, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 2, "moe_intermediate_size": 512,
    "first_k_dense_replace": 2, "moe_layer_freq": 1, "q_lora_rank": 384, "kv_lora_rank": 256,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
}  # fmt: skip
GQA = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 3072, "vocab_size": 0, "hidden_act": "silu",
}  # fmt: skip


def document_of(gemm_model, *words):
    outcome = gemm_model("model", *words, "--format", "json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    VALIDATOR.validate(document)
    return document


def sizes(part):
    work = part.work
    return part.name, part.count, *(round(getattr(work, name)) for name in ("n", "k"))


def by_name(config, step, **parallel):
    return {part.name: part for part in parts_of(shapes_of(config), step, gm.Parallelism(**parallel))}


def flop_of(config, step, **parallel):
    """FLOP of one card in a pass."""
    return sum(part.count * part.work.flop for part in by_name(config, step, **parallel).values())


def test_latent_attention_and_experts_have_the_products_that_their_code_has():
    found = by_name(SMALL, gm.Step(batch=2, queries=96, keys=96), tensor=2)
    assert [sizes(found[name]) for name in found if name != "attention"] == [
        ("latents", 5, 384 + 256 + 32, 1024),
        ("queries", 5, 8 * 96, 384),
        ("keys and values", 5, 8 * 128, 256),
        ("output projection", 5, 1024, 8 * 64),
        ("gate-up", 2, 4096, 1024),
        ("down", 2, 1024, 2048),
        ("router", 3, 32, 1024),
        ("shared gate-up", 3, 1024, 1024),
        ("shared down", 3, 1024, 512),
        ("experts' gate-up", 3, 512, 1024),
        ("experts' down", 3, 1024, 256),
        ("lm_head", 1, 16000, 1024),
    ]
    assert found["attention"].work.name == (
        "causal batch=2 heads=8 kv_heads=8 seq_q=96 seq_kv=96 head_dim=96 head_dim_v=64 dtype=bf16"
    )
    assert found["gate-up"].work.m == 192
    assert found["lm_head"].work.m == 2
    assert found["experts' down"].work.rows == 192 * 4


def test_decode_absorbs_the_weights_of_latent_keys_and_values():
    decode = by_name(SMALL, gm.Step(batch=6, keys=100))
    assert "keys and values" not in decode
    for name, n, k in (("keys absorbed", 256, 64), ("values absorbed", 64, 256)):
        work = decode[name].work
        assert (work.batch, work.m, work.n, work.k) == (16, 6, n, k)
    latent = decode["attention"].work
    assert isinstance(latent, LatentDecode)
    assert latent.flop == 2 * 6 * 16 * 100 * (256 + 32 + 256)
    assert latent.dram_bytes == 6 * 100 * (256 + 32) * 2


def test_windows_shorten_keys_and_linear_layers_are_left_out():
    windowed = {**GQA, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2}
    prefill = by_name(windowed, gm.Step(queries=512, keys=512))
    assert (prefill["attention"].count, prefill["windowed attention"].count) == (2, 2)
    # 128 keys a query, fewer for the first 127.
    scores = 512 * 128 - 128 * 127 / 2
    assert prefill["windowed attention"].work.flop == 2 * 16 * scores * 128
    decode = by_name(windowed, gm.Step(keys=512))
    assert [decode[name].work.seq_kv for name in ("attention", "windowed attention")] == [512, 128]
    linear = {**GQA, "full_attention_interval": 4}
    assert {part.count for part in by_name(linear, gm.Step(keys=64)).values()} == {1, 4}


def test_flop_are_twice_the_weights_for_each_token():
    step = gm.Step(batch=3, queries=32, keys=32)
    layer = 1024 * (16 + 2 * 4) * 64 + 16 * 64 * 1024 + 3 * 1024 * 3072
    attention = 2.0 * 3 * 16 * (32 * 33 / 2) * 128
    # A model without a vocabulary masks nothing.
    assert flop_of(GQA, step) == 4 * (2 * 96 * layer + 2.0 * 3 * 16 * 32 * 32 * 128)
    assert flop_of({**GQA, "vocab_size": 100}, step) == 4 * (2 * 96 * layer + attention) + 2 * 3 * 100 * 1024


@pytest.mark.parametrize(
    "config", [GQA, {**GQA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}]
)
@pytest.mark.parametrize("step", [gm.Step(batch=8, keys=300), gm.Step(batch=4, queries=64, keys=64)])
@pytest.mark.parametrize(
    "parallel", [{"tensor": 2}, {"data": 2}, {"tensor": 2, "data": 2, "expert": 4}, {"data": 4, "expert": 2}]
)
def test_cards_share_the_work_of_one(config, step, parallel):
    cards = gm.Parallelism(**parallel).cards
    alone, shared = flop_of(config, step), flop_of(config, step, **parallel)
    # The router alone runs on every card of a tensor-parallel group.
    router = 4 * 2.0 * step.tokens * 1024 * 8 if "num_experts" in config else 0.0
    again = router * (parallel.get("tensor", 1) - 1)
    assert cards * shared == pytest.approx(alone + again, rel=1e-12)


@pytest.mark.parametrize(*cases(__file__, "test_a_pass_is_the_sum_of_predictions_of_its_parts"))
def test_a_pass_is_the_sum_of_predictions_of_its_parts(gemm_model, regime, asked):
    document = document_of(gemm_model, LLAMA, "--tp", 2, "--batch", 16, asked, 700, "--regime", regime)
    ranker = gm.Ranker("h200", family="cublas", options={"regime": regime, "l2": "written"})
    model = AttentionModel(load_gpu("h200"), settled=regime == "sustained")
    expected_us = 0.0
    for row in document["rows"]:
        if "attention" in row:
            problem = gm.AttentionProblem.parse(row["attention"])
            time_us = rank_attention(problem, load_gpu("h200"), model=model).best.prediction.runtime_us
        else:
            problem = gm.GemmProblem.of(row["m"], row["n"], row["k"], row["in_dtype"])
            best = ranker.rank(problem, 1).best.prediction
            time_us = ranker.heuristic_choice.time_us(best.runtime_us, best.limiter)
        assert row["call_us"] == pytest.approx(time_us), row["part"]
        expected_us += time_us * (1 if row["part"] == "lm_head" else 32)
    (total,) = document["result"]["passes"]
    assert total["total_us"] == pytest.approx(expected_us)
    assert total["us_per_token"] == pytest.approx(expected_us / total["tokens"])
    assert sum(row["share"] for row in document["rows"]) == pytest.approx(1.0)
    head = document["rows"][-1]["total_us"]
    assert total["layer_us"] == pytest.approx((expected_us - head) / 32)


@pytest.mark.slow
def test_more_tokens_never_come_cheaper_and_a_settled_clock_is_no_faster():
    shapes = shapes_of({**GQA, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000})
    passes = [gm.predict_model(shapes, gm.Step(batch=batch, keys=512)) for batch in (1, 8, 64, 512)]
    # One token and eight read the same weights: they are told apart by less than their band.
    assert passes[0].total_us <= passes[1].total_us * (1.0 + passes[1].error_band)
    decode = [each.total_us for each in passes[1:]]
    longer = [gm.predict_model(shapes, gm.Step(batch=64, keys=keys)).total_us for keys in (64, 512, 4096)]
    steps = [gm.Step(queries=tokens, keys=tokens) for tokens in (128, 1024, 8192)]
    prefill = [gm.predict_model(shapes, step).total_us for step in steps]
    for times in (decode, longer, prefill):
        assert times == sorted(times)
    assert gm.predict_model(shapes, steps[-1], regime="graph").total_us < 0.97 * prefill[-1]


def test_served_kernels_and_latent_bounds_are_told_apart(gemm_model, tmp_path):
    quantized = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, **quantized}))
    document = document_of(gemm_model, path, "--batch", 64, "--dp", 4, "--ep", 4, "--context", 512)
    rows = {row["part"]: row for row in document["rows"]}
    # 64 tokens of all cards meet at the experts, 16 of one at its own products.
    assert rows["experts' down"]["m"] == 64 * 4 / 4
    assert rows["experts' down"]["experts"] == 8
    assert rows["latents"]["m"] == rows["router"]["m"] == 16
    assert rows["latents"]["in_dtype"] == "e4m3"
    assert rows["router"]["in_dtype"] == rows["keys absorbed"]["in_dtype"] == "bf16"
    gpu = load_gpu("h200")
    cache_us = 16 * 512 * 288 * 2 / gpu.dram_read_bytes_per_us
    math_us = 2 * 16 * 16 * 512 * 544 / gpu.flop_per_us("fp16")
    assert rows["attention"]["call_us"] == pytest.approx(max(cache_us, math_us))
    assert any("lower bound" in note for note in document["notes"])
    assert any("no band of their own" in note for note in document["notes"])


def time_of(*parts):
    work = gm.GemmProblem.of(1, 1, 1)
    calls = [(count, Call(time_us=time, limiter="DRAM", error_band=band)) for count, time, band in parts]
    times = tuple(PartTime(Part("x", count, work), call) for count, call in calls)
    return ModelTime("h200", 1, gm.Step(batch=4, keys=8), gm.Parallelism(tensor=2), times, ())


def test_the_card_s_band_adds_up_linearly_and_the_kernels_own_in_quadrature():
    assert time_of((32, 2.0, 0.03)).error_band == pytest.approx(0.03)
    assert time_of((1, 2.0, 0.03), (2, 3.0, 0.03)).error_band == pytest.approx(0.03)
    # 5 % are 3 % of the card and 4 % of its own, over half of the time.
    assert time_of((1, 8.0, 0.03), (4, 2.0, 0.05)).error_band == pytest.approx(math.hypot(0.03, 0.5 * 0.04))
    assert time_of((1, 8.0, 0.03), (1, 8.0, 0.05), (1, 16.0, None)).error_band == pytest.approx(
        math.sqrt(0.03**2 + (0.25 * 0.04) ** 2 + (0.5 * 0.04) ** 2)
    )
    assert time_of((1, 1.0, None)).error_band is None


def test_prices_say_which_card_serves_a_token_cheapest(gemm_model, tmp_path):
    # 8 us for 4 tokens on 2 cards at 9 USD an hour.
    assert time_of((1, 8.0, 0.03)).usd_per_million_tokens(9.0) == pytest.approx(9.0 / 3600 * 2e-6 * 2 * 1e6)
    words = f"{LLAMA} --batch 4 --context 100 --gpu h200,l40s --price l40s=0.1,h200=9".split()
    page = tmp_path / "page.html"
    document = document_of(gemm_model, *words, "--html", page, "--plot", tmp_path / "passes.svg")
    assert (tmp_path / "passes.svg").read_text().count("<!-- dram -->") > 4
    passes = {each["gpu"]: each for each in document["result"]["passes"]}
    shown = page.read_text()
    for card, each in passes.items():
        assert f"decode on 1 x {card}" in shown
        assert f"{each['tokens_per_s']:.4g} tokens/s" in shown
        assert f"<td data-name='usd_per_million_tokens'>{each['usd_per_million_tokens']:.4g}</td>" in shown
    # 32 layers of the down projection.
    down = next(row for row in document["rows"] if row["part"] == "down")
    assert f"32 x {down['call_us']:.4g} us, {down['share']:.1%}, {down['limiter']}" in shown
    for card, price in (("h200", 9.0), ("l40s", 0.1)):
        expected = passes[card]["us_per_token"] * 1e6 / 3.6e9 * price
        assert passes[card]["usd_per_million_tokens"] == pytest.approx(expected)
    slower = passes["l40s"]["total_us"] / passes["h200"]["total_us"]
    assert [(each["ratio"], each["inside_bands"]) for each in passes.values()] == [(1, "yes"), (slower, "no")]
    assert document["notes"][0].startswith("decode: l40s serves a token cheapest")
    assert {row["gpu"] for row in document["rows"]} == {"h200", "l40s"}


def test_tables_hold_both_phases_where_neither_is_asked(gemm_model, tmp_path):
    text = gemm_model("model", LLAMA)
    assert text.code == 0
    for words in ("PREFILL on h200, 2048 tokens", "DECODE on h200, 1 tokens", "TOTAL"):
        assert words in text.out
    path = tmp_path / "parts.csv"
    assert gemm_model("model", LLAMA, "--prompt-tokens", 64, "--output", path).code == 0
    lines = path.read_text().splitlines()
    assert lines[0].startswith("gpu,phase,part,count,m,n,k")
    assert {line.split(",")[1] for line in lines[1:]} == {"prefill"}
    (tmp_path / "config.json").write_text(json.dumps(GQA))
    encoder = gemm_model("model", tmp_path)
    assert "DECODE" not in encoder.out
    assert "no vocab_size: no head, and queries see keys on both sides" in encoder.out + encoder.err


@pytest.mark.parametrize(*cases(__file__, "test_a_model_that_cannot_run_is_one_sentence"))
def test_a_model_that_cannot_run_is_one_sentence(gemm_model, tmp_path, config, words, sentence):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    outcome = gemm_model("model", path, *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert sentence in outcome.err
