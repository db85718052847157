"""Measure the ladder of CUDA-core kernels beside cuBLAS fp32 (tf32 off): times, clocks and hardware counters.

    python benchmarks/simt_ladder.py --output data/measurements/h200/simt.csv.gz

Every kernel is first checked against an fp64 product. Times are medians of single launches from a card that
rested. Where `ncu` is on the PATH, the counters of one launch of each kernel at the first size are added.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import torch

from gemm_model.bench.provider import Operands
from gemm_model.bench.row_log import package_versions, timestamp
from gemm_model.bench.simt.ladder import LADDER
from gemm_model.bench.simt.provider import SimtProvider, compiled_path, load
from gemm_model.core.files import atomic_path, atomic_write
from gemm_model.core.problem import GemmProblem

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 8192), (3072, 3072, 3072), (4096, 8192, 1024))
CHECK_SHAPE = (512, 768, 192)
LARGEST_ERROR = 1e-5
"""Relative error of an fp32 sum of a few hundred products stays far below this."""
REST_S = 0.12
TIMED_S = 0.03
COUNTERS = {
    "sm_cycles": "sm__cycles_elapsed.max",
    "duration_ns": "gpu__time_duration.sum",
    "instructions": "smsp__inst_executed.sum",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fma_instructions": "smsp__inst_executed_pipe_fma.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "wavefront_pct": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "smem_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_read_bytes": "dram__bytes_read.sum",
    "warps_active": "sm__warps_active.avg.per_cycle_active",
}
COLUMNS = (
    *("gpu", "kernel", "rung", "cta_m", "cta_n", "cta_k", "thread_m", "thread_n", "lanes_m", "interleaved"),
    *("stages", "registers_per_thread", "local_bytes_per_thread", "ctas_per_sm", "m", "n", "k"),
    *("runtime_us", "min_us", "launches", "tflops", "sm_mhz", "power_w", "relative_error"),
    *COUNTERS,
)
CUBLAS = "cublas"
KERNEL_NAMES = "regex:naive|shared_tile|register_tile|pipelined|gemm"
"""The ladder's kernels and cuBLAS's, as ncu sees them; not torch's random numbers."""


def operands(m: int, n: int, k: int) -> Operands:
    generator = torch.Generator(device="cuda").manual_seed(20240229)
    a = torch.randn(m, k, device="cuda", generator=generator)
    b = torch.randn(n, k, device="cuda", generator=generator)
    return Operands(a=a, b=b, out=torch.full((m, n), float("nan"), device="cuda"))


def launches(shape: tuple[int, int, int], data: Operands) -> dict[str, Callable[[], object]]:
    """cuBLAS and every kernel of the ladder, ready to launch."""
    provider = SimtProvider()
    problem = GemmProblem.of(*shape, "fp32")
    found: dict[str, Callable[[], object]] = {CUBLAS: lambda: torch.mm(data.a, data.b.mT, out=data.out)}
    return found | {kernel.name: provider.prepare(problem, kernel.config, data) for kernel in LADDER}


def checked_errors() -> dict[str, float]:
    """Relative error of each kernel against fp64; exits where one is wrong."""
    data = operands(*CHECK_SHAPE)
    reference = data.a.double() @ data.b.double().mT
    errors = {}
    for name, launch in launches(CHECK_SHAPE, data).items():
        data.out.fill_(float("nan"))
        launch()
        errors[name] = float((data.out.double() - reference).norm() / reference.norm())
        if not errors[name] < LARGEST_ERROR:
            sys.exit(f"{name}: relative error {errors[name]:.1e}; expected less than {LARGEST_ERROR:.0e}")
    return errors


class Sampler:
    """SM clock and power, read while kernels run."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def during(self, work: Callable[[], None]) -> tuple[float, float]:
        """Run `work` and return the median clock in MHz and the last power in W."""
        clocks, watts, over = [], [], threading.Event()

        def read() -> None:
            while not over.is_set():
                clocks.append(pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM))
                watts.append(pynvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3)
                time.sleep(0.003)

        reader = threading.Thread(target=read)
        reader.start()
        work()
        over.set()
        reader.join()
        return statistics.median(clocks[len(clocks) // 2 :]), watts[-1]


def timed(launch: Callable[[], object], sampler: Sampler) -> dict[str, float]:
    """Median and least time of single launches after a rest, with clock and power."""

    def one() -> float:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        return 1e3 * float(start.elapsed_time(stop))

    time.sleep(REST_S)
    estimate_us = one()
    samples: list[float] = []

    def repeat() -> None:
        samples.extend(one() for _ in range(max(1, min(32, int(1e6 * TIMED_S / estimate_us)))))

    clock_mhz, power_w = sampler.during(repeat)
    return {
        "runtime_us": round(statistics.median(samples), 2),
        "min_us": round(min(samples), 2),
        "launches": len(samples),
        "sm_mhz": clock_mhz,
        "power_w": round(power_w, 1),
    }


def counters(shape: tuple[int, int, int]) -> dict[str, dict[str, float]]:
    """Hardware counters of one launch of each kernel, by running this script under ncu; {} without ncu."""
    if shutil.which("ncu") is None:
        return {}
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["-k", KERNEL_NAMES, "--metrics", ",".join(COUNTERS.values())]
    command += [sys.executable, __file__, "--launch-once", "x".join(map(str, shape))]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode or '"ID"' not in answer.stdout:
        sys.exit(f"ncu failed: {answer.stderr.strip()[:500]}")
    rows = list(csv.DictReader(io.StringIO(answer.stdout[answer.stdout.index('"ID"') :])))[1:]
    names = [CUBLAS, *(kernel.name for kernel in LADDER)]
    if len(rows) != len(names):
        sys.exit(f"ncu saw {len(rows)} kernels; expected {len(names)}")
    return {
        name: {column: float(row[metric].replace(",", "")) for column, metric in COUNTERS.items()}
        for name, row in zip(names, rows, strict=True)
    }


def described() -> dict[str, dict[str, object]]:
    """Tiles and compiled resources of every kernel."""
    capability = torch.cuda.get_device_capability()
    found: dict[str, dict[str, object]] = {CUBLAS: {"rung": CUBLAS}}
    for kernel in LADDER:
        path = compiled_path(kernel, capability)
        taken = load(path).resources(kernel.threads, kernel.dynamic_smem_bytes)
        tiles = ("rung", "cta_m", "cta_n", "cta_k", "thread_m", "thread_n", "lanes_m", "stages")
        about: dict[str, object] = {name: getattr(kernel, name) for name in tiles}
        about |= {"interleaved": int(kernel.interleaved)}
        found[kernel.name] = about | {name: taken[name] for name in COLUMNS if name in taken}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="table to write (.csv.gz), its environment beside it")
    parser.add_argument("--launch-once", help="only launch every kernel once at MxNxK, for a profiler")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if args.launch_once:
        shape = tuple(int(word) for word in args.launch_once.split("x"))
        for launch in launches(shape, operands(*shape)).values():
            launch()
            torch.cuda.synchronize()
        return
    errors, sampler, gpu = checked_errors(), Sampler(), torch.cuda.get_device_name()
    print(f"{len(errors)} kernels agree with fp64")
    seen, about = counters(SHAPES[0]), described()
    rows = []
    for m, n, k in SHAPES:
        for name, launch in launches((m, n, k), operands(m, n, k)).items():
            row = {"gpu": gpu, "kernel": name, "m": m, "n": n, "k": k}
            row |= {"relative_error": f"{errors[name]:.2e}"}
            row |= about[name] | timed(launch, sampler)
            row["tflops"] = round(2e-6 * m * n * k / row["runtime_us"], 3)
            if (m, n, k) == SHAPES[0]:
                row |= seen.get(name, {})
            rows.append(row)
            state = f"{row['sm_mhz']:.0f} MHz {row['power_w']} W"
            print(f"{m}x{n}x{k} {name:45s} {row['tflops']:7.2f} TFLOP/s {state}", flush=True)
    with atomic_path(args.output) as temporary, gzip.open(temporary, "wt", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    environment = {
        "gpu_name": gpu,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": torch.version.cuda,
        "packages": package_versions(),
        "command": f"{Path(__file__).name} --output {args.output.name}",
        "finished": timestamp(),
        "settings": {"rest_s": REST_S, "timed_s": TIMED_S, "check_shape": CHECK_SHAPE, "tf32": False},
        "counters": COUNTERS,
    }
    beside = args.output.with_name(args.output.name.removesuffix(".csv.gz") + ".json")
    atomic_write(beside, json.dumps(environment, indent=1) + "\n")


if __name__ == "__main__":
    main()
