"""Tiles of rows under routings, against sums by hand and random routings."""

import math

import numpy as np
import pytest

from gemm_model.core.errors import InputError
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.routing import row_tiles


def experts(tokens, count=8, topk=2, total=0):
    return ServedProduct(tokens=tokens, n=256, k=256, experts=count, topk=topk, experts_total=total)


def test_a_dense_layer_has_whole_tiles():
    found = row_tiles(ServedProduct(tokens=65, n=256, k=256), 64)
    assert (found.tiles, found.active_experts, found.launched) == (2.0, 1.0, 2.0)


def test_expected_tiles_of_two_tokens_by_hand():
    # Each token takes 1 of 2 experts: both meet in one expert half of the time, so 1.5 experts have rows.
    found = row_tiles(experts(2, count=2, topk=1), 16)
    assert found.tiles == pytest.approx(1.5)
    assert found.active_experts == pytest.approx(1.5)


def test_expected_tiles_agree_with_random_routings():
    random = np.random.default_rng(1)
    counts = []
    for _ in range(400):
        chosen = np.argsort(random.random((96, 8)), axis=1)[:, :2]
        counts.append(np.bincount(chosen.ravel(), minlength=8))
    tiles = np.ceil(np.array(counts) / 16).sum(axis=1).mean()
    assert row_tiles(experts(96), 16).tiles == pytest.approx(tiles, rel=0.01)


def test_a_histogram_is_counted_as_it_is():
    found = row_tiles(experts(20, count=4, topk=2), 16, [17, 0, 16, 7])
    assert found.tiles == 2 + 0 + 1 + 1
    assert found.active_experts == 3
    for wrong in ([17, 0, 16], [20, 20, 1, -1]):
        with pytest.raises(InputError, match="expected rows of each of 4"):
            row_tiles(experts(20, count=4, topk=2), 16, wrong)


def test_skew_leaves_experts_out_and_balance_leaves_none():
    tokens = experts(64, count=64, topk=2)
    skewed, uniform, balanced = (row_tiles(tokens, 16, each) for each in ("zipf:1.5", "uniform", "balanced"))
    assert skewed.active_experts < uniform.active_experts < balanced.active_experts == 64
    assert row_tiles(tokens, 16, "zipf:1.5:worst").tiles > skewed.tiles


def test_half_of_the_experts_get_half_of_the_rows():
    assert experts(512, count=4, total=8).rows == 512 * 2 / 2
    here, all_of_them = row_tiles(experts(512, count=4, total=8), 64), row_tiles(experts(512), 64)
    assert here.tiles == pytest.approx(all_of_them.tiles / 2)


def test_few_pairs_get_a_tile_each_as_vllm_gives_them():
    found = row_tiles(experts(4, count=128, topk=8), 64)
    assert found.tiles == found.launched == 32


def test_the_launcher_allows_for_one_row_in_a_tile_of_each_expert():
    # vLLM: pairs + experts x (rows of a tile - 1), in whole tiles.
    assert row_tiles(experts(512), 128).launched == math.ceil((512 * 2 + 8 * 127) / 128)
