"""Tiles of unequal work: key blocks of each tile under its mask, order of tiles, and the busiest SM."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

import numpy as np

from gemm_model.attention.batch import AttentionBatch
from gemm_model.core.attention import KERNELS
from gemm_model.core.batch import FloatArray, IntArray

TileClk = Callable[[IntArray, FloatArray], FloatArray]
"""Times of tiles [clk] of some rows from their key blocks."""
SAMPLED = 64
"""Query blocks sampled for the mean work of a sequence [blocks]; all masks; chosen: evenly spaced."""
ROUNDS = 6
"""Last rounds of tiles that are dealt one by one [rounds]; unequal tiles; chosen: earlier rounds are even."""
SHORT_SHARE = 0.6
"""Longest last tile that fills gaps, over the longest tile [1]; longest first; chosen."""
LATE_SHARE = 0.6
"""Delay of the last SM over the longest tile's time [1]; in order; 200 grids dealt one by one."""
L2_FOR_HEADS_BYTES = 50 * 2**20
"""L2 that a group of heads fills with K and V [B]; longest first; flash-attn-4, `SingleTileLPTScheduler`."""


def query_blocks(batch: AttentionBatch) -> FloatArray:
    """Tiles along the queries of one head, or of the heads packed into a tile."""
    return np.ceil(batch.seq_q * batch.packed / batch.tile_m)


def tile_count(batch: AttentionBatch) -> FloatArray:
    """Number of CTAs of the kernel."""
    heads = np.where(batch.pack_gqa, batch.kv_heads, batch.heads)
    return query_blocks(batch) * heads * batch.sequences * batch.splits


def key_blocks(batch: AttentionBatch, block: FloatArray) -> FloatArray:
    """Key blocks that the tile of query block `block` reads; the last axis of `block` is that of the batch.

    A causal tile ends at the key of its last query. A windowed tile begins at the first key that its first
    query sees (flash-attn-4, `get_n_block_min_max`).
    """
    offset = batch.seq_kv - batch.seq_q
    last = np.minimum(np.ceil((block + 1.0) * batch.tile_m / batch.packed), batch.seq_q) + offset
    end = np.where(batch.causal, last, batch.seq_kv)
    first = np.floor(block * batch.tile_m / batch.packed) + offset - batch.window
    begin = np.where(batch.window > 0, np.maximum(first, 0.0), 0.0)
    blocks = np.ceil(end / batch.tile_n) - np.floor(begin / batch.tile_n)
    return np.asarray(np.maximum(np.ceil(blocks / batch.splits), 0.0))


def masked_blocks(batch: AttentionBatch, blocks: FloatArray) -> FloatArray:
    """Key blocks whose scores are masked: the last one, and those that an edge of the mask crosses."""
    rows = batch.tile_m / batch.packed
    diagonal = np.where(batch.causal, np.ceil(rows / batch.tile_n) + 0.5, 0.0)
    left = np.where(batch.window > 0, np.ceil(rows / batch.tile_n) + 0.5, 0.0)
    # cuDNN masks every block where the last one is not whole.
    cudnn = batch.kernel == KERNELS.index("cudnn_attention")
    left = np.where(cudnn & batch.turns & ~batch.causal & (batch.seq_kv % batch.tile_n > 0), blocks, left)
    return np.asarray(np.minimum(np.maximum(diagonal, 1.0) + left, blocks))


def block_of_tile(batch: AttentionBatch, tile: FloatArray) -> FloatArray:
    """The query block of the tile that starts as number `tile`, whose last axis is that of the batch.

    In order, the query blocks of a head follow each other. Longest first, heads whose K and V fit into L2
    together alternate, from their last query block to their first.
    """
    blocks = np.maximum(query_blocks(batch), 1.0)
    in_order = tile % blocks
    head_bytes = batch.seq_kv * (batch.head_dim + batch.head_dim_v) * batch.element_bytes
    fitting = np.maximum(L2_FOR_HEADS_BYTES / np.maximum(head_bytes, 1.0), 1.0)
    heads = np.maximum(tile_count(batch) / blocks, 1.0)
    together = np.minimum(2.0 ** np.floor(np.log2(fitting)), heads)
    section = np.floor(tile / (together * blocks))
    # Beyond 2^53 tiles the rounded section may lie one behind the last.
    left = np.maximum(np.minimum(heads - section * together, together), 1.0)
    within = np.clip(np.floor((tile - section * together * blocks) / left), 0.0, blocks - 1.0)
    return np.where(batch.longest_first, blocks - 1.0 - within, in_order)


def mean_over_tiles(batch: AttentionBatch, value: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Mean of `value` of the key blocks over a kernel's tiles."""
    blocks = np.maximum(query_blocks(batch), 1.0)
    samples = int(min(blocks.max(initial=1.0), SAMPLED))
    if not (batch.causal.any() or samples == 1):
        samples = 1
    at = (np.arange(samples)[:, None] + 0.5) / samples * blocks
    # With fewer blocks than samples, each block is sampled equally often.
    return np.asarray(value(key_blocks(batch, np.floor(at))).mean(axis=0))


def busiest_sm(
    batch: AttentionBatch, tiles: FloatArray, workers: int, mean_clk: FloatArray, tile_clk: TileClk
) -> FloatArray:
    """Time at which the last SM is done [clk], if each tile goes to the SM that is free first.

    `mean_clk` is the mean time of a tile; `tile_clk(rows, blocks)` gives the times of tiles from their key
    blocks. Equal tiles take whole rounds; of unequal ones the last ROUNDS rounds are dealt one by one.
    """
    rounds = np.ceil(tiles / workers)
    result = rounds * mean_clk
    uneven = batch.causal & (query_blocks(batch) > 1.0)
    for step in range(1, ROUNDS + 2):
        # Rows with the same number of rounds are dealt together, since few rounds need few steps.
        rows = np.flatnonzero(uneven & (np.minimum(rounds, ROUNDS + 1) == step))
        if len(rows):
            some = partial(tile_clk, rows)
            result[rows] = _dealt(batch[rows], tiles[rows], workers, mean_clk[rows], some)
    return result


def _dealt(
    rows: AttentionBatch,
    tiles: FloatArray,
    workers: int,
    mean_clk: FloatArray,
    tile_clk: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    even_rounds = np.maximum(np.floor(tiles / workers) - (ROUNDS - 1.0), 0.0)
    places = np.arange(workers, dtype=np.float64)[:, None]
    dealt = []
    for step in range(int(min(np.ceil(tiles / workers).max(), ROUNDS + 1))):
        number = (even_rounds + step) * workers + places
        clk = tile_clk(key_blocks(rows, block_of_tile(rows, np.minimum(number, tiles - 1.0))))
        dealt.append(np.where(number < tiles, clk, 0.0))
    in_all = np.sum([each.sum(axis=0) for each in dealt], axis=0)
    loads = np.broadcast_to(np.maximum(tiles * mean_clk - in_all, 0.0) / workers, (workers, len(rows)))
    loads = np.where(even_rounds > 0, loads, 0.0)
    for each in dealt:
        loads = np.sort(loads, axis=0) + each
    # An SM takes a tile whenever it is free, not one a round, so short tiles fill the gaps beside long ones.
    last_clk = dealt[-1].sum(axis=0) / np.maximum((dealt[-1] > 0).sum(axis=0), 1)
    longest_clk = np.max([each.max(axis=0) for each in dealt], axis=0)
    late_clk = np.where(
        rows.longest_first,
        np.where(last_clk < SHORT_SHARE * longest_clk, 0.5 * last_clk, np.inf),
        LATE_SHARE * longest_clk,
    )
    filled = np.maximum(tiles * mean_clk / workers + late_clk, longest_clk)
    return np.asarray(np.minimum(loads.max(axis=0), filled))


def of_lengths(batch: AttentionBatch, workers: int, tile_clk: TileClk) -> FloatArray:
    """Time at which the last SM is done with kernels of variable lengths [clk]; 0 for other rows.

    Sequences follow each other, each from its last query block to its first. The SM that is free first takes
    the next tile.
    """
    result = np.zeros(len(batch))
    owners, counts = np.unique(batch.owner, return_counts=True)
    for owner in owners[counts > 1]:
        loads = [0.0] * workers
        rows = np.flatnonzero(batch.owner == owner)
        heads = tile_count(batch[rows]) / np.maximum(query_blocks(batch[rows]), 1.0)
        for row, times in zip(rows, heads.astype(int), strict=True):
            some = np.array([row])
            blocks = np.arange(query_blocks(batch[some])[0])[::-1, None]
            clk = tile_clk(some, key_blocks(batch[some], blocks))[:, 0] if len(blocks) else np.zeros(0)
            for each in np.repeat(clk, times).tolist():
                heapq.heapreplace(loads, loads[0] + each)
        result[rows] = max(loads)
    return result
