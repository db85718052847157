"""The recurrence of the attention pipeline against the event simulation, and against sums by hand."""

import math
import random

import numpy as np
import pytest

from gemm_model import AttentionConfig, AttentionProblem, load_gpu
from gemm_model.attention.batch import batch_of
from gemm_model.attention.derive import blackwell, gain_of_emulation, hopper, schedules
from gemm_model.attention.pipeline import StageTimes, tile_ends
from gemm_model.attention.tiles import TileOrder, busiest_sm, key_blocks, query_blocks, tile_count
from gemm_model.timeline.attention import simulate_tile

NAMES = ("load_k", "load_v", "latency", "qk", "softmax", "exponentials", "pv", "correction")


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_recurrence_equals_simulation_on_random_tiles(count):
    rng = random.Random(44)
    for _ in range(count):
        times = StageTimes(**{name: rng.uniform(1.0, 1000.0) for name in NAMES})
        shape = {name: rng.randint(1, most) for name, most in (("groups", 3), ("stages", 3), ("blocks", 9))}
        shape["overlap"] = rng.random() < 0.5
        end = tile_ends(times, **shape)[-1]
        simulated = max(span.end for span in simulate_tile(times, **shape))
        assert end == pytest.approx(simulated, rel=1e-9), (times, shape)


def test_rows_of_arrays_are_those_of_numbers():
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(1.0, 100.0, 20) for name in NAMES}
    ends = tile_ends(StageTimes(**columns), groups=2, stages=2, overlap=True, blocks=5)
    for row in range(20):
        times = StageTimes(**{name: float(values[row]) for name, values in columns.items()})
        alone = tile_ends(times, groups=2, stages=2, overlap=True, blocks=5)
        assert [float(end[row]) for end in ends] == pytest.approx(alone, rel=1e-12)


def test_two_groups_hide_the_softmax_of_one_under_the_products_of_the_other():
    times = StageTimes(qk=100.0, softmax=150.0, pv=100.0)
    ends = tile_ends(times, groups=2, stages=2, overlap=True, blocks=30)
    assert ends[-1] - ends[-2] == 400.0  # two groups' products; the softmax costs nothing
    one = tile_ends(times, groups=1, stages=2, overlap=True, blocks=30)
    assert one[-1] - one[-2] == 250.0  # QK, then the softmax, which is longer than PV


def test_the_sfu_bounds_groups_that_share_it():
    times = StageTimes(qk=10.0, exponentials=100.0, pv=10.0)
    ends = tile_ends(times, groups=3, stages=2, overlap=True, blocks=20)
    assert ends[-1] - ends[-2] == pytest.approx(300.0)


def test_loads_bound_a_tile_of_cheap_products():
    times = StageTimes(load_k=30.0, load_v=40.0, latency=5.0, qk=1.0, pv=1.0)
    ends = tile_ends(times, groups=1, stages=2, overlap=True, blocks=10)
    assert ends[-1] - ends[-2] == 70.0
    assert ends[0] == 30.0 + 40.0 + 5.0 + 1.0


GPU = load_gpu("h200")


def _batch(words, config="flash_attention tile=128x128"):
    return batch_of([(AttentionProblem.parse(words), AttentionConfig.parse(config))], GPU)


def _block_of(batch, tiles):
    order = TileOrder(batch)
    return order.block_of(order.run_of(tiles))[0]


def _blocks_by_hand(problem, tile_m, tile_n, packed, block):
    """Key blocks that hold a score which the mask leaves, row by row of the tile."""
    touched = set()
    for row in range(block * tile_m, min((block + 1) * tile_m, problem.seq_q * packed)):
        last = row // packed + problem.seq_kv - problem.seq_q if problem.causal else problem.seq_kv - 1
        first = max(last - problem.window, 0) if problem.window else 0
        touched |= set(range(first // tile_n, last // tile_n + 1))
    return len(touched)


@pytest.mark.parametrize(
    "words",
    [
        *("full heads=4 seq_q=300 seq_kv=1000 head_dim=128", "causal heads=4 seq_q=512 head_dim=128"),
        "causal heads=4 seq_q=300 seq_kv=1000 head_dim=128",
        "causal heads=8 kv_heads=2 seq_q=257 seq_kv=777 head_dim=128",
        "causal heads=4 seq_q=1000 head_dim=128 window=300",
        "causal heads=8 kv_heads=1 seq_q=100 seq_kv=900 head_dim=128 window=64",
    ],
)
def test_key_blocks_of_every_tile(words):
    batch = _batch(words)
    problem = AttentionProblem.parse(words)
    packed = problem.group
    blocks = int(query_blocks(batch)[0])
    assert blocks == math.ceil(problem.seq_q * packed / 128)
    assert int(tile_count(batch)[0]) == blocks * problem.kv_heads
    found = key_blocks(batch, np.arange(blocks, dtype=float)[:, None])[:, 0]
    assert found.tolist() == [_blocks_by_hand(problem, 128, 128, packed, block) for block in range(blocks)]


def test_longest_first_goes_from_the_last_query_block_to_the_first():
    batch = _batch("causal heads=2 seq_q=512 head_dim=128")
    order = _block_of(batch, np.arange(8, dtype=float)[:, None])[:, 0]
    assert order.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]  # both heads' K and V fit into L2: they take turns


def test_heads_that_do_not_fit_into_l2_together_follow_each_other():
    # K and V of a head hold 131072 x 256 x 2 bytes, 64 MB.
    batch = _batch("causal heads=2 seq_q=256 seq_kv=131072 head_dim=128")
    order = _block_of(batch, np.arange(4, dtype=float)[:, None])[:, 0]
    assert order.tolist() == [1, 0, 1, 0]


def _dealt(times, workers, order):
    if order == "static":
        return max(sum(times[first::workers]) for first in range(workers))
    loads = [0.0] * workers
    for time in times:
        loads[loads.index(min(loads))] += time
    return max(loads)


@pytest.mark.parametrize("seq_q", [512, 1024, 2048, 8192])
@pytest.mark.parametrize("order", ["longest_first", "in_order", "static"])
def test_the_busiest_sm_is_that_of_dealing_tiles_one_by_one(seq_q, order):
    config = f"flash_attention tile=128x128 scheduler={order}"
    batch = _batch(f"causal heads=16 seq_q={seq_q} head_dim=128", config)
    tiles = tile_count(batch)
    numbers = np.arange(int(tiles[0]), dtype=float)[:, None]
    times = 100.0 + 10.0 * key_blocks(batch, _block_of(batch, numbers))
    found = busiest_sm(
        batch, tiles, 132, times.mean(axis=0), lambda rows, blocks: 100.0 + 10.0 * blocks + 0.0 * rows
    )
    assert found[0] == pytest.approx(_dealt(times[:, 0].tolist(), 132, order), rel=0.05)


def test_equal_tiles_run_in_whole_rounds():
    batch = _batch("full heads=20 seq_q=1024 head_dim=128")  # 160 tiles on 132 SMs
    found = busiest_sm(batch, tile_count(batch), 132, np.array([50.0]), lambda rows, blocks: blocks)
    assert found[0] == 100.0


def test_hopper_needs_two_groups_in_turn_to_keep_its_tensor_cores_busy():
    best = schedules(hopper())[0]
    assert (best.groups, best.overlap) == (2, True)
    assert best.tensor_busy == pytest.approx(1.0)
    one = [each for each in schedules(hopper()) if each.groups == 1]
    # A group alone: the next scores run before these outputs, so that softmax runs under a product.
    assert one[0].overlap
    assert one[0].tensor_busy < 0.9
    assert one[0].clk_per_row < one[1].clk_per_row


def test_exponentials_bound_blackwell_and_emulating_some_helps():
    plain = schedules(blackwell())[0]
    # 128 x 128 exponentials at 16 a clock take 1,024 clocks, as the two products do.
    assert blackwell().exponentials == 1024.0 == blackwell().qk + blackwell().pv
    narrow = blackwell(head_dim=64)
    bound = schedules(narrow)[0]
    assert bound.clk_per_row * 128 == pytest.approx(1024.0)
    assert bound.tensor_busy == pytest.approx(0.5)
    best, gain = gain_of_emulation(narrow)
    assert 0.2 < best.emulated_share < 0.5
    assert gain > 0.4
    assert gain_of_emulation(hopper())[1] == pytest.approx(0.0)
    assert plain.tensor_busy > bound.tensor_busy
