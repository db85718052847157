"""Measured time per layer over the grid of both parameters, and when things happen in a layer.

Needs the CuTe DSL, torch and a Hopper GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from gemm_model.overlap.chain import LayerChain, PreviousSpec
from gemm_model.overlap.config import KernelBuild, OverlapSetting, plan_build

OVERLAP_RATIOS = (-1.0, 0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PREFETCH_RATIOS = (-1.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
EXTRA_CLOCKS = (0, 8000, 17000)
"""The previous kernel as it is, and about 4 and 9 us longer."""
REPLAYS = 4
ROUNDS = 7
"""Chains replayed back to back for one time, and such times of a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One weight matrix of a model: m output features, k input features, n tokens."""

    name: str
    m: int
    k: int
    n: int = 16
    a_type: str = "e4m3"
    b_type: str = "e5m2"


PROJECTIONS = (
    Projection(name="llama3-8b qkv", m=6144, k=4096),
    Projection(name="llama3-8b out", m=4096, k=4096),
    Projection(name="llama3-8b gate-up", m=28672, k=4096),
    Projection(name="llama3-8b down", m=4096, k=14336),
    Projection(name="llama3-70b qkv", m=10240, k=8192),
    Projection(name="llama3-70b out", m=8192, k=8192),
    Projection(name="llama3-70b down", m=8192, k=28672),
    Projection(name="deepseek-v3 q-kv-a", m=2112, k=7168),
    Projection(name="deepseek-v3 q-b", m=24576, k=1536),
    Projection(name="deepseek-v3 out", m=7168, k=16384),
    Projection(name="deepseek-v3 expert gate-up", m=4096, k=7168),
    Projection(name="deepseek-v3 expert down", m=7168, k=2048),
    Projection(name="deepseek-v3 expert up", m=2048, k=7168),
    Projection(name="llama3-70b out, 64 tokens", m=8192, k=8192, n=64),
    Projection(name="llama3-8b out, bf16", m=4096, k=4096, a_type="bf16", b_type="bf16"),
)


def surface_rows(projection: Projection, *, layers: int = 16) -> Iterator[dict[str, Any]]:
    """One row per setting and length of the previous kernel; the first of each is serialized (no overlap).

    All settings of a surface are captured first and replayed in turns, `ROUNDS` times: a drift of the card
    reaches all of them alike. Each time is the median of its rounds, `spread` their half range over it.
    """
    p = projection
    chain = LayerChain(p.m, p.n, p.k, p.a_type, p.b_type, layers=layers)
    build = plan_build(p.m, p.n, p.k, p.a_type, p.b_type, sm_count=chain.sm_count)
    serial = replace(build, dependent_launch=False)
    for extra in EXTRA_CLOCKS:
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


def describe(p: Projection, build: KernelBuild, extra: int) -> dict[str, Any]:
    """What was measured: problem, build and previous kernel."""
    return {
        "name": p.name,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "a_type": p.a_type,
        "b_type": p.b_type,
        "split_k": build.split_k,
        "stages": build.stages,
        "clusters": build.clusters,
        "fill_delay_clocks": build.fill_delay_clocks,
        "extra_clocks": extra,
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
