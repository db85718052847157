"""Speed of the pipeline's machinery against what it has to reach.

    python benchmarks/pipeline_speed.py

Exits with 1 where a figure misses its limit. Best of several runs, one process.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Iterator

import numpy as np

from gemm_model.commands.solve import kernels_on_gpu
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import SCHEDULES
from gemm_model.core.problem import GemmProblem
from gemm_model.pipeline.machine import PipelineKernel, load_machine, machine_names, workload
from gemm_model.pipeline.model import PipelineModel
from gemm_model.pipeline.steady_state import kernel_time, math_start
from gemm_model.solve.exact import solve_exact
from gemm_model.solve.smt import solve_smt
from gemm_model.timeline.simulator import simulate

TABLE_1 = ((1024, 1024, 1024), (1024, 512, 1024), (1024, 1024, 512), (1024, 512, 512), (512, 512, 512))


def best_of(runs: int, work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, number=1, repeat=runs))


def figures() -> list[tuple[str, float, float]]:
    """(what, seconds, limit in seconds), one row each."""
    return [*searches(), *simulations(), *closed_forms()]


def searches() -> Iterator[tuple[str, float, float]]:
    machines = [load_machine(name) for name in machine_names()]
    of_paper = [(problem, machine) for machine in machines for problem in TABLE_1]
    exact = max(best_of(5, lambda p=problem, m=machine: solve_exact(p, m)) for problem, machine in of_paper)
    yield "exact search, slowest of the paper's five problems on all machines", exact, 5e-3
    smt = max(best_of(3, lambda p=problem, m=machine: solve_smt(p, m)) for problem, machine in of_paper)
    yield "Z3 with its proof, slowest of the paper's five problems on all machines", smt, 2.0
    large = (16384, 16384, 16384)
    spent = max(best_of(5, lambda m=machine: solve_exact(large, m)) for machine in machines)
    yield "exact search, 16384^3, slowest machine", spent, 50e-3
    gpu = load_gpu("h200")
    for schedule in SCHEDULES[:2]:
        machine, allowed = kernels_on_gpu(gpu, PipelineModel(gpu), schedule, GemmProblem.of(*large))
        found = solve_exact(large, machine, allowed=allowed).candidates
        spent = best_of(5, lambda m=machine, a=allowed: solve_exact(large, m, allowed=a))
        yield f"exact search, 16384^3, H200 {schedule}, {found} tiles and rings", spent, 50e-3


def simulations() -> Iterator[tuple[str, float, float]]:
    kernel = PipelineKernel(m=1024, n=1024, k=1024, tile_m=64, tile_n=64, tile_k=32, stages=4)
    for name in ("balanced", "latency_bound"):
        machine = load_machine(name)
        spent = best_of(5, lambda m=machine: simulate(workload(m, kernel), m))
        yield f"event simulation of 1024^3 on {name}", spent, 50e-3


def closed_forms() -> Iterator[tuple[str, float, float]]:
    load, latency, math = np.random.default_rng(0).random((3, 1_000_000))
    spent = best_of(3, lambda: math_start(64.0, load, latency, math, 4.0))
    yield "a million recurrences of 64 k tiles in closed form", spent, 1.0
    machine = load_machine("balanced")
    for k in (1024, 1024 * 2**20):
        kernel = PipelineKernel(m=4096, n=4096, k=k, tile_m=128, tile_n=128, tile_k=64, stages=4)
        work = workload(machine, kernel)
        spent = best_of(20, lambda w=work: kernel_time(w, machine))
        yield f"closed form of one kernel with K = {k}", spent, 1e-3


def table_1() -> None:
    """The paper's five problems on a machine for which its tiles are optimal, and how long each way takes."""
    machine = load_machine("balanced")
    for problem in TABLE_1:
        best = solve_exact(problem, machine).best
        exact = best_of(10, lambda p=problem: solve_exact(p, machine))
        proof = best_of(3, lambda p=problem: solve_smt(p, machine))
        tile = f"{best.tile_m} x {best.tile_n} x {best.tile_k}"
        sizes = " | ".join(map(str, problem))
        print(f"| {sizes} | {tile} | {exact * 1e3:.2f} ms | {proof:.2f} s |", flush=True)


def main() -> int:
    table_1()
    missed = 0
    for what, seconds, limit in figures():
        verdict = "ok" if seconds < limit else "MISSED"
        missed += seconds >= limit
        print(f"{what:75} {seconds * 1e3:10.3f} ms  (limit {limit * 1e3:6.0f} ms)  {verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
