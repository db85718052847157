"""The formulas by hand, and the measured kernels of models that nothing was fitted to."""

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_model import load_gpu
from gemm_model.config.numbers import room_numbers
from gemm_model.serving import choose, model
from gemm_model.serving.frameworks import framework_of
from gemm_model.serving.layers import MoeCell
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.residual import predicted
from gemm_model.serving.resources import resources_of
from gemm_model.serving.tile_config import KEYS, TileConfig, TileGrid, tuning_grid
from tests.cases import cases

H200, NUMBERS = load_gpu("h200"), room_numbers("serving")
SMALL = ServedProduct(tokens=64, n=2048, k=2048, experts=16, topk=2)
MEASUREMENTS = Path(__file__).parents[2] / "data/measurements"
PROBLEM = ["campaign", "kernel", "model", "in_dtype", "scaling", "product", "tokens"]
pytestmark = pytest.mark.xdist_group("serving")  # one process reads and predicts the table


def launches(product, *config, gpu="h200"):
    return model.launches_of(product, TileGrid.of([TileConfig(*config)]), load_gpu(gpu))


def test_the_grid_is_the_frameworks():
    assert len(tuning_grid()) == 1920


def test_shared_memory_of_compiled_kernels():
    # What Triton 3.6 reports: three of four stages where MMAs read registers, all where they read memory.
    product = ServedProduct(tokens=512, n=1536, k=2048, experts=128, topk=8)
    for config, smem in (((16, 64, 128, 1, 4, 4), 61440), ((64, 64, 64, 1, 4, 4), 65536)):
        assert resources_of(product, TileGrid.of([TileConfig(*config)]), H200).smem_bytes[0] == smem


def test_fp8_experts_are_swapped_below_64_rows_on_hopper_alone():
    product = ServedProduct(tokens=16, n=1536, k=2048, experts=128, topk=8, in_dtype="e4m3")
    grid = TileGrid.of([TileConfig(16, 64, 128, 1), TileConfig(16, 32, 128, 1), TileConfig(64, 64, 128, 1)])
    assert resources_of(product, grid, H200).swapped.tolist() == [True, False, False]
    assert not resources_of(product, grid, load_gpu("b200_1300mhz")).swapped.any()


def test_an_mma_of_64_by_256_takes_128_clocks():
    # 2 x 64 x 256 x 16 FLOP at 4,096 a clock; below 64 columns the operands' bytes take longer.
    dense = ServedProduct(tokens=64, n=256, k=16)
    assert model.mma_clk(launches(dense, 64, 256, 16, 1))[0] == pytest.approx(128.0)
    assert model.mma_clk(launches(dense, 64, 32, 16, 1))[0] == pytest.approx((2048 + 32 * 32) / 128)


def test_decode_is_bound_by_the_weights_of_active_experts():
    product = ServedProduct(tokens=16, n=1536, k=2048, experts=128, topk=8)
    times = model.times_of(launches(product, 16, 64, 128, 1, 4, 4))
    active = 128 * (1 - (1 - 8 / 128) ** 16)
    weights_us = active * 1536 * 2048 * 2 / H200.dram_read_bytes_per_us
    # Three CTAs an SM with three k tiles of 16 KiB in flight each, on average fewer by half a ring over 16 steps.
    tile, needed = 64 * 128 * 2, NUMBERS.queue_us * H200.dram_read_bytes_per_us / 132
    unsteady = 1 + tile / NUMBERS.burst_bytes + needed / (3 * 3 * tile * (1 - 3 / 16 / 2))
    assert times.dram_us[0] == pytest.approx(weights_us * unsteady, rel=0.02)
    assert times.limiter == ["dram"]


def test_rows_of_half_a_line_cost_more():
    product = ServedProduct(tokens=16, n=1536, k=2048, experts=128, topk=8, in_dtype="e4m3")
    half, whole = (model.times_of(launches(product, 16, 64, k, 1, 4, 4)).dram_us[0] for k in (64, 128))
    assert half > 1.3 * whole


@pytest.mark.parametrize(("gpu", "activation"), [("h200", 101.1), ("l40", 144.0)])
def test_short_rows_wait_for_activations_of_dram(gpu, activation):
    # GDDR6 activates a row each 4 ns, in which a channel of 2 bytes at 18 Gbit/s transfers 144.
    product = ServedProduct(tokens=16, n=1536, k=2048, experts=128, topk=8)
    one, two = (launches(product, 16, 64, k, 1, 4, 3, gpu=gpu).short_rows[0] for k in (64, 128))
    costs = [(1 + (activation / row) ** 4) ** 0.25 for row in (128, 256)]
    assert [one, two] == pytest.approx(costs, rel=1e-3)


def test_a_ring_of_one_stage_waits_and_works_in_turn():
    two, three = (launches(SMALL, 16, 64, 128, 1, 4, s, gpu="a100_sxm_80gb") for s in (2, 3))
    waiting, working = NUMBERS.load_latency_clk, model.step_chain_clk(two)[0] - NUMBERS.load_latency_clk
    assert model.step_chain_clk(three)[0] == pytest.approx(np.hypot(waiting / 2, working))


def test_warps_read_the_operands_of_mmas_from_registers():
    # 16 x 64 by four warps: each reads the 16 rows, and 16 columns of its own. 16 x 32 by eight: four beside each
    # other read the rows, and two below each other the same columns.
    tiles = (16, 64, 64, 1, 4), (16, 32, 64, 1, 8)
    read = [model.operand_bytes(launches(SMALL, *tile, gpu="a100_sxm_80gb"))[0] for tile in tiles]
    assert read == [(16 * 4 + 64) * 64 * 2, (16 * 4 + 32 * 2) * 64 * 2]


def test_registers_and_ctas_as_compiled_for_sm80():
    # Triton 3.6's kernels: 168, 163 and 66 registers a thread; the third is bound by shared memory. 3.4 spills 328
    # bytes a thread of the last.
    tiles = (64, 128, 64, 1, 4, 3), (128, 128, 64, 1, 8, 3), (16, 128, 128, 1, 8, 3), (64, 256, 128, 1, 4, 3)
    grid = TileGrid.of([TileConfig(*each) for each in tiles])
    found = resources_of(SMALL, grid, load_gpu("a100_sxm_80gb"))
    assert found.ctas_per_sm.tolist() == [3, 1, 2, 1]
    assert found.spilled * 255 * 4 == pytest.approx([0, 0, 0, 328], rel=0.05)


def test_dram_takes_longer_for_large_tiles_and_short_rings():
    # 16 x 64 x 256 in bf16: 32 KiB of weights a k tile. Two of four CTAs an SM, or four of one, over 16 k steps.
    # An SM's share of the A100's DRAM is 1,800 GB/s over 108.
    product = ServedProduct(tokens=16, n=2048, k=4096, experts=128, topk=8)
    tile, needed = 64 * 256 * 2, NUMBERS.queue_us * 1800e3 / 108
    for stages, in_flight in ((3, 2 * 2 * tile * (1 - 1 / 16)), (5, 4 * tile * (1 - 2 / 16))):
        found = model._unsteady(launches(product, 16, 64, 256, 1, 4, stages, gpu="a100_sxm_80gb"))[0]
        assert found == pytest.approx(1 + tile / NUMBERS.burst_bytes + needed / in_flight)


def test_a_cta_starts_and_stores_beside_its_steps():
    # Two k steps of 64 x 128 with four stages: the first waits whole, the second for a third of it.
    found = launches(ServedProduct(tokens=64, n=2048, k=256), 64, 128, 128, 1, 4, 4)
    store, first = NUMBERS.store_clk * 64 * 128 / 128, NUMBERS.load_latency_clk * (1 - 1 / 3)
    assert model.sm_clk(found)[0] == pytest.approx(2 * found.step_sm_clk[0] + NUMBERS.cta_clk + store)
    assert model.chain_clk(found)[0] == pytest.approx(2 * model.step_chain_clk(found)[0] + first + store)


@pytest.mark.parametrize(("gpu", "first"), [("h200", 0), ("a100_sxm_80gb", 1)])
def test_tritons_number_of_stages_wins_a_tie_where_formulas_stand_alone(gpu, first):
    grid = TileGrid.of([TileConfig(16, 64, 128, 1, 4, stages) for stages in (2, 3)])
    found = model.launches_of(SMALL, grid, load_gpu(gpu))
    assert [choose.ranked(found, np.array([100.0, t])).argmin() for t in (100.9, 101.1)] == [first, 0]


def test_warm_weights_come_from_l2():
    cold = launches(ServedProduct(tokens=16, n=256, k=512, experts=8, topk=2), 16, 64, 128, 1)
    warm = replace(cold, warm=True)
    assert model.times_of(warm).dram_us[0] < 0.2 * model.times_of(cold).dram_us[0]
    assert model.latency_clk(warm)[0] == pytest.approx(H200.l2_latency_clk, rel=0.01)


def product_of(row):
    counts = {name: int(row[name]) for name in ("tokens", "n", "k", "experts", "topk")}
    return ServedProduct(in_dtype=row.in_dtype, scaling=row.scaling, gathered=bool(row.gathered), **counts)


def judged_on(gpu):
    """The rows of a card that nothing was fitted to, with their predicted times."""
    table = pd.read_csv(MEASUREMENTS / gpu / "serving_moe.csv.gz", keep_default_na=False, low_memory=False)
    table = table[(table.role == "held_out") & (table.status == "ok")].reset_index(drop=True)
    times = np.empty(len(table))
    for _, rows in table.groupby([*PROBLEM, "n", "k"]):
        grid = TileGrid(*rows[[*KEYS]].to_numpy(float).T)
        times[rows.index] = predicted(product_of(rows.iloc[0]), grid, load_gpu(gpu)).total_us
    return table.assign(runtime_us=table.runtime_us.astype(float), predicted_us=times)


@pytest.fixture(scope="module")
def judged():
    return {gpu: judged_on(gpu) for gpu in ("h200", "h100_sxm")}


@pytest.mark.parametrize(*cases(__file__, "test_models_and_a_card_that_are_held_out"))
def test_models_and_a_card_that_are_held_out(judged, gpu, kernel, mape, choice):
    rows = judged[gpu][judged[gpu].kernel == kernel]
    assert (rows.predicted_us / rows.runtime_us - 1).abs().mean() < mape
    problems = rows.groupby(PROBLEM)
    first = rows.loc[problems.predicted_us.idxmin(), "runtime_us"].to_numpy()
    assert (problems.runtime_us.min().to_numpy() / first).mean() > choice


def test_no_layer_is_slower_than_the_default(judged, monkeypatch):
    """Choices for 112 layers of serving_fresh, among the configurations that were timed with both products."""
    gains = []
    rows = judged["h200"]
    fresh = rows[(rows.campaign == "serving_fresh") & (rows.kernel == "triton_moe")]
    for _, rows in fresh.groupby(["model", "in_dtype", "tokens"]):
        products = [product_of(rows[rows["product"] == name].iloc[0]) for name in ("gate_up", "down")]
        of_product = rows.groupby(["product", *KEYS]).runtime_us.mean().unstack("product")
        both_us = of_product.sum(axis=1, min_count=2).dropna()
        timed = TileGrid.of([TileConfig(*config) for config in both_us.index])
        monkeypatch.setattr(choose, "candidates", lambda *_, timed=timed: timed)
        (chosen,) = choose.choose_layers([products], H200, framework_of("vllm"))
        gains.append(both_us[astuple(chosen.default)] / both_us[astuple(chosen.configs[0])] - 1.0)
    assert len(gains) == 112
    assert min(gains) > -0.02
    assert np.mean(gains) > 0.04


def test_the_default_is_kept_where_the_model_cannot_tell():
    experts = MoeCell(
        experts=64, experts_total=64, topk=8, size=256, hidden=2048, gated=True,
        dtype="bf16", scaling="none", weights_only=False,
    )  # fmt: skip
    for framework in ("vllm", "sglang"):
        for chosen in choose.choices_of((experts, H200, framework, "uniform", 0)):
            assert (chosen.gain == 0.0) == all(each == chosen.default for each in chosen.configs)
            assert chosen.gain == 0.0 or chosen.gain > NUMBERS.trees_margin


def test_the_sieve_keeps_the_fastest():
    product = ServedProduct(tokens=256, n=1536, k=2048, experts=128, topk=8, in_dtype="e4m3")
    grid = choose.candidates(product.smallest, H200)
    every = predicted(product, grid, H200).total_us
    found = choose.shortlist([model.launches_of(product, grid, H200)], 7, apart=False)
    assert found.grid.config(0) == grid.config(7)
    assert found.times[0][0] == every[7]
    assert found.times[0].min() == every.min()
    assert len(found.grid) <= NUMBERS.finalists + 1
