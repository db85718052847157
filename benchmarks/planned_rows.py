"""Error of a calibration against the number of its rows: planned, random, D-optimal, all rows of some shapes.

    python benchmarks/planned_rows.py [--splits 4] [--figure docs/img/planned-rows.svg]
    python benchmarks/planned_rows.py --pairs 16

For each split a quarter of the shapes of the H200's burst table is held out; rows are chosen from the others
by derivatives at the numbers' start values, fitted without a donor, and judged on the held-out shapes.
--pairs compares PLANNED planned rows with RANDOM random ones alone, split by split: splits differ by more
than the ways of choosing do, and so do random draws, of which each split takes the mean of DRAWS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from gemm_model.calibration.cross_validation import size_groups
from gemm_model.calibration.design import d_optimal, log_jacobian, planned
from gemm_model.calibration.fit import DEFAULT_FREE, fit
from gemm_model.calibration.numbers import calibration_numbers
from gemm_model.calibration.observations import Observations, observe
from gemm_model.calibration.tables import load_tables
from gemm_model.core.batch import FloatArray, IntArray
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.mechanisms import NUMBERS, kernel_numbers, start_values
from gemm_model.kernels.registry import family_of

TABLE = Path(__file__).parents[1] / "data" / "measurements" / "h200" / "burst.csv.gz"
GPU = load_gpu("h200")
FAMILY = family_of("quack", GPU)
COUNTS = (60, 125, 250, 500, 1000)
HELD_OUT_SHARE = 0.25
PLANNED, RANDOM, DRAWS = 500, 1000, 4
FREE = [name for name in DEFAULT_FREE if name.partition(".")[0] not in FAMILY.absent_mechanisms]


def derivatives(rows: Observations) -> FloatArray:
    known = dict(start_values())
    values = np.array([known[name] for name in FREE])
    low, high = (np.array([getattr(NUMBERS[name], end) for name in FREE]) for end in ("low", "high"))

    def log_times(moved: FloatArray) -> FloatArray:
        chosen = dict(zip(FREE, np.clip(moved, low, high).tolist(), strict=True))
        numbers = kernel_numbers(known | chosen).without(FAMILY.absent_mechanisms)
        return np.log(kernel_time(rows.shape, GPU, numbers).runtime_us)

    return log_jacobian(
        log_times,
        values,
        np.maximum(calibration_numbers().unknown_share * np.abs(values), 0.02 * (high - low)),
    )


def error(pool: Observations, chosen: IntArray, test: Observations) -> float:
    """MAPE in percent on the test rows of a fit to the chosen ones."""
    keep = np.zeros(len(pool), dtype=bool)
    keep[chosen] = True
    found = fit({"burst": pool.rows(keep, GPU)}, GPU, free=FREE, without=FAMILY.absent_mechanisms)
    times = kernel_time(test.shape, GPU, found.numbers.without(FAMILY.absent_mechanisms))
    return 100 * float(np.mean(np.abs(times.runtime_us / test.runtime_us - 1)))


def of_random_shapes(groups: IntArray, draw: np.random.Generator, count: int) -> IntArray:
    """All rows of random shapes, up to `count`."""
    order = draw.permutation(int(groups.max()) + 1)
    return np.concatenate([np.flatnonzero(groups == group) for group in order])[:count]


def split(rows: Observations, draw: np.random.Generator) -> tuple[Observations, Observations]:
    """The rows to be judged by and those to choose from, of other shapes."""
    groups = size_groups(rows)
    shapes = draw.permutation(int(groups.max()) + 1)
    held_out = np.isin(groups, shapes[: round(HELD_OUT_SHARE * len(shapes))])
    return rows.rows(held_out, GPU), rows.rows(~held_out, GPU)


def pair(rows: Observations, seed: int) -> tuple[float, float, float]:
    """Errors of PLANNED planned rows, of as many random ones and of RANDOM random ones; in %."""
    draw = np.random.default_rng(seed)
    test, pool = split(rows, draw)

    def random_rows(count: int) -> float:
        drawn = [draw.choice(len(pool), count, replace=False) for _ in range(DRAWS)]
        return float(np.mean([error(pool, chosen, test) for chosen in drawn]))

    by_plan = error(pool, planned(derivatives(pool), PLANNED), test)
    return by_plan, random_rows(PLANNED), random_rows(RANDOM)


def compare_pairs(kind: str, rows: Observations, splits: int) -> None:
    found = np.array([pair(rows, seed) for seed in range(splits)])
    means = found.mean(axis=0)
    print(
        f"{kind}, mean of {splits} splits: {PLANNED} planned {means[0]:.2f} %, "
        f"{PLANNED} random {means[1]:.2f}, {RANDOM} random {means[2]:.2f}"
    )
    for column, name in ((1, f"{PLANNED} random"), (2, f"{RANDOM} random")):
        less = found[:, 0] - found[:, column]
        print(f"  planned less {name}: {less.mean():+.3f} ({less.std(ddof=1) / splits**0.5:.3f})", flush=True)


def errors_of_split(rows: Observations, seed: int) -> dict[str, list[float]]:
    draw = np.random.default_rng(seed)
    test, pool = split(rows, draw)
    telling = derivatives(pool)

    @cache
    def extreme() -> IntArray:
        return d_optimal(telling, max(COUNTS))

    ways: dict[str, Callable[[int], IntArray]] = {
        "planned": lambda count: planned(telling, count),
        "random rows": lambda count: draw.choice(len(pool), count, replace=False),
        "all rows of random shapes": lambda count: of_random_shapes(size_groups(pool), draw, count),
        "D-optimal alone": lambda count: extreme()[:count],
    }
    return {name: [error(pool, choose(count), test) for count in COUNTS] for name, choose in ways.items()}


def draw_figure(means: dict[str, dict[str, FloatArray]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(means), figsize=(9, 3.6), sharey=True)
    for axis, (kind, curves) in zip(np.atleast_1d(axes), means.items(), strict=True):
        for name, curve in curves.items():
            axis.plot(COUNTS, curve, marker="o", label=name)
        axis.set(title=kind, xscale="log", xlabel="rows measured", xticks=COUNTS, xticklabels=COUNTS)
    np.atleast_1d(axes)[0].set(ylabel="MAPE on held-out shapes [%]", ylim=(3, 8))
    np.atleast_1d(axes)[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--pairs", type=int, metavar="SPLITS")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    means: dict[str, dict[str, FloatArray]] = {}
    for kind, regimes in load_tables([TABLE], GPU, FAMILY).by_kind.items():
        rows = observe(regimes["burst"], GPU, FAMILY)
        if args.pairs is not None:
            compare_pairs(kind, rows, args.pairs)
            continue
        found = [errors_of_split(rows, seed) for seed in range(args.splits)]
        means[kind] = {name: np.mean([each[name] for each in found], axis=0) for name in found[0]}
        spread = {name: np.std([each[name] for each in found], axis=0) for name in found[0]}
        print(
            f"{kind}: MAPE in % on held-out shapes, mean (and deviation) of {args.splits} splits", flush=True
        )
        print(f"{'rows':26}" + "".join(f"{count:>14}" for count in COUNTS))
        for name, curve in means[kind].items():
            cells = "".join(
                f"{value:8.2f} ({off:.2f})" for value, off in zip(curve, spread[name], strict=True)
            )
            print(f"{name:26}{cells}", flush=True)
    if args.figure is not None and means:
        draw_figure(means, args.figure)


if __name__ == "__main__":
    main()
