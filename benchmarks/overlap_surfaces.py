"""Measure chains of (norm, weight-prefetch GEMM) over the grid of both parameters.

Writes overlap_surfaces.csv.gz (time per layer), overlap_events.csv.gz (when things happen in a layer) and the
environment as JSON into the folder given. Needs a Hopper GPU; about a minute.
"""

import argparse
import time
from pathlib import Path

import pandas as pd
import torch
from overlap_measure import GPU, REPLAYS, ROUNDS, layer_events_us, surface_rows
from overlap_projections import (
    EXTRA_CLOCKS,
    OTHER_PROJECTIONS,
    PROJECTIONS,
    TEST_PROJECTIONS,
    TWO_EXTRA_CLOCKS,
    describe,
)

from gemm_model.bench.environment import new_environment, write_environment
from gemm_model.overlap.chain import LayerChain, PreviousSpec
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.plan import plan_build

SHAPES = {
    "main": (PROJECTIONS, EXTRA_CLOCKS),
    "other": (OTHER_PROJECTIONS, TWO_EXTRA_CLOCKS),
    "test": (TEST_PROJECTIONS, TWO_EXTRA_CLOCKS),
}
EVENT_SETTINGS = ((-1, 0), (0.5, 0), (0.5, 0.125), (0.5, -1), (1, 0))
EVENT_PROJECTIONS = ("llama3-70b out", "llama3-8b gate-up", "llama3-8b down", "deepseek-v3 expert up")


def event_rows():
    for projection in PROJECTIONS:
        if projection.name not in EVENT_PROJECTIONS:
            continue
        p = projection
        chain = LayerChain(p.m, p.n, p.k, p.a_type, p.b_type, layers=8)
        build = plan_build(p.m, p.n, p.k, p.a_type, p.b_type, GPU)
        for extra in EXTRA_CLOCKS:
            for overlap, prefetch in EVENT_SETTINGS:
                setting = OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
                kind = describe(p, build, extra)
                kind |= {"overlap_ratio": overlap, "prefetch_ratio": prefetch}
                for row in layer_events_us(chain, build, setting, PreviousSpec(extra_clocks=extra)):
                    yield kind | row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--shapes",
        choices=SHAPES,
        default="main",
        help="main: with events; other: what the model is fitted to besides; test: what it never is",
    )
    args = parser.parse_args()
    output = args.output
    projections, lengths = SHAPES[args.shapes]
    output.mkdir(parents=True, exist_ok=True)
    rows = []
    start = time.perf_counter()
    for projection in projections:
        rows += surface_rows(projection, extra_clocks=lengths)
        torch.cuda.empty_cache()
        # Written after each projection: a run that ends early leaves whole surfaces.
        pd.DataFrame(rows).to_csv(output / "overlap_surfaces.csv.gz", index=False, float_format="%.4f")
        best = min((r for r in rows if r["name"] == projection.name), key=lambda r: r["layer_us"])
        print(f"{time.perf_counter() - start:.0f} s", best, flush=True)
    if args.shapes == "main":
        events = pd.DataFrame(event_rows())
        events.to_csv(output / "overlap_events.csv.gz", index=False, float_format="%.3f")
    card = torch.cuda.get_device_properties(0)
    device = {"gpu": card.name, "sm_count": card.multi_processor_count, "cuda": torch.version.cuda}
    environment = new_environment(
        device, "overlap_surfaces", {"layers": 16, "replays": REPLAYS, "rounds": ROUNDS}, len(rows)
    )
    write_environment(output / "overlap_surfaces.json", environment)


if __name__ == "__main__":
    main()
