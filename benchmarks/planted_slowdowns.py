"""Kernels with a planted slowdown, timed and counted: what `explain --ncu` has to tell by name.

    python benchmarks/planted_slowdowns.py run --output results/planted
    python benchmarks/planted_slowdowns.py judge --output judged.csv

The kernels are QuACK's on an H200, drawn at random, with faults whose effect is predicted to be above 6 %. `run`
measures those of data/measurements/h200/planted.csv.gz, or of another table, again; it needs a Hopper GPU, QuACK
and NVIDIA's ncu. Each row holds the fault ('' of the kernel without one) and the number of its kernel; three of
ten kernels of the first draw are `held_out`, and all of the second. `judge` names the faults of the shipped rows
that are at least 5 % slower for it, and of kernels without one, and prints how many are right.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from measured import MEASUREMENTS

from gemm_model.bench.rows import row_from_columns
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig

TABLES = MEASUREMENTS / "h200"
HALF_OF_THE_SMS = "planted_slowdowns:HalfOfTheSms"
SLOWER = 1.05
"""Least measured time over that without the fault [1]; judged cases; chosen: others are too small to judge."""
FAULTS = (
    *("half_stages", "no_multicast", "bad_raster", "odd_pitch", "spills", "half_sms", "cold_l2"),
    "slow_epilogue",
)


def rows_of(path: Path) -> list[dict[str, str]]:
    return pd.read_csv(path, keep_default_na=False, dtype=str).to_dict("records")


def run(plan_path: Path, output: Path, seconds: float) -> None:
    """Times of all rows, then counters of those with a fault; judged rows are written as they come."""
    from gemm_model.bench import runner
    from gemm_model.bench.provider import load_provider
    from gemm_model.bench.row_log import KeptTable
    from gemm_model.bench.worker_process import WorkerProcess

    # A shipped table also holds the counters of its rows, which are measured again below.
    cells = [row for row in rows_of(plan_path) if row["regime"] in ("", "burst")]
    random.Random(1).shuffle(cells)
    worker = WorkerProcess(runner.TORCH_DEVICE)
    card = runner.Card(worker)
    counted = [each for each in cells if each["fault"] in FAULTS]
    counted += [each for each in cells if each["fault"] == ""]
    for regime, some in (("burst", cells), ("counters", counted)):
        rows = [row_from_columns(each, regime=regime) for each in some]
        share = 0.45 if regime == "burst" else 0.65
        options = runner.RunOptions(
            compile_jobs=runner.default_compile_jobs(), time_budget_s=share * seconds, rows_per_profiler=70
        )
        providers = {name: load_provider(name) for name in sorted({row.kernel for row in rows})}
        output.parent.mkdir(parents=True, exist_ok=True)
        kept = KeptTable(output.with_name(f"{output.name}_{regime}.csv"), rows, card.description)
        cards = {card.description["gpu_uuid"]: card.description}
        with kept.begun({}):
            sweep = runner.Sweep(rows, kept, cards, runner.crew_of(card), options, lambda *_: None)
            sweep.go(providers if regime == "burst" else {})
        print(regime, len(kept.done), "of", len(rows), dict(sweep.dispositions), flush=True)
        table = kept.path
        timed = [
            {**row, **{name: some[int(row["order"])][name] for name in ("fault", "number", "held_out")}}
            for row in rows_of(table)
        ]
        pd.DataFrame(timed).to_csv(table, index=False)
    worker.close()


def judge(output: Path) -> None:
    """Each case with its fault and the suspects of its counts; the shares that are right."""
    every = pd.DataFrame(rows_of(TABLES / "planted.csv.gz"))
    every = every[every["disposition"] == "ok"]
    burst, counted = (every[every["regime"] == regime] for regime in ("burst", "counters"))
    draws = burst.groupby(["campaign", "fault", "number"])
    times_us = draws["runtime_us"].first().astype(float)
    bases = burst[burst["fault"] == ""].set_index(["campaign", "number"])
    judged = []
    for _, row in counted.iterrows():
        draw, fault, number = row["campaign"].removeprefix("counters_"), row["fault"], row["number"]
        if fault not in ("", *FAULTS):
            continue
        before = "warm" if fault == "cold_l2" else ""
        slower = times_us[draw, fault, number] / times_us[draw, before, number]
        if slower >= SLOWER or not fault:
            names = _named(bases.loc[(draw, number)].to_dict(), row)
            judged.append(
                {
                    "set": "held out" if row["held_out"] == "1" else "design",
                    "kernel": bases.loc[(draw, number), "kernel"],
                    "fault": fault or "none",
                    "slower": slower,
                    "first": names[0] == fault,
                    "first two": fault in names[:2],
                    "named": names[0],
                }
            )
    frame = pd.DataFrame(judged)
    frame.to_csv(output, index=False)
    frame["planted"] = frame["fault"] != "none"
    for by in (["kernel", "set", "planted"], ["kernel", "set", "fault"]):
        print(frame.groupby(by)[["first", "first two"]].agg(["size", "mean"]).round(3).to_string())


def _named(base: dict[str, str], row: Any) -> list[str]:
    """Names of the suspects, '' first where no fault is named, of the kernel that was meant."""
    from gemm_model.integrations.profile import METRICS, CountedKernel, beside
    from gemm_model.kernel_model.question import World

    meant = row_from_columns(base, regime="counters")
    l2 = "warm" if row["fault"] == "cold_l2" else "cold"
    options = {"regime": "counters", "l2": l2}
    assert isinstance(meant.config, KernelConfig)
    world = World(problem=meant.problem, config=meant.config, gpu=load_gpu("h200"), options=options)
    same = ("duration_us", "sm_cycles", "dram_read_bytes", "smem_bytes_per_cta")
    per_sector = METRICS["lts__t_sectors_op_read.sum"][1]
    counted = {
        **{name: float(row[name]) for name in same},
        "l2_read_bytes": per_sector * float(row["l2_read_sectors"]),
        "l2_write_bytes": per_sector * float(row["l2_write_sectors"]),
        "ctas": math.prod(map(float, row["grid"].strip("()").split())),
    }
    found = beside(world, CountedKernel(name="", counted=counted))
    return [*([""] if found.fault is None else []), *(each.fault for each in found.suspects)]


def __getattr__(name: str) -> Any:
    """The provider of kernels on half of the SMs, which needs QuACK and torch."""
    if name != "HalfOfTheSms":
        raise AttributeError(name)
    from gemm_model.bench import quack

    class HalfOfTheSms(quack.QuackProvider):
        """QuACK's persistent kernels with half as many clusters as run at once."""

        name = HALF_OF_THE_SMS

        def kernel_key(self, problem: Any, config: Any) -> Any:
            return super().kernel_key(problem, replace(config, pdl=False))

        def compile(self, problem: Any, config: Any, compute_capability: tuple[int, int]) -> None:
            super().compile(problem, replace(config, pdl=False), compute_capability)

        def _prepared(self, problem: Any, config: Any, operands: Any) -> Any:
            capability = quack.torch.cuda.get_device_capability(operands.a.device)
            config = replace(config, pdl=False)
            found = self._kept(problem, config, lambda: quack._variant(problem, config, capability))
            clusters = quack.get_max_active_clusters(config.ctas_per_cluster, device_capacity=capability)
            scheduler = quack.quack_ffi.make_scheduler_args(clusters // 2, config.swizzle, None, None)
            constants = (found.constants[0], scheduler, *found.constants[2:])
            return partial(found.kernel, operands.a, operands.b, operands.out, None, *constants)

    return HalfOfTheSms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "judge"))
    parser.add_argument("--rows", type=Path, default=TABLES / "planted.csv.gz")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=220.0)
    arguments = parser.parse_args()
    if arguments.what == "judge":
        judge(arguments.output)
    else:
        run(arguments.rows, arguments.output, arguments.seconds)


if __name__ == "__main__":
    main()
