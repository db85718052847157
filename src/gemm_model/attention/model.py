"""The runtime of a fused attention kernel: stages of a key block, pipeline of a tile, tiles over SMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from gemm_model.attention import tiles as of_tiles
from gemm_model.attention.batch import AttentionBatch, Columns, batch_of
from gemm_model.attention.kernels import MMA_DEPTH
from gemm_model.attention.pipeline import StageTimes, tile_ends
from gemm_model.attention.silicon import Silicon, silicon_of
from gemm_model.attention.tiles import query_blocks, tile_count
from gemm_model.config import read_toml, read_yaml_mapping
from gemm_model.config.numbers import NUMBERS_DIR, Numbers, room_numbers
from gemm_model.core.attention import KERNELS, AttentionConfig, AttentionProblem
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.elementwise import smooth_maximum
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction, Prediction, interleaved
from gemm_model.core.regimes import SUSTAINED
from gemm_model.errors import InputError
from gemm_model.kernel_model.clock import burst_clock_mhz, capped_clock_share
from gemm_model.kernel_model.traffic import kept_share, merged_share
from gemm_model.models import DEFAULT_MODEL

UNITS: Mapping[str, Mapping[str, Any]] = read_toml("explanations")["attention_units"]
"""Meaning of each unit, its numbers, and 1 where they are rates, -1 where they are what the unit takes."""
PARTS = {name: f"{name.lower().replace(' ', '_')}_us" for name in UNITS}
"""Names in `details` of what of the runtime goes with each unit: its elasticity times the runtime."""
BLOCKS_SIMULATED = 6
"""Key blocks of a tile that the recurrence runs through [blocks]; all; chosen: later ones take the period."""
LANES = 128
"""Thread instructions that an SM issues a clock [1/clk]; all GPUs; four schedulers of 32 lanes."""
EMULATION_SLOTS = 10.0
"""Instructions of an exponential on FMAs [instructions]; emulated ones; flash-attn-4, `ex2_emulation`."""
CLOCK_STEPS = 3
"""Steps of the search for the clock [steps]; all kernels; chosen: more change less than 0.1 %."""
MOST_DECODED = 256
"""Most queries of a sequence in a decode step [1]; error bands; chosen: more queries have prefill's band."""
PARTIAL_BYTES = 4.0
"""Bytes to write and read one element of a partial O [B]; split keys; twice 16 bits."""


class Demand(Columns):
    """Demand of kernels on the card's units; times are of one consumer group and key block [clk].

    Times: `qk`, `pv`, `softmax`, `exponentials`, `correction`; `math` is that of both products' rows that hold
    queries at the tensor cores' own rate (zeros draw no current); `masked` instructions more of a block that the mask
    crosses, `copies` those that copy a block's rows of K and V, in the place of others.

    Bytes: `k_bytes` and `v_bytes` of a key block, `start_bytes` of Q of a tile, `store_bytes` of O; `l2_bytes` that
    all SMs request from L2, of which the share `merged` merges with equal requests of the same GPC and the share
    `fresh` misses L2, `dram_bytes`; the share `missed` of Q is not what the call before left in L2.

    Numbers: `groups` of consumers that share an SM; `tiles`, units of work of an SM: one CTA, or the CTAs that share
    an SM; `starts` of CTAs for each unit; `mean_blocks`, `later_blocks` beyond BLOCKS_SIMULATED and `masked_blocks`
    that a mask's edge crosses, key blocks of a mean tile, of a tile at most `edges`; `shares` of tiles with 0, 1, ...
    BLOCKS_SIMULATED or more key blocks, shape (blocks, rows).
    """

    batch: AttentionBatch
    silicon: Silicon
    numbers: Numbers
    pipelines: list[tuple[list[int], IntArray]]
    """Groups, slots of a ring and overlap of each pipeline, and its rows."""


def demand_of(batch: AttentionBatch, silicon: Silicon, numbers: Numbers) -> Demand:
    """The demand of kernels, from their tiles and the card's instruction rates."""
    ctas = tile_count(batch)
    alone = np.clip(np.ceil(ctas / silicon.gpu.sm_count), 1.0, batch.ctas_an_sm)
    groups, rows = np.where(batch.turns, batch.consumer_groups, alone), batch.tile_m / batch.consumer_groups
    step = batch.head_dim_step
    dim, dim_v = (np.ceil(each / step) * step for each in (batch.head_dim, batch.head_dim_v))
    # A kernel that is compiled for few head sizes has one for both.
    dim_v = np.where(step > MMA_DEPTH, np.maximum(dim, dim_v), dim_v)
    blocks, loaders = _blocks(batch), np.where(batch.turns, 1.0, groups)
    tiles = np.ceil(ctas / loaders)
    once = np.minimum(silicon.gpu.sm_count / np.maximum(tiles, 1.0), 1.0)
    filled = batch.seq_q * batch.packed / batch.tile_m
    work = Demand(
        batch=batch,
        groups=groups,
        rows=rows,
        dim=dim,
        dim_v=dim_v,
        filled=filled / np.maximum(query_blocks(batch), 1.0),
        whole=np.floor(filled) / np.maximum(query_blocks(batch), 1.0),
        pipelines=_pipelines(batch, groups),
        k_bytes=loaders * batch.tile_n * batch.head_dim * batch.element_bytes,
        v_bytes=loaders * batch.tile_n * batch.head_dim_v * batch.element_bytes,
        start_bytes=groups * rows * batch.head_dim * batch.element_bytes,
        store_bytes=groups * rows * batch.head_dim_v * np.maximum(batch.element_bytes, 2.0),
        tiles=tiles,
        starts=np.where(batch.persistent, once, 1.0),
        **blocks,
        **_traffic(batch, silicon, ctas * blocks["mean_blocks"]),
    )
    return _priced(work, silicon, numbers)


def _priced(work: Demand, silicon: Silicon, numbers: Numbers) -> Demand:
    """The demand of the same work at these rates."""
    batch, rows = work.batch, work.rows
    scores = rows * batch.tile_n
    # A division keeps its warp waiting. Rows without a query have scores of 0, whose division calls a routine.
    of_zeros = 1.0 - work.whole
    division_slots = batch.divides * (
        work.whole * silicon.division_slots + of_zeros * silicon.zero_division_slots
    )
    division_clk = batch.divides * (work.whole * silicon.division_clk + of_zeros * silicon.zero_division_clk)
    score_slots = batch.softmax * numbers.score_slots + batch.capped * numbers.softcap_slots + division_slots
    through_smem = np.where(batch.pv_from_registers, 0.0, scores * batch.element_bytes)
    product_clk = partial(_product_clk, batch, silicon, numbers)
    qk_bytes = work.dim * (rows + batch.readers * batch.tile_n) * batch.element_bytes
    pv_rows = np.where(batch.pv_from_registers, 0.0, rows) + batch.readers * work.dim_v
    # FMAs compute emulated exponentials in parallel with the special function units, which take a cap's tanh too.
    special = (1.0 + batch.capped - batch.exp_emulated) / silicon.exponentials_per_clk
    exponential = np.maximum(special, batch.exp_emulated * EMULATION_SLOTS / LANES)
    costs = {
        "qk": silicon.drain_clk + product_clk((rows, batch.tile_n, work.dim), qk_bytes),
        "pv": product_clk((rows, work.dim_v, batch.tile_n), pv_rows * batch.tile_n * batch.element_bytes),
        "math": 2.0 * scores * work.filled * (work.dim + work.dim_v) / silicon.flop_per_clk,
        "softmax": silicon.round_trip_clk + scores / LANES * (division_clk - division_slots),
        "exponentials": scores * (score_slots / LANES + exponential),
        "masked": scores * numbers.masked_slots / LANES,
        "copies": batch.copied * 2.0 * batch.tile_n * numbers.page_slots / LANES,
        "correction": rows * work.dim_v * numbers.output_slots / LANES
        + through_smem / silicon.smem_bytes_per_clk,
    }
    return Demand(**{**vars(work), **costs, "silicon": silicon, "numbers": numbers})


def _by_unit(demand: Demand) -> Demand:
    """The same demand, then with each of UNITS slower: a row for each, in front of the batch's axis."""
    rows = np.arange(len(UNITS) + 1)[:, None]
    step = demand.numbers.elasticity_step
    speeds = {unit: np.where(rows == place, 1.0 / step, 1.0) for place, unit in enumerate(UNITS, start=1)}
    return _priced(demand, *with_speeds(demand.silicon, demand.numbers, speeds))


def with_speeds(silicon: Silicon, numbers: Numbers, speeds: Mapping[str, Any]) -> tuple[Silicon, Numbers]:
    """The numbers of a card and of its kernels with some of UNITS so many times as fast [1]."""
    factors: dict[str, Any] = {}
    for unit, speed in speeds.items():
        for name in UNITS[unit]["numbers"]:
            factors[name] = factors.get(name, 1.0) * speed ** UNITS[unit]["sign"]

    def changed(each: Numbers) -> dict[str, Any]:
        return {name: getattr(each, name) * by for name, by in factors.items() if hasattr(each, name)}

    return silicon.having(**changed(silicon)), numbers.having(**changed(numbers))


def _blocks(batch: AttentionBatch) -> dict[str, Any]:
    """Key blocks of tiles, sampled along the queries."""
    (sampled, weights), edges = of_tiles.sampled_blocks(batch), of_tiles.masked(batch)
    first, rows = np.minimum(sampled, BLOCKS_SIMULATED), len(batch)
    places = first.astype(np.int64) * rows + np.arange(rows)
    shares = np.bincount(places.ravel(), weights.ravel(), minlength=(BLOCKS_SIMULATED + 1) * rows)
    numbers = {"mean": sampled, "later": sampled - first, "masked": np.minimum(edges, sampled)}
    means = {f"{name}_blocks": np.einsum("sr,sr->r", each, weights) for name, each in numbers.items()}
    return {"edges": edges, "shares": shares.reshape(-1, rows), **means}


def _pipelines(batch: AttentionBatch, groups: FloatArray) -> list[tuple[list[int], IntArray]]:
    kinds = np.stack([np.where(batch.apart, 1, groups), batch.stages, batch.overlap_in_group])
    # One number a row: `unique` sorts numbers faster than columns.
    codes = [2, 2**20, 1] @ kinds
    rows = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    return [(kinds[:, some[0]].astype(int).tolist(), some) for some in rows]


_Total = Callable[[FloatArray], FloatArray]


def _product_clk(
    batch: AttentionBatch, silicon: Silicon, numbers: Numbers, extent: Sequence[FloatArray], read: FloatArray
) -> FloatArray:
    """Clocks of a product of one group: the tensor cores' rate, or operands read from shared memory.

    `extent` are rows, columns and depth [elements], `read` is what comes from shared memory [B]. Where warps load
    operands to registers by instructions of their own, MMAs wait for some of them.
    """
    rows, columns, depth = extent
    own_rate = batch.turns | (silicon.gpu.kernel_architecture not in ("sm90", "sm100"))
    rate = np.minimum(silicon.flop_per_clk, np.where(own_rate, np.inf, numbers.mma_sync_flop_per_clk))
    math_clk = 2.0 * rows * columns * depth / rate
    read_clk = read / silicon.smem_bytes_per_clk
    beside = smooth_maximum(math_clk, read_clk, numbers.overlap_order)
    return np.where(batch.readers > 1.0, beside, np.maximum(math_clk, read_clk))


def _traffic(batch: AttentionBatch, silicon: Silicon, blocks: FloatArray) -> dict[str, Any]:
    """Bytes that SMs request from L2, and bytes that DRAM moves if the same call ran before.

    K and V of the heads in progress are read once while L2 holds them. Bytes that L2 keeps from one call to the
    next are not read at all (`GpuSpec.l2_kept_share`). SMs of a GPC that process the same head request the same
    blocks at the same time, which merge (`kernel_model.traffic.merged_share`).
    """
    gpu = silicon.gpu
    both = (batch.head_dim + batch.head_dim_v) * batch.element_bytes
    queries = batch.sequences * batch.heads * batch.seq_q
    q_bytes = queries * batch.head_dim * batch.element_bytes
    o_bytes = queries * batch.head_dim_v * np.maximum(batch.element_bytes, 2.0)
    seen = np.where(batch.window > 0, batch.seq_q + batch.window, batch.seq_kv)
    head_bytes = np.minimum(seen, batch.seq_kv) * both
    kv_bytes = batch.sequences * batch.kv_heads * head_bytes
    sharing = query_blocks(batch) * np.where(batch.pack_gqa, 1.0, batch.heads / batch.kv_heads)
    at_work = np.ceil(gpu.sm_count / np.maximum(sharing, 1.0))
    at_work = np.minimum(at_work, batch.sequences * batch.kv_heads)
    # Longest first, K and V of all heads that alternate pass L2 before a later tile reads the same keys again.
    turns = of_tiles.together_heads(batch)
    held = np.where(turns > 1.0, gpu.l2_kept_share, 1.0) * gpu.l2_bytes
    lost = 1.0 - kept_share(np.maximum(at_work, turns) * head_bytes, held, gpu.l2_kept_order)
    footprint = np.bincount(batch.owner, q_bytes + o_bytes + kv_bytes).astype(np.float64)[batch.owner]
    missed = 1.0 - np.asarray(kept_share(footprint, gpu.l2_kept_share * gpu.l2_bytes, gpu.l2_kept_order))
    read = np.where(
        turns > 1.0, turns * blocks * batch.tile_n / np.maximum(tile_count(batch) * seen, 1.0), 1.0
    )
    again = lost * (np.maximum(sharing * read / gpu.sm_count, 1.0) - 1.0)
    l2_bytes = blocks * batch.tile_n * both / batch.cluster + q_bytes + o_bytes
    dram_bytes = np.minimum((q_bytes + kv_bytes * (1.0 + again) + o_bytes) * missed, l2_bytes)
    return {
        "l2_bytes": l2_bytes,
        "merged": silicon.merging * np.asarray(merged_share(at_work, 1.0, gpu)),
        "dram_bytes": dram_bytes,
        "fresh": dram_bytes / np.maximum(l2_bytes, 1.0),
        "missed": missed,
    }


class Times(Columns):
    """Times of the tiles of kernels at one clock [clk].

    `ends` of tiles of 0, 1, ... BLOCKS_SIMULATED key blocks, shape (blocks, rows); `period` of each later key block;
    `outside` of a tile, before its first load and after its last product.
    """

    def mean_clk(self, demand: Demand) -> FloatArray:
        """Mean time of a tile [clk]."""
        first = np.einsum("s...r,sr->...r", self.ends, demand.shares)
        later = demand.later_blocks * self.period + demand.masked_blocks * demand.masked
        return np.asarray(first + later + self.outside)


def stages_at(demand: Demand, sm_clk_mhz: FloatArray, at_work: FloatArray) -> StageTimes:
    """The times of the stages of a key block at a clock; `at_work` SMs share L2 and DRAM."""
    batch, silicon = demand.batch, demand.silicon
    # CTAs with one slot a ring do not wait for each other: loads of one hide under the work of another.
    hidden_clk = 1.0 / silicon.port_bytes_per_clk / demand.groups
    load_clk = np.where(batch.apart, hidden_clk, _clk_per_byte(demand, sm_clk_mhz, at_work, demand.fresh))
    copied_clk = silicon.copy_clk_per_byte / demand.groups
    load_clk = np.where(batch.turns, load_clk, np.maximum(load_clk, copied_clk))
    return StageTimes(
        load_k=load_clk * demand.k_bytes,
        load_v=load_clk * demand.v_bytes,
        latency=silicon.l2_latency_clk + demand.fresh * silicon.dram_latency_us * sm_clk_mhz,
        **{name: getattr(demand, name) for name in StageTimes.__slots__ if hasattr(demand, name)},
    )


def _clk_per_byte(demand: Demand, mhz: FloatArray, at_work: FloatArray, from_dram: FloatArray) -> FloatArray:
    l2_us = (1.0 - demand.merged) / demand.silicon.l2_bytes_per_us
    shared_us = at_work * np.maximum(l2_us, from_dram / demand.silicon.dram_bytes_per_us)
    return np.maximum(shared_us * mhz, 1.0 / demand.silicon.port_bytes_per_clk)


def times_at(demand: Demand, sm_clk_mhz: FloatArray, at_work: FloatArray) -> Times:
    """The times of each kernel's tiles at a clock; `at_work` SMs share L2 and DRAM."""
    batch, silicon, numbers = demand.batch, demand.silicon, demand.numbers
    clk_per_byte = partial(_clk_per_byte, demand, sm_clk_mhz, at_work)
    apart, stages = batch.apart, stages_at(demand, sm_clk_mhz, at_work)
    ends = np.zeros((BLOCKS_SIMULATED + 1, *demand.qk.shape))
    for (groups, rings, overlap), rows in demand.pipelines:
        some = StageTimes(**{name: getattr(stages, name)[..., rows] for name in StageTimes.__slots__})
        shape = {"groups": groups, "stages": rings, "blocks": BLOCKS_SIMULATED}
        ends[1:, ..., rows] = tile_ends(some, overlap=bool(overlap), **shape)
    # A CTA that keeps on reads the next tile's lengths, then its threads copy Q: each waits for memory once.
    late = 2.0 * silicon.l2_latency_clk + demand.missed * silicon.dram_latency_us * sm_clk_mhz
    started_us = silicon.cta_start_us + demand.groups * silicon.group_end_us
    period = np.maximum(ends[-1] - ends[-3], 1.0) / 2.0
    units = (demand.groups * (demand.qk + demand.pv), demand.groups * demand.exponentials)
    loads = (demand.k_bytes + demand.v_bytes) * clk_per_byte(demand.fresh)
    bounds = np.stack(np.broadcast_arrays(*units, np.where(apart, period, _chain(demand)), loads))
    bounds[:3] += demand.copies
    order = numbers.overlap_order
    together = period * ((bounds / period) ** order).sum(axis=0) ** (1.0 / order)
    ends += np.multiply.outer(np.arange(BLOCKS_SIMULATED + 1.0), np.maximum(together - period, 0.0))
    return Times(
        ends=ends,
        period=(ends[-1] - ends[-3]) / 2.0,
        outside=demand.starts * (started_us * sm_clk_mhz + batch.searches * numbers.length_clk)
        + (1.0 - demand.starts) * batch.copied * late
        + demand.start_bytes * clk_per_byte(demand.missed)
        + demand.groups * demand.correction
        + demand.store_bytes / numbers.store_bytes_per_clk,
    )


def work_of_sms(demand: Demand, clock: FloatArray) -> tuple[Times, FloatArray, FloatArray]:
    """Times of tiles if all SMs load at once, time of the mean tile, and time at which the last SM is done [clk].

    In the first round all SMs load at once, later some load while others compute.

    A tile of a later round takes the longer of its time with L2 and DRAM to itself and its share of their time.
    In the last round fewer SMs share them.
    """
    batch, silicon, sms = demand.batch, demand.silicon, demand.silicon.gpu.sm_count
    rounds = np.maximum(np.ceil(demand.tiles / sms), 1.0)
    left = np.maximum(demand.tiles - (rounds - 1.0) * sms, 1.0)
    sharers = (np.minimum(demand.tiles, sms), left, np.ones(len(batch)))
    full, tail, alone = (times_at(demand, clock, each) for each in sharers)
    mean, alone_clk, tail_clk = (each.mean_clk(demand) for each in (full, alone, tail))
    l2_us = demand.l2_bytes * (1.0 - demand.merged) / silicon.l2_bytes_per_us
    device_us = np.maximum(l2_us, demand.dram_bytes / silicon.dram_bytes_per_us)
    device_clk = device_us * clock * sms / np.maximum(demand.tiles, 1.0)
    apart = np.asarray(smooth_maximum(alone_clk, device_clk, demand.numbers.overlap_order))
    share = np.minimum((mean + (rounds - 1.0) * apart) / (rounds * mean), 1.0)

    def tile_clk(rows: IntArray, blocks: FloatArray) -> FloatArray:
        few = np.minimum(blocks, BLOCKS_SIMULATED)
        first = full.ends[np.maximum(few.astype(np.int64), blocks > 0), 0, rows]
        crossed = np.minimum(demand.edges[rows], blocks) * demand.masked[0, rows]
        return np.asarray(first + (blocks - few) * full.period[0, rows] + crossed + full.outside[0, rows])

    # Tiles are dealt once: the busiest SM's time grows as the mean tile's where a unit is slower.
    last = share * of_tiles.busiest_sm(batch, demand.tiles, sms, mean[0], tile_clk) * mean / mean[0]
    quicker = np.where(rounds > 1.0, np.maximum(share * mean - tail_clk, 0.0), 0.0)
    last = np.maximum(last - quicker, demand.tiles * share * mean / sms)
    dealt = of_tiles.of_lengths(batch, sms, tile_clk) * mean / mean[0]
    return full, share * mean, np.maximum(np.where(dealt > 0.0, share * dealt, last), 0.0)


@dataclass(frozen=True, slots=True)
class AttentionModel:
    """runtime = launch + busiest SM of its tiles + combining of splits, at the clock of that work."""

    gpu: GpuSpec
    numbers: Numbers = field(default_factory=lambda: room_numbers("attention"))
    silicon: Silicon | None = None
    """In place of the card's own, for what-ifs."""
    settled: bool = field(default=False, kw_only=True)
    """Whether the kernel runs back to back until the clock settles under the power cap."""

    def predict(self, kernels: Sequence[tuple[AttentionProblem, AttentionConfig]]) -> BatchPrediction:
        """Predictions of kernels; raises RefusedKernelError for those that cannot run."""
        batch = batch_of(kernels, self.gpu)
        kinds = np.array([problem.dtype.math_kind for problem, _ in kernels])
        rows = {kind: np.flatnonzero(kinds == kind).tolist() for kind in dict.fromkeys(kinds.tolist())}
        own = {kind: self.silicon or silicon_of(self.gpu, kind) for kind in rows}
        parts = [self.predict_batch(batch[np.isin(batch.owner, of)], own[kind]) for kind, of in rows.items()]
        return parts[0] if len(parts) == 1 else interleaved(parts, list(rows.values()))

    def predict_batch(self, batch: AttentionBatch, silicon: Silicon) -> BatchPrediction:
        """Predictions of columns whose operands are of one rate class."""
        demand = demand_of(batch, silicon, self.numbers)
        clock = np.full(len(batch), silicon.gpu.sm_clk_mhz * 0.85)
        sms = self.gpu.sm_count
        for _ in range(CLOCK_STEPS):
            mean = times_at(demand, clock, np.minimum(demand.tiles, sms)).mean_clk(demand)
            clock = self._clock(demand, np.maximum(demand.tiles / sms, 1.0) * mean / clock, clock)
        return self._prediction(demand, clock)

    def _clock(self, demand: Demand, busy_us: FloatArray, clock: FloatArray) -> FloatArray:
        """The SM clock inside kernels [MHz], from the shares of their time in which units are busy.

        Settled, it is the one at which work at those rates at `clock` meets the power cap.
        """
        silicon, gpu, power = demand.silicon, self.gpu, demand.silicon.power
        blocks = demand.tiles * demand.mean_blocks * demand.groups / gpu.sm_count
        math = blocks * demand.math / (busy_us * clock)
        moved = ((demand.l2_bytes, silicon.l2_bytes_per_us), (demand.dram_bytes, silicon.dram_bytes_per_us))
        l2, dram = (np.minimum(each / rate / busy_us, 1.0) for each, rate in moved)
        current = np.minimum(self.numbers.mma_current * math, 1.0)
        rested = burst_clock_mhz(gpu, silicon.clock, current, l2 + dram, np.maximum(busy_us, 1.0))
        if not self.settled:
            return np.asarray(rested)
        switched_pj = power.pj_per_flop * math * clock * silicon.flop_per_clk * gpu.sm_count
        switched_pj += power.pj_per_l2_byte * demand.l2_bytes * (1.0 - demand.merged) / busy_us
        at_boost_w, cap_w = switched_pj * 1e-6 * gpu.sm_clk_mhz / clock, gpu.power_cap_w or np.inf
        dram_w = power.pj_per_dram_byte * demand.dram_bytes / busy_us * 1e-6
        share = capped_clock_share(power, cap_w, gpu.resting_w, at_boost_w, dram_w)
        return np.asarray(np.minimum(rested, share * gpu.sm_clk_mhz * silicon.clock.light_share))

    def _prediction(self, demand: Demand, clock: FloatArray) -> BatchPrediction:
        batch, sms, demand = demand.batch, self.gpu.sm_count, _by_unit(demand)
        times, mean_clk, last_clk = work_of_sms(demand, clock)
        # Sums and maxima over the rows of each kernel, which follow each other.
        first = np.searchsorted(batch.owner, np.unique(batch.owner))
        sums, most = (partial(unit.reduceat, indices=first, axis=-1) for unit in (np.add, np.maximum))
        tiles = sums(demand.tiles)
        work = tiles > 0
        dram_us = sums(demand.dram_bytes) / demand.silicon.dram_bytes_per_us
        tiles_us = np.maximum(most(last_clk / clock), dram_us) * work
        combine_us = np.where(most(batch.num_splits) > 1, _combine_us(demand, sums, most), 0.0) * work
        # A counter of tiles is set before: a node of the graph more.
        launch_us = work * demand.silicon.launch_us * (1.0 + most(batch.persistent))
        runtime_us = launch_us + tiles_us + combine_us
        # Times are sums, maxima and norms of the units' times: what each adds when it is slower sums up to the runtime.
        added_us = np.maximum(runtime_us[1:] - runtime_us[0], 0.0)
        parts_us = added_us * runtime_us[0] / np.maximum(added_us.sum(axis=0), 1e-30)
        launch_us, tiles_us, combine_us = launch_us[0], tiles_us[0], combine_us[0]
        even_us = sums(demand.tiles * mean_clk[0] / clock) / sms
        outside_us = np.minimum(sums(demand.tiles * times.outside[0] / clock) / sms, tiles_us)
        bands = error_bands(self.gpu.name)
        return BatchPrediction(
            runtime_us=runtime_us[0],
            limiter=np.argmax(parts_us, axis=0),
            limiter_names=tuple(UNITS),
            phases_us={
                "launch": launch_us,
                "tile_starts_and_stores": outside_us,
                "key_blocks": np.maximum(np.minimum(even_us, tiles_us) - outside_us, 0.0),
                "imbalance": np.maximum(tiles_us - np.maximum(even_us, outside_us), 0.0),
                "combine": combine_us,
            },
            details={
                "sm_clk_mhz": most(clock),
                "tiles": tiles,
                "mean_key_blocks": sums(demand.tiles * demand.mean_blocks) / np.maximum(tiles, 1.0),
                "block_clk": most(times.period[0]),
                **dict(zip(PARTS.values(), parts_us, strict=True)),
            },
            bytes_by_level={"dram": sums(demand.dram_bytes), "l2": sums(demand.l2_bytes)},
            caveats=self.gpu.caveats,
            error_band=most(bands[batch.kernel.astype(int), (batch.seq_q > MOST_DECODED).astype(int)]),
        )


def _combine_us(demand: Demand, sums: _Total, most: _Total) -> FloatArray:
    """Time of the second kernel of split keys [us]: its launch, and partial O written to L2 and read.

    FlashAttention 2's adds up one part after the other, each an L2 latency later.
    """
    batch, silicon, numbers = demand.batch, demand.silicon, demand.numbers
    parts = batch.sequences * batch.heads * batch.seq_q * batch.head_dim_v * batch.num_splits
    cudnn, flash_2 = (batch.kernel == KERNELS.index(name) for name in KERNELS[1:3])
    split_clk = flash_2 * silicon.l2_latency_clk + cudnn * numbers.combine_clk
    beyond_us = flash_2 * numbers.combine_us + batch.num_splits * split_clk / silicon.gpu.sm_clk_mhz
    return np.asarray(
        silicon.launch_us + sums(parts * PARTIAL_BYTES) / silicon.l2_bytes_per_us + most(beyond_us)
    )


def _chain(demand: Demand) -> FloatArray:
    """Time of a group's dependent work on one block [clk], which no other group can hide."""
    softmax = demand.softmax + demand.exponentials
    hidden = np.where(demand.batch.overlap_in_group, np.maximum(softmax, demand.pv), softmax + demand.pv)
    return np.asarray(demand.qk + hidden + demand.correction)


def elasticities(found: Prediction) -> dict[str, float]:
    """What of a faster unit reaches the runtime at its clock [1], by unit: of units that tie, each a half."""
    return {name: found.details[part] / (found.runtime_us or 1.0) for name, part in PARTS.items()}


def attention_model(gpu: GpuSpec, model: str, options: Mapping[str, Any]) -> AttentionModel:
    """The model of that name in the regime of a verb's options: only 'sustained' differs from single launches.

    Raises InputError for a model that knows no attention.
    """
    if model != DEFAULT_MODEL:
        raise InputError(f"{model} knows no attention; expected {DEFAULT_MODEL}")
    return AttentionModel(gpu, settled=options.get("regime") == SUSTAINED)


@cache
def error_bands(gpu: str) -> FloatArray:
    """Relative error of 90 % of measurements, of each of KERNELS in decode and prefill [1]; NaN where none is."""
    found = read_yaml_mapping(NUMBERS_DIR / "attention.yaml", "numbers of a room")
    known = found["error_band"] if gpu == found["measured_on"] else {}
    of_kernels = (known.get(name, {}) for name in KERNELS)
    return np.array([[each.get(kind, np.nan) for kind in ("decode", "prefill")] for each in of_kernels])
