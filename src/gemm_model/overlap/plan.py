"""The build of a layer's GEMM: split of K, CTAs per SM, depth of the ring."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError
from gemm_model.overlap.config import RESERVED_SMEM, SMEM_PER_CTA, SMEM_PER_SM, TILE_M, UNIT_M, KernelBuild


@dataclass(frozen=True, slots=True)
class _Grid:
    split_k: int
    clusters: int
    ctas_per_sm: int
    delayed: bool = False


def plan_build(m: int, n: int, k: int, a_type: str, b_type: str, gpu: GpuSpec) -> KernelBuild:
    """A build that keeps the whole GPU streaming weights (rules found on H200s, 2026-11).

    Several CTAs per SM, as many as n allows, hide each other's first and last microseconds. K is split until
    there are enough CTAs, as long as each has enough K tiles and all clusters run at once. A layer that needs
    few SMs has one CTA on each, with the whole ring.
    """
    if min(m, n, k) < 1:
        raise InputError(f"m, n and k must be at least 1, not {m}, {n} and {k}")
    tiles, sm_count = math.ceil(m / TILE_M), gpu.sm_count
    least = KernelBuild(
        a_type=a_type, b_type=b_type, tile_n=max(8, math.ceil(n / 8) * 8), split_k=1, stages=2, clusters=tiles
    )
    if tiles > sm_count:
        grid = _grid_of_many(tiles, m, least, sm_count)
    elif least.min_ctas_per_sm == 1:
        grid = _Grid(2 if tiles > sm_count // 4 else 4, tiles, 1)
    else:
        grid = _grid_of_few(tiles, k, least, gpu)
    build = replace(
        least,
        split_k=grid.split_k,
        clusters=grid.clusters,
        fill_delay_clocks=int(room_numbers("overlap").fill_delay_clk) if grid.delayed else 0,
    )
    return replace(build, stages=_stages(build, grid.ctas_per_sm))


def _grid_of_many(tiles: int, m: int, least: KernelBuild, sm_count: int) -> _Grid:
    """More tiles than SMs: rows dealt out evenly, or one tile a cluster where three CTAs fit on an SM."""
    if least.min_ctas_per_sm >= 3:
        if 2 * sm_count < tiles <= 3 * sm_count:
            return _Grid(1, 3 * sm_count, 3)
        if 2 * sm_count < 2 * tiles <= 3 * sm_count:
            return _Grid(2, tiles, 3)
    # Two CTAs on each SM of the largest multiple of 8 below all: the SMs left run the previous kernel.
    busy_sms = (sm_count - 1) // 8 * 8 or sm_count
    even = min(math.ceil(m / UNIT_M), 2 * busy_sms)
    return _Grid(1, even, min(least.min_ctas_per_sm, 2))


def _grid_of_few(tiles: int, k: int, least: KernelBuild, gpu: GpuSpec) -> _Grid:
    """At most a tile per SM: K is split."""
    numbers, sm_count = room_numbers("overlap"), gpu.sm_count
    k_tiles = math.ceil(k / least.tile_k)
    places = {split: gpu.clusters_at_once(split) for split in (4, 8)}

    def fit(split_k: int, ctas_per_sm: int) -> bool:
        return tiles <= numbers.cluster_room * ctas_per_sm * places[split_k]

    if k_tiles // 8 >= numbers.eight_k_tiles and fit(8, 2):
        return _Grid(8, tiles, 1 if tiles <= places[8] else 2)
    if k_tiles // 8 >= numbers.crowded_k_tiles and least.min_ctas_per_sm >= 3 and fit(8, 3):
        return _Grid(8, tiles, 3)
    if tiles <= sm_count // 4:
        return _few_ctas(4, tiles, k_tiles, least, gpu)
    deep = tiles * 2 <= sm_count and _wants_deep_ring(2, k_tiles, least)
    if k_tiles // 4 >= numbers.four_k_tiles and not (deep and tiles * 2 >= numbers.most_sms * sm_count):
        if fit(4, 2):
            return _Grid(4, tiles, 2)
        if least.min_ctas_per_sm >= 3 and fit(4, 3):
            return _Grid(4, tiles, 3)
    if tiles * 2 > sm_count:
        return _Grid(2, tiles, 2)
    return _few_ctas(2, tiles, k_tiles, least, gpu)


def _few_ctas(split_k: int, tiles: int, k_tiles: int, least: KernelBuild, gpu: GpuSpec) -> _Grid:
    """At most one CTA per SM: with the whole ring, or with half of it so that two layers fit side by side.

    Then the later one has a layer's time to fill its rings, and can leave the previous kernel alone at first.
    """
    ctas = tiles * split_k
    most = split_k * gpu.clusters_at_once(split_k)
    few = split_k > 2 and ctas <= room_numbers("overlap").few_sms * gpu.sm_count
    if few or (ctas <= most and _wants_deep_ring(split_k, k_tiles, least)):
        return _Grid(split_k, tiles, 1)
    return _Grid(split_k, tiles, 2, delayed=True)


def _wants_deep_ring(split_k: int, k_tiles: int, least: KernelBuild) -> bool:
    """K of one CTA is longer than two rings of half an SM."""
    return k_tiles // split_k > 2 * _stages(replace(least, split_k=split_k), 2)


def _stages(build: KernelBuild, ctas_per_sm: int) -> int:
    """Stages that fit; room stays for CTAs of the previous kernel: one, or several beside a single CTA."""
    free = 1024 if ctas_per_sm > 1 else 12 * 1024
    least = replace(build, stages=2)
    room = min(SMEM_PER_SM // ctas_per_sm - RESERVED_SMEM - free, SMEM_PER_CTA) - least.smem_bytes
    return 2 + max(room // least.stage_bytes, 0)
