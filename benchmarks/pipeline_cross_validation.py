"""The full cross-validation of recurrence, event simulation, exact search and Z3.

    python benchmarks/pipeline_cross_validation.py [--smt 30] [--seed 0] [--machines NAME ...]

For each problem the exact search chooses tile and ring by the closed form; the recurrence, step by step, and
the event simulation then time that choice, and Z3 (on a sample: it takes a good part of a second) has to find
and prove the same one. Times and waiting have to be identical to the picosecond (the paper's section 3.3).

Problems whose chosen kernels give an SM the very same work (same tiles an SM, k tiles, ring and step times)
are timed by recurrence and simulation once: both are functions of that work alone.

M, N and K from 32 to 1024 in steps of 32 (32,768 problems) on every packaged machine; Z3 on the eight corners
and random problems, `--smt` of them for each machine. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import (
    PipelineKernel,
    PipelineMachine,
    Workload,
    load_machine,
    machine_names,
    workload,
)
from gemm_model.solve.exact import KERNEL_FIELDS, Choice, solve_exact
from gemm_model.solve.smt import solve_smt
from gemm_model.timeline.simulator import simulate

Problem = tuple[int, int, int]
SIZES = tuple(range(32, 1025, 32))
CORNERS = tuple((m, n, k) for m, n, k in product((SIZES[0], SIZES[-1]), repeat=3))
"""Where all sizes are the smallest or the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidation:
    """What was compared; `mismatches` are sentences and empty where all agreed."""

    problems: int
    distinct_works: int
    smt_problems: int
    mismatches: tuple[str, ...]


def all_problems() -> list[Problem]:
    """M, N, K from 32 to 1024, step 32."""
    return [(m, n, k) for m, n, k in product(SIZES, repeat=3)]


def sample_problems(count: int, seed: int) -> list[Problem]:
    """The corners, then as many random problems of `all_problems` as it takes to make `count`."""
    others = random.Random(seed).sample(all_problems(), count)
    return list(dict.fromkeys([*CORNERS, *others]))[: max(count, len(CORNERS))]


def cross_validate(
    machine: PipelineMachine, problems: Sequence[Problem], smt_problems: Sequence[Problem] = ()
) -> CrossValidation:
    """Compare all ways on the problems, and Z3 too on `smt_problems`."""
    timed: dict[Workload, tuple[int, int]] = {}
    mismatches: list[str] = []
    for problem in problems:
        best = solve_exact(problem, machine).best
        work = _work(machine, problem, best)
        if work not in timed:
            timed[work] = _simulated(machine, work, mismatches)
        if timed[work] != (best.time_ps, best.wait_ps):
            mismatches.append(
                f"{machine.name} {problem}: closed form {best.time_ps} ps, {best.wait_ps} ps waiting; "
                f"simulation {timed[work]}"
            )
    for problem in smt_problems:
        exact, proof = solve_exact(problem, machine).best, solve_smt(problem, machine)
        if not proof.proven or proof.best != exact:
            mismatches.append(f"{machine.name} {problem}: exact search {exact}, Z3 {proof.best}")
    return CrossValidation(
        problems=len(problems),
        distinct_works=len(timed),
        smt_problems=len(smt_problems),
        mismatches=tuple(mismatches),
    )


def _work(machine: PipelineMachine, problem: Problem, choice: Choice) -> Workload:
    """The work of the busiest SM; kernels with another number of CTAs elsewhere agree in it."""
    tile = {name: getattr(choice, name) for name in KERNEL_FIELDS}
    kernel = PipelineKernel(**dict(zip("mnk", problem, strict=True)), **tile)
    return replace(workload(machine, kernel).row(0), ctas=1.0, ctas_per_wave=1.0)


def _simulated(machine: PipelineMachine, work: Workload, mismatches: list[str]) -> tuple[int, int]:
    """Time and waiting by the event simulation, after the recurrence gave the same time."""
    timeline = simulate(work, machine)
    stepped = recurrence.run(work, machine).end
    if timeline.end != stepped:
        mismatches.append(f"{machine.name} {work}: recurrence {stepped} ps, simulation {timeline.end} ps")
    return int(timeline.end), int(timeline.consumer_wait())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smt", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machines", nargs="+", default=machine_names())
    args = parser.parse_args()
    differing = 0
    for name in args.machines:
        started = time.perf_counter()
        found = cross_validate(load_machine(name), all_problems(), sample_problems(args.smt, args.seed))
        differing += len(found.mismatches)
        print(
            f"{name:15} {found.problems} problems, {found.distinct_works} distinct works simulated, "
            f"{found.smt_problems} proven by Z3, {len(found.mismatches)} differences, "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
        for mismatch in found.mismatches[:5]:
            print(f"  {mismatch}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
