"""How fast candidates are ranked: a new shape, a shape seen before, a table of shapes.

python benchmarks/rank_speed.py --shapes 10000
"""

from __future__ import annotations

import argparse
import os
import platform
from functools import partial
from time import perf_counter, process_time

import numpy as np
import pandas as pd

from gemm_model.choice.selection import Ranker, rank
from gemm_model.choice.table_ranking import problems_of_table, rank_table
from gemm_model.core.problem import GemmProblem
from gemm_model.models import DEFAULT_MODEL

NEW_SHAPES = 200
CALLS = 20_000
CHECKED = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--shapes", type=int, default=10_000)
    parser.add_argument("--residual", default="auto", help="'off' ranks by the formulas alone")
    args = parser.parse_args()
    print(f"{args.model} on {args.gpu}; {os.cpu_count()} cores, {platform.machine()}, numpy {np.__version__}")
    options = {} if args.residual == "auto" else {"residual": args.residual}
    ranker = Ranker(args.gpu, model=args.model, options=options)

    started = perf_counter()
    first = ranker.rank(GemmProblem.of(4096, 4096, 4096))
    first_ms = 1e3 * (perf_counter() - started)
    print(f"first rank of a type ({first.candidates} candidates)  {first_ms:8.2f} ms")

    wall, own = [], []
    for size in range(NEW_SHAPES):
        problem = GemmProblem.of(1000 + 8 * size, 4096, 4096)
        started, started_own = perf_counter(), process_time()
        ranker.rank(problem)
        wall.append(perf_counter() - started)
        own.append(process_time() - started_own)
    middle, late = np.percentile(wall, [50, 95])
    print(f"rank of a new shape, median and p95      {1e3 * middle:8.2f} ms  {1e3 * late:.2f} ms")
    print(f"  CPU time of its process, median        {1e3 * np.median(own):8.2f} ms")

    problem = GemmProblem.of(4096, 4096, 4096)
    seen = partial(rank, gpu=args.gpu, model=args.model, options=options)
    seen(problem, top_k=8)
    started = perf_counter()
    for _ in range(CALLS):
        seen(problem, top_k=8)
    print(f"rank of a shape seen before              {1e6 * (perf_counter() - started) / CALLS:8.2f} us")

    draw = np.random.default_rng(0)
    sizes = np.exp2(draw.uniform(4, 14, (args.shapes, 3)) - 3).astype(int) * 8 + 8
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"])
    started, started_own = perf_counter(), process_time()
    table = rank_table(frame, ranker)
    print(f"table of {args.shapes} shapes                    {perf_counter() - started:8.2f} s")
    print(f"  CPU time of its process                {process_time() - started_own:8.2f} s")

    problems = problems_of_table(frame.head(CHECKED))
    full = np.array([ranker.rank(problem, 1).best.prediction.runtime_us for problem in problems])
    loss = table["predicted_us"].to_numpy()[:CHECKED] / full - 1
    print(f"the table's choice against all candidates, {CHECKED} shapes: ", end="")
    print(f"mean loss {loss.mean():.2e}, worst {loss.max():.2e}")


if __name__ == "__main__":
    main()
