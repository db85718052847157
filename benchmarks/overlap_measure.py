"""Measured time per layer over the grid of both parameters, and when things happen in a layer.

Needs the CuTe DSL, torch and a Hopper GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from overlap_projections import EXTRA_CLOCKS, Projection, describe

from gemm_model.core.gpu import load_gpu
from gemm_model.overlap.chain import LayerChain, PreviousSpec
from gemm_model.overlap.config import KernelBuild, OverlapSetting
from gemm_model.overlap.plan import plan_build
from gemm_model.overlap.tuner import OVERLAP_RATIOS, PREFETCH_RATIOS

GPU = load_gpu("h200")
"""The description of the card that is measured."""
REPLAYS = 4
ROUNDS = 7
"""Chains replayed back to back for one time, and such times of a setting."""


def surface_rows(
    projection: Projection, *, extra_clocks: Sequence[int] = EXTRA_CLOCKS, layers: int = 16
) -> Iterator[dict[str, Any]]:
    """One row per setting and length of the previous kernel; the first of each is serialized (no overlap).

    All settings of a surface are captured first and replayed in turns, `ROUNDS` times: a drift of the card
    reaches all of them alike. Each time is the median of its rounds, `spread` their half range over it.
    """
    p = projection
    chain = LayerChain(p.m, p.n, p.k, p.a_type, p.b_type, layers=layers)
    build = plan_build(p.m, p.n, p.k, p.a_type, p.b_type, GPU)
    serial = replace(build, dependent_launch=False)
    for extra in extra_clocks:
        before = PreviousSpec(extra_clocks=extra, trigger_early=False)
        kind = describe(p, build, extra) | {"previous_us": previous_time_us(chain, build, before)}
        never = OverlapSetting(overlap_ratio=-1, prefetch_ratio=0)
        runs = [(1, never, chain.capture(serial, never, before))]
        for overlap, prefetch in product(OVERLAP_RATIOS, PREFETCH_RATIOS):
            setting = OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
            runs.append((0, setting, chain.capture(build, setting, PreviousSpec(extra_clocks=extra))))
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(ROUNDS):
            for (_, _, graph), found in zip(runs, times, strict=True):
                graph.replay()
                found.append(chain.replay_time_us(graph, REPLAYS))
        for (serialized, setting, _), found in zip(runs, times, strict=True):
            median = statistics.median(found)
            yield kind | {
                "serialized": serialized,
                "overlap_ratio": setting.overlap_ratio,
                "prefetch_ratio": setting.prefetch_ratio,
                "layer_us": median,
                "spread": (max(found) - min(found)) / (2 * median),
            }


def layer_events_us(
    chain: LayerChain, build: KernelBuild, setting: OverlapSetting, previous: PreviousSpec
) -> list[dict[str, float]]:
    """When what happened in each layer of one run, microseconds since the first previous kernel started.

    First and last CTA of: the previous kernel's start, end of its wait and end; the GEMM's start, end of its
    wait, last load issued and end.
    """
    graph = chain.capture(replace(build, trace=True), setting, previous)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    ctas = build.ctas
    before = chain.previous_trace.double().cpu()
    gemm = chain.trace[:, :ctas].double().cpu()
    zero = before[0, :, 0].min()
    rows = []
    for layer in range(chain.layers):
        row: dict[str, float] = {"layer": layer}
        for prefix, table in (("previous", before[layer]), ("gemm", gemm[layer])):
            for column, event in enumerate(("start", "waited", "loaded", "end")):
                times = (table[:, column] - zero) / 1e3
                row[f"{prefix}_{event}_first_us"] = times.min().item()
                row[f"{prefix}_{event}_last_us"] = times.max().item()
        row["prefetched_tiles"] = gemm[layer, :, 5].mean().item()
        row["sms"] = len(set(gemm[layer, :, 4].tolist()))
        rows.append(row)
    return rows


def previous_time_us(chain: LayerChain, build: KernelBuild, previous: PreviousSpec) -> float:
    """Median time of the previous kernel after its wait, with nothing beside it."""
    never = OverlapSetting(overlap_ratio=-1, prefetch_ratio=0)
    rows = layer_events_us(chain, build, never, previous)[1:]
    times = sorted(row["previous_end_last_us"] - row["previous_waited_first_us"] for row in rows)
    return times[len(times) // 2]
