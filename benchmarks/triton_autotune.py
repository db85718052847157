"""Triton's autotuner with every configuration, and with the few that the model picks: tuning time and speed.

    python benchmarks/triton_autotune.py --gpu h200 --top-k 4 --output DIR

Needs a Hopper (or later) GPU, torch and Triton. Every configuration is compiled in its own process first, so
that compile seconds are those of one configuration alone; the tuning runs then find their kernels in Triton's
disk cache. A tuning time is the autotuner's own wall time plus the compile seconds of the configurations that
it touched for the first time. Both tuners share one benchmarking function. The winners are timed again side
by side, in alternation, to compare their speed. `measurements.csv` holds the time of every configuration.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
import triton

from gemm_model.bench.triton import allocate_workspace, matmul_persistent
from gemm_model.core.files import atomic_path, atomic_write
from gemm_model.integrations.triton import prune_configs_by
from gemm_model.models import DEFAULT_MODEL

SHAPES = (
    (128, 4096, 4096), (256, 4096, 14336), (512, 4096, 4096), (512, 14336, 4096), (1024, 1024, 1024),
    (1024, 4096, 4096), (1024, 8192, 1024), (1536, 3072, 2048), (2048, 2048, 2048), (2048, 4096, 14336),
    (2048, 8192, 8192), (2304, 2304, 4096), (3072, 3072, 3072), (4096, 4096, 4096), (4096, 4096, 512),
    (4096, 14336, 4096), (4096, 7168, 2048), (4096, 2112, 7168), (5120, 5120, 5120), (8192, 1024, 8192),
    (8192, 8192, 1024), (6144, 6144, 6144), (8192, 4096, 4096), (8192, 8192, 8192),
)  # fmt: skip
"""m, n, k: square matrices, layers of language models, and a few between."""

TILES = ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128))
BLOCK_K = 64
GROUPS = (1, 8)


def configurations() -> list[triton.Config]:
    """Tiles, warps, stages and groups: what a Hopper matmul in Triton is commonly tuned over."""
    result = []
    for (block_m, block_n), stages, group in product(TILES, (3, 4), GROUPS):
        meta = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": BLOCK_K, "GROUP_M": group}
        warps = (8,) if block_m * block_n > 128 * 128 else (4, 8) if block_m * block_n == 128 * 128 else (4,)
        result += [triton.Config(meta, num_warps=count, num_stages=stages) for count in warps]
        if block_m * block_n <= 64 * 128 and stages == 4:
            result.append(triton.Config(meta, num_warps=4, num_stages=6))
    return result


def label(config: triton.Config) -> str:
    meta = config.kwargs
    tile = f"{meta['BLOCK_M']}x{meta['BLOCK_N']}x{meta['BLOCK_K']}"
    return f"{tile} group {meta['GROUP_M']} warps {config.num_warps} stages {config.num_stages}"


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(m + 3 * n + 7 * k)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16, generator=generator)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16, generator=generator)
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def sm_count() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def launch(kernel: object, tensors: tuple[torch.Tensor, ...], **meta: object) -> None:
    a, b, c = tensors
    (m, k), n = a.shape, b.shape[0]
    kernel[(sm_count(),)](a, b, c, m, n, k, WARP_SPECIALIZE=False, **meta)


def start_worker() -> None:
    """Whatever a process does once (context, launcher) must not count as compile time."""
    triton.set_allocator(allocate_workspace)
    meta = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 1}
    launch(matmul_persistent, operands(256, 256, 256), **meta, num_warps=4, num_stages=2)
    torch.cuda.synchronize()


def compile_seconds(index: int) -> tuple[int, float, str]:
    """Compile one configuration into the disk cache and time that; an error is a text."""
    config = configurations()[index]
    tensors = operands(256, 256, 256)
    torch.cuda.synchronize()
    started = time.perf_counter()
    try:
        launch(matmul_persistent, tensors, **config.all_kwargs())
        torch.cuda.synchronize()
        problem = ""
    except (RuntimeError, triton.CompilationError, triton.OutOfResources) as error:
        problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return index, time.perf_counter() - started, problem


def compiled(configs: list[triton.Config], processes: int) -> dict[str, float]:
    """Compile seconds by configuration, each from an empty cache."""
    seconds = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=start_worker) as pool:
        for index, duration, problem in pool.map(compile_seconds, range(len(configs))):
            seconds[label(configs[index])] = duration
            if problem:
                print(f"{label(configs[index])}: {problem}")
    return seconds


def quick_bench(call: object, quantiles: tuple[float, ...]) -> list[float]:
    """The benchmarking function of both tuners: about 30 ms of GPU time for each configuration."""
    return triton.testing.do_bench(call, warmup=5, rep=25, quantiles=quantiles)


def tuned(configs: list[triton.Config], prune: dict | None, seconds: dict[str, float]) -> list[dict]:
    """Autotune every shape with a fresh tuner; compile seconds are counted when a kernel is first touched."""
    rows = []
    touched: set[str] = set()
    tuner = triton.autotune(configs, key=["M", "N", "K"], prune_configs_by=prune, do_bench=quick_bench)(
        matmul_persistent
    )
    for shape in SHAPES:
        tensors = operands(*shape)
        torch.cuda.synchronize()
        started = time.perf_counter()
        launch(tuner, tensors)
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - started
        timed = {label(config): times[0] for config, times in tuner.configs_timings.items()}
        alone_s = sum(seconds[name] for name in timed)
        first_s = sum(seconds[name] for name in timed if name not in touched)
        touched |= timed.keys()
        a, b, c = tensors
        error = (c.float() - a.float() @ b.float().T).abs().max().item() / shape[2] ** 0.5
        rows.append(
            {
                "shape": shape,
                "best": tuner.best_config,
                "timings_ms": timed,
                "wall_s": wall_s,
                "compile_alone_s": alone_s,
                "compile_first_s": first_s,
                "error": error,
            }
        )
    return rows


def side_by_side(shape: tuple[int, int, int], chosen: list[triton.Config], rounds: int = 5) -> list[float]:
    """Median time in us of some configurations, timed in alternation."""
    tensors = operands(*shape)
    times: list[list[float]] = [[] for _ in chosen]
    for _ in range(rounds):
        for index, config in enumerate(chosen):
            call = lambda config=config: launch(matmul_persistent, tensors, **config.all_kwargs())  # noqa: E731
            times[index].append(1e3 * triton.testing.do_bench(call, warmup=3, rep=15, return_mode="median"))
    return [sorted(values)[len(values) // 2] for values in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    triton.set_allocator(allocate_workspace)
    configs = configurations()
    seconds = compiled(configs, args.processes)
    print(f"{len(configs)} configurations, compile {sum(seconds.values()):.1f} s", flush=True)

    prune = prune_configs_by(
        args.gpu, top_k=args.top_k, model=args.model, dtype="bf16", output_tile_in_smem=True
    )
    # The pruned tuner runs first, so that a card that warms up would count against it, not for it.
    pruned = tuned(configs, prune, seconds)
    print(f"pruned tuning: {sum(row['wall_s'] for row in pruned):.1f} s", flush=True)
    full = tuned(configs, None, seconds)
    print(f"full tuning: {sum(row['wall_s'] for row in full):.1f} s", flush=True)

    rows, measurements = [], []
    for ours, everything in zip(pruned, full, strict=True):
        m, n, k = ours["shape"]
        by_model_us, by_all_us = side_by_side((m, n, k), [ours["best"], everything["best"]])
        if label(ours["best"]) == label(everything["best"]):
            by_model_us = by_all_us
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "top_k": args.top_k,
                "configs": len(configs),
                "pruned_best": label(ours["best"]),
                "full_best": label(everything["best"]),
                "pruned_us": by_model_us,
                "full_us": by_all_us,
                "speed_kept": by_all_us / by_model_us,
                "pruned_bench_s": ours["wall_s"],
                "full_bench_s": everything["wall_s"],
                "pruned_compile_first_s": ours["compile_first_s"],
                "full_compile_first_s": everything["compile_first_s"],
                "pruned_compile_alone_s": ours["compile_alone_s"],
                "full_compile_alone_s": everything["compile_alone_s"],
                "max_error": max(ours["error"], everything["error"]),
            }
        )
        for config in configs:
            time_ms = everything["timings_ms"].get(label(config), float("inf"))
            measurements.append(measurement((m, n, k), config, time_ms, seconds[label(config)]))
    table = pd.DataFrame(rows)
    with atomic_path(args.output / "tuning.csv") as path:
        table.to_csv(path, index=False)
    with atomic_path(args.output / "measurements.csv") as path:
        pd.DataFrame(measurements).to_csv(path, index=False)
    summary = summary_of(table, seconds)
    atomic_write(args.output / "summary.json", json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))


def measurement(
    shape: tuple[int, int, int], config: triton.Config, time_ms: float, compile_s: float
) -> dict[str, object]:
    """A row in the columns of this package's tables."""
    m, n, k = shape
    ran = time_ms < float("inf")
    return {
        "gpu": torch.cuda.get_device_name(),
        "kernel": "triton",
        "in_dtype": "bf16",
        "acc_dtype": "fp32",
        "out_dtype": "bf16",
        "cta_m": config.kwargs["BLOCK_M"],
        "cta_n": config.kwargs["BLOCK_N"],
        "cluster_m": 1,
        "cluster_n": 1,
        "m": m,
        "n": n,
        "k": k,
        "runtime_us": 1e3 * time_ms if ran else "",
        "cta_k": config.kwargs["BLOCK_K"],
        "stages": config.num_stages,
        "schedule": "cooperative",
        "raster": "along_m",
        "swizzle": config.kwargs["GROUP_M"],
        "num_warps": config.num_warps,
        "compile_s": compile_s,
        "disposition": "ok" if ran else "launch_failed",
    }


def summary_of(table: pd.DataFrame, seconds: dict[str, float]) -> dict[str, object]:
    totals = table.sum(numeric_only=True)
    alone = [totals[f"{who}_bench_s"] + totals[f"{who}_compile_alone_s"] for who in ("full", "pruned")]
    shared = [totals[f"{who}_bench_s"] + totals[f"{who}_compile_first_s"] for who in ("full", "pruned")]
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "shapes": len(table),
        "configs": len(seconds),
        "top_k": int(table["top_k"].iloc[0]),
        "compile_s_of_all_configs": sum(seconds.values()),
        "speed_kept_mean": table["speed_kept"].mean(),
        "speed_kept_min": table["speed_kept"].min(),
        "bench_only_s": {"full": totals["full_bench_s"], "pruned": totals["pruned_bench_s"]},
        "times_less_bench_only": totals["full_bench_s"] / totals["pruned_bench_s"],
        "each_shape_from_an_empty_cache_s": {"full": alone[0], "pruned": alone[1]},
        "times_less_from_an_empty_cache": alone[0] / alone[1],
        "all_shapes_with_one_cache_s": {"full": shared[0], "pruned": shared[1]},
        "times_less_with_one_cache": shared[0] / shared[1],
        "max_error": table["max_error"].max(),
    }


if __name__ == "__main__":
    main()
