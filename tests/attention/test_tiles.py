"""Key blocks under masks, the order of tiles and the busiest SM, counted one by one."""

import math

import numpy as np
import pytest

from gemm_model import AttentionConfig, AttentionProblem, load_gpu
from gemm_model.attention.batch import batch_of
from gemm_model.attention.tiles import TileOrder, busiest_sm, key_blocks, query_blocks, tile_count

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
