"""What the attention model says: limits, empty lengths, choices, other cards and tables."""

import json
import math
import re
from dataclasses import replace
from itertools import product
from time import process_time

import numpy as np
import pandas as pd
import pytest

from benchmarks.measured import rows_of
from gemm_model import AttentionConfig, AttentionProblem, InputError, load_gpu, predict, predict_table
from gemm_model.attention.choice import emitted, flash_attn_arguments, rank_attention, why_not
from gemm_model.attention.explanation import AttentionWorld, explain_attention
from gemm_model.attention.kernels import copies_rows, resolved
from gemm_model.attention.model import AttentionModel
from gemm_model.core.attention import KERNELS
from tests.cases import calls, cases

test_calls = calls(__file__)

GPU = load_gpu("h200")
OWN, SERVERS = AttentionConfig(), AttentionConfig(kernel="flash_attention_3")


def _us(words, config="flash_attention", gpu="h200"):
    return predict(AttentionProblem.parse(words), AttentionConfig.parse(config), gpu).runtime_us


@pytest.mark.parametrize(*cases(__file__, "test_phases_add_up"))
def test_phases_add_up(words):
    found = predict(AttentionProblem.parse(words), OWN, "h200")
    assert sum(found.phases_us.values()) == pytest.approx(found.runtime_us)


@pytest.mark.parametrize(*cases(__file__, "test_no_kernel_is_faster_than_its_products_or_its_bytes"))
def test_no_kernel_is_faster_than_its_products_or_its_bytes(words):
    problem = AttentionProblem.parse(words)
    found = predict(problem, OWN, "h200").runtime_us
    assert found > problem.flop / GPU.flop_per_us("fp16")
    kv_bytes = 2 * problem.batch * problem.kv_heads * problem.seq_kv * 2 * problem.head_dim
    assert found > 0.9 * kv_bytes / GPU.dram_bytes_per_us


def test_an_idle_half_of_the_sms_is_as_much_imbalance_as_the_others_work():
    found = predict(
        AttentionProblem.parse("full heads=66 seq_q=128 seq_kv=4096 head_dim=128"), OWN, "h200"
    ).phases_us
    assert found["imbalance"] == pytest.approx(found["key_blocks"] + found["tile_starts_and_stores"])


def test_an_empty_length_takes_no_time_and_leaves_the_others_alone():
    assert _us("full heads=8 seq_q=0 seq_kv=100 head_dim=128") == 0.0
    assert _us("full heads=8 seq_q=100 seq_kv=0 head_dim=128") > 0.0  # O is still written
    some = _us("causal heads=8 head_dim=128 lengths=500:500+300:900")
    assert _us("causal heads=8 head_dim=128 lengths=500:500+0:0+300:900") == pytest.approx(some)


def test_equal_lengths_are_a_batch():
    batch = _us("causal batch=8 heads=32 kv_heads=8 seq_q=4096 head_dim=128")
    lengths = "+".join(["4096:4096"] * 8)
    assert _us(f"causal heads=32 kv_heads=8 head_dim=128 lengths={lengths}") == pytest.approx(batch, rel=0.05)


def test_a_softcap_costs_a_tanh_a_score_and_a_division_unless_it_is_a_power_of_two():
    words = "full heads=16 seq_q=8192 head_dim=128"
    plain, multiplied, divided = (_us(f"{words}{cap}") for cap in ("", " softcap=32", " softcap=30"))
    # 64 scores of each thread of a key block: each keeps its warp waiting for 50 clocks in place of about 1,050 in all.
    assert 1.2 < multiplied / plain < 1.5
    assert 2.0 < divided / plain < 3.0
    # Tiles without queries divide zeros, by a routine: 267 clocks.
    decode = "full batch=8 heads=32 kv_heads=8 seq_kv=8192 head_dim=128 seq_q="
    assert _us(f"{decode}1 softcap=30") > 2.5 * _us(f"{decode}32 softcap=30")
    assert _us(f"{decode}1 softcap=30", "flash_attention_2") < 2.0 * _us(f"{decode}1", "flash_attention_2")


def test_groups_in_step_cost_what_no_product_hides():
    words = "full heads=16 seq_q=8192 head_dim=128"
    # Two groups of 1,024 clocks of products and 512 of exponentials; in step nothing hides the exponentials.
    in_step = _us(words, "flash_attention overlap_between_groups=0")
    assert 1.2 < in_step / _us(words) < 1.5


def test_pages_that_are_no_whole_key_block_are_copied_row_by_row():
    words = "causal heads=16 seq_q=8192 head_dim=128 page_size="
    whole, parts = _us(f"{words}128"), _us(f"{words}64")
    assert parts == _us(f"{words}16")
    assert 1.08 < parts / whole < 1.16  # 455 us over 414 on an H200
    with pytest.raises(InputError, match="page_size is 64 with cudnn_attention"):
        _us(f"{words}64", "cudnn_attention")


def test_a_later_tile_of_copied_rows_waits_for_its_length_and_its_queries(monkeypatch):
    monkeypatch.setattr(AttentionModel, "_clock", lambda model, demand, busy_us, clock: clock)
    problems = [
        AttentionProblem.parse(f"causal heads=16 seq_q=8192 head_dim=128 page_size={n}") for n in (128, 64)
    ]
    whole, copied = (predict(each, SERVERS, GPU).phases_us["tile_starts_and_stores"] for each in problems)
    # 1,024 tiles on 132 SMs at 1,683 MHz: all but an SM's first wait twice for L2 (318 clk), once for DRAM (384 ns).
    assert copied - whole == pytest.approx((1024 - 132) / 132 * (2 * 318 / 1683 + 0.384), rel=0.01)


def test_what_servers_run_on_hopper_keeps_its_ctas_and_multiplies_fp8():
    words = "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128"
    whole, fp8 = (_us(f"{words} dtype={dtype}", "flash_attention_3") for dtype in ("bf16", "e4m3"))
    assert 0.9 * _us(words) < whole < _us(words)  # no CTA ends before its last tile
    assert 0.5 * whole < fp8 < 0.8 * whole  # twice the tensor rate, as many exponentials
    problem = AttentionProblem.parse(f"{words} dtype=e4m3")
    assert resolved(problem, SERVERS, GPU).tile_n == 224
    assert math.isnan(predict(problem, SERVERS, GPU).error_band or math.nan)


@pytest.mark.parametrize(*cases(__file__, "test_servers_tiles_splits_and_copies_are_those_of_the_source"))
def test_servers_tiles_splits_and_copies_are_those_of_the_source(words, tile, splits, copied):
    problem = AttentionProblem.parse(words)
    found = resolved(problem, SERVERS, GPU)
    assert ((found.tile_m, found.tile_n), found.num_splits) == (tile, splits)
    assert copies_rows(problem, found) == copied


def test_a_cluster_reads_keys_once_for_two_tiles_of_queries():
    words = "full heads=8 batch=2 seq_q=8192 head_dim=128"
    problem = AttentionProblem.parse(words)
    one, two = (predict(problem, replace(SERVERS, cluster=ctas), GPU) for ctas in (1, 2))
    assert two == predict(problem, SERVERS, GPU)
    q_and_o = 2 * 2 * 2 * 8 * 8192 * 128
    assert two.bytes_by_level["l2"] - q_and_o == pytest.approx((one.bytes_by_level["l2"] - q_and_o) / 2)
    assert two.runtime_us < one.runtime_us
    for bad, kernel in ((words, "flash_attention"), (words.replace("full", "causal"), "flash_attention_3")):
        with pytest.raises(InputError, match="cluster is 2 with flash_attention.*; expected 1"):
            _us(bad, f"{kernel} cluster=2")


def test_a_window_takes_less_than_all_keys():
    words = "causal heads=32 kv_heads=8 seq_q=8192 head_dim=128"
    assert _us(f"{words} window=512") < 0.3 * _us(words)
    assert _us(f"{words} window=8192") > 0.95 * _us(words)


def test_decode_of_one_sequence_gains_from_splits_and_of_many_does_not():
    one = AttentionProblem.parse("full heads=8 kv_heads=1 seq_q=1 seq_kv=65536 head_dim=128")
    many = AttentionProblem.parse("full batch=256 heads=64 kv_heads=8 seq_q=1 seq_kv=4096 head_dim=128")
    assert rank_attention(one, GPU).best.config.num_splits >= 8
    assert rank_attention(many, GPU).best.config.num_splits <= 2


def test_the_best_is_the_fastest_and_explains_itself():
    problem = AttentionProblem.parse("causal heads=32 kv_heads=8 seq_q=3000 head_dim=128")
    ranking = rank_attention(problem, GPU)
    times = [choice.prediction.runtime_us for choice in ranking.choices]
    assert times == sorted(times)
    assert ranking.own.config == resolved(problem, OWN, GPU)
    answer = why_not(ranking, AttentionConfig.parse("flash_attention tile=64x128"), AttentionModel(GPU))
    # A group alone leaves what is no product uncovered.
    assert re.search(r"more than the best \(.* us\): it waits for EXPONENTIALS \+", answer)
    refused = why_not(ranking, AttentionConfig.parse("flash_attention tile=192x192"), AttentionModel(GPU))
    assert refused.startswith("it cannot run: tile 192x192 needs")


@pytest.mark.parametrize(*cases(__file__, "test_what_a_slower_unit_adds_is_its_elasticity"))
def test_what_a_slower_unit_adds_is_its_elasticity(words, kernel, limiter, monkeypatch):
    monkeypatch.setattr(AttentionModel, "_clock", lambda model, demand, busy_us, clock: clock)
    problem = AttentionProblem.parse(words)
    world = AttentionWorld.of(problem, AttentionConfig.parse(kernel), AttentionModel(GPU))
    found = explain_attention(world)
    assert found.prediction.limiter == found.units[0].name == limiter
    assert sum(unit.elasticity for unit in found.units) == pytest.approx(1.0)
    for unit in found.units:
        slower_us = world.faster(unit.name, 1.0 / 1.001).predicted().runtime_us
        added = (slower_us / found.prediction.runtime_us - 1.0) / 1e-3
        assert added == pytest.approx(unit.elasticity, abs=0.03), unit.name
    assert [each.runtime_us for each in found.what_if] == sorted(each.runtime_us for each in found.what_if)


def test_emitted_call_names_what_was_chosen():
    problem = AttentionProblem.parse("causal heads=32 kv_heads=8 seq_q=4096 head_dim=128 window=1024")
    config = resolved(problem, AttentionConfig.parse("flash_attention tile=128x176 pack_gqa=0"), GPU)
    text = emitted("flash_attention", problem, config, GPU)
    assert "causal=False, window_size_left=1024, window_size_right=0, tile_mn=(128, 176), " in text
    assert "pack_gqa=False" in text
    assert flash_attn_arguments(problem, OWN)["tile_mn"] is None  # the library's own
    with pytest.raises(InputError, match="expected 1 for a table of splits"):
        emitted("splits", problem, config, GPU)


def test_a_settled_clock_meets_the_power_cap():
    problem = AttentionProblem.parse("causal batch=8 heads=32 kv_heads=8 seq_q=16384 head_dim=128")
    regimes = ({"regime": name} for name in ("graph", "sustained"))
    rested, settled = (predict(problem, OWN, "h200", options=each) for each in regimes)
    assert 1.02 < settled.runtime_us / rested.runtime_us < 1.3
    assert settled.details["sm_clk_mhz"] < rested.details["sm_clk_mhz"]
    light = AttentionProblem.parse("full heads=32 kv_heads=8 seq_q=1 seq_kv=65536 head_dim=128")
    assert predict(light, OWN, "h200", options={"regime": "sustained"}) == predict(light, OWN, "h200")


def test_other_cards_answer_with_their_own_silicon():
    words = "causal heads=32 kv_heads=8 seq_q=8192 head_dim=128"
    a100 = _us(words, "flash_attention_2", "a100_sxm_80gb")
    b200 = _us(words, "flash_attention", "b200_sxm")
    assert b200 < _us(words) < a100
    with pytest.raises(InputError, match="does not run on"):
        _us(words, "flash_attention", "a100_sxm_80gb")


def test_blackwell_is_bound_by_exponentials_unless_fmas_compute_some():
    problem = AttentionProblem.parse("full heads=32 seq_q=16384 head_dim=128")
    gpu = load_gpu("b200_sxm")
    kernels = [(problem, replace(OWN, exp_emulated=share)) for share in (0.0, 0.25)]
    found = AttentionModel(gpu).predict(kernels)
    assert found.runtime_us[1] < found.runtime_us[0]


def test_a_table_predicts_row_by_row_and_refuses_bad_cells(tmp_path):
    sizes = {"batch": [1, 2, 1], "heads": [32, 32, 8], "kv_heads": [8, "", 8], "seq_q": [4096, 1, 0]}
    sizes |= {"seq_kv": [4096, 8192, 100], "head_dim": [128, 64, 128], "causal": [1, 0, 0]}
    tiles = {"tile_m": [128, "", ""], "tile_n": [96, "", ""]}
    frame = pd.DataFrame({**sizes, **tiles, "runtime_us": [200.0, 40.0, 1.0]})
    found = predict_table(frame, "h200")
    assert found["predicted_us"].iloc[0] == pytest.approx(
        _us("causal heads=32 kv_heads=8 seq_q=4096 head_dim=128", "flash_attention tile=128x96")
    )
    assert found["predicted_us"].iloc[2] == 0.0
    assert np.allclose(found["ratio"], found["predicted_us"] / found["runtime_us"])
    for column, value, sentence in (
        ("kv_heads", 7, "row 1: heads is 32; expected a multiple of the 7 kv_heads"),
        ("causal", "maybe", "row 1: causal is 'maybe'; expected 0 or 1"),
        ("seq_q", 1.5, "row 1: seq_q is '1.5'; expected a whole number"),
        ("head_dim", "inf", "row 1: head_dim is 'inf'; expected a whole number"),
    ):
        bad = frame.astype(object)
        bad.loc[1, column] = value
        with pytest.raises(InputError, match=sentence):
            predict_table(bad, "h200")
    mixed = frame.assign(in_dtype=["bf16", "fp16", "e4m3"], tile_m=[128, 320, ""])
    predicted = predict_table(mixed, "h200")
    assert predicted["disposition"].tolist() == ["ok", "cannot_run", "cannot_run"]
    assert "2 rows cannot run, no prediction: table: row 1: tile 320x" in predicted.attrs["notes"][0]
    with pytest.raises(InputError, match="row 2: in_dtype is e4m3 with flash_attention"):
        predict_table(mixed.iloc[2:], "h200")
    types = mixed.assign(tile_m="", tile_n="")
    each = [predict_table(types.iloc[[row]], "b200_sxm")["predicted_us"].iloc[0] for row in range(3)]
    assert predict_table(types, "b200_sxm")["predicted_us"].tolist() == pytest.approx(each, rel=1e-12)


def test_kernels_of_a_table_take_the_time_that_each_takes_alone():
    words = "batch={} heads=16 kv_heads=4 seq_q={} seq_kv={} head_dim=64"
    sizes = [(batch, queries, keys) for batch in (1, 9) for queries in (1, 2, 700) for keys in (700, 9000)]
    kernels = [
        (AttentionProblem.parse(f"{mask} {words.format(*each)}"), AttentionConfig(kernel=kernel))
        for mask, each, kernel in product(("full", "causal"), sizes, KERNELS)
    ]
    alone = [AttentionModel(GPU).predict([kernel]).runtime_us[0] for kernel in kernels]
    assert AttentionModel(GPU).predict(kernels).runtime_us.tolist() == pytest.approx(alone, rel=1e-12)


def test_a_thousand_kernels_take_at_most_twice_as_long_as_gemms():
    kinds, times = {"attention_unseen": KERNELS[0], "unseen": "quack"}, []
    tables = [rows_of(name).groupby("kernel").get_group(kernel).head(1000) for name, kernel in kinds.items()]
    for frame in tables * 5:
        started = process_time()
        predict_table(frame, "h200")
        times.append(process_time() - started)
    assert min(times[::2]) < 2.0 * min(times[1::2])


ROW = {"causal": 1, "heads": 32, "kv_heads": 8, "seq_q": 4096, "seq_kv": 4096, "head_dim": 128}


def table(**columns):
    return pd.DataFrame([{**ROW, **columns}])


def us(frame, **options):
    return float(predict_table(frame, "h200", options=options)["predicted_us"].iloc[0])


def test_columns_of_attention_are_understood_and_a_slip_is_refused():
    with pytest.raises(InputError, match="in_dtype is fp32"):
        us(table(dtype="fp32"))
    for column in ("kernal", "head_dims", "nun_splits"):
        with pytest.raises(InputError, match=f"column '{column}' is not known; did you mean"):
            us(table(**{column: 1}))


@pytest.mark.parametrize(("column", "value"), [("window", -5), ("seq_q", -1), ("tile_m", -2)])
def test_a_bad_size_is_told_as_it_was_written(column, value):
    with pytest.raises(InputError, match=f"{column} is {value}; expected"):
        us(table(**{column: value}))


def test_a_settled_clock_reaches_tables_and_rankings(gemm_model):
    assert us(table(), regime="sustained") > 1.05 * us(table())
    words = ("rank", "--attention", "causal heads=32 seq_q=16384 head_dim=128", "--format", "csv")
    assert gemm_model(*words, "--regime", "sustained").out != gemm_model(*words).out
    asked = ("explain", *words[1:-1], "json", "--what-if", "tensor x1.2", "--regime")
    rested, settled = (json.loads(gemm_model(*asked, regime).out) for regime in ("burst", "sustained"))
    times_us = [found["result"]["prediction"]["predicted_us"] for found in (rested, settled)]
    assert times_us[1] > 1.05 * times_us[0]
    # At the power cap a faster tensor core lowers the clock.
    gained = [found["rows"][0] for found in (rested, settled)]
    assert [each["change"] for each in gained] == ["tensor x1.2"] * 2
    assert gained[0]["relative"] + 0.03 < gained[1]["relative"] < 1.0


@pytest.mark.parametrize(*cases(__file__, "test_nothing_and_very_much_have_a_time"))
def test_nothing_and_very_much_have_a_time(size):
    assert 0.0 <= us(table(**size)) < float("inf")


def test_a_ranking_of_nothing_gains_nothing(gemm_model):
    words = ("--attention", "full heads=1 seq_q=0 head_dim=64")
    assert "gain over the library's own choice: 0.0%" in gemm_model("rank", *words).err
    for top in (0, -5):
        assert "--top is" in gemm_model("rank", *words, "--top", top).err
    found = gemm_model("predict", *words, "--gpu", "h200,h100_sxm", "--format", "json")
    assert [row["ratio"] for row in json.loads(found.out)["rows"]] == [1.0, 1.0]
