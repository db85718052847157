"""Tiles of unequal work: key blocks of each tile under its mask, order of tiles, and the busiest SM."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from math import lcm

import numpy as np

from gemm_model.attention.batch import AttentionBatch
from gemm_model.config.numbers import room_numbers
from gemm_model.core.attention import KERNELS
from gemm_model.core.batch import FloatArray, IntArray

TileClk = Callable[[IntArray, FloatArray], FloatArray]
"""Times of tiles [clk] of some rows from their key blocks."""
_Clk = Callable[[FloatArray], FloatArray]
MOST_COUNTED = 2.0**50
"""Tiles that are dealt one by one at the end [tiles]; all masks; float64 counts them exactly."""
L2_FOR_HEADS_BYTES = 50 * 2**20, 32 * 2**20
"""L2 that a group of heads fills with K and V [B]; longest first, a CTA a tile and CTAs that keep on; flash-attn-4,
`SingleTileLPTScheduler`, and flash-attention, hopper/tile_scheduler.hpp, `DynamicPersistentTileScheduler`."""


def query_blocks(batch: AttentionBatch) -> FloatArray:
    """Tiles along the queries of one head, or of the heads packed into a tile."""
    return np.asarray(np.ceil(batch.seq_q * batch.packed / batch.tile_m))


def tile_count(batch: AttentionBatch) -> FloatArray:
    """Number of CTAs of the kernel."""
    heads = np.where(batch.pack_gqa, batch.kv_heads, batch.heads)
    return np.asarray(query_blocks(batch) * heads * batch.sequences * batch.num_splits)


def key_blocks(batch: AttentionBatch, block: FloatArray) -> FloatArray:
    """Key blocks that the tile of query block `block` reads; the last axis of `block` is that of the batch.

    A causal tile ends at the key of its last query. A windowed tile begins at the first key that its first
    query sees (flash-attn-4, `get_n_block_min_max`).
    """
    offset = batch.seq_kv - batch.seq_q
    last = np.minimum(np.ceil((block + 1.0) * batch.tile_m / batch.packed), batch.seq_q) + offset
    end = np.where(batch.causal, last, batch.seq_kv)
    blocks = np.ceil(end / batch.tile_n)
    if batch.window.any():
        first = np.floor(block * batch.tile_m / batch.packed) + offset - batch.window
        begin = np.where(batch.window > 0, np.maximum(first, 0.0), 0.0)
        blocks -= np.floor(begin / batch.tile_n)
    return np.asarray(np.maximum(np.ceil(blocks / batch.num_splits), 0.0))


def masked(batch: AttentionBatch) -> FloatArray:
    """Most key blocks of a tile whose scores are masked: the last one, and those that an edge of the mask crosses."""
    edge = np.ceil(batch.tile_m / batch.packed / batch.tile_n) + 0.5
    # cuDNN masks every block where the last one is not whole.
    every = batch.turns & ~batch.causal & (batch.kernel == KERNELS.index("cudnn_attention"))
    every &= batch.seq_kv % batch.tile_n > 0
    left = np.where(every, np.inf, np.where(batch.window > 0, edge, 0.0))
    return np.asarray(np.maximum(np.where(batch.causal, edge, 0.0), 1.0) + left)


class TileOrder:
    """The order of kernels' tiles: runs of equal tiles, numbered from the first; the last axis is that of the batch.

    In order, the query blocks of a head follow each other: a run is a tile. Longest first, heads whose K and V fit
    into L2 together alternate, from their last query block to their first: a run is a query block of those heads.
    """

    def __init__(self, batch: AttentionBatch) -> None:
        self.blocks = np.maximum(query_blocks(batch), 1.0)
        self.heads = np.maximum(tile_count(batch) / self.blocks, 1.0)
        head_bytes = batch.seq_kv * (batch.head_dim + batch.head_dim_v) * batch.element_bytes
        fitting = np.maximum(
            np.where(batch.persistent, *L2_FOR_HEADS_BYTES[::-1]) / np.maximum(head_bytes, 1.0), 1.0
        )
        together = np.minimum(2.0 ** np.floor(np.log2(fitting)), self.heads)
        self.together = np.where(batch.longest_first, together, 1.0)
        self.reversed = batch.longest_first

    def run_of(self, tile: FloatArray) -> FloatArray:
        """The run that holds the tile of number `tile`."""
        section = np.floor(tile / (self.together * self.blocks))
        within = np.floor((tile - section * self.together * self.blocks) / self._left(section))
        return np.asarray(section * self.blocks + within)

    def block_of(self, run: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The query block of a run, and its first tile."""
        section = np.floor(run / self.blocks)
        before = section * self.blocks
        within = run - before
        first_tile = before * self.together + within * self._left(section)
        return np.where(self.reversed, self.blocks - 1.0 - within, within), first_tile

    def _left(self, section: FloatArray) -> FloatArray:
        """Heads of a section, fewer in the last."""
        return np.maximum(np.minimum(self.heads - section * self.together, self.together), 1.0)


def together_heads(batch: AttentionBatch) -> FloatArray:
    """Heads of K and V whose tiles alternate [1]."""
    return TileOrder(batch).together / np.where(batch.pack_gqa, 1.0, batch.heads / batch.kv_heads)


def sampled_blocks(batch: AttentionBatch) -> tuple[FloatArray, FloatArray]:
    """Key blocks of evenly spaced tiles of each kernel, and their weights in a mean [1]; shapes (samples, rows)."""
    blocks = np.maximum(query_blocks(batch), 1.0)
    samples = np.where(batch.causal, np.minimum(blocks, room_numbers("attention").sampled_tiles), 1.0)
    number = np.arange(samples.max(initial=1.0))[:, None]
    return key_blocks(batch, np.floor((number + 0.5) / samples * blocks)), (number < samples) / samples


def busiest_sm(
    batch: AttentionBatch, tiles: FloatArray, workers: int, mean_clk: FloatArray, tile_clk: TileClk
) -> FloatArray:
    """Time at which the last SM is done [clk], if each tile goes to the SM that is free first.

    `mean_clk` is the mean time of a tile; `tile_clk(rows, blocks)` gives the times of tiles from their key
    blocks. Equal tiles take whole rounds; of unequal ones the last rounds are dealt one by one.
    """
    result = np.ceil(tiles / workers) * mean_clk
    uneven = batch.causal & (query_blocks(batch) > 1.0) & (tiles < MOST_COUNTED)
    dealt = int(room_numbers("attention").dealt_rounds), workers
    order, before = TileOrder(batch), np.maximum(np.ceil(tiles / workers) - dealt[0], 0.0) * workers
    # Rows with about as many runs, up to four times as many, are dealt together: their arrays are as long.
    alike = np.ceil(np.log2(np.maximum(order.run_of(tiles - 1.0) - order.run_of(before), 0.0) + 1.0) / 2.0)
    for kind in np.unique(alike[uneven]):
        rows = np.flatnonzero(uneven & (alike == kind))
        result[rows] = _dealt(batch[rows], tiles[rows], dealt, mean_clk[rows], partial(tile_clk, rows))
    few = query_blocks(batch) < room_numbers("attention").most_in_turn
    for row in np.flatnonzero(uneven & batch.static & few):
        result[row] = _static(batch[[row]], tiles[row], workers, partial(tile_clk, np.array([row])))
    return result


def _static(row: AttentionBatch, tiles: float, workers: int, tile_clk: _Clk) -> float:
    """The busiest SM's time if SM s has the tiles s, s + workers, s + 2 workers, ... [clk].

    Its tiles' query blocks come again after as many rounds as blocks and SMs have no common factor.
    """
    blocks = int(query_blocks(row)[0])
    number = np.arange(float(lcm(blocks, workers))).reshape(-1, workers)
    clk = tile_clk(key_blocks(row, (number % blocks).reshape(-1, 1))).reshape(number.shape)
    times, left = divmod(tiles, number.size)
    return float((times * clk.sum(axis=0) + np.where(number < left, clk, 0.0).sum(axis=0)).max())


def _dealt(
    rows: AttentionBatch, tiles: FloatArray, places: tuple[int, int], mean_clk: FloatArray, tile_clk: _Clk
) -> FloatArray:
    """The busiest SM's time of each row [clk]; `dealt` are times of tiles by row, round and SM, rounds last."""
    dealt_rounds, workers = places
    order, earlier = TileOrder(rows), (np.ceil(tiles / workers) - dealt_rounds) * workers
    before = np.maximum(earlier, 0.0)
    first, last = order.run_of(before), order.run_of(tiles - 1.0)
    block, begin = order.block_of(first + np.arange((last - first).max() + 2.0)[:, None])
    begin = np.maximum(np.minimum(begin, tiles), before)
    begin = np.vstack([earlier, begin, earlier + dealt_rounds * workers])
    # Before the first tile and after the last one there is nothing.
    clk = np.pad(tile_clk(key_blocks(rows, block[:-1])), ((1, 1), (0, 0)))
    counts = np.diff(begin, axis=0)
    dealt = np.repeat(clk.T.ravel(), counts.T.ravel().astype(np.int64)).reshape(-1, *places)
    even_clk = np.maximum(tiles * mean_clk - (clk * counts).sum(axis=0), 0.0) / workers
    loads = np.where(before > 0, even_clk, 0.0)[:, None] + dealt[:, 0]
    for step in range(1, dealt_rounds):
        loads.sort(axis=1)
        apart_clk = loads[:, -1] - loads[:, 0]
        loads += dealt[:, step]
    # An SM takes a tile whenever it is free, not one a round: SMs that are apart by more than a last tile are all
    # busy until none waits. Then E(t^2) / 2 E(t) are left of a tile on average (a renewal process), and of the
    # latest SM's all: in order a tile as long as any, longest first one like the last.
    last_clk = dealt[:, -1].sum(axis=1) / np.maximum((dealt[:, -1] > 0).sum(axis=1), 1)
    longest_clk = np.where(counts > 0, clk, 0.0).max(axis=0)
    left_clk = 0.5 * (clk**2 * counts).sum(axis=0) / np.maximum((clk * counts).sum(axis=0), 1.0)
    late_clk = np.where(rows.longest_first, 0.5 * last_clk, longest_clk - left_clk)
    filled = np.maximum(tiles * mean_clk / workers + late_clk, longest_clk)
    return np.asarray(np.minimum(loads.max(axis=1), np.where(apart_clk < last_clk, np.inf, filled)))


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
