"""What 250 designed rows are worth: calibrations adapted to `quick` tables, judged by other tables.

    python benchmarks/quick_calibration.py
    python benchmarks/quick_calibration.py --draws 5

For each card the other card's numbers as they are, those adapted to this card's 250 rows and its own
description, without and with the share of the other card's residual that the 250 rows bear out, the shipped
calibration, and the shipped one with the descriptions that cards gave of themselves and with the datasheet's,
all without residual.
Shapes that the other card was not measured at are judged apart: its residual has not seen them.

With `--draws` as many sets of 250 rows are drawn at random from the first table in place of the designed
ones, and judged on all other shapes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.observations import observe
from gemm_model.calibration.run import Choices, calibrate
from gemm_model.calibration.tables import load_tables
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import Calibration, load_calibration
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.residual import Residual, corrected_us, features, load_residual, residual_beside
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import error_figures, top1_efficiency

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
CARDS = {
    "h100_sxm": ("h200", "characterized_second_card", ("burst", "repeat_card"), ("characterized",)),
    "h200": ("h100_sxm", "characterized_sixth_card", ("burst", "unseen"), ("characterized_fifth_card",)),
}
"""GPU -> the other one; its description by the card that measured `quick`; tables; further descriptions."""

DATASHEET = {
    "sm_clk_mhz": 1830.0,
    "mma_clk_share": 1.0,
    "l2_bytes": 50 * 2**20,
    "l2_read_gb_per_s": 5120 * 1.830,
    "l2_read_bytes_per_clk_per_sm": 64.0,
    "l2_read_bytes_per_clk_of_eight": None,
    "l2_write_gb_per_s": None,
    "l2_latency_clk": None,
    "l2_unwritten_share": 0.0,
    "dram_latency_ns": None,
    "profiler_quiet_tpcs": 0,
    "resident_clusters": {},
    "tpc_rounds": (),
    "idle_power_w": None,
}
"""What NVIDIA's datasheets and H100 whitepaper say of an H100 or H200 SXM where its description was measured:
the clock of the rates that are told, 5120 bytes a clock of L2 and 64 of an SM; nothing of the rest."""

TYPES, DRAWN_OF_EACH = ("bf16", "e4m3"), 125
Sizes = set[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is judged: a description, numbers, and a residual or none."""

    name: str
    gpu: GpuSpec
    calibration: Calibration
    residual: Residual | None = None


def described(gpu: str, name: str) -> GpuSpec:
    return load_gpu(str(MEASUREMENTS / gpu / f"{name}.yaml"))


def by_datasheet(gpu: GpuSpec) -> GpuSpec:
    """The card as its datasheet has it, DRAM at its peak rate."""
    return replace(gpu, dram_read_gb_per_s=gpu.dram_gb_per_s, **DATASHEET)


def adapted(gpu: str, rows: Path) -> Iterator[Candidate]:
    """The other card's numbers adapted to rows of this one, without and with a share of its residual."""
    other, own, _, _ = CARDS[gpu]
    donor, spec = load_calibration(f"{other}:quack"), described(gpu, own)
    assert donor.path is not None
    residual = load_residual(residual_beside(donor.path), donor)
    choices = Choices(donor=donor, donor_residual=residual, with_residual=False, shapes_only=True)
    quick = calibrate([rows], spec, choices)
    shares = ", ".join(f"{found.taken.share:.2f}" for found in quick.kinds.values() if found.taken)
    yield Candidate(f"{other} adapted to {rows.name}", spec, quick.calibration)
    yield Candidate(f"the same with {shares} of its residual", spec, quick.calibration, quick.residual)


def candidates(gpu: str) -> Iterator[Candidate]:
    """All that is judged on a card."""
    other, own, _, further = CARDS[gpu]
    shipped = load_calibration(f"{gpu}:quack")
    yield Candidate(f"numbers of {other}", load_gpu(gpu), load_calibration(f"{other}:quack"))
    yield from adapted(gpu, MEASUREMENTS / gpu / "quick.csv.gz")
    yield Candidate("shipped", load_gpu(gpu), shipped)
    yield Candidate("shipped, datasheet", by_datasheet(load_gpu(gpu)), shipped)
    for name in (own, *further):
        yield Candidate(f"shipped, {name}", described(gpu, name), shipped)


def sizes(frame: pd.DataFrame) -> list[tuple[int, int, int]]:
    return list(map(tuple, frame[["m", "n", "k"]].astype(float).astype(int).to_numpy().tolist()))


def measured_sizes(calibration: Calibration) -> Sizes:
    """Of the tables that a calibration was fitted to."""
    paths = [MEASUREMENTS / calibration.gpu / name for name in calibration.fitted_to["tables"]]
    return {size for path in paths for size in sizes(pd.read_csv(path, usecols=["m", "n", "k"]))}


def judge(table: Path, candidate: Candidate, known: Sizes, drawn: Sizes) -> Iterator[str]:
    """By rate class: rows, errors, and how much the first choice keeps, of all sizes that were not drawn, and
    of those that are not known either.
    """
    gpu = candidate.gpu
    family = family_of("quack", gpu)
    for kind, regimes in load_tables([table], gpu, family).by_kind.items():
        rows = observe(regimes["burst"], gpu, family)
        numbers = candidate.calibration.numbers_for(kind, family).without(family.absent_mechanisms)
        times = kernel_time(rows.shape, gpu, numbers)
        predicted_us = times.runtime_us
        if candidate.residual is not None and kind in candidate.residual.forests:
            told = candidate.residual.forests[kind].predict(features(rows.shape, times))
            predicted_us = corrected_us(predicted_us, told, times.floor_us)
        seen = rows.frame.assign(predicted_us=predicted_us, runtime_us=rows.runtime_us)
        of_row = sizes(seen)
        for what, left_out in (("", drawn), (" of new shapes", known | drawn)):
            part = seen[np.array([size not in left_out for size in of_row])]
            if len(part) and (left_out or not what):
                errors = error_figures(part["predicted_us"].to_numpy(), part["runtime_us"].to_numpy())
                kept = float(top1_efficiency(part).mean())
                yield (
                    f"{kind} {len(part)} rows{what}: {errors.mape:.2%}, p95 {errors.p95:.2%}, "
                    f"first choice {kept:.2%}"
                )


def draw(table: Path, seed: int, folder: Path) -> Path:
    """A table of rows drawn at random, so many of each type."""
    rows = pd.read_csv(table, dtype=str)
    parts = [rows[rows["in_dtype"] == name].sample(DRAWN_OF_EACH, random_state=seed) for name in TYPES]
    path = folder / f"draw {seed}.csv"
    pd.concat(parts).to_csv(path, index=False)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draws", type=int, default=0, help="sets drawn at random (default: the designed one)"
    )
    draws = parser.parse_args().draws
    for gpu, (other, _, tables, _) in CARDS.items():
        known = measured_sizes(load_calibration(f"{other}:quack"))
        with tempfile.TemporaryDirectory() as folder:
            drawn = [
                draw(MEASUREMENTS / gpu / f"{tables[0]}.csv.gz", seed, Path(folder)) for seed in range(draws)
            ]
            judged = [(each, set(sizes(pd.read_csv(path)))) for path in drawn for each in adapted(gpu, path)]
        for candidate, own_sizes in judged or [(each, set()) for each in candidates(gpu)]:
            for table in tables:
                path = MEASUREMENTS / gpu / f"{table}.csv.gz"
                found = "; ".join(judge(path, candidate, known, own_sizes))
                print(f"{gpu} {table}, {candidate.name}: {found}", flush=True)


if __name__ == "__main__":
    main()
