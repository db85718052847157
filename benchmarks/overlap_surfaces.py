"""Measure chains of (norm, weight-prefetch GEMM) again, over the grid of both parameters.

    python benchmarks/overlap_surfaces.py results --campaign overlap_surfaces --events

Layers, and lengths of the kernel before, are those of a campaign of data/measurements/h200/overlap.csv.gz, or of
another table with its columns. Writes overlap_surfaces.csv.gz (time per layer), with --events
overlap_events.csv.gz (when things happen in some layers), and the environment as JSON into the folder given.
Needs the CuTe DSL, torch and a Hopper GPU; about a minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from measured import path_of

from gemm_model.bench.row_log import provenance
from gemm_model.core.files import atomic_write
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
LAYER = ["name", "m", "n", "k", "a_type", "b_type"]
NEVER = OverlapSetting(overlap_ratio=-1, prefetch_ratio=0)
EVENT_SETTINGS = ((-1, 0), (0.5, 0), (0.5, 0.125), (0.5, -1), (1, 0))
EVENT_LAYERS = ("llama3-70b out", "llama3-8b gate-up", "llama3-8b down", "deepseek-v3 expert up")


def built(layer: dict[str, Any]) -> KernelBuild:
    return plan_build(*(layer[name] for name in LAYER[1:]), GPU)


def chain_of(layer: dict[str, Any], layers: int) -> LayerChain:
    return LayerChain((layer["m"], layer["n"], layer["k"]), (layer["a_type"], layer["b_type"]), layers=layers)


def described(layer: dict[str, Any], build: KernelBuild, extra: int) -> dict[str, Any]:
    """Columns of a surface: problem, build and previous kernel."""
    plan = {name: getattr(build, name) for name in ("split_k", "stages", "clusters", "fill_delay_clocks")}
    return {**layer, **plan, "extra_clocks": extra}


def surface_rows(layer: dict[str, Any], lengths: list[int]) -> Iterator[dict[str, Any]]:
    """One row per setting and length of the previous kernel; the first of each is serialized (no overlap).

    All settings of a surface are captured first and replayed in turns, `ROUNDS` times: a drift of the card
    reaches all of them alike. Each time is the median of its rounds, `spread` their half range over it.
    """
    chain, build = chain_of(layer, 16), built(layer)
    serial = replace(build, dependent_launch=False)
    for extra in lengths:
        before = PreviousSpec(extra_clocks=extra, trigger_early=False)
        kind = described(layer, build, extra) | {"previous_us": previous_time_us(chain, build, before)}
        runs = [(1, NEVER, chain.capture(serial, NEVER, before))]
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
            ratios = {"overlap_ratio": setting.overlap_ratio, "prefetch_ratio": setting.prefetch_ratio}
            spread = (max(found) - min(found)) / (2 * median)
            yield kind | {"serialized": serialized} | ratios | {"layer_us": median, "spread": spread}


def event_rows(layer: dict[str, Any], lengths: list[int]) -> Iterator[dict[str, Any]]:
    chain, build = chain_of(layer, 8), built(layer)
    for extra, (overlap, prefetch) in product(lengths, EVENT_SETTINGS):
        setting = OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        kind = described(layer, build, extra) | {"overlap_ratio": overlap, "prefetch_ratio": prefetch}
        for row in layer_events_us(chain, build, setting, PreviousSpec(extra_clocks=extra)):
            yield kind | row


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
    rows = layer_events_us(chain, build, NEVER, previous)[1:]
    times = sorted(row["previous_end_last_us"] - row["previous_waited_first_us"] for row in rows)
    return times[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=Path, default=path_of("overlap_surfaces"), help="table of layers")
    parser.add_argument("--campaign", help="its rows of this campaign (default: all)")
    parser.add_argument("--events", action="store_true", help="measure events of some layers too")
    args = parser.parse_args()
    table = pd.read_csv(args.rows)
    table = table if args.campaign is None else table[table["campaign"] == args.campaign]
    args.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    start = time.perf_counter()
    for values, part in table.groupby(LAYER, sort=False):
        layer, lengths = dict(zip(LAYER, values, strict=True)), part["extra_clocks"].unique().tolist()
        found = list(surface_rows(layer, lengths))
        rows += found
        if args.events and layer["name"] in EVENT_LAYERS:
            events += event_rows(layer, lengths)
        torch.cuda.empty_cache()
        # Written after each layer: a run that ends early leaves whole surfaces.
        pd.DataFrame(rows).to_csv(args.output / "overlap_surfaces.csv.gz", index=False, float_format="%.4f")
        best = min(found, key=lambda row: row["layer_us"])
        print(f"{time.perf_counter() - start:.0f} s", best, flush=True)
    if events:
        pd.DataFrame(events).to_csv(args.output / "overlap_events.csv.gz", index=False, float_format="%.3f")
    card = torch.cuda.get_device_properties(0)
    device = {"gpu": card.name, "sm_count": card.multi_processor_count, "cuda": torch.version.cuda}
    settings = {"layers": 16, "replays": REPLAYS, "rounds": ROUNDS}
    environment = {**device, **provenance("overlap_surfaces", settings, len(rows))}
    atomic_write(args.output / "overlap_surfaces.json", json.dumps(environment, indent=1) + "\n")


if __name__ == "__main__":
    main()
