"""The full cross-validation of recurrence, event simulation, exact search and Z3.

    python benchmarks/pipeline_cross_validation.py [--smt 30] [--seed 0] [--machines NAME ...]

M, N and K from 32 to 1024 in steps of 32 (32,768 problems) on every packaged machine; Z3 on the eight corners
and random problems, `--smt` of them for each machine. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time

from gemm_model.pipeline.machine import load_machine, machine_names
from gemm_model.solve.cross_validation import all_problems, cross_validate, sample_problems


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
